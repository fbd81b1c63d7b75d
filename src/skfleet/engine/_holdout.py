"""Holdout of rows for validation scores, stratified and drawn by global row numbers."""

from __future__ import annotations

import math
import uuid
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from skfleet._array import to_host
from skfleet._typing import Values
from skfleet._validation import unique_values
from skfleet.blocks import Block, RowBlocks, row_blocks, row_uniform
from skfleet.engine._local import LocalEngine
from skfleet.engine._protocol import Engine
from skfleet.engine._reduce import Reduction, map_reduce, with_row_offsets

# Rows up to which the holdout's size is exact; a larger one is approximate.
MAX_EXACT_ROWS = 1000
# Classes up to which the holdout is stratified.
MAX_CLASSES = 1000
# Rows drawn at once.
CHUNK_ROWS = 2**20


@dataclass(frozen=True, eq=False)
class Holdout:
    """The rows whose draw is at most a threshold: one for all, or that of the row's label."""

    seed: int
    thresholds: np.ndarray
    labels: np.ndarray | None
    key: str  # unique

    def mask(self, block: Block) -> np.ndarray:
        """Return the mask of a block's rows in the holdout."""
        assert block.row_offset is not None
        draws = row_uniform(self.seed, block.row_offset, block.n_rows)
        if self.labels is None:
            return draws <= self.thresholds[0]
        codes = np.searchsorted(self.labels, _labels(block))
        return draws <= self.thresholds[np.minimum(codes, len(self.labels) - 1)]


def draw_holdout(
    engine: Engine,
    rows: RowBlocks,
    size: float,
    seed: int,
    labels: Values | Literal["rows"] | None = None,
) -> Holdout:
    """Draw a holdout of at least one row, which depends on the seed and not on the block sizes.

    The rows have known lengths; `size` is a fraction of them, below 1, or their number. With
    `labels`, each label has the same fraction of its rows in the holdout, but never all. That takes
    a pass over the labels, or, for "rows", over the rows with their y.
    """
    n_rows = rows.n_rows
    assert n_rows is not None
    n_holdout = min(n_rows, math.ceil(size * n_rows) if size < 1 else int(size))
    key = uuid.uuid4().hex
    draws = _draws_by_label(engine, rows, seed, labels) if n_rows and labels is not None else {}
    if draws:
        classes = sorted(draws)
        counts = _allocate(np.array([draws[label][0] for label in classes]), n_holdout).tolist()
        if any(counts):
            pairs = zip(counts, classes, strict=True)
            thresholds = np.array([_threshold(n, *draws[label]) for n, label in pairs])
            return Holdout(seed, thresholds, np.array(classes), key)
    return Holdout(seed, np.array([_threshold_of_all(seed, n_rows, n_holdout)]), None, key)


def _draws_by_label(
    engine: Engine, rows: RowBlocks, seed: int, labels: Values | Literal["rows"]
) -> dict[Any, tuple[int, np.ndarray]]:
    """Return (number of rows, smallest draws) of each label; nothing for too many labels."""
    if not isinstance(labels, str):
        if len(np.shape(labels)) > 1 and np.shape(labels)[1] > 1:
            return {}
        rows = row_blocks(labels, labels, dtype=None)
        engine = engine if rows.on_dask else LocalEngine()
        rows = with_row_offsets(engine, rows)
    return map_reduce(engine, Reduction(_draws, _merge_draws), rows, seed)


def _labels(block: Block) -> np.ndarray:
    return np.asarray(to_host(block.y)).reshape(-1)


def _draws(block: Block, seed: int) -> dict[Hashable, tuple[int, np.ndarray]]:
    """Return (number of rows, smallest draws in order) of each label in a block."""
    assert block.row_offset is not None
    draws = row_uniform(seed, block.row_offset, block.n_rows)
    labels = _labels(block)
    if len(labels) != block.n_rows:  # several outputs
        return {}
    labels, codes = unique_values(labels, return_inverse=True)
    if len(labels) > MAX_CLASSES:
        return {}
    by_label = np.split(draws[np.lexsort((draws, codes))], np.cumsum(np.bincount(codes))[:-1])
    return {
        label: (len(draws), draws[:MAX_EXACT_ROWS].copy())
        for label, draws in zip(labels.tolist(), by_label, strict=True)
    }


def _merge_draws(
    a: dict[Hashable, tuple[int, np.ndarray]], b: dict[Hashable, tuple[int, np.ndarray]]
) -> dict[Hashable, tuple[int, np.ndarray]]:
    """Combine the counts and draws of two partial results."""
    if not a or not b or len(a.keys() | b.keys()) > MAX_CLASSES:
        return {}
    merged = dict(a)
    for label, (n, draws) in b.items():
        n_before, before = merged.get(label, (0, draws[:0]))
        merged[label] = n_before + n, np.sort(np.concatenate([before, draws]))[:MAX_EXACT_ROWS]
    return merged


def _allocate(counts: np.ndarray, n_holdout: int) -> np.ndarray:
    """Return how many rows of each label to hold out: a proportion, by largest remainders."""
    quotas = counts * (n_holdout / counts.sum())
    limits = counts - 1
    sizes = np.minimum(quotas.astype(int), limits)
    n_holdout = min(n_holdout, limits.sum())
    # Repeated: what labels at their limit cannot take goes to other labels, by their remainders.
    while sizes.sum() < n_holdout:
        for label in np.argsort(sizes - quotas, kind="stable"):
            sizes[label] += sizes.sum() < n_holdout and sizes[label] < limits[label]
    return sizes


def _threshold(n_holdout: int, n_rows: int, draws: np.ndarray) -> float:
    """Return the threshold of the draws of `n_holdout` rows, given the smallest draws in order."""
    if not n_holdout:
        return -1.0
    return float(draws[n_holdout - 1]) if n_holdout <= len(draws) else n_holdout / n_rows


def _threshold_of_all(seed: int, n_rows: int, n_holdout: int) -> float:
    """Return the threshold of the draws of `n_holdout` of all rows."""
    if n_holdout > MAX_EXACT_ROWS and n_rows > CHUNK_ROWS:
        return n_holdout / n_rows
    smallest = np.empty(0)
    for start in range(0, n_rows, CHUNK_ROWS):
        draws = row_uniform(seed, start, min(CHUNK_ROWS, n_rows - start))
        smallest = np.sort(np.concatenate([smallest, draws]))[:n_holdout]
    return _threshold(n_holdout, n_rows, smallest)
