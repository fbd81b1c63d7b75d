"""Lloyd's iterations from one start: which passes they make, and when they end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from skfleet._validation import check_total_weight
from skfleet.blocks import RowBlocks
from skfleet.engine import Engine, Reduction, map_reduce
from skfleet.estimators.cluster._distances import Centers, as_dense, drift
from skfleet.estimators.cluster._reductions import LLOYD, Step, farthest, merge_farthest


class Found(NamedTuple):
    """Where iterations ended: centres about the mean, with what the last pass says of them."""

    centers: np.ndarray
    inertia: float
    n_iter: int
    n_members: np.ndarray


@dataclass
class Iterations:
    """Iterations over rows about a mean, from one start after the other.

    `tol` and `scale` are squared distances: a movement of the centres after which to stop, and the
    size of a row, whose last bits do not count.
    """

    engine: Engine
    rows: RowBlocks
    mean: np.ndarray | None
    max_iter: int
    tol: float
    scale: float
    with_bounds: bool
    verbose: bool

    def run(self, centers: np.ndarray, number: int = 0) -> Found:
        """Move centres until they stay."""
        used = np.zeros(len(centers)) if self.with_bounds and len(centers) > 1 else None
        streams = self.engine.is_out_of_core(self.rows)  # one more pass would load all rows again
        for n_iter in range(1, self.max_iter + 1):
            step = self._step(centers, number, used)._replace(final=self.verbose or streams)
            found = map_reduce(self.engine, LLOYD, self.rows, step)
            if self.verbose:
                print(f"Iteration {n_iter - 1}, inertia {found.inertia}.")
            sums, weights = found.sums, found.weights
            check_total_weight(float(weights.sum()))
            if (weights == 0).any():
                sums, weights = self._relocate(step, sums, weights)
            moved = np.where(weights[:, None] > 0, sums, centers)
            moved /= np.where(weights > 0, weights, 1.0)[:, None]
            shift = float(np.sum((moved - centers) ** 2))
            # The last bits of sums follow the cut; a movement within them is none.
            if shift <= (8 * np.finfo(np.float64).eps) ** 2 * self.scale * len(centers):
                if step.final:
                    return Found(centers, found.inertia, n_iter, found.n_members)
                break
            if used is not None:
                used = used + drift(centers, moved, self.rows.dtype)
            centers = moved
            if shift <= self.tol:
                break
        step = self._step(centers, number, used)._replace(final=True, with_sums=False)
        found = map_reduce(self.engine, LLOYD, self.rows, step)
        return Found(centers, found.inertia, n_iter, found.n_members)

    def _step(self, centers: np.ndarray, number: int, used: np.ndarray | None) -> Step:
        """Return what an iteration sends to the rows."""
        return Step(Centers(centers, self.mean, self.rows.dtype), number, used)

    def _relocate(
        self, step: Step, sums: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Give empty clusters the rows farthest from their centres, as scikit-learn does."""
        empty = np.flatnonzero(weights == 0)
        reduction = Reduction(farthest, partial(merge_farthest, n=len(empty)))
        far = map_reduce(self.engine, reduction, self.rows, step, len(empty))
        found = as_dense(far.drawn.rows)
        found = found if self.mean is None else found - self.mean
        sums, weights = sums.copy(), weights.copy()
        for cluster, row, label, w in zip(empty, found, far.labels, far.weights, strict=False):
            sums[label] -= w * row
            weights[label] -= w
            sums[cluster], weights[cluster] = w * row, w
        return sums, weights
