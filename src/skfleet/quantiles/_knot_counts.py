"""The values of columns at and between knots, counted and collected in a pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from sklearn import config_context

from skfleet._array import asarray_like, is_not_numpy, namespace, to_host, to_host_if_array
from skfleet._linalg import is_sparse
from skfleet.blocks import Block, row_uniform

# Returns the validated columns of a block, dense or CSC, and the weights of its rows or None. Dense
# floats without weights may be on a device, which sorts them; what is collected is on the host.
ColumnsOf: TypeAlias = Callable[[Block], tuple[Any, Any]]

# Columns that are copied together where rows are contiguous.
TILE = 16


class ColumnRequest(NamedTuple):
    """Values of a column to count below, ascending, and the gaps between them to collect.

    `estimates` are the numbers of values in the gaps that are collected.
    """

    knots: np.ndarray
    is_collected: np.ndarray
    estimates: np.ndarray


class KnotPlan(NamedTuple):
    """The requests of a pass by column, and the fraction of the values that is collected."""

    requests: dict[int, ColumnRequest]
    fraction: float
    seed: int


class KnotCounts(NamedTuple):
    """Numbers and weights of the values below, and through, each knot; and collected values."""

    below: np.ndarray
    through: np.ndarray
    weight_below: np.ndarray
    weight_through: np.ndarray
    values: tuple[np.ndarray, ...]
    weights: tuple[np.ndarray, ...] | None


def count_at_knots(
    columns_of: ColumnsOf, implicit_zeros: bool, plan: KnotPlan, block: Block
) -> list[KnotCounts]:
    with config_context(assume_finite=True):
        X, weight = columns_of(block)
    if weight is not None:
        used = np.flatnonzero(weight > 0)
        X, weight = X[used], weight[used].astype(np.float64)
    draw = partial(row_uniform, plan.seed + block.number)
    column_of, results, n_drawn = column_getter(X), [], 0
    for j, (knots, is_collected, _) in plan.requests.items():
        values, n_zeros = column_of(j)
        values, weights = sorted_values(values, weight)
        n_zeros = n_zeros if implicit_zeros else 0
        left, right = _places(values, knots, "left"), _places(values, knots, "right")
        starts, ends = np.append(0, right), np.append(left, values.shape[0])
        chosen = [slice(starts[k], ends[k]) for k in np.flatnonzero(is_collected)]
        runs = [to_host_if_array(values[part]) for part in chosen or [slice(0)]]
        inside = np.concatenate(runs)
        draws = None
        if plan.fraction < 1:
            draws = draw(n_drawn, len(inside)) < plan.fraction
            n_drawn, inside = n_drawn + len(inside), inside[draws]
        # the zero is a knot of sparse columns
        below, through = left + n_zeros * (knots > 0), right + n_zeros * (knots >= 0)
        weight_below, weight_through = below, through
        if weights is not None:
            cumulative = np.concatenate([[0.0], np.cumsum(weights)])
            weight_below, weight_through = cumulative[left], cumulative[right]
            weights = np.concatenate([weights[part] for part in chosen] or [weights[:0]])
            weights = weights if draws is None else weights[draws]
        of_inside = None if weights is None else (weights,)
        counts = below, through, weight_below, weight_through
        results.append(KnotCounts(*counts, (inside,), of_inside))
    return results


def column_getter(X: Any) -> Callable[[int], tuple[np.ndarray, int]]:
    """Return a function that returns the explicit values of a column and its number of zeros."""
    if not is_sparse(X):
        if is_not_numpy(X) or X.shape[1] < 2 * TILE or X.flags.f_contiguous:
            return lambda j: (X[:, j], 0)
        # Rows are contiguous, so a column has a value in each of many cache lines: a few columns
        # are copied together.
        tile_of = lru_cache(1)(lambda i: np.ascontiguousarray(X[:, i * TILE : (i + 1) * TILE].T))
        return lambda j: (tile_of(j // TILE)[j % TILE], 0)
    X = X.tocsc()

    def column_of(j: int) -> tuple[np.ndarray, int]:
        values = X.data[X.indptr[j] : X.indptr[j + 1]]
        values = values if values.dtype.kind == "f" else values.astype(np.float64)
        return values, X.shape[0] - len(values)

    return column_of


def sorted_values(
    values: np.ndarray, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the values that are not NaN in ascending order, and their weights."""
    if is_not_numpy(values):
        xp = namespace(values)
        n = values.shape[0] - int(xp.sum(xp.astype(xp.isnan(values), xp.int64)))
        return xp.sort(values)[:n], None
    if weight is None:
        values = np.sort(values)
    else:
        order = np.argsort(values)
        values, weight = values[order], weight[order]
    # NumPy sorts NaN last.
    if values.dtype.kind == "f" and len(values) and np.isnan(values[-1]):
        n = np.searchsorted(values, np.nan)
        return values[:n], None if weight is None else weight[:n]
    return values, weight


def _places(values: Any, knots: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
    """Return the numbers of sorted values below knots, or through them, on the host."""
    if is_not_numpy(values):
        return to_host(
            namespace(values).searchsorted(values, asarray_like(knots, values), side=side)
        )
    return np.searchsorted(values, knots, side)


def combine_counts(a: list[KnotCounts], b: list[KnotCounts]) -> list[KnotCounts]:
    return [_combine_column(x, z) for x, z in zip(a, b, strict=True)]


def _combine_column(a: KnotCounts, b: KnotCounts) -> KnotCounts:
    below, through = a.below + b.below, a.through + b.through
    values = (*a.values, *b.values)
    if a.weights is None or b.weights is None:
        return KnotCounts(below, through, below, through, values, None)
    weight_below = a.weight_below + b.weight_below
    weight_through = a.weight_through + b.weight_through
    weights = (*a.weights, *b.weights)
    return KnotCounts(below, through, weight_below, weight_through, values, weights)
