"""Imputers on rows in every partition, as scikit-learn's on the rows together."""

import re
import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from row_partitions import (
    PARTITIONS,
    as_dask,
    check_like_reference,
    same_attributes,
    same_values,
)
from scipy import sparse
from sklearn import impute, preprocessing
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from skfleet import estimators
from skfleet.engine import counting
from skfleet.estimators import impute as ours
from skfleet.estimators.preprocessing import StandardScaler

pytestmark = pytest.mark.filterwarnings("ignore:Skipping features without any observed")

IMPUTERS = {
    "mean": {},
    "mean with indicator": {"add_indicator": True},
    "mean of empty columns": {"keep_empty_features": True},
    "median": {"strategy": "median", "add_indicator": True},
    "median of empty columns": {"strategy": "median", "keep_empty_features": True},
    "most_frequent": {"strategy": "most_frequent", "add_indicator": True},
    "constant": {"strategy": "constant", "add_indicator": True},
    "constant in empty columns": {"strategy": "constant", "fill_value": 3.5}
    | {"keep_empty_features": True},
}
TEXT_IMPUTERS = {
    "most_frequent": {"strategy": "most_frequent", "add_indicator": True},
    "constant": {"strategy": "constant", "fill_value": "none"},
}


def pair(params):
    return ours.SimpleImputer(**params), impute.SimpleImputer(**params)


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 5)).round(1)
    X[:, 1] = rng.integers(0, 3, size=40)
    X[:, 2] = 7.0
    X[rng.random(X.shape) < 0.3] = np.nan
    X[:, 3] = np.nan
    X[:, 4] = np.arange(40) // 10
    return X


@pytest.fixture
def texts():
    rng = np.random.default_rng(1)
    letters = np.array(["a", "b", "bb", "c", np.nan], dtype=object)
    X = letters[rng.integers(0, 5, size=(40, 3))]
    X[:, 1] = np.tile(["y", "x"], 20)
    X[:, 2] = np.nan
    return X


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("case", IMPUTERS)
def test_every_partition(case, partition, X):
    check_like_reference(*pair(IMPUTERS[case]), X, partition=partition)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("partition", ["a row a block", "empty middle"])
@pytest.mark.parametrize("case", IMPUTERS)
@pytest.mark.parametrize("container", ["frame", "csr"])
def test_containers(case, container, partition, X):
    if container == "frame":
        X = pd.DataFrame(X, columns=list("abcde"))
    else:
        X[np.random.default_rng(2).random(X.shape) < 0.6] = 0
        X[:, 1] = 0  # without a stored value
        X[1:, 2], X[0, 2] = 0, np.nan  # with stored missing ones only
    check_like_reference(*pair(IMPUTERS[case]), X, partition=partition, container=container)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("case", TEXT_IMPUTERS)
def test_objects_and_text(case, partition, texts):
    check_like_reference(*pair(TEXT_IMPUTERS[case]), texts, partition=partition)
    frame = pd.DataFrame(texts, columns=list("abc")).assign(d=np.arange(40.0) % 3)
    models = pair(TEXT_IMPUTERS[case])
    check_like_reference(*models, frame, partition=partition, container="frame")


@pytest.mark.parametrize("missing_values", [np.nan, pd.NA])
def test_missing_text_of_dask_frames(missing_values):
    frame = pd.DataFrame({"a": ["x", None, "y", "y"], "b": [1.0, 2.0, None, 3.0]})
    lazy = dd.from_pandas(frame, npartitions=2)  # which makes pd.NA of None
    model, reference = pair({"strategy": "most_frequent", "missing_values": missing_values})
    got = model.fit_transform(lazy).compute(scheduler="synchronous")
    np.testing.assert_array_equal(got, reference.fit_transform(frame))
    mask = ours.MissingIndicator().fit_transform(lazy).compute(scheduler="synchronous")
    np.testing.assert_array_equal(mask, frame.isna())


@pytest.mark.parametrize(
    ("missing_values", "dtype"),
    [(-1, int), (0, np.uint8), (1, np.int64), (2.0, np.float32)],
)
@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent", "constant"])
def test_missing_values_of_any_type(missing_values, dtype, strategy):
    check_missing_values([0, 1, 2, missing_values], dtype, missing_values, strategy)


@pytest.mark.parametrize("missing_values", [None, "x"])
@pytest.mark.parametrize("strategy", ["most_frequent", "constant"])
def test_missing_values_of_objects(missing_values, strategy):
    check_missing_values(["x", "y", missing_values], object, missing_values, strategy)


def check_missing_values(values, dtype, missing_values, strategy):
    indices = np.random.default_rng(3).integers(0, len(values), size=(30, 3))
    X = np.array(values, dtype=dtype)[indices]
    params = {"missing_values": missing_values, "strategy": strategy, "add_indicator": True}
    rtol = 1e-6 if dtype is np.float32 else 1e-12
    check_like_reference(*pair(params), X, partition="empty first", rtol=rtol)


@pytest.mark.parametrize("container", ["array", "frame"])
def test_objects_that_are_numbers(container, X):
    X = pd.DataFrame(X).astype(object) if container == "frame" else X.astype(object)
    with dask.config.set({"dataframe.convert-string": False}):
        check_like_reference(*pair({}), X, partition="empty middle", container=container)


@pytest.mark.parametrize("missing_values", [np.nan, pd.NA])
@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent"])
def test_nullable_numbers(missing_values, strategy):
    X = pd.DataFrame({"a": [1, 2, 2, None] * 5, "b": [None, 3, 4, 4] * 5}, dtype="Int64")
    models = pair({"missing_values": missing_values, "strategy": strategy})
    check_like_reference(*models, X, partition="sorted by a column", container="frame")


@pytest.mark.parametrize("partition", ["one block", "a row a block", "empty middle"])
def test_inverse_transform(partition, X):
    model, reference = pair({"add_indicator": True})
    lazy = as_dask(X, partition)
    expected = reference.fit(X).inverse_transform(reference.transform(X))
    got = model.fit(lazy).inverse_transform(model.transform(lazy))
    assert isinstance(got, da.Array)
    same_values(got.compute(scheduler="synchronous"), expected)
    with pytest.raises(ValueError, match="works only when"):
        model.set_params(add_indicator=False).inverse_transform(lazy)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize(
    "params", [{}, {"features": "all"}, {"sparse": True}, {"error_on_new": False}], ids=str
)
def test_indicator(params, partition, X):
    models = ours.MissingIndicator(**params), impute.MissingIndicator(**params)
    check_like_reference(*models, X, partition=partition)


@pytest.mark.parametrize("container", ["frame", "csr"])
def test_indicator_of_containers(container, X, texts):
    models = ours.MissingIndicator(), impute.MissingIndicator()
    if container == "frame":
        X = pd.DataFrame(texts, columns=list("abc")).assign(d=X[:, 0], e=1)
    else:
        X[:, 4] = 0
    check_like_reference(*models, X, partition="empty last", container=container)


def test_indicator_of_new_missing_values(X):
    model = ours.MissingIndicator().fit(da.from_array(X, chunks=(9, 5)))
    X[35, 4] = np.nan
    lazy = model.transform(da.from_array(X, chunks=(9, 5)))
    with pytest.raises(ValueError, match="have no missing values in fit"):
        lazy.compute(scheduler="synchronous")


def test_blocks_in_memory_are_not_changed(X):
    rows = da.from_array(X.copy(), chunks=(10, 5)).persist(scheduler="synchronous")
    ours.SimpleImputer(copy=False).fit_transform(rows).compute(scheduler="synchronous")
    np.testing.assert_array_equal(rows.compute(scheduler="synchronous"), X)


@pytest.mark.parametrize(
    ("params", "values"),
    [
        ({}, [["a"]]),
        ({"missing_values": "a"}, [[1.0]]),
        ({"strategy": "constant", "fill_value": "a"}, [[1.0]]),
        ({"strategy": "constant", "fill_value": 1.5}, [[1]]),
        ({"strategy": "most_frequent"}, np.array([["a"]])),
        ({"missing_values": 0}, sparse.csr_array([[1.0]])),
        ({"strategy": "mode"}, [[1.0]]),
        ({}, [[np.inf]]),
    ],
    ids=str,
)
def test_errors_are_those_of_scikit_learn(params, values):
    X = values if sparse.issparse(values) else np.asarray(values)
    model, reference = pair(params)
    with pytest.raises(ValueError, match=r"\w") as expected:
        reference.fit(X)
    first_line = str(expected.value).splitlines()[0]
    with pytest.raises(ValueError, match=re.escape(first_line)):
        model.fit(da.from_array(X, chunks=(1, 1), asarray=False))
    assert vars(model).keys() == vars(clone(model)).keys()


def test_callables_need_whole_columns(X):
    lazy, model = da.from_array(X, chunks=(9, 5)), ours.SimpleImputer(strategy=np.sum)
    with pytest.raises(TypeError, match="needs whole columns"):
        model.fit(lazy)
    expected = model.fit(X).transform(X)
    same_values(model.transform(lazy).compute(scheduler="synchronous"), expected)


@pytest.mark.parametrize(("strategy", "n_passes"), [("median", 2), ("most_frequent", 1)])
def test_many_values(strategy, n_passes):
    X = np.random.default_rng(4).integers(0, 5000, size=(20000, 2)).astype(float)
    X[X < 1000] = np.nan
    model, reference = pair({"strategy": strategy})
    with counting() as counts:
        model.fit(da.from_array(X, chunks=(1999, 2)))
    assert counts.passes == n_passes
    same_attributes(model, reference.fit(X))


def test_dask_frame_keeps_its_index(X):
    frame = pd.DataFrame(X, columns=list("abcde"), index=np.arange(40) * 2)
    lazy = dd.from_pandas(frame, npartitions=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = ours.SimpleImputer().set_output(transform="pandas").fit_transform(lazy)
    assert list(got.columns) == list("abce")
    assert list(got.index.compute(scheduler="synchronous")) == list(frame.index)


@pytest.mark.parametrize("container", ["array", "frame"])
def test_imputed_means_are_scaled_without_a_pass(container):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) * [1, 10, 100] + [0, 5, 1e3]
    X[rng.random(X.shape) < 0.2] = np.nan
    X = pd.DataFrame(X, columns=list("abc")) if container == "frame" else X
    rows = as_dask(X, "empty middle", container)
    want = make_pipeline(impute.SimpleImputer(), preprocessing.StandardScaler()).fit(X)
    with counting() as counts:
        model = make_pipeline(ours.SimpleImputer(), estimators.StandardScaler()).fit(rows)
        columns = estimators.ColumnTransformer([("all", clone(want), slice(0, 3))]).fit(rows)
    assert counts.passes == 2
    for scaler in (model[-1], columns.named_transformers_["all"][-1]):
        same_attributes(scaler, want[-1], skip=["n_features_in_", "feature_names_in_"])
    imputer = ours.SimpleImputer().fit(rows)
    with counting() as counts:  # of other rows than the imputer was fitted on, nothing is known
        scaler = estimators.StandardScaler().fit(imputer.transform(rows + 1))
    assert counts.passes == 1
    changed = imputer.transform(rows)
    changed = changed.to_dask_array() if hasattr(changed, "columns") else changed
    changed[changed > 1] = 0.0
    with counting() as counts:
        estimators.StandardScaler().fit(changed)
    assert counts.passes == 1
    weight = as_dask(rng.random(60), "empty middle")
    with counting() as counts:
        estimators.StandardScaler().fit(imputer.transform(rows), sample_weight=weight)
    assert counts.passes == 1


def test_a_later_fit_in_this_process_changes_what_is_known_of_the_rows():
    X = np.arange(20.0).reshape(10, 2)
    X[0, 0] = np.nan
    rows = da.from_array(X, chunks=5)
    imputer = ours.SimpleImputer().fit(rows)
    filled = imputer.fit(X * 100).transform(rows)
    scaler = StandardScaler().fit(filled)
    np.testing.assert_allclose(scaler.mean_, np.asarray(filled).mean(axis=0))
