"""Losses of stochastic gradient descent: values and derivatives, in the library of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from skfleet._array import namespace
from skfleet._typing import Array


class SGDLoss(NamedTuple):
    """A loss of targets y and predictions p of one shape; classes are y = -1 and y = 1.

    Both functions get y, p and epsilon, which only some of them use. Where a loss has a kink the
    gradient is scikit-learn's. Without bounds it grows with p.
    """

    value: Callable[[Array, Array, float], Array]
    gradient: Callable[[Array, Array, float], Array]
    is_bounded: bool = True


def _above_zero(x: Array) -> Array:
    """Return x where it is positive, 0 elsewhere."""
    return namespace(x).maximum(x, 0.0)


def _hinge(threshold: float) -> SGDLoss:
    """Return max(0, threshold - y p): the hinge for 1, the perceptron's loss for 0."""

    def gradient(y: Array, p: Array, epsilon: float) -> Array:
        return -y * namespace(p).astype(y * p <= threshold, p.dtype)

    return SGDLoss(lambda y, p, epsilon: _above_zero(threshold - y * p), gradient)


def _squared_hinge_value(y: Array, p: Array, epsilon: float) -> Array:
    """Return max(0, 1 - y p)^2."""
    return _above_zero(1 - y * p) ** 2


def _squared_hinge_gradient(y: Array, p: Array, epsilon: float) -> Array:
    return -2 * y * _above_zero(1 - y * p)


def _modified_huber_value(y: Array, p: Array, epsilon: float) -> Array:
    """Return max(0, 1 - y p)^2, from y p = -1 downwards its tangent -4 y p."""
    miss = _above_zero(1 - y * p)
    # A miss of 2 is y p = -1, from where on the loss grows with slope 4.
    near = namespace(p).minimum(miss, 2.0)
    return near**2 + 4 * (miss - near)


def _modified_huber_gradient(y: Array, p: Array, epsilon: float) -> Array:
    return -2 * y * namespace(p).minimum(_above_zero(1 - y * p), 2.0)


def _log_value(y: Array, p: Array, epsilon: float) -> Array:
    """Return log(1 + exp(-y p)), without overflow."""
    xp, z = namespace(p), y * p
    return xp.log1p(xp.exp(-xp.abs(z))) + _above_zero(-z)


def _log_gradient(y: Array, p: Array, epsilon: float) -> Array:
    """Return -y / (1 + exp(y p)), which an exponential that overflows leaves at 0."""
    return -y / (1 + namespace(p).exp(y * p))


def _squared_value(y: Array, p: Array, epsilon: float) -> Array:
    """Return (p - y)^2 / 2."""
    return (p - y) ** 2 / 2


def _squared_gradient(y: Array, p: Array, epsilon: float) -> Array:
    return p - y


def _huber_value(y: Array, p: Array, epsilon: float) -> Array:
    """Return (p - y)^2 / 2, from a distance of epsilon on its tangent."""
    near = _huber_gradient(y, p, epsilon)
    # One formula for both parts: beyond epsilon, `near` is epsilon with the sign of p - y.
    return near * (p - y - near / 2)


def _huber_gradient(y: Array, p: Array, epsilon: float) -> Array:
    """Return p - y, at most epsilon in size."""
    xp = namespace(p)
    return xp.minimum(xp.maximum(p - y, -epsilon), epsilon)


def _epsilon_insensitive_value(y: Array, p: Array, epsilon: float) -> Array:
    """Return max(0, |p - y| - epsilon)."""
    return _above_zero(namespace(p).abs(p - y) - epsilon)


def _epsilon_insensitive_gradient(y: Array, p: Array, epsilon: float) -> Array:
    """Return the sign of p - y where the two are further apart than epsilon."""
    xp, residual = namespace(p), p - y
    return xp.sign(residual) * xp.astype(xp.abs(residual) > epsilon, p.dtype)


def _squared_epsilon_insensitive_value(y: Array, p: Array, epsilon: float) -> Array:
    """Return max(0, |p - y| - epsilon)^2."""
    return _epsilon_insensitive_value(y, p, epsilon) ** 2


def _squared_epsilon_insensitive_gradient(y: Array, p: Array, epsilon: float) -> Array:
    return 2 * namespace(p).sign(p - y) * _epsilon_insensitive_value(y, p, epsilon)


REGRESSION_LOSSES = {
    "squared_error": SGDLoss(_squared_value, _squared_gradient, is_bounded=False),
    "huber": SGDLoss(_huber_value, _huber_gradient),
    "epsilon_insensitive": SGDLoss(_epsilon_insensitive_value, _epsilon_insensitive_gradient),
    "squared_epsilon_insensitive": SGDLoss(
        _squared_epsilon_insensitive_value,
        _squared_epsilon_insensitive_gradient,
        is_bounded=False,
    ),
}

SGD_LOSSES = {
    "hinge": _hinge(1.0),
    "log_loss": SGDLoss(_log_value, _log_gradient),
    "modified_huber": SGDLoss(_modified_huber_value, _modified_huber_gradient),
    "squared_hinge": SGDLoss(_squared_hinge_value, _squared_hinge_gradient, is_bounded=False),
    "perceptron": _hinge(0.0),
    **REGRESSION_LOSSES,
}
