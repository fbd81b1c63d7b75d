"""Exact quantiles of all columns: NumPy's, or scikit-learn's of weighted rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from skfleet.engine import Passes
from skfleet.quantiles._knot_counts import ColumnsOf
from skfleet.quantiles._order_values import ColumnSummary, select_values, summary_reduction

# Methods of which each quantile is one of the values.
_DISCRETE_METHODS = ("inverted_cdf", "closest_observation")
# alpha and beta of Hyndman and Fan's continuous methods.
_PLOTTING_POSITIONS = {
    "interpolated_inverted_cdf": (0, 1),
    "hazen": (0.5, 0.5),
    "weibull": (0, 0),
    "median_unbiased": (1 / 3.0, 1 / 3.0),
    "normal_unbiased": (3 / 8.0, 3 / 8.0),
}


def column_quantiles(
    name: str,
    columns_of: ColumnsOf,
    levels: ArrayLike,
    method: str | Sequence[str] = "linear",
    *,
    implicit_zeros: bool = True,
) -> Passes:
    """Return the `ColumnSummary` and the quantiles of all columns in two passes over the rows.

    To be used in a fit as ``summary, quantiles = yield from column_quantiles(...)``. One pass
    suffices for up to `SAMPLE_ROWS` rows. A third one is seldom needed, or where the values near
    the quantiles exceed `MAX_BYTES` (see `select_values`).

    Parameters
    ----------
    name : str
        Name of the tasks on the dashboard.
    columns_of : callable
        Returns, of a block, the matrix of its validated numbers (dense, or CSC) and the weights of
        its rows or None. It is called on workers in every pass, so it is a function, or a method of
        an unfitted clone, as in ``clone(self)._columns``. NaN are missing values.
    levels : array of shape (n_levels,) or (n_levels, n_features)
        From 0 to 100; NaN for none.
    method : str or list of str
        Of each level, a method of `numpy.percentile`, or "median", which is the value of
        `numpy.nanmedian` for level 50. For weighted rows: "inverted_cdf" or
        "averaged_inverted_cdf", as in scikit-learn.
    implicit_zeros : bool
        Whether the zeros that sparse rows do not store are values.

    Returns
    -------
    summary : ColumnSummary
        What the first pass has counted.
    quantiles : array of shape (n_levels, n_features)
        NaN for columns without values.
    """
    summary = yield summary_reduction(name, columns_of, implicit_zeros=implicit_zeros)
    quantiles = yield from quantiles_after(
        name, columns_of, summary, levels, method, implicit_zeros=implicit_zeros
    )
    return summary, quantiles


def quantiles_after(
    name: str,
    columns_of: ColumnsOf,
    summary: ColumnSummary,
    levels: ArrayLike,
    method: str | Sequence[str] = "linear",
    *,
    implicit_zeros: bool = True,
) -> Passes:
    """Return the quantiles of all columns, after the pass of `summary_reduction`.

    To be used in a fit as ``quantiles = yield from quantiles_after(...)``. `summary` is the result
    of that pass; the other parameters are those of `column_quantiles`. At most 10,000 rows need no
    further pass, others usually one.
    """
    n_columns = len(summary.n_values)
    levels = np.asarray(levels, dtype=np.float64)
    levels = levels[:, None] if levels.ndim == 1 else levels
    levels = np.broadcast_to(levels, (len(levels), n_columns))
    q = levels / 100
    methods = [method] * len(q) if isinstance(method, str) else list(method)
    if summary.low is None or not len(q):
        return np.full(q.shape, np.nan)
    if summary.sample.weight is not None:
        low, high = _weighted_targets(summary, levels, methods)
    else:
        ranks = [_ranks(summary.n_values, q[i], name) for i, name in enumerate(methods)]
        low, high, gamma = (np.stack(parts) for parts in zip(*ranks, strict=True))
        low, high = low + 1.0, high + 1.0
    unknown = np.isnan(q) | (summary.n_values == 0)
    targets = np.concatenate([np.where(unknown, np.nan, part) for part in (low, high)])
    values = yield from select_values(
        name, columns_of, summary, targets, implicit_zeros=implicit_zeros
    )
    a, b = values[: len(q)], values[len(q) :]
    if summary.sample.weight is not None:
        a, b = (x.astype(np.result_type(x, np.float32), copy=False) for x in (a, b))
        quantiles = np.where(a == b, a, (a + b) / 2)
    else:
        quantiles = _interpolate(a, b, gamma)
        for i, method_of_level in enumerate(methods):
            if method_of_level in _DISCRETE_METHODS:
                quantiles[i] = a[i]
            elif method_of_level == "median":
                quantiles[i] = np.mean([a[i], b[i]], axis=0)
    return np.where(unknown, np.nan, quantiles).astype(quantiles.dtype, copy=False)


def _ranks(n: np.ndarray, q: np.ndarray, method: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the two ranks, from 0, about a quantile of n values, and its place between them."""
    if method == "median":
        return (n - 1) // 2, n // 2, np.full(len(q), 0.5)
    if method in _DISCRETE_METHODS:
        index = n * q - 1 - (0.5 if method == "closest_observation" else 0)
        before = np.floor(index)
        is_before = index == before
        if method == "closest_observation":
            is_before &= before % 2 == 1
        rank = np.maximum(np.where(is_before, before, before + 1), 0)
        return rank, rank, np.zeros(len(q))
    if method == "linear":
        index = (n - 1) * q
    elif method == "averaged_inverted_cdf":
        index = n * q - 1
    else:
        alpha, beta = _PLOTTING_POSITIONS[method]
        index = n * q + (alpha + q * (1 - alpha - beta)) - 1
    before = np.floor(index)
    gamma = index - before
    if method == "averaged_inverted_cdf":
        gamma = np.where(gamma == 0, 0.5, 1.0)
    return np.clip(before, 0, n - 1), np.clip(before + 1, 0, n - 1), gamma


def _interpolate(a: np.ndarray, b: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """Return values between a and b, rounded as NumPy's."""
    with np.errstate(invalid="ignore"):  # infinities
        step = b - a
        return np.where(gamma >= 0.5, b - step * (1 - gamma), a + step * gamma)


def _weighted_targets(
    summary: ColumnSummary, levels: np.ndarray, methods: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the cumulative weights that the two values about each quantile reach."""
    dtype = np.asarray(summary.low).dtype
    dtype = dtype if dtype.kind == "f" else np.dtype(np.float64)
    low = levels.astype(dtype) / dtype.type(100) * summary.weight.astype(dtype)
    low = np.where(low == 0, np.nextafter(dtype.type(0), dtype.type(1)), low).astype(np.float64)
    is_mean = np.equal(methods, "averaged_inverted_cdf")[:, None]
    # where the weights tie, the next value: the least whose weight exceeds the first's
    above = np.nextafter(low + np.finfo(dtype).eps, np.inf)
    high = np.where(is_mean, np.minimum(above, summary.weight), low)
    return low, np.maximum(low, high)
