"""Blocks on a device: statistics as scikit-learn's, and results that do not leave the device."""

import re
from contextlib import nullcontext
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from row_partitions import same_attributes
from sklearn.base import clone
from sklearn.feature_selection import chi2, f_regression, r_regression

from skfleet._array import is_not_numpy, to_host
from skfleet.blocks import row_blocks
from skfleet.engine import engine_for, run_passes
from skfleet.estimators import feature_selection, impute, naive_bayes, preprocessing
from skfleet.estimators._blockwise import base_class
from skfleet.quantiles import _order_values

RNG = np.random.default_rng(0)
COMPLETE = RNG.normal(2, 3, size=(90, 5))
COMPLETE[:, 3] = 1.5
MISSING = np.where(RNG.uniform(size=COMPLETE.shape) < 0.2, np.nan, COMPLETE)
EMPTY = np.where(np.arange(5) == 2, np.nan, MISSING)
EMPTY[:, 4] = np.arange(90)
ROUNDED = np.round(MISSING / 3) + 0.0  # without a negative zero
COUNTS = RNG.integers(0, 5, size=(90, 5))
WEIGHT = RNG.uniform(0.5, 2, size=90)
LATE = np.where(np.arange(90) < 25, 0.0, WEIGHT)
TARGET = RNG.normal(size=90) + COMPLETE[:, 0]
LABELS = np.array(["no", "yes", "so"])[RNG.integers(0, 3, 90)]
SIZES = [20, 1, 39, 30]

CASES = [
    (preprocessing.StandardScaler(), MISSING, {}),
    (preprocessing.StandardScaler(), COMPLETE, {"sample_weight": WEIGHT}),
    (preprocessing.StandardScaler(), EMPTY, {"sample_weight": WEIGHT}),
    (preprocessing.StandardScaler(), MISSING.astype(np.float32), {"sample_weight": WEIGHT}),
    (preprocessing.StandardScaler(), COMPLETE, {"sample_weight": LATE}),
    (preprocessing.StandardScaler(with_mean=False), COUNTS, {}),
    (preprocessing.StandardScaler(with_mean=False, with_std=False), MISSING, {}),
    (preprocessing.StandardScaler(with_std=False), MISSING, {}),
    (preprocessing.MinMaxScaler((-1, 2), clip=True), MISSING, {}),
    (preprocessing.MinMaxScaler(), COUNTS, {}),
    (preprocessing.MinMaxScaler(), EMPTY, {}),
    (preprocessing.StandardScaler(), COUNTS.astype(np.float32), {}),
    (preprocessing.RobustScaler(), COMPLETE.astype(np.float32), {}),
    (impute.SimpleImputer(add_indicator=True), MISSING.astype(np.float32), {}),
    (feature_selection.VarianceThreshold(1.8), COUNTS.astype(np.float32), {}),
    (preprocessing.MaxAbsScaler(), MISSING, {}),
    (preprocessing.MaxAbsScaler(), -EMPTY.astype(np.float32), {}),
    (preprocessing.RobustScaler(), MISSING, {}),
    (preprocessing.RobustScaler(quantile_range=(10, 80), unit_variance=True), COUNTS, {}),
    (preprocessing.RobustScaler(with_centering=False), COMPLETE, {}),
    (preprocessing.RobustScaler(with_scaling=False), COMPLETE, {}),
    (feature_selection.VarianceThreshold(), MISSING, {}),
    (feature_selection.VarianceThreshold(1.8), COUNTS, {}),
    (feature_selection.SelectKBest(k=2), COMPLETE[:, :3], {"y": LABELS}),
    (feature_selection.SelectKBest(chi2, k=2), COUNTS, {"y": LABELS}),
    (
        feature_selection.SelectKBest(chi2, k=2),
        COUNTS,
        {"y": (LABELS[:, None] == ["no", "yes"]) + 0},
    ),
    (feature_selection.SelectFpr(f_regression), COMPLETE[:, :3], {"y": TARGET}),
    (feature_selection.SelectKBest(r_regression, k=2), COMPLETE[:, :3], {"y": TARGET}),
    (impute.SimpleImputer(), EMPTY, {}),
    (impute.SimpleImputer(add_indicator=True, keep_empty_features=True), EMPTY, {}),
    (impute.SimpleImputer(missing_values=0, strategy="median", add_indicator=True), COUNTS, {}),
    (impute.SimpleImputer(strategy="median"), MISSING, {}),
    (impute.SimpleImputer(strategy="constant", fill_value=-1.5), MISSING, {}),
    (impute.SimpleImputer(strategy="constant"), EMPTY, {}),
    (impute.SimpleImputer(missing_values=0, strategy="constant", fill_value=7), COUNTS, {}),
    (impute.SimpleImputer(strategy="constant"), COUNTS, {}),
    (impute.MissingIndicator(), EMPTY, {}),
    (impute.MissingIndicator(missing_values=0, features="all"), COUNTS, {}),
    (preprocessing.OrdinalEncoder(), COUNTS, {}),
    (preprocessing.OrdinalEncoder(), COUNTS.astype(np.float32), {}),
    (preprocessing.OrdinalEncoder(encoded_missing_value=-1, min_frequency=12), ROUNDED, {}),
    (preprocessing.OneHotEncoder(sparse_output=False, drop="first"), COUNTS, {}),
    (preprocessing.OneHotEncoder(sparse_output=False, max_categories=3, dtype=int), ROUNDED, {}),
    (preprocessing.Normalizer(), COMPLETE, {}),
    (preprocessing.Normalizer("max"), COUNTS, {}),
    (preprocessing.Binarizer(threshold=1.0), COMPLETE, {}),
    (preprocessing.PolynomialFeatures(3, interaction_only=True), COMPLETE, {}),
    (preprocessing.PolynomialFeatures(include_bias=False), COUNTS, {}),
]

pytestmark = [
    pytest.mark.filterwarnings("ignore:Skipping features:UserWarning"),
    pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning"),  # by scikit-learn's fits
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def scipy_lets(monkeypatch):
    """What scikit-learn looks for before it computes with other arrays."""
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")


def _name(case):
    model = re.sub("<function (\\w+) at \\w+>", r"\1", repr(case[0]))
    return f"{model}-{case[1].dtype}"


def _strict(X):
    import array_api_strict as xp

    return xp.asarray(X, device=xp.Device("device1"))


def _stock_fit(model, X, params):
    stock = base_class(type(model))(**model.get_params())
    return stock.fit(X, **params) if params else stock.fit(X)


def fit_on_blocks(model, X, y=None, sample_weight=None):
    """Fit on blocks of a library that Dask does not know, as on those of Dask."""
    weight = sample_weight
    rows = replace(row_blocks(X, y, weight, dtype=None, block_sizes=SIZES), checked=True)
    model = clone(model)
    run_passes(model._begin_fit(np.empty((0, X.shape[1]))), engine_for(rows), rows)
    return model


def assert_equal(answer, expected):
    assert is_not_numpy(answer)
    answer = to_host(answer)
    assert answer.dtype == expected.dtype
    rtol = _rounding(expected)
    np.testing.assert_allclose(answer, expected, rtol=rtol, atol=rtol)


def _rounding(X):
    """Return the rounding of rows: in single precision scikit-learn has them in some steps."""
    return 1e-6 if X.dtype == np.float32 else 1e-12


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_blocks_of_another_library(case, short_runs):
    """These refuse to be copied to the host by NumPy, and sums are of runs of rows."""
    model, X, params = case
    stock = _stock_fit(model, X, params)
    fitted = fit_on_blocks(model, _strict(X), **params)
    same_attributes(fitted, stock, rtol=_rounding(X))
    block = X[:7]
    assert_equal(fitted._device_result("transform", _strict(block)), stock.transform(block))
    if "inverse_transform" in model._device_methods and hasattr(stock, "inverse_transform"):
        scaled = stock.transform(block)
        back = fitted._device_result("inverse_transform", _strict(scaled))
        assert_equal(back, stock.inverse_transform(scaled))


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_an_outlier_in_the_first_row_costs_no_digits(weight):
    X = COMPLETE.astype(np.float32)
    X[0] = 1e5
    params = {} if weight is None else {"sample_weight": weight}
    stock = _stock_fit(preprocessing.StandardScaler(), X.astype(np.float64), params)
    fitted = fit_on_blocks(preprocessing.StandardScaler(), _strict(X), **params)
    np.testing.assert_allclose(fitted.mean_, stock.mean_, rtol=1e-12)
    np.testing.assert_allclose(fitted.var_, stock.var_, rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("on_cluster", [False, True])
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_dask_arrays_of_cupys(case, on_cluster, cluster_client):
    import cupy

    model, X, params = case
    stock = _stock_fit(model, X, params)
    on_host = da.from_array(X, chunks=(tuple(SIZES), X.shape[1]))
    rows = on_host.map_blocks(cupy.asarray)
    with cluster_client.as_current() if on_cluster else nullcontext():
        fitted = clone(model).fit(rows, **params)
        same_attributes(fitted, stock, rtol=_rounding(X))
        answer = fitted.transform(rows)
        assert is_not_numpy(answer._meta)
        assert answer.shape == stock.transform(X).shape
        assert_equal(answer.compute(), stock.transform(X))
        # a model is for rows on either
        again = fitted.transform(on_host).compute()
        np.testing.assert_allclose(again, stock.transform(X), rtol=_rounding(X), atol=1e-6)
        if "inverse_transform" in fitted._device_methods and hasattr(stock, "inverse_transform"):
            assert_equal(
                fitted.inverse_transform(answer).compute(),
                stock.inverse_transform(stock.transform(X)),
            )


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_few_values_go_to_the_host(case, monkeypatch):
    import array_api_strict as xp

    model, X, params = case
    copied, to_device = [], type(_strict(X)).to_device

    def watch(self, device, /, **kwargs):
        copied.append(self.size if device == xp.Device("CPU_DEVICE") else 0)
        return to_device(self, device, **kwargs)

    monkeypatch.setattr(type(_strict(X)), "to_device", watch)
    fitted = fit_on_blocks(model, _strict(X), **params)
    # the sample of all rows, which are few
    is_sampled = isinstance(model, preprocessing.RobustScaler) or "median" in repr(model)
    assert is_sampled or sum(copied) < X.size / 2
    copied.clear()
    fitted._device_result("transform", _strict(X))
    assert sum(copied) < X.size / 2


def test_workers_must_have_the_variable_that_scipy_reads(monkeypatch):
    monkeypatch.delenv("SCIPY_ARRAY_API")
    with pytest.raises(RuntimeError, match="SCIPY_ARRAY_API=1"):
        fit_on_blocks(preprocessing.StandardScaler(), _strict(COMPLETE))


@pytest.mark.parametrize("n_bytes", [_order_values.MAX_BYTES, 2**8])
def test_quantiles_of_more_rows_than_the_sample(n_bytes, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 10)
    monkeypatch.setattr(_order_values, "MAX_BYTES", n_bytes)
    model = preprocessing.RobustScaler()
    same_attributes(fit_on_blocks(model, _strict(MISSING)), _stock_fit(model, MISSING, {}))


@pytest.mark.gpu
def test_more_rows_on_a_device():
    import cupy

    rows = da.from_array(MISSING, chunks=(30, 5)).map_blocks(cupy.asarray)
    fitted = preprocessing.StandardScaler().partial_fit(rows[:60]).partial_fit(rows[60:])
    same_attributes(fitted, _stock_fit(fitted, MISSING, {}))


def test_unknown_categories_are_reported():
    model = preprocessing.OrdinalEncoder().fit(COUNTS)
    with pytest.raises(ValueError, match=r"Found unknown categories \[.*17.*\] in column 2"):
        model._device_result("transform", _strict(np.where(np.arange(5) == 2, 17, COUNTS)))


class Remote(np.ndarray):
    """Rows that claim to be on a device."""

    to_cupy = None


def _on_device(X):
    """Return a Dask array, on a device as it says, of which no block can be computed."""
    rows = da.from_array(X, chunks=(30, X.shape[1]))
    return rows.map_blocks(_fail, dtype=X.dtype, meta=X[:0].view(Remote))


def _fail(block):
    raise AssertionError("a block was computed")


REFUSED = [
    preprocessing.KBinsDiscretizer(),
    preprocessing.OneHotEncoder(),
    preprocessing.OrdinalEncoder(dtype=object),
    preprocessing.PowerTransformer(),
    preprocessing.QuantileTransformer(n_quantiles=10),
    preprocessing.SplineTransformer(),
    naive_bayes.GaussianNB(),
]


@pytest.mark.parametrize("model", REFUSED, ids=repr)
def test_others_are_refused_in_this_process(model):
    with pytest.raises(TypeError, match=r"X must be on the host for \w+.fit .*cupy.asnumpy"):
        model.fit(_on_device(COMPLETE), da.from_array(LABELS, chunks=30))
    fitted = model.fit(RNG.normal(size=(90, 5)), LABELS)
    method = "predict" if hasattr(model, "predict") else "transform"
    with pytest.raises(TypeError, match=rf"X must be on the host for \w+.{method}"):
        getattr(fitted, method)(_on_device(COMPLETE))


def test_frames_of_a_device_are_not_made():
    scaler = preprocessing.StandardScaler().fit(COMPLETE).set_output(transform="pandas")
    with pytest.raises(ValueError, match="set_output must be 'default' for Dask rows on a device"):
        scaler.transform(_on_device(COMPLETE))


@pytest.mark.gpu
def test_blocks_in_memory_are_not_changed():
    import cupy

    rows = da.from_array(COMPLETE, chunks=(30, 5)).map_blocks(cupy.asarray).persist()
    preprocessing.StandardScaler(copy=False).fit(rows).transform(rows).compute()
    np.testing.assert_array_equal(to_host(rows.compute()), COMPLETE)
