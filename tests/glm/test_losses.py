"""Losses: derivatives against numerical ones, and no overflow far out."""

import array_api_strict
import numpy as np
import pytest
from scipy.special import expit, log_softmax
from sklearn.metrics import mean_tweedie_deviance

from skfleet._array import to_host
from skfleet.glm import BinaryLogistic, Multinomial, SquaredError, Tweedie

CLASSES = [BinaryLogistic(), Multinomial(2), Multinomial(4)]
CONVEX = [Tweedie(1.0), Tweedie(1.5), Tweedie(2.0), Tweedie(0.0, log_link=False), SquaredError()]
# Of these the curve is an expected one.
OTHERS = [
    Tweedie(0.0),
    Tweedie(3.0),
    Tweedie(-1.0),
    Tweedie(1.0, log_link=False),
    Tweedie(2.0, log_link=False),
    Tweedie(-1.0, log_link=False),
]
LOSSES = CLASSES + CONVEX + OTHERS


def _sample(loss, n=50, scale=3.0):
    rng = np.random.default_rng(0)
    if loss in CLASSES:
        y = rng.integers(0, max(2, loss.n_outputs), n).astype(float)
        return y, scale * rng.normal(size=(n, loss.n_outputs))
    eta = rng.normal(size=(n, 1))
    if not getattr(loss, "log_link", True) and loss.power != 0:
        eta = np.abs(eta) + 0.5
    return rng.gamma(2.0, size=n), eta


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_gradient_and_hessian_are_the_derivatives(loss):
    y, eta = _sample(loss)
    h = 1e-5
    _, gradient, mean = loss.evaluate(y, eta)
    np.testing.assert_allclose(mean, loss.mean(eta), rtol=1e-14)
    for j in range(loss.n_outputs):
        step = np.zeros(loss.n_outputs)
        step[j] = h
        slope = (loss.evaluate(y, eta + step).value - loss.evaluate(y, eta - step).value) / (2 * h)
        np.testing.assert_allclose(gradient[:, j], slope, rtol=1e-6, atol=1e-7)
        if loss in OTHERS:
            continue
        above, below = (loss.evaluate(y, eta + side * step).gradient for side in (1, -1))
        curve = (above - below) / (2 * h)
        for i in range(loss.n_outputs):
            got = loss.hessian(y, mean, i, j)
            np.testing.assert_allclose(got, curve[:, i], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", OTHERS, ids=str)
def test_a_curve_that_may_be_negative_is_replaced_by_its_expectation(loss):
    """For the mean itself as the target, the second derivative is the expected one."""
    _, eta = _sample(loss)
    h, mean = 1e-5, loss.mean(eta)
    y = mean[:, 0]
    above, below = (loss.evaluate(y, eta + side * h).gradient[:, 0] for side in (1, -1))
    got = loss.hessian(y, mean, 0, 0)
    assert (got > 0).all()
    np.testing.assert_allclose(got, (above - below) / (2 * h), rtol=1e-5)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_the_null_model_has_the_targets_mean(loss):
    y, _ = _sample(loss, 400)
    if loss in CLASSES:
        share = np.bincount(y.astype(int)) / len(y)
        mean = share[1:] if loss.n_outputs == 1 else share
    else:
        mean = np.array([y.mean()])
    eta = loss.link(mean)
    np.testing.assert_allclose(loss.mean(eta[None, :])[0], mean, rtol=1e-12)
    value, gradient, _ = loss.evaluate(y, np.tile(eta, (len(y), 1)))
    np.testing.assert_allclose(loss.mean_loss(mean, eta), value.mean(), rtol=1e-12)
    np.testing.assert_allclose(gradient.mean(axis=0), 0, atol=1e-12)


@pytest.mark.parametrize("loss", CONVEX[:3] + OTHERS[:3], ids=str)
def test_values_are_half_the_deviance_but_for_a_constant(loss):
    y, eta = _sample(loss)
    value, _, mean = loss.evaluate(y, eta)
    one = np.array(
        [
            float(mean_tweedie_deviance([t], [m], power=loss.power))
            for t, m in zip(y, mean[:, 0], strict=True)
        ]
    )
    other, _, mean = loss.evaluate(y, eta + 0.5)
    two = np.array(
        [
            float(mean_tweedie_deviance([t], [m], power=loss.power))
            for t, m in zip(y, mean[:, 0], strict=True)
        ]
    )
    np.testing.assert_allclose(2 * (other - value), two - one, rtol=1e-8, atol=1e-10)


def test_values_are_the_negative_log_likelihood():
    y, eta = _sample(BinaryLogistic())
    likelihood = np.where(y == 1, expit(eta[:, 0]), expit(-eta[:, 0]))
    np.testing.assert_allclose(
        BinaryLogistic().evaluate(y, eta).value, -np.log(likelihood), rtol=1e-12
    )
    y, eta = _sample(Multinomial(4))
    want = -log_softmax(eta, axis=1)[np.arange(len(y)), y.astype(int)]
    np.testing.assert_allclose(Multinomial(4).evaluate(y, eta).value, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", CLASSES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_out_nothing_overflows(loss, dtype):
    y, eta = _sample(loss, scale=1e4)
    y, eta = y.astype(dtype), eta.astype(dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for values in loss.evaluate(y, eta):
            assert np.isfinite(values).all()
            assert values.dtype == dtype
    assert (loss.evaluate(y, eta).value >= 0).all()


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_the_array_api_is_enough(loss):
    y, eta = _sample(loss)
    there = array_api_strict.Device("device1")
    y_there, eta_there = (array_api_strict.asarray(v, device=there) for v in (y, eta))
    got, want = loss.evaluate(y_there, eta_there), loss.evaluate(y, eta)
    curves = loss.hessian(y_there, got.mean, 0, 0), loss.hessian(y, want.mean, 0, 0)
    for here, there_too in zip((*got, curves[0]), (*want, curves[1]), strict=True):
        assert here.device == there
        np.testing.assert_allclose(to_host(here), there_too, rtol=1e-12)


def test_targets_out_of_range_are_known():
    y = np.array([-1.0, 0.0, 2.0])
    for power, allowed in ((-1, [1, 1, 1]), (0, [1, 1, 1]), (1, [0, 1, 1]), (2, [0, 0, 1])):
        np.testing.assert_array_equal(Tweedie(power).in_y_true_range(y), allowed)
