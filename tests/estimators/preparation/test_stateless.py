"""Transformers that learn nothing of the rows, on blocks as scikit-learn's on the rows together."""

import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from row_partitions import PARTITIONS, as_dask, check_like_reference, same_values
from sklearn import preprocessing

from skfleet.estimators import preprocessing as ours

EXPANSIONS = {
    "PolynomialFeatures": {},
    "PolynomialFeatures of interactions": {"interaction_only": True, "include_bias": False},
    "PolynomialFeatures of degrees": {"degree": (2, 3), "order": "F"},
    "FunctionTransformer": {"func": np.log1p, "validate": True}
    | {"feature_names_out": "one-to-one"},
    "FunctionTransformer with keywords": {"func": np.clip, "kw_args": {"a_min": 1, "a_max": 2}},
}


def pair(case):
    name, params = case.split()[0], EXPANSIONS[case]
    return getattr(ours, name)(**params), getattr(preprocessing, name)(**params)


@pytest.fixture
def X():
    return np.random.default_rng(0).gamma(2, size=(40, 3))


@pytest.mark.parametrize("partition", [p for p in PARTITIONS if "without values" not in p])
@pytest.mark.parametrize("case", EXPANSIONS)
def test_every_partition(case, partition, X):
    check_like_reference(*pair(case), X, partition=partition)


@pytest.mark.parametrize(
    ("case", "container"),
    [(case, "frame") for case in EXPANSIONS if case != "FunctionTransformer with keywords"]
    + [(case, "csr") for case in EXPANSIONS if "FunctionTransformer" not in case],
)
def test_containers(case, container, X):
    X = pd.DataFrame(X, columns=list("abc")) if container == "frame" else X * (X > 2)
    check_like_reference(*pair(case), X, partition="empty middle", container=container)


@pytest.mark.parametrize(
    ("params", "message"),
    [({"degree": -1}, "degree"), ({"degree": 0, "include_bias": False}, "empty output array")],
)
def test_degrees_are_checked_as_by_scikit_learn(params, message, X):
    with pytest.raises(ValueError, match=message):
        ours.PolynomialFeatures(**params).fit(da.from_array(X))


def add_sum(frame):
    return frame.assign(sum=frame.sum(axis=1))


def names_with_sum(transformer, names):
    return [*names, "sum"]


@pytest.mark.parametrize("names", [None, names_with_sum])
@pytest.mark.parametrize("container", ["default", "pandas"])
def test_function_of_frames(names, container, X):
    frame = pd.DataFrame(X, columns=list("abc"), index=np.arange(40) + 5)
    params = {"func": add_sum, "feature_names_out": names}
    reference = preprocessing.FunctionTransformer(**params).set_output(transform=container)
    model = ours.FunctionTransformer(**params).set_output(transform=container)
    got = model.fit_transform(as_dask(frame, "empty middle"))
    assert isinstance(got, dd.DataFrame)
    expected = reference.fit_transform(frame)
    pd.testing.assert_frame_equal(got.compute(scheduler="synchronous"), expected)


def test_function_of_a_series(X):
    column = dd.from_pandas(pd.Series(X[:, 0], name="a"), npartitions=3)
    got = ours.FunctionTransformer(np.sqrt).fit_transform(column)
    expected = pd.Series(X[:, 0], name="a") ** 0.5
    pd.testing.assert_series_equal(got.compute(scheduler="synchronous"), expected)


def test_function_of_text():
    words = np.array([["a", "bb"], ["ccc", ""], ["d", "e"]], dtype=object)
    lengths = ours.FunctionTransformer(np.vectorize(len, otypes=[int])).fit_transform(
        da.from_array(words, chunks=(2, 2))
    )
    np.testing.assert_array_equal(
        lengths.compute(scheduler="synchronous"), [[1, 2], [3, 0], [1, 1]]
    )


@pytest.mark.parametrize("validate", [False, True])
def test_inverse_functions_are_checked_on_all_blocks(validate, X):
    params = {"func": np.square, "inverse_func": np.sqrt, "validate": validate}
    model = ours.FunctionTransformer(**params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(da.from_array(X, chunks=(9, 3)))
    lazy = model.inverse_transform(model.transform(da.from_array(X, chunks=(9, 3))))
    same_values(lazy.compute(scheduler="synchronous"), X)
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=2)
    model.set_params(feature_names_out="one-to-one").fit(frame)
    X[-1] = -1.0
    with pytest.warns(UserWarning, match="are not strictly inverse of each other"):
        preprocessing.FunctionTransformer(**params).fit(X)
    with pytest.warns(UserWarning, match="are not strictly inverse of each other"):
        model.fit(da.from_array(X, chunks=(9, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_params(check_inverse=False).fit(da.from_array(X, chunks=(9, 3)))


def test_inverse_functions_are_checked_on_numbers():
    model = ours.FunctionTransformer(np.copy, np.copy)
    with pytest.raises(ValueError, match="is only supported when all the elements in `X` is num"):
        model.fit(da.from_array(np.array([["a"]], dtype=object), chunks=1))


def test_columns_are_checked_where_rows_are(X):
    lazy = da.from_array(X)
    model = ours.FunctionTransformer(validate=True).fit(lazy)
    with pytest.raises(ValueError, match="X has 2 features, but FunctionTransformer is expecting"):
        model.transform(lazy[:, :2])
    assert model.set_params(validate=False).transform(lazy[:, :2]).shape == (40, 2)
