"""Moments of columns with gaps, and those that are known of Dask rows without a pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._array import FLOAT64, INT64, asarray_like, astype, dtype_of, namespace
from skfleet._linalg import reduce_down, sums_down
from skfleet.estimators import _moments_kernel

# Relative difference of means below which they are taken as equal.
ROUNDING = 8 * np.finfo(np.float64).eps


class ColumnMoments(NamedTuple):
    """Number or weight of the values of each column, their mean, and squares about it."""

    n: np.ndarray
    mean: np.ndarray | None
    squares: np.ndarray | None


def count_values(is_missing: Any) -> Any:
    """Return the number of values in each column that a mask does not mark, on its device."""
    return sums_down(astype(~is_missing, INT64), INT64)


def moments_of_values(X: Any, weights: Any = None) -> ColumnMoments:
    """Return the moments of the values of dense rows that are not NaN, on the device of X.

    By two passes with a correction (Chan, Golub and LeVeque, 1983, equation 1.7), on a CUDA device
    by one.
    """
    if _moments_kernel.supports(X):
        sums = _moments_kernel.row_sums(X, weights=weights, skips_nan=True).moments
        return ColumnMoments(sums[0, :], sums[1, :], sums[2, :])
    xp, dtype = namespace(X), dtype_of(X)
    is_value, zero = ~xp.isnan(X), asarray_like(0.0, X)
    column = None if weights is None else astype(weights, FLOAT64)[:, None]

    def sums(values: Any) -> Any:
        return sums_down(values if column is None else astype(values, FLOAT64) * column)

    n = sums(astype(is_value, dtype))
    n_values = n if column is None else sums_down(astype(is_value, dtype))
    divisor = xp.where(n > 0, n, xp.ones_like(n))
    mean = sums(xp.where(is_value, X, zero)) / divisor
    deviations = xp.where(is_value, X - astype(mean, dtype), zero)
    correction = sums(deviations) / divisor  # of the rounding of the mean
    squares = sums(deviations**2) - n * correction**2
    nan, positive = asarray_like(np.nan, mean), xp.where(squares > 0, squares, xp.zeros_like(n))
    return ColumnMoments(n, xp.where(n_values > 0, mean, nan), positive)


def extremes_of_values(X: Any) -> tuple[Any, Any]:
    """Return the least and the greatest value of each column of dense rows, NaN without any."""
    xp = namespace(X)
    is_missing, nan, infinity = xp.isnan(X), asarray_like(np.nan, X), asarray_like(np.inf, X)
    is_empty = reduce_down(xp.all, is_missing)
    low = reduce_down(xp.min, xp.where(is_missing, infinity, X))
    high = reduce_down(xp.max, xp.where(is_missing, -infinity, X))
    return xp.where(is_empty, nan, low), xp.where(is_empty, nan, high)


def combine_column_moments(a: ColumnMoments, b: ColumnMoments) -> ColumnMoments:
    """Return the moments of two parts of the rows together (Chan, Golub and LeVeque, 1983)."""
    n = a.n + b.n
    if a.mean is None or b.mean is None:
        return ColumnMoments(n, None, None)
    with np.errstate(invalid="ignore", divide="ignore"):
        fraction = np.where(n > 0, b.n / n, 0.0)
    a_mean, b_mean = np.where(a.n > 0, a.mean, b.mean), np.where(b.n > 0, b.mean, a.mean)
    # means of equal values differ by rounding
    is_equal = np.abs(b_mean - a_mean) <= ROUNDING * np.abs(a_mean)
    if a.squares is not None and b.squares is not None:  # and those of many rows by more
        is_constant = (a.squares == 0) & (b.squares == 0)
        rounding = n * np.finfo(np.float64).eps * np.abs(a_mean)
        is_equal |= is_constant & (np.abs(b_mean - a_mean) <= rounding)
    shift, squares = np.where(is_equal, 0.0, b_mean - a_mean), None
    if a.squares is not None and b.squares is not None:
        between = np.where((a.n > 0) & (b.n > 0), a.n * fraction * shift**2, 0.0)
        squares = a.squares + b.squares + between
    return ColumnMoments(n, a_mean + fraction * shift, squares)


def set_known_moments(X: Any, moments: ColumnMoments | None) -> None:
    """Record the moments of Dask rows, for a fit that needs them; None where they are not known."""
    if moments is not None:
        X._known_moments = name_of(X), moments


def known_moments(X: Any) -> ColumnMoments | None:
    """Return the moments that were recorded of Dask rows; None of any that were changed since."""
    name, moments = getattr(X, "_known_moments", (None, None))
    return moments if name == name_of(X) else None


def name_of(X: Any) -> str:
    """Return the name of a Dask collection, which stands for its content."""
    return str(X.name if hasattr(X, "chunks") else X._name)
