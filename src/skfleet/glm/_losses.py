"""Pointwise losses and their derivatives in the linear predictor, in the library of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from skfleet._array import like, namespace


class Loss(Protocol):
    """A loss of a target y and a linear predictor eta.

    `eta` has one column per output; y is what the loss makes of a label. With n rows and m outputs
    `gradient` is (n, m), and `hessian` gives the entry for outputs i and j as (n,).
    """

    n_outputs: int

    def value(self, y: Any, eta: Any) -> Any:
        """Return the loss of each row."""
        ...

    def gradient(self, y: Any, eta: Any) -> Any:
        """Return its derivatives in eta."""
        ...

    def hessian(self, mean: Any, i: int, j: int) -> Any:
        """Return a second derivative in eta, from the means."""
        ...

    def mean(self, eta: Any) -> Any:
        """Return the expected target of each row."""
        ...


@dataclass(frozen=True)
class BinaryLogistic:
    """Negative log-likelihood of y in {0, 1} with probability 1 / (1 + exp(-eta)) of 1."""

    n_outputs: int = 1

    def value(self, y: Any, eta: Any) -> Any:
        """Return log(1 + exp(eta)) - y * eta, without overflow."""
        xp = namespace(eta)
        eta = eta[:, 0]
        positive = xp.where(eta > 0, eta, xp.zeros_like(eta))
        return positive + xp.log1p(xp.exp(-xp.abs(eta))) - y * eta

    def gradient(self, y: Any, eta: Any) -> Any:
        """Return the probability of 1, less y."""
        return self.mean(eta) - y[:, None]

    def hessian(self, mean: Any, i: int, j: int) -> Any:
        """Return the variance of y."""
        return mean[:, 0] * (1 - mean[:, 0])

    def mean(self, eta: Any) -> Any:
        """Return the probability of 1, exact to the last bits for large eta of both signs."""
        xp = namespace(eta)
        small = xp.exp(-xp.abs(eta))
        return xp.where(eta >= 0, xp.ones_like(eta), small) / (1 + small)


@dataclass(frozen=True)
class Multinomial:
    """Negative log-likelihood of class y in {0, ..., n_outputs - 1} with softmax probabilities."""

    n_outputs: int

    def value(self, y: Any, eta: Any) -> Any:
        """Return log(sum(exp(eta))) - eta[y], without overflow."""
        xp = namespace(eta)
        largest = xp.max(eta, axis=1)
        total = xp.sum(xp.exp(eta - largest[:, None]), axis=1)
        return largest + xp.log(total) - xp.sum(eta * self._indicator(y, eta), axis=1)

    def gradient(self, y: Any, eta: Any) -> Any:
        """Return the probabilities, less 1 for the true class."""
        return self.mean(eta) - self._indicator(y, eta)

    def hessian(self, mean: Any, i: int, j: int) -> Any:
        """Return a covariance of the class indicators."""
        return mean[:, i] * ((1.0 if i == j else 0.0) - mean[:, j])

    def mean(self, eta: Any) -> Any:
        """Return the probabilities of the classes."""
        xp = namespace(eta)
        powers = xp.exp(eta - xp.max(eta, axis=1)[:, None])
        return powers / xp.sum(powers, axis=1)[:, None]

    def _indicator(self, y: Any, eta: Any) -> Any:
        """Return 1 where the class is the true one, else 0."""
        xp = namespace(eta)
        classes = like(np.arange(self.n_outputs, dtype=np.float64), eta)
        return xp.astype(y[:, None] == classes, eta.dtype)
