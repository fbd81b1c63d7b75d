"""Penalties of coefficients, on the host: value, gradient and Hessian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Penalty(Protocol):
    """A function of the coefficients alone."""

    def value(self, coef: np.ndarray) -> float:
        """Return the penalty."""
        ...

    def gradient(self, coef: np.ndarray) -> np.ndarray:
        """Return its gradient."""
        ...

    def hessian(self, coef: np.ndarray) -> np.ndarray:
        """Return the diagonal of its Hessian."""
        ...


@dataclass(frozen=True)
class L2:
    """Half the weighted sum of squares; a weight of 0 leaves a coefficient (an intercept) free."""

    weights: np.ndarray

    def value(self, coef: np.ndarray) -> float:
        """Return sum(weights * coef ** 2) / 2."""
        return 0.5 * float(np.sum(self.weights * coef**2))

    def gradient(self, coef: np.ndarray) -> np.ndarray:
        """Return weights * coef."""
        return self.weights * coef

    def hessian(self, coef: np.ndarray) -> np.ndarray:
        """Return the weights."""
        return self.weights
