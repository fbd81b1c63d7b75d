"""Neighbours of queries, as a reduction of the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from skfleet.blocks import Block, slice_rows, take_to_host
from skfleet.engine import Reduction, open_scattered
from skfleet.estimators.neighbors._nearest import PairwiseMetric, nearest

# Bytes of the rows that are searched at once: many, so that there are few results to merge.
PIECE_BYTES = 16 * 2**20


class Neighbors(NamedTuple):
    """Distances, row numbers and targets of the nearest rows, of shape (n_queries, n_neighbors).

    Codes of labels, or numbers, are the targets: None without, and of one more dimension of several
    outputs.
    """

    distances: np.ndarray
    numbers: np.ndarray
    targets: np.ndarray | None = None

    def take(self, columns: np.ndarray) -> Neighbors:
        """Return the neighbours at positions, an array of as many for each query."""
        return Neighbors(*(None if x is None else _take(x, columns) for x in self))

    def rows_between(self, low: int, high: int) -> Neighbors:
        """Return the neighbours of consecutive queries."""
        return Neighbors(*(slice_rows(x, low, high) for x in self))


def merge(a: Neighbors, b: Neighbors, n_neighbors: int) -> Neighbors:
    """Return the nearest of two parts of the rows; of equal distances, the first in all rows."""
    both = join([a, b], axis=1)
    order = np.lexsort((both.numbers, both.distances), axis=-1)
    return both.take(order[:, :n_neighbors])


def join(parts: Sequence[Neighbors], axis: int = 0) -> Neighbors:
    """Return the neighbours of consecutive queries, or of several parts of the rows."""
    fields = zip(*parts, strict=True)
    return Neighbors(*(None if x[0] is None else np.concatenate(x, axis=axis) for x in fields))


def without_self(neighbors: Neighbors, numbers: np.ndarray) -> Neighbors:
    """Return the neighbours of training rows less the rows themselves, or the last ones."""
    is_self = neighbors.numbers == numbers[:, None]
    is_self[~is_self.any(axis=1), -1] = True  # more rows of distance zero than neighbours
    columns = np.nonzero(~is_self)[1]
    return neighbors.take(columns.reshape(len(numbers), -1))


def search(n_neighbors: int, metric: PairwiseMetric, classes: Sequence[np.ndarray]) -> Reduction:
    """Return the reduction of training rows to the neighbours of its argument, a batch of queries.

    With the labels of each output in `classes`, their numbers are the targets.
    """
    per_block = partial(_search_block, n_neighbors=n_neighbors, metric=metric, classes=classes)
    return Reduction(per_block, partial(merge, n_neighbors=n_neighbors), piece_bytes=PIECE_BYTES)


def _search_block(
    block: Block,
    batch: Any,
    n_neighbors: int,
    metric: PairwiseMetric,
    classes: Sequence[np.ndarray],
) -> Neighbors:
    queries = open_scattered(batch).rows
    distances, columns = nearest(block.X, queries, min(n_neighbors, block.n_rows), metric)
    targets = None
    if block.y is not None:
        targets = take_to_host(block.y, columns.ravel())
        targets = targets.reshape(*columns.shape, *targets.shape[1:])
        if len(classes) == 1:
            targets = np.searchsorted(classes[0], targets.reshape(columns.shape))
        elif classes:
            codes = [np.searchsorted(c, targets[..., i]) for i, c in enumerate(classes)]
            targets = np.stack(codes, axis=-1)
    return Neighbors(distances, columns + block.row_offset, targets)


def _take(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return values at positions along the second axis."""
    return values[np.arange(len(columns))[:, None], columns]
