"""Rows by their global numbers, for fits on a subsample in this process."""

from __future__ import annotations

from operator import or_
from typing import Any, NamedTuple

import numpy as np

from skfleet._linalg import is_sparse, vstack
from skfleet.blocks import Block
from skfleet.engine import NamedCall, Passes, Reduction
from skfleet.quantiles import ColumnsOf


class BlockLengths(NamedTuple):
    """Numbers of rows of blocks by the blocks' numbers, their weights, and the rows if few."""

    lengths: dict[int, int]
    weights: dict[int, np.ndarray] | None
    rows: dict[int, Any] | None

    @property
    def n_rows(self) -> int:
        return sum(self.lengths.values())

    def all_rows(self) -> Any:
        """Return all rows in their order, None if they are not few."""
        return None if self.rows is None else in_order(self.rows)

    def all_weights(self) -> np.ndarray | None:
        """Return the weights of all rows in their order, None without."""
        return None if self.weights is None else np.concatenate(_values_in_order(self.weights))


def count_lengths(
    name: str, columns_of: ColumnsOf, n_rows: int, *, with_weights: bool = False
) -> Reduction:
    """Return the reduction to `BlockLengths`, which has the rows if they are at most `n_rows`."""
    per_block = NamedCall(name, _lengths, columns_of, n_rows, with_weights)
    return Reduction(per_block, NamedCall(name, _combine_lengths, n_rows))


def drawn_rows(
    name: str, columns_of: ColumnsOf, lengths: dict[int, int], indices: np.ndarray
) -> Passes:
    """Make a pass and return the rows with global numbers, in the order of these."""
    ordered, inverse = np.unique(indices, return_inverse=True)
    numbers = sorted(lengths)
    starts = np.cumsum([0, *(lengths[number] for number in numbers)])
    bounds = np.searchsorted(ordered, starts)
    positions = {
        number: ordered[bounds[i] : bounds[i + 1]] - starts[i] for i, number in enumerate(numbers)
    }
    rows = yield Reduction(NamedCall(name, _take, columns_of, positions), or_)
    return in_order(rows)[inverse]


def in_order(parts: dict[int, Any]) -> Any:
    """Return the rows of blocks, by the blocks' numbers, one below the other."""
    return vstack(_values_in_order(parts))


def _values_in_order(parts: dict[int, Any]) -> list[Any]:
    return [parts[number] for number in sorted(parts)]


def _lengths(columns_of: ColumnsOf, n_rows: int, with_weights: bool, block: Block) -> BlockLengths:
    X, weight = columns_of(block)
    weights = {block.number: weight} if with_weights and weight is not None else None
    rows = {block.number: _by_rows(X)} if X.shape[0] <= n_rows else None
    return BlockLengths({block.number: X.shape[0]}, weights, rows)


def _combine_lengths(n_rows: int, a: BlockLengths, b: BlockLengths) -> BlockLengths:
    lengths = {**a.lengths, **b.lengths}
    weights = None if a.weights is None or b.weights is None else {**a.weights, **b.weights}
    rows = None
    if a.rows is not None and b.rows is not None and sum(lengths.values()) <= n_rows:
        rows = {**a.rows, **b.rows}
    return BlockLengths(lengths, weights, rows)


def _take(columns_of: ColumnsOf, positions: dict[int, np.ndarray], block: Block) -> dict[int, Any]:
    return {block.number: _by_rows(columns_of(block)[0])[positions[block.number]]}


def _by_rows(X: Any) -> Any:
    return X.tocsr() if is_sparse(X) else X
