"""Pipelines scored from sums, for rows in the containers that users have."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.model_selection as reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_search import assert_same_split_scores
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler

from random_examples import n_examples
from skfleet import estimators
from skfleet.engine import counting
from skfleet.model_selection import GridSearchCV

pytestmark = pytest.mark.usefixtures("one_thread")

N_ROWS = 200
GRID = {"ridge__alpha": [0.01, 10.0]}


def rows_of(seed, dtype, scale, shift):
    """Return numbers of a type."""
    numbers = np.random.default_rng(seed).normal(size=(N_ROWS, 3)) * scale + shift
    return {"float": numbers, "int": np.rint(numbers).astype(int), "bool": numbers > shift}[dtype]


def frame_of(numbers, kinds, seed, index, category):
    """Return numbers and categories as a frame, with an index that has duplicates."""
    frame = pd.DataFrame(numbers, columns=["a", "b", "c"]).assign(kind=kinds)
    if category is not None:
        frame["kind"] = frame["kind"].astype(category)
    if index == "odd":
        frame.index = np.random.default_rng(seed).integers(0, 50, N_ROWS)
    if index == "decimal":
        frame.index = np.arange(N_ROWS) / 3
    if index == "text":
        frame.index = [f"row {n}" for n in range(N_ROWS)]
    return frame


def chunks_of(cuts):
    """Return lengths of blocks between cuts; equal ones are empty blocks."""
    bounds = [0, *sorted(cuts), N_ROWS]
    return tuple(np.diff(bounds).tolist())


DRAWN = settings(
    max_examples=n_examples(6, 100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def steps_of(module):
    """Return a pipeline of numbers, of scikit-learn or of this library."""
    return make_pipeline(module.StandardScaler(), module.PolynomialFeatures(), module.Ridge())


class OfScikitLearn:
    StandardScaler, PolynomialFeatures, Ridge = StandardScaler, PolynomialFeatures, Ridge


@DRAWN
@given(
    dtype=st.sampled_from(["float", "int", "bool"]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    shift=st.sampled_from([0.0, 100.0]),
    cuts=st.lists(st.integers(0, N_ROWS), max_size=5),
    y_cuts=st.lists(st.integers(0, N_ROWS), max_size=3),
    has_unknown_lengths=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_dask_blocks_of_any_length(
    cluster_client, dtype, scale, shift, cuts, y_cuts, has_unknown_lengths, seed
):
    rows = rows_of(seed, dtype, scale, shift)
    y = np.random.default_rng(seed).normal(size=N_ROWS) + rows[:, 0]
    options = {"cv": KFold(3), "refit": False}
    expected = reference.GridSearchCV(steps_of(OfScikitLearn), GRID, **options).fit(rows, y)
    X_lazy = da.from_array(rows, chunks=(chunks_of(cuts), 3))
    y_lazy = da.from_array(y, chunks=(chunks_of(cuts if has_unknown_lengths else y_cuts),))
    if has_unknown_lengths:
        everything = da.ones(N_ROWS, chunks=(chunks_of(cuts),), dtype=bool)
        X_lazy, y_lazy = X_lazy[everything], y_lazy[everything]
    with cluster_client.as_current(), counting() as counts:
        search = GridSearchCV(steps_of(estimators), GRID, **options).fit(X_lazy, y_lazy)
    assert_same_split_scores(search, expected, 1e-9)
    if [use.refused for use in search.shared_fits_] == [None]:
        assert counts.passes == 1


@DRAWN
@given(
    dtype=st.sampled_from(["float", "int", "bool"]),
    index=st.sampled_from([None, "odd", "text", "decimal"]),
    category=st.sampled_from([None, "category", "string", object]),
    share=st.sampled_from([0.0, 0.1]),
    nullable=st.booleans(),
    n_partitions=st.none() | st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_frames_as_users_have_them(
    cluster_client, dtype, index, category, share, nullable, n_partitions, seed
):
    rng = np.random.default_rng(seed)
    numbers = rows_of(seed, dtype, 1.0, 3.0)
    frame = frame_of(numbers, rng.choice(["oak", "ash", "elm"], N_ROWS), seed, index, category)
    y = rng.normal(size=N_ROWS) + (frame["kind"] == "oak").to_numpy()
    if dtype == "float":
        frame["a"] = frame["a"].mask(rng.random(N_ROWS) < share)
        if nullable:
            frame["a"] = frame["a"].astype("Float64")
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["a", "b", "c"]), (encoder, ["kind"])
    )
    if dtype == "bool":  # which SimpleImputer refuses
        columns = make_column_transformer((encoder, ["kind"]), remainder=StandardScaler())
    pipeline = make_pipeline(columns, Ridge())
    options = {"cv": KFold(3), "refit": False}
    expected = reference.GridSearchCV(pipeline, GRID, **options).fit(frame, y)
    rows, targets = frame, pd.Series(y, index=frame.index)
    if n_partitions is not None and index is None:
        rows = dd.from_pandas(frame, npartitions=n_partitions)
        targets = dd.from_pandas(targets, npartitions=n_partitions)
    with cluster_client.as_current(), counting() as counts:
        search = GridSearchCV(pipeline, GRID, **options).fit(rows, targets)
    assert_same_split_scores(search, expected, 1e-9)
    assert search.timeline_.empty
    assert counts.passes == 1
