"""Scalers on rows in every partition, as scikit-learn's on the rows together."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from row_partitions import PARTITIONS, check_like_reference
from sklearn import preprocessing
from sklearn.callback import ProgressBar
from sklearn.pipeline import make_pipeline

from skfleet.estimators import preprocessing as ours

SCALERS = {
    "StandardScaler": {},
    "StandardScaler without mean": {"with_mean": False},
    "MinMaxScaler": {"feature_range": (-1, 2)},
    "MaxAbsScaler": {},
    "Normalizer": {"norm": "l1"},
    "Binarizer": {"threshold": 0.5},
}
STATELESS = ("Normalizer", "Binarizer")  # which take no gaps


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 4)) * [1, 10, 0.1, 0] + [0, 5, 7, 3]
    X[:3, 0] = 0
    return X


def pair(case, **params):
    name = case.split()[0]
    kwargs = {**SCALERS[case], **params}
    return getattr(ours, name)(**kwargs), getattr(preprocessing, name)(**kwargs)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("case", [case for case in SCALERS if case not in STATELESS])
def test_every_partition(case, partition, X):
    X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    check_like_reference(*pair(case), X, partition=partition, atol=1e-10)


@pytest.mark.parametrize(
    "params", [{}, {"with_mean": False}, {"with_mean": False, "with_std": False}]
)
def test_a_block_of_rows_without_weight(params, X):
    weight = np.where(np.arange(40) < 20, 0.0, 2.5)
    weight[33] = 0.5
    X[25, 1] = np.nan
    expected = preprocessing.StandardScaler(**params).fit(X, sample_weight=weight)
    rows, weights = da.from_array(X, chunks=(10, -1)), da.from_array(weight, chunks=10)
    fitted = ours.StandardScaler(**params).fit(rows, sample_weight=weights)
    np.testing.assert_allclose(fitted.transform(X), expected.transform(X), atol=1e-12)
    np.testing.assert_allclose(fitted.n_samples_seen_, expected.n_samples_seen_)


def test_weights_of_zero_alone(X):
    rows, model = da.from_array(X, chunks=(10, -1)), ours.StandardScaler().fit(X)
    before = vars(model).copy()
    with pytest.raises(ValueError, match="sample_weight must hold a weight above 0"):
        model.fit(rows, sample_weight=da.zeros(40, chunks=10, dtype=int))
    assert vars(model) == before
    missing = ours.StandardScaler().fit(np.nan * rows, sample_weight=da.ones(40, chunks=10))
    assert np.isnan(missing.mean_).all()


@pytest.mark.parametrize("partition", [p for p in PARTITIONS if "without values" not in p])
@pytest.mark.parametrize("case", STATELESS)
def test_every_partition_of_the_stateless(case, partition, X):
    check_like_reference(*pair(case), X, partition=partition, atol=1e-10)


@pytest.mark.parametrize(
    ("case", "container"),
    [(case, "frame") for case in SCALERS]
    + [(case, "csr") for case in SCALERS if case not in ("StandardScaler", "MinMaxScaler")],
)
def test_containers(case, container, X):
    X = pd.DataFrame(X, columns=list("abcd")) if container == "frame" else X
    check_like_reference(*pair(case), X, partition="empty middle", container=container, atol=1e-10)


def test_columns_of_one_value_have_no_variance():
    X = np.full((9001, 3), [1e-10, 1 / 3, 1e10 / 3])  # the means of many rows differ by rounding
    rows = da.from_array(X, chunks=((3001, 1500, 4500), 3))
    model = ours.StandardScaler().fit(rows)
    np.testing.assert_array_equal(model.var_, 0)
    np.testing.assert_array_equal(model.scale_, 1)
    spread = X + np.arange(3)[:, None].repeat([3001, 1500, 4500], axis=0) * 1e-6 * X
    model.fit(da.from_array(spread, chunks=((3001, 1500, 4500), 3)))
    expected = preprocessing.StandardScaler().fit(spread)
    np.testing.assert_allclose(model.var_, expected.var_, rtol=1e-5)
    assert (expected.var_ > 0).all()


class Recorder:
    """Callback that records its calls."""

    def __init__(self):
        self.calls, self.fitted = [], None

    def setup(self, estimator, context):
        self.calls.append("setup")

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None, metadata=None):
        self.calls.append("begin")

    def on_fit_task_end(self, estimator, context, *, metadata=None, fitted_estimator=None):
        self.calls.append("end")
        self.fitted = fitted_estimator

    def teardown(self, estimator, context):
        self.calls.append("teardown")


def test_callbacks_are_called_once_for_all_blocks(X):
    rows, recorder = da.from_array(X, chunks=(10, 4)), Recorder()
    scaler = ours.StandardScaler().set_callbacks(recorder).fit(rows)
    scaler.partial_fit(rows)
    assert recorder.calls == ["setup", "begin", "end", "teardown"] * 2
    np.testing.assert_array_equal(recorder.fitted.scale_, scaler.scale_)
    recorder.calls.clear()
    X[15, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        scaler.fit(da.from_array(X, chunks=(10, 4)))
    assert recorder.calls == ["setup", "begin", "teardown"]
    assert vars(scaler).keys() == vars(ours.StandardScaler().set_callbacks().fit(rows)).keys() | {
        "_skl_callbacks"
    }


def test_a_pipeline_passes_its_callbacks_on(X):
    recorder = Recorder()
    steps = make_pipeline(ours.StandardScaler().set_callbacks(recorder), "passthrough")
    steps.set_callbacks(ProgressBar()).fit(da.from_array(X, chunks=(10, 4)))
    assert recorder.calls == ["setup", "begin", "end", "teardown"]
