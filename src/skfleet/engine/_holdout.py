"""Rows that are held out for scores: so many of each class, drawn by their global numbers."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np

from skfleet._array import to_host
from skfleet.blocks import Block, RowBlocks, row_blocks, row_uniform
from skfleet.engine._local import LocalEngine
from skfleet.engine._protocol import Engine
from skfleet.engine._reduce import Reduction, map_reduce, with_row_offsets

__all__ = ["Holdout", "draw_holdout"]

# Up to so many rows to hold out their number is exact; of more, a draw for each row comes close.
EXACT = 1000
# Labels of more kinds than these are drawn without regard to them.
MOST_CLASSES = 1000
# Draws that are made at once.
CHUNK = 2**20


@dataclass(frozen=True, eq=False)
class Holdout:
    """Rows whose draw is at most a threshold: one for all, or that of their label."""

    seed: int
    thresholds: np.ndarray
    labels: np.ndarray | None
    key: str  # of this one alone

    def mask(self, block: Block) -> np.ndarray:
        """Say which rows of a block are held out."""
        assert block.start is not None
        draws = row_uniform(self.seed, block.start, block.n_rows)
        if self.labels is None:
            return draws <= self.thresholds[0]
        codes = np.searchsorted(self.labels, _labels(block))
        return draws <= self.thresholds[np.minimum(codes, len(self.labels) - 1)]


def draw_holdout(
    engine: Engine, rows: RowBlocks, size: float, seed: int, labels: Any = None
) -> Holdout:
    """Draw which rows are held out, never none of them; one seed, one answer for every cut.

    Parameters
    ----------
    engine : Engine
        Where the rows are.
    rows : RowBlocks
        Rows of known lengths.
    size : float or int
        Share of the rows, below 1, or their number.
    seed : int
        Seed of the draws.
    labels : values of shape (n_samples,), "rows" or None, default=None
        Hold out so many rows of each label as its share is, but never all of them. That takes a
        pass over the labels, or, for "rows", over the rows with their y.
    """
    n_rows = rows.n_rows
    assert n_rows is not None
    n_held = min(n_rows, math.ceil(size * n_rows) if size < 1 else int(size))
    key = uuid.uuid4().hex
    known = _draws_by_label(engine, rows, seed, labels) if n_rows and labels is not None else {}
    if known:
        kinds = sorted(known)
        shares = _allocate(np.array([known[kind][0] for kind in kinds]), n_held).tolist()
        if any(shares):
            thresholds = [
                _threshold(n, *known[kind]) for n, kind in zip(shares, kinds, strict=True)
            ]
            return Holdout(seed, np.array(thresholds), np.array(kinds), key)
    return Holdout(seed, np.array([_threshold_of_all(seed, n_rows, n_held)]), None, key)


def _draws_by_label(engine: Engine, rows: RowBlocks, seed: int, labels: Any) -> Any:
    """Return how many rows each label has, and the least of their draws; nothing of too many."""
    if not isinstance(labels, str):
        if len(np.shape(labels)) > 1 and np.shape(labels)[1] > 1:
            return {}
        rows = row_blocks(labels, labels, dtype=None)
        engine = engine if rows.on_dask else LocalEngine()
        rows = with_row_offsets(engine, rows)
    return map_reduce(engine, Reduction(_draws, _merge_draws), rows, seed)


def _labels(block: Block) -> np.ndarray:
    """Return the labels of a block, one a row, on the host."""
    return np.asarray(to_host(block.y)).reshape(-1)


def _draws(block: Block, seed: int) -> dict[Any, tuple[int, np.ndarray]]:
    """Return how many rows have each label, and the least of their draws in order."""
    assert block.start is not None
    draws = row_uniform(seed, block.start, block.n_rows)
    labels = _labels(block)
    if len(labels) != block.n_rows:  # several outputs
        return {}
    labels, codes = np.unique(labels, return_inverse=True)
    if len(labels) > MOST_CLASSES:
        return {}
    runs = np.split(draws[np.lexsort((draws, codes))], np.cumsum(np.bincount(codes))[:-1])
    each = zip(labels.tolist(), runs, strict=True)
    return {label: (len(run), run[:EXACT].copy()) for label, run in each}


def _merge_draws(a: Any, b: Any) -> Any:
    """Merge the counts and draws of two runs of rows."""
    if not a or not b or len(a.keys() | b.keys()) > MOST_CLASSES:
        return {}
    merged = dict(a)
    for label, (n, draws) in b.items():
        n_before, before = merged.get(label, (0, draws[:0]))
        merged[label] = n_before + n, np.sort(np.concatenate([before, draws]))[:EXACT]
    return merged


def _allocate(counts: np.ndarray, n_held: int) -> np.ndarray:
    """Return how many rows of each label to hold out: shares of a number, by largest remainders."""
    shares = counts * (n_held / counts.sum())
    most = counts - 1
    held = np.minimum(shares.astype(int), most)
    n_held = min(n_held, most.sum())
    while held.sum() < n_held:  # again for what labels that are at their most leave to others
        for label in np.argsort(held - shares, kind="stable"):
            held[label] += held.sum() < n_held and held[label] < most[label]
    return held


def _threshold(n_held: int, n_rows: int, draws: np.ndarray) -> float:
    """Return what the draws of rows to hold out are at most, the least draws being known."""
    if not n_held:
        return -1.0
    return float(draws[n_held - 1]) if n_held <= len(draws) else n_held / n_rows


def _threshold_of_all(seed: int, n_rows: int, n_held: int) -> float:
    """Return what the draws of rows to hold out are at most."""
    if n_held > EXACT and n_rows > CHUNK:
        return n_held / n_rows
    least = np.empty(0)
    for start in range(0, n_rows, CHUNK):
        draws = row_uniform(seed, start, min(CHUNK, n_rows - start))
        least = np.sort(np.concatenate([least, draws]))[:n_held]
    return _threshold(n_held, n_rows, least)
