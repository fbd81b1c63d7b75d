"""Rows that come home: to start from, and to draw batches from."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from skfleet._linalg import with_int32_indices
from skfleet._validation import check_total_weight
from skfleet.blocks import Block, RowBlocks, SampledRows, combine_k_smallest
from skfleet.engine import Engine, Reduction, map_reduce
from skfleet.estimators._column_statistics import (
    Moments,
    Sample,
    join_samples,
    merge_moments,
    moments,
    sample,
)
from skfleet.estimators.cluster._reductions import drawn_by_weight

# A sample that comes home takes at most so many bytes.
MOST_BYTES = 2**26


class Look(NamedTuple):
    """What a first pass finds out: moments of the columns, rows by weight, a share of all rows."""

    columns: Moments
    drawn: SampledRows | None
    sampled: list[Sample]


def look(block: Block, n: int, seed: int, share: float) -> Look:
    """Look at a block for the first time."""
    sampled = [sample(block, share, seed)] if share else []
    drawn = drawn_by_weight(block, n, seed) if n else None
    return Look(moments(block), drawn, sampled)


def merge_looks(a: Look, b: Look, n: int) -> Look:
    """Merge what is known of two blocks."""
    drawn = combine_k_smallest(a.drawn, b.drawn, n) if n else None
    return Look(merge_moments(a.columns, b.columns), drawn, a.sampled + b.sampled)


def draw_seed(rng: np.random.RandomState) -> int:
    """Return a seed for draws by row number."""
    return int(rng.randint(np.iinfo(np.int32).max))


def estimated_bytes(rows: RowBlocks, is_sparse: bool) -> int:
    """Estimate the size of all rows; sparse ones are taken to hold 100 values each."""
    if rows.n_bytes is not None:
        return rows.n_bytes
    width = min(8 * rows.n_features, 1200) if is_sparse else 8 * rows.n_features
    return width * rows.n_rows


@dataclass
class Samples:
    """One sample of all rows after the other, each from a pass, and batches drawn from them."""

    engine: Engine
    rows: RowBlocks
    share: float
    rng: np.random.RandomState
    current: Sample | None = field(init=False, default=None)
    weight: float = field(init=False, default=0.0)  # of all rows, as the last sample has it

    def look(self, n: int) -> Look:
        """Make the first pass: moments, n rows drawn by weight, and a first sample."""
        reduction = Reduction(look, partial(merge_looks, n=n))
        seed = draw_seed(self.rng)
        found = map_reduce(self.engine, reduction, self.rows, n, seed, self.share)
        if n:
            check_total_weight(float(len(found.drawn.keys)))  # a row with a weight is always drawn
        if self.share:
            self._take(found.sampled)
        return found._replace(sampled=[])

    def batches(self, size: int) -> Iterator[Any]:
        """Yield batches of rows drawn by weight, from one sample as many rows as it has."""
        while True:
            X, weight = self.current.X, self.current.sample_weight
            if weight is not None:
                weight = weight / max(float(weight.sum()), np.finfo(float).tiny)
            for _ in range(X.shape[0] // size if weight is None or weight.any() else 0):
                yield X[self.rng.choice(X.shape[0], size, p=weight)]
            if self.share < 1:
                X = self.current = None  # room for the next one
                args = (self.share, draw_seed(self.rng))
                reduction = Reduction(_sampled, operator.add)
                self._take(map_reduce(self.engine, reduction, self.rows, *args))

    def _take(self, sampled: list[Sample]) -> None:
        """Take over what a pass has sampled."""
        drawn = join_samples(sampled)
        self.current = drawn._replace(X=with_int32_indices(drawn.X))
        weight = drawn.sample_weight
        self.weight = float(self.rows.n_rows if weight is None else weight.sum() / self.share)


def _sampled(block: Block, share: float, seed: int) -> list[Sample]:
    """Draw a share of a block's rows, as a list to be joined with others."""
    return [sample(block, share, seed)]
