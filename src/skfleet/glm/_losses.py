"""Pointwise losses and their derivatives in the linear predictor, in the library of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from skfleet._array import asarray_like, namespace
from skfleet._typing import Array

# Keeps the logarithm finite for means of 0, of counts that are all 0 for example.
MIN_MEAN = 1e-8


class Pointwise(NamedTuple):
    """A loss at n rows: values (n,), derivatives (n, n_outputs), expected targets (same)."""

    value: Array
    gradient: Array
    mean: Array


class Loss(Protocol):
    """A loss of a target y and a linear predictor eta of one column per output.

    `n_outputs` is the number of columns of eta. `hessian_bound` is the largest eigenvalue that the
    second derivative has anywhere, which bounds the length of a gradient step. `valid_targets` is
    the range of y in words, empty where all numbers are allowed.
    """

    n_outputs: int
    hessian_bound: float
    valid_targets: str  # the range of y in words; empty for all numbers

    def evaluate(self, y: Array, eta: Array) -> Pointwise:
        """Return the loss of each row, its derivative in eta, and the expected target."""

    def hessian(self, y: Array, mean: Array, i: int, j: int) -> Array:
        """Return the second derivative by outputs i and j, or a positive substitute for it."""

    def mean(self, eta: Array) -> Array:
        """Return the expected target of each row."""

    def link(self, mean: np.ndarray) -> np.ndarray:
        """Return the linear predictor with the given expected targets."""

    def mean_loss(self, mean: np.ndarray, eta: np.ndarray) -> float:
        """Return the average loss of rows of one predictor and targets of a given average."""

    def in_y_true_range(self, y: Array) -> Array:
        """Return for each target whether the loss is defined for it."""


class _AnyTarget:
    """A loss that is defined for every target."""

    valid_targets = ""

    def in_y_true_range(self, y: Array) -> Array:
        """Return True for every target."""
        return namespace(y).ones_like(y, dtype=bool)


@dataclass(frozen=True)
class BinaryLogistic(_AnyTarget):
    """Negative log-likelihood of y in {0, 1} with probability 1 / (1 + exp(-eta)) of 1."""

    n_outputs: int = 1
    hessian_bound: float = 0.25

    def evaluate(self, y: Array, eta: Array) -> Pointwise:
        """Return log(1 + exp(eta)) - y * eta and the rest, without overflow."""
        xp = namespace(eta)
        small = xp.exp(-xp.abs(eta))
        mean = xp.where(eta >= 0, xp.ones_like(eta), small) / (1 + small)
        line = eta[:, 0]
        # log(1 + exp(eta)) = max(eta, 0) + log(1 + exp(-|eta|)), which overflows for no eta.
        positive = xp.where(line > 0, line, xp.zeros_like(line))
        value = positive + xp.log1p(small[:, 0]) - y * line
        return Pointwise(value, mean - y[:, None], mean)

    def hessian(self, y: Array, mean: Array, i: int, j: int) -> Array:
        """Return the variance of y."""
        return mean[:, 0] * (1 - mean[:, 0])

    def mean(self, eta: Array) -> Array:
        """Return the probability of 1, exact to the last bits for large eta of both signs."""
        xp = namespace(eta)
        small = xp.exp(-xp.abs(eta))
        return xp.where(eta >= 0, xp.ones_like(eta), small) / (1 + small)

    def link(self, mean: np.ndarray) -> np.ndarray:
        """Return the log odds."""
        mean = np.clip(mean, MIN_MEAN, 1 - MIN_MEAN)
        return np.log(mean) - np.log1p(-mean)

    def mean_loss(self, mean: np.ndarray, eta: np.ndarray) -> float:
        """Return the average of log(1 + exp(eta)) - y * eta."""
        return float(np.logaddexp(0.0, eta[0]) - mean[0] * eta[0])


@dataclass(frozen=True)
class Multinomial(_AnyTarget):
    """Negative log-likelihood of class y in {0, ..., n_outputs - 1} with softmax probabilities."""

    n_outputs: int
    hessian_bound: float = 0.5

    def evaluate(self, y: Array, eta: Array) -> Pointwise:
        """Return log(sum(exp(eta))) - eta[y] and the rest, without overflow."""
        xp = namespace(eta)
        # The largest exponent becomes 0, so that none overflows.
        largest = xp.max(eta, axis=1)
        powers = xp.exp(eta - largest[:, None])
        total = xp.sum(powers, axis=1)
        classes = asarray_like(np.arange(self.n_outputs, dtype=np.float64), eta)
        truth = xp.astype(y[:, None] == classes, eta.dtype)
        mean = powers / total[:, None]
        value = largest + xp.log(total) - xp.sum(eta * truth, axis=1)
        return Pointwise(value, mean - truth, mean)

    def hessian(self, y: Array, mean: Array, i: int, j: int) -> Array:
        """Return a covariance of the class indicators."""
        return mean[:, i] * ((1.0 if i == j else 0.0) - mean[:, j])

    def mean(self, eta: Array) -> Array:
        """Return the probabilities of the classes."""
        xp = namespace(eta)
        powers = xp.exp(eta - xp.max(eta, axis=1)[:, None])
        return powers / xp.sum(powers, axis=1)[:, None]

    def link(self, mean: np.ndarray) -> np.ndarray:
        """Return the logarithms of the probabilities, about their mean."""
        logarithms = np.log(np.maximum(mean, MIN_MEAN))
        return logarithms - logarithms.mean()

    def mean_loss(self, mean: np.ndarray, eta: np.ndarray) -> float:
        """Return the average of log(sum(exp(eta))) - eta[y]."""
        return float(np.logaddexp.reduce(eta) - mean @ eta)


@dataclass(frozen=True)
class SquaredError(_AnyTarget):
    """Half the squared error, less the part that no predictor changes: eta^2 / 2 - y eta."""

    n_outputs: int = 1
    hessian_bound: float = 1.0

    def evaluate(self, y: Array, eta: Array) -> Pointwise:
        """Return eta^2 / 2 - y eta and the rest, summed over the outputs."""
        xp = namespace(eta)
        y = y if len(y.shape) == 2 else y[:, None]
        return Pointwise(xp.sum(eta * (eta / 2 - y), axis=1), eta - y, eta)

    def hessian(self, y: Array, mean: Array, i: int, j: int) -> Array:
        """Return 1 for an output with itself, else 0."""
        xp = namespace(mean)
        return (xp.ones_like if i == j else xp.zeros_like)(mean[:, 0])

    def mean(self, eta: Array) -> Array:
        """Return eta."""
        return eta

    def link(self, mean: np.ndarray) -> np.ndarray:
        """Return the mean."""
        return mean

    def mean_loss(self, mean: np.ndarray, eta: np.ndarray) -> float:
        """Return the average of eta^2 / 2 - y eta."""
        return float(np.sum(eta * (eta / 2 - mean)))


@dataclass(frozen=True)
class Tweedie:
    """Half the deviance of a distribution with variance mean^power, less its constant part.

    The mean is exp(eta) with a log link, eta without (Jørgensen, 1987, Exponential dispersion
    models). Outside of powers from 1 to 2 with a log link the loss need not be convex; `hessian`
    returns then its expected second derivative, which is never negative (Fisher scoring).
    """

    power: float
    log_link: bool = True
    n_outputs: int = 1
    hessian_bound: float = np.inf

    @property
    def valid_targets(self) -> str:
        """The range of y in words."""
        if self.power <= 0:
            return ""
        return "at least 0" if self.power < 2 else "above 0"

    def in_y_true_range(self, y: Array) -> Array:
        """Return for each target whether it is in the range of the distribution."""
        if self.power <= 0:
            return namespace(y).ones_like(y, dtype=bool)
        return y >= 0 if self.power < 2 else y > 0

    def evaluate(self, y: Array, eta: Array) -> Pointwise:
        """Return the loss and the rest; infinite where there is no such mean."""
        xp, p, line = namespace(eta), self.power, eta[:, 0]
        mean = self.mean(eta)
        mu = mean[:, 0]
        bounded = not self.log_link and p != 0
        if bounded:
            # The identity link predicts means that no such distribution has; an infinite loss makes
            # line searches turn back.
            possible = line > 0
            mu = xp.where(possible, mu, xp.ones_like(mu))
            mean = mu[:, None]
        own, other = self._parts(mu, line if self.log_link else None)
        value = own - y * other
        slope = (mu - y) * _power(mu, (1.0 if self.log_link else 0.0) - p)
        if bounded:
            value = xp.where(possible, value, xp.full_like(value, xp.inf))
        return Pointwise(value, slope[:, None], mean)

    def _parts(self, mu: Array, log_mu: Array | None) -> tuple[Array, Array]:
        """Return the integrals of mu^(1 - power) and of mu^-power."""
        xp, p = namespace(mu), self.power
        if p in (1.0, 2.0) and log_mu is None:
            log_mu = xp.log(mu)
        # Integrals of powers; that of 1 / mu is the logarithm.
        own: Any = log_mu if p == 2 else _power(mu, 2 - p) / (2 - p)
        other: Any = log_mu if p == 1 else _power(mu, 1 - p) / (1 - p)
        return own, other

    def hessian(self, y: Array, mean: Array, i: int, j: int) -> Array:
        """Return the second derivative, or its expectation where it may be negative."""
        p, mu = self.power, mean[:, 0]
        # Neither term is negative for these powers, so the exact second derivative can be used.
        if self.log_link and 1 <= p <= 2:
            return _power(mu, 1 - p) * ((2 - p) * mu + (p - 1) * y)
        return _power(mu, (2.0 if self.log_link else 0.0) - p)

    def mean(self, eta: Array) -> Array:
        """Return exp(eta) or eta."""
        return namespace(eta).exp(eta) if self.log_link else eta

    def link(self, mean: np.ndarray) -> np.ndarray:
        """Return the logarithm of the mean or the mean."""
        return np.log(np.maximum(mean, MIN_MEAN)) if self.log_link else mean

    def mean_loss(self, mean: np.ndarray, eta: np.ndarray) -> float:
        """Return the loss, which is linear in y, for the average of y."""
        with np.errstate(over="ignore"):
            return float(self.evaluate(mean, eta[:, None]).value[0])


def _power(base: Array, exponent: float) -> Array:
    """Return base ** exponent, cheaply for the exponents that are common."""
    if exponent == 0:
        return namespace(base).ones_like(base)
    if exponent == 1:
        return base
    return 1 / base if exponent == -1 else base**exponent
