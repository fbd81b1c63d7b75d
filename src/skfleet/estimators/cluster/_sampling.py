"""Samples of rows in the driver, for initialisation and for mini-batches."""

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
    RowSample,
    combine_moments,
    concat_samples,
    moments,
    sample,
)
from skfleet.estimators.cluster._reductions import sample_by_weight

MAX_SAMPLE_BYTES = 2**26


class FirstPass(NamedTuple):
    """Moments of the columns, rows sampled by weight, and a sample of all rows."""

    columns: Moments
    drawn: SampledRows | None
    sampled: list[RowSample]


def summarize_block(block: Block, n: int, seed: int, fraction: float) -> FirstPass:
    sampled = [sample(block, fraction, seed)] if fraction else []
    drawn = sample_by_weight(block, n, seed) if n else None
    return FirstPass(moments(block), drawn, sampled)


def combine_first_passes(a: FirstPass, b: FirstPass, n: int) -> FirstPass:
    drawn = combine_k_smallest(a.drawn, b.drawn, n) if n else None
    return FirstPass(combine_moments(a.columns, b.columns), drawn, a.sampled + b.sampled)


def draw_seed(rng: np.random.RandomState) -> int:
    return int(rng.randint(np.iinfo(np.int32).max))


def estimated_bytes(rows: RowBlocks) -> int:
    """Estimate the size of all rows."""
    return rows.row_bytes * rows.n_rows if rows.n_bytes is None else rows.n_bytes


@dataclass
class Samples:
    """Mini-batches drawn from samples of all rows, each sample from one pass."""

    engine: Engine
    rows: RowBlocks
    fraction: float
    rng: np.random.RandomState
    current: RowSample | None = field(init=False, default=None)
    weight: float = field(init=False, default=0.0)  # of all rows, as the last sample has it

    def first_pass(self, n: int) -> FirstPass:
        """Run the first pass: moments, n rows drawn by weight, and the first sample."""
        reduction = Reduction(summarize_block, partial(combine_first_passes, n=n))
        seed = draw_seed(self.rng)
        result = map_reduce(self.engine, reduction, self.rows, n, seed, self.fraction)
        if n:
            check_total_weight(float(len(result.drawn.keys)))  # a row with a weight is always drawn
        if self.fraction:
            self._store(result.sampled)
        return result._replace(sampled=[])

    def batches(self, size: int) -> Iterator[Any]:
        """Yield batches of rows drawn by weight; a sample yields as many rows as it has."""
        # Endless: the caller stops on convergence or after its last step.
        while True:
            X, weight = self.current.X, self.current.sample_weight
            # Of equal weights the draws are those without weights.
            if weight is not None and weight.min() == weight.max() > 0:
                weight = None
            if weight is not None:
                weight = weight / max(float(weight.sum()), np.finfo(float).tiny)
            for _ in range(X.shape[0] // size if weight is None or weight.any() else 0):
                yield X[self.rng.choice(X.shape[0], size, p=weight)]
            if self.fraction < 1:
                X = self.current = None  # room for the next one
                args = (self.fraction, draw_seed(self.rng))
                reduction = Reduction(_sample_block, operator.add)
                self._store(map_reduce(self.engine, reduction, self.rows, *args))

    def _store(self, sampled: list[RowSample]) -> None:
        """Store the sample of a pass."""
        drawn = concat_samples(sampled)
        self.current = drawn._replace(X=with_int32_indices(drawn.X))
        weight = drawn.sample_weight
        self.weight = float(self.rows.n_rows if weight is None else weight.sum() / self.fraction)


def _sample_block(block: Block, fraction: float, seed: int) -> list[RowSample]:
    return [sample(block, fraction, seed)]
