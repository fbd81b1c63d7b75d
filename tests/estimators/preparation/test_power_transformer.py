"""PowerTransformer on Dask rows, with scikit-learn's lambdas to 1e-6."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from row_partitions import PARTITIONS, arranged, as_dask, check_like_reference
from sklearn import preprocessing

from skfleet.engine import counting
from skfleet.estimators.preprocessing import PowerTransformer, _power
from skfleet.quantiles import _order_values


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    normal, skewed = rng.normal(size=90), rng.lognormal(size=90)
    X = np.stack([3 * normal + 1, skewed, -skewed, 100 * rng.gamma(2, size=90)], axis=1)
    X[rng.random(X.shape) < 0.1] = np.nan
    return X


def of_method(X, method):
    return X if method == "yeo-johnson" else np.abs(X) + 0.01


@pytest.mark.sampled(8)
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("method", ["yeo-johnson", "box-cox"])
def test_every_partition(method, partition, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 40)
    pair = PowerTransformer(method), preprocessing.PowerTransformer(method)
    X = of_method(X, method)
    ours, _, lazy, local = check_like_reference(*pair, X, partition=partition, rtol=1e-6, atol=1e-6)
    back = ours.inverse_transform(ours.transform(lazy)).compute(scheduler="synchronous")
    np.testing.assert_allclose(back, local, rtol=1e-9)


@pytest.mark.parametrize("partition", ["one block", "unknown lengths"])
def test_fit_on_the_sample_if_it_has_all_rows(partition, X):
    with counting() as counts:
        check_like_reference(
            PowerTransformer(), preprocessing.PowerTransformer(), X, partition=partition
        )
    assert counts.passes == 1


@pytest.mark.parametrize("standardize", [True, False])
def test_constant_columns_of_a_frame(standardize, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 40)
    X = pd.DataFrame({"a": X[:, 0], "zero": 0.0, "c": X[:, 1].astype("f4"), "seven": 7})
    params = {"standardize": standardize}
    pair = PowerTransformer(**params), preprocessing.PowerTransformer(**params)
    check_like_reference(
        *pair, X, partition="sorted by a column", container="frame", rtol=1e-6, atol=1e-6
    )


def test_float32_rows_have_lambdas_of_float64(X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 40)
    lazy = da.from_array(X.astype(np.float32), chunks=(25, 4))
    ours = PowerTransformer().fit(lazy)
    exact = preprocessing.PowerTransformer().fit(X.astype(np.float32).astype(np.float64))
    assert ours.lambdas_.dtype == ours.transform(lazy).compute().dtype == np.float32
    np.testing.assert_allclose(ours.lambdas_, exact.lambdas_, rtol=1e-6)


def test_extreme_columns_take_few_passes(monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 200)
    rng = np.random.default_rng(0)
    n = 3000
    columns = [rng.beta(2, 0.5, n), rng.normal(size=n) + 100, np.r_[np.zeros(n - 9), rng.random(9)]]
    X = np.stack([*columns, rng.exponential(size=n) * 1e-3], axis=1)
    with counting() as counts:
        ours = PowerTransformer().fit(da.from_array(X, chunks=(700, 4)))
    assert counts.passes <= 40
    reference = preprocessing.PowerTransformer().fit(X)
    np.testing.assert_allclose(ours.lambdas_, reference.lambdas_, rtol=2e-6)
    np.testing.assert_allclose(ours.transform(X), reference.transform(X), rtol=1e-5, atol=1e-5)
    with counting() as counts:
        PowerTransformer().fit(da.from_array(X[:, :1] + 1, chunks=(700, 1)))
    assert counts.passes <= 6


def test_start_that_is_far_off(X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 40)
    reference = preprocessing.PowerTransformer().fit(X)
    start = _power._start
    for shift, width in ((0.3, 1e-4), (-3.0, 0.1), (20.0, 1e-4), (0.2, 1.0)):
        monkeypatch.setattr(
            _power, "_start", lambda *a, s=shift, w=width: (start(*a)[0] + s, start(*a)[1] * 0 + w)
        )
        with counting() as counts:
            ours = PowerTransformer().fit(da.from_array(X, chunks=(25, 4)))
        np.testing.assert_allclose(ours.lambdas_, reference.lambdas_, rtol=1e-6, atol=1e-6)
        assert counts.passes <= 40


def test_derivatives():
    u = np.array([-3.0, -0.01, 0.0, 1e-9, 0.02, 2.0, 50.0])
    for power in (-2.0, -1e-7, 0.0, 1e-9, 1e-4, 0.05, 1.0, 3.0):
        y, slope = _power._box_cox(power, u)
        h = 1e-6
        above, below = (_power._box_cox(power + s, u)[0] for s in (h, -h))
        np.testing.assert_allclose(y, np.expm1(power * u) / power if power else u, rtol=1e-8)
        np.testing.assert_allclose(slope, (above - below) / (2 * h), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("partition", ["one block", "empty middle"])
def test_errors_are_scikit_learns(partition, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 40)

    def check(method, rows, match):
        rows, _ = arranged(rows, None, partition)
        for model, X_fit in (
            (PowerTransformer(method), as_dask(rows, partition)),
            (preprocessing.PowerTransformer(method), rows),
        ):
            with pytest.raises(ValueError, match=match):
                model.fit(X_fit)
            assert not hasattr(model, "lambdas_") or model.__class__ is not PowerTransformer

    check("box-cox", X, "only be applied to strictly positive data")
    X[:, 0] = 2
    check("box-cox", np.abs(X), "Data must not be constant")
    X[:, 0] = np.nan
    check("box-cox", np.abs(X), "Column must not be all nan")
    check("yeo-johnson", X, "not enough values to unpack")
