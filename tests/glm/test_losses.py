"""Losses: derivatives against numerical ones, and no overflow far out."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
from scipy.special import expit, log_softmax

from skfleet._array import to_host
from skfleet.glm import BinaryLogistic, Multinomial

LOSSES = [BinaryLogistic(), Multinomial(2), Multinomial(4)]


def _sample(loss, n=50, scale=3.0):
    rng = np.random.default_rng(0)
    n_classes = max(2, loss.n_outputs)
    return rng.integers(0, n_classes, n).astype(float), scale * rng.normal(size=(n, loss.n_outputs))


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_gradient_and_hessian_are_the_derivatives(loss):
    y, eta = _sample(loss)
    h = 1e-5
    gradient, mean = loss.gradient(y, eta), loss.mean(eta)
    for j in range(loss.n_outputs):
        step = np.zeros(loss.n_outputs)
        step[j] = h
        slope = (loss.value(y, eta + step) - loss.value(y, eta - step)) / (2 * h)
        np.testing.assert_allclose(gradient[:, j], slope, atol=1e-8)
        curve = (loss.gradient(y, eta + step) - loss.gradient(y, eta - step)) / (2 * h)
        for i in range(loss.n_outputs):
            np.testing.assert_allclose(loss.hessian(mean, i, j), curve[:, i], atol=1e-8)


def test_values_are_the_negative_log_likelihood():
    y, eta = _sample(BinaryLogistic())
    likelihood = np.where(y == 1, expit(eta[:, 0]), expit(-eta[:, 0]))
    np.testing.assert_allclose(BinaryLogistic().value(y, eta), -np.log(likelihood), rtol=1e-12)
    y, eta = _sample(Multinomial(4))
    want = -log_softmax(eta, axis=1)[np.arange(len(y)), y.astype(int)]
    np.testing.assert_allclose(Multinomial(4).value(y, eta), want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_out_nothing_overflows(loss, dtype):
    y, eta = _sample(loss, scale=1e4)
    y, eta = y.astype(dtype), eta.astype(dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for values in (loss.value(y, eta), loss.gradient(y, eta), loss.mean(eta)):
            assert np.isfinite(values).all()
            assert values.dtype == dtype
    assert (loss.value(y, eta) >= 0).all()


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_the_array_api_is_enough(loss):
    y, eta = _sample(loss)
    there = array_api_strict.Device("device1")
    y_there, eta_there = (array_api_strict.asarray(v, device=there) for v in (y, eta))
    mean = loss.mean(eta_there)
    for got, want in (
        (loss.value(y_there, eta_there), loss.value(y, eta)),
        (loss.gradient(y_there, eta_there), loss.gradient(y, eta)),
        (loss.hessian(mean, 0, 0), loss.hessian(loss.mean(eta), 0, 0)),
    ):
        assert got.device == there
        np.testing.assert_allclose(to_host(got), want, rtol=1e-12)
