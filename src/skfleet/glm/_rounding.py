"""Coefficients and intercepts in single precision that agree with each other."""

from __future__ import annotations

import numpy as np

from skfleet._array import FLOAT64

# Units in the last place by which one coefficient may move, far below what solvers leave.
MAX_MOVE = 8


def round_coef(
    coef: np.ndarray, x_mean: np.ndarray, y_mean: np.ndarray, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients by output rounded to a precision, and intercepts that agree with them.

    The intercepts lead through the means. Where columns are far from zero, the rounding of an
    intercept in single precision changes predictions far more than the rounding of coefficients.
    So coefficients move by a few units in the last place, from the coarse to the fine, until the
    intercept is about a number of that precision.
    """
    rounded = coef.astype(dtype).astype(np.float64)
    intercept = np.asarray(y_mean - rounded @ x_mean)
    if dtype == FLOAT64:
        return rounded, intercept
    errors = intercept - intercept.astype(dtype)
    for row, error in zip(rounded, np.atleast_1d(errors), strict=True):
        _absorb(row, x_mean, float(error), dtype)
    return rounded, np.asarray(y_mean - rounded @ x_mean)


def _absorb(coef: np.ndarray, x_mean: np.ndarray, error: float, dtype: np.dtype) -> None:
    """Change `coef @ x_mean` by an error, in place."""
    units = np.where(coef == 0, 0.0, np.spacing(np.abs(coef).astype(dtype)).astype(np.float64))
    changes = np.abs(units * x_mean)
    order = np.argsort(changes)
    sizes = changes[order]
    # Each move leaves at most half of its unit, so a finer one comes next.
    while (last := int(np.searchsorted(sizes, 2 * abs(error), "right")) - 1) >= 0 and sizes[last]:
        j = order[last]
        count = np.clip(np.rint(error / (units[j] * x_mean[j])), -MAX_MOVE, MAX_MOVE)
        moved = float(np.asarray(coef[j] + count * units[j]).astype(dtype))
        error -= (moved - coef[j]) * x_mean[j]
        coef[j] = moved
        sizes = sizes[:last]
