"""TargetEncoder on rows in every partition, as scikit-learn's; and its cross-fitting."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_partitions import (
    PARTITIONS,
    arranged,
    as_dask,
    check_like_reference,
    same_attributes,
    same_values,
)
from sklearn import config_context, preprocessing
from sklearn.base import clone
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    LeaveOneOut,
    PredefinedSplit,
    ShuffleSplit,
    StratifiedKFold,
)

from skfleet.engine import counting
from skfleet.estimators import preprocessing as ours

N = 60
SHUFFLED = KFold(4, shuffle=True, random_state=0)
STRATIFIED = StratifiedKFold(4, shuffle=True, random_state=0)


def frame():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "text": rng.choice(list("vwxyz"), N, p=[0.4, 0.3, 0.2, 0.08, 0.02]),
            "integer": rng.integers(0, 4, N),
            "category": pd.Categorical(rng.choice(["p", "q", "r"], N)),
        }
    )
    X.loc[::7, "category"] = np.nan
    return X


def target(kind):
    rng = np.random.default_rng(1)
    return {
        "binary": rng.integers(0, 2, N),
        "binary text": np.where(rng.random(N) > 0.5, "yes", "no").astype(object),
        "multiclass": rng.integers(5, 9, N),
        "multiclass floats": rng.integers(0, 3, N).astype(float),
        "continuous": rng.normal(size=N) + 1e3,
        "continuous at last": np.append(np.zeros(N - 1), 0.5),
        "constant": np.full(N, 2.5),
    }[kind]


KINDS = (
    "binary",
    "binary text",
    "multiclass",
    "multiclass floats",
    "continuous",
    "continuous at last",
    "constant",
)


def pair(**params):
    return ours.TargetEncoder(**params), preprocessing.TargetEncoder(**params)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("kind", ["multiclass", "continuous"])
def test_every_partition(kind, partition):
    y = target(kind)
    check_like_reference(*pair(), frame(), y, partition=partition, container="frame")
    if partition != "a block without values":
        X = np.random.default_rng(0).integers(0, 6, (N, 2))
        check_like_reference(*pair(smooth=3.0), X, y, partition=partition)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smooth", ["auto", 0, 2.5])
def test_targets(kind, smooth):
    check_like_reference(
        *pair(smooth=smooth), frame(), target(kind), partition="empty middle", container="frame"
    )


@pytest.mark.parametrize("target_type", ["continuous", "binary"])
def test_types_by_a_parameter(target_type):
    y = target("multiclass")
    check_like_reference(
        *pair(target_type=target_type), frame(), y, partition="empty last", container="frame"
    )


def test_single_precision_target():
    y = target("continuous").astype(np.float32) - 1000
    X = np.random.default_rng(0).integers(0, 3, (N, 2))
    a, b, *_ = check_like_reference(*pair(), X, y, partition="one block", rtol=1e-5, atol=1e-5)
    assert a.target_mean_.dtype == b.target_mean_.dtype == np.float32


def cross_fitted(encoder, X, y, lazy, lazy_y, **params):
    """Return ours and scikit-learn's cross-fitted rows, with the fitted encoders compared."""
    a, b = pair(**encoder)
    result = a.fit_transform(lazy, lazy_y, **params)
    expected = b.fit_transform(X, y, **params)
    same_attributes(a, b)
    assert isinstance(result, da.Array)
    assert result.shape == expected.shape
    return result.compute(scheduler="synchronous"), expected


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("kind", ["binary text", "continuous"])
def test_cross_fitting_in_every_partition(kind, partition):
    X, y = arranged(frame(), target(kind), partition)
    lazy, lazy_y = as_dask(X, partition), as_dask(y, partition)
    cv = SHUFFLED if kind == "continuous" else STRATIFIED
    same_values(*cross_fitted({"cv": cv}, lazy.compute(), y, lazy, lazy_y))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smooth", ["auto", 0, 2.5])
def test_cross_fitting_of_targets(kind, smooth):
    X, y = frame(), target(kind)
    lazy, lazy_y = as_dask(X, "empty middle"), as_dask(y, "empty middle")
    params = {"smooth": smooth, "cv": SHUFFLED}
    same_values(*cross_fitted(params, lazy.compute(), y, lazy, lazy_y))


@pytest.mark.parametrize(
    "cv", [KFold(3), StratifiedKFold(3), LeaveOneOut(), PredefinedSplit(np.arange(N) % 4)]
)
def test_splitters(cv):
    X, y = np.random.default_rng(0).integers(0, 4, (N, 2)), target("binary")
    lazy = da.from_array(X, chunks=(17, 1))
    params = {"cv": cv}
    same_values(*cross_fitted(params, X, y, lazy, y))


def test_folds_without_a_seed():
    X, y = np.random.default_rng(0).integers(0, 4, (N, 2)), target("binary")
    a, b = pair(cv=3)
    np.random.seed(0)  # noqa: NPY002 - the numbers that scikit-learn draws
    result = a.fit_transform(da.from_array(X, chunks=(17, 1)), y).compute()
    np.random.seed(0)  # noqa: NPY002
    same_values(result, b.fit_transform(X, y))


def test_deprecated_parameters_and_groups():
    X, y = np.random.default_rng(0).integers(0, 4, (N, 2)), target("continuous")
    lazy, lazy_y = da.from_array(X, chunks=(17, 2)), da.from_array(y, chunks=17)
    params = {"random_state": 3, "shuffle": True}
    with pytest.warns(FutureWarning, match="deprecated in version 1.9"):
        result, expected = cross_fitted(params, X, y, lazy, lazy_y)
    same_values(result, expected)
    groups = np.arange(N) // 6
    with pytest.raises(ValueError, match="enable_metadata_routing"):
        ours.TargetEncoder(cv=GroupKFold(3)).fit_transform(lazy, lazy_y, groups=groups)
    with config_context(enable_metadata_routing=True):
        same_values(*cross_fitted({"cv": GroupKFold(3)}, X, y, lazy, lazy_y, groups=groups))


def test_predefined_categories_and_unknown_ones():
    X = frame()[["text", "integer"]]
    lazy = dd.from_pandas(X, npartitions=4)
    categories = [["z", "x", "new", "y"], [0, 1, 2]]
    for kind in ("multiclass", "continuous"):
        y = target(kind)
        params = {"categories": categories, "cv": SHUFFLED}
        same_values(*cross_fitted(params, lazy.compute(), y, lazy, y))
        a, b = pair(categories=categories)
        new = X.iloc[:5].assign(integer=[9, 0, 1, 2, 9])
        a.fit(lazy, y), b.fit(lazy.compute(), y)
        result = a.transform(dd.from_pandas(new, npartitions=1))
        same_values(result.compute(), b.transform(new))


@pytest.mark.parametrize("kind", ["multiclass", "continuous"])
def test_frames_of_cross_fitted_rows(kind):
    X, y = frame(), target(kind)
    a, b = (encoder.set_output(transform="pandas") for encoder in pair(cv=SHUFFLED))
    result = a.fit_transform(dd.from_pandas(X, npartitions=3), y)
    assert isinstance(result, dd.DataFrame)
    pd.testing.assert_frame_equal(result.compute(), b.fit_transform(X, y))
    expected = b.fit_transform(X[["integer"]].to_numpy(), y)
    result = a.fit_transform(da.from_array(X[["integer"]].to_numpy(), chunks=(20, 1)), y)
    pd.testing.assert_frame_equal(result.compute().reset_index(drop=True), expected)


def test_columns_of_a_data_set_on_disk(tmp_path):
    """Dask reads several partitions as one, and more of them where it reads fewer columns."""
    X, y = frame()[["text", "integer"]], target("continuous")
    for i in range(12):
        rows = X.assign(y=y, unused=np.arange(N)).iloc[i * 5 : (i + 1) * 5]
        rows.to_parquet(tmp_path / f"{i:02d}.parquet")
    lazy = dd.read_parquet(tmp_path)
    columns = ["text", "integer"]
    same_values(*cross_fitted({"cv": SHUFFLED}, X, y, lazy[columns], lazy["y"]))


def test_missing_text_of_dask():
    X, y = frame()[["text"]], target("continuous")
    X.loc[::4, "text"] = None
    lazy = dd.from_pandas(X.astype("string"), npartitions=3)
    same_values(*cross_fitted({"cv": SHUFFLED}, X, y, lazy, y))


def test_numbers_of_passes():
    X, y = frame(), target("binary")
    lazy = dd.from_pandas(X, npartitions=3)
    for method, n_passes in (("fit", 1), ("fit_transform", 2)):
        with counting() as counts:
            getattr(ours.TargetEncoder(cv=STRATIFIED), method)(lazy, y)
        assert counts.passes == n_passes


@pytest.mark.parametrize(
    ("params", "y"),
    [
        ({"target_type": "multiclass"}, np.arange(N) % 2),
        ({"cv": ShuffleSplit(3, random_state=0)}, np.arange(N) % 2),
        ({"cv": 100}, np.arange(N) / 7),
        ({"smooth": -1}, np.arange(N) % 2),
        ({"categories": [["x"], ["y"], ["z"]]}, np.arange(N) % 2),
        ({}, np.array([[0.5, 1], [1, 2]] * (N // 2))),
        ({}, None),
        ({"target_type": "continuous"}, np.array(["x", "y"] * (N // 2), dtype=object)),
    ],
)
def test_errors_are_scikit_learns(params, y):
    X = np.random.default_rng(0).integers(0, 4, (N, 2))
    a, b = pair(**params)
    before = dict(vars(a))
    with pytest.raises((ValueError, IndexError)) as expected:
        b.fit_transform(X, y)
    lazy_y = None if y is None else da.from_array(y, chunks=(N, *y.shape[1:]))
    with pytest.raises(type(expected.value)) as error:
        a.fit_transform(da.from_array(X, chunks=(N, 2)), lazy_y)
    assert str(error.value) == str(expected.value)
    assert vars(a) == before


@settings(max_examples=30, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS), smooth=st.sampled_from(["auto", 1.0]))
def test_any_rows_in_any_cut(data, kind, smooth):
    seed, n = data.draw(st.integers(0, 999)), data.draw(st.integers(8, N))
    rows = np.random.default_rng(seed).choice(N, n)
    X, y = frame().iloc[rows].reset_index(drop=True), target(kind)[rows]
    lazy = dd.from_pandas(X, npartitions=data.draw(st.integers(1, 4)))
    a, b = pair(smooth=smooth, cv=KFold(3, shuffle=True, random_state=seed))
    expected = clone(b).fit_transform(X, y)
    result = clone(a).fit_transform(lazy, y)
    same_values(result.compute(scheduler="synchronous"), expected)
