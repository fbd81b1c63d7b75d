"""Penalties of coefficients, on the host: value, gradient, proximal step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Penalty:
    """Penalty of absolute values and squares, with two strengths for each coefficient.

    It is the sum of l1 times the absolute coefficient, and of l2 times half its square. Strengths
    of 0 leave a coefficient (an intercept) free.
    """

    l1: np.ndarray
    l2: np.ndarray

    @property
    def is_smooth(self) -> bool:
        """True without an L1 part."""
        return not self.l1.any()

    def value(self, coef: np.ndarray) -> float:
        """Return the penalty."""
        return float(np.sum(self.l1 * np.abs(coef)) + 0.5 * np.sum(self.l2 * coef**2))

    def gradient(self, coef: np.ndarray) -> np.ndarray:
        """Return the gradient of the L2 part."""
        return self.l2 * coef

    def prox(self, coef: np.ndarray, step: float) -> np.ndarray:
        """Return the proximal operator of the L1 part: soft thresholding."""
        return np.sign(coef) * np.maximum(np.abs(coef) - step * self.l1, 0.0)

    def kkt_violation(self, coef: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the violation of each KKT condition, for a gradient with the L2 part."""
        if self.is_smooth:
            return np.abs(gradient)
        used = np.abs(gradient + self.l1 * np.sign(coef))
        return np.where(coef != 0, used, np.maximum(np.abs(gradient) - self.l1, 0.0))
