"""Lloyd's algorithm: one pass over the rows per iteration, and the stopping rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from skfleet._config import get_config
from skfleet._validation import check_total_weight
from skfleet.blocks import RowBlocks
from skfleet.engine import Engine, Reduction, are_cached, map_reduce
from skfleet.estimators.cluster._compiled_lloyd import compiled_block, compiled_iterations
from skfleet.estimators.cluster._distances import Centers, as_dense, movement_bounds
from skfleet.estimators.cluster._reductions import LLOYD, LloydStep, combine_farthest, farthest


class LloydResult(NamedTuple):
    """Final centres about the mean, with the statistics of the last pass."""

    centers: np.ndarray
    inertia: float
    n_iter: int
    n_members: np.ndarray


@dataclass
class LloydSolver:
    """Lloyd iterations over centred rows, from one initialisation after the other.

    The centres are to move until the sum of their squared movements is `tol` times `variance`, the
    mean of the columns'. `scale` is the mean squared norm of a row, for the rounding error.
    """

    engine: Engine
    rows: RowBlocks
    mean: np.ndarray | None
    max_iter: int
    tol: float
    variance: float
    scale: float
    with_bounds: bool
    verbose: bool

    def run(self, centers: np.ndarray, init_number: int = 0) -> LloydResult:
        """Iterate from `centers` to convergence."""
        block = None if self.verbose else compiled_block(self.rows)
        if block is not None:
            arguments = block, self.mean, centers, self.tol, self.max_iter
            centers, n_iter = self.engine.submit(compiled_iterations, *arguments)
            return self._label(centers, init_number, None, n_iter)
        if self.verbose:
            print("Initialization complete")
        # Cached bounds are of earlier centres, and hold with the way of each since then.
        center_movement = np.zeros(len(centers)) if self.with_bounds and len(centers) > 1 else None
        # A separate last pass would load all rows again; from local disks that costs less than to
        # sum up distances in every pass.
        is_loaded = self.engine.is_out_of_core(self.rows) and not are_cached(self.rows)
        final, tol = self.verbose or is_loaded, self.tol * self.variance
        for n_iter in range(1, self.max_iter + 1):
            step = self._step(centers, init_number, center_movement, final=final)
            result = map_reduce(self.engine, LLOYD, self.rows, step)
            if self.verbose:
                print(f"Iteration {n_iter - 1}, inertia {result.inertia}.")
            # New centres are the means of their rows.
            sums, weights = result.sums, result.weights
            check_total_weight(float(weights.sum()))
            if (weights == 0).any():
                sums, weights = self._relocate(step, sums, weights)
            # A centre for which no row was left stays where it is.
            moved = np.where(weights[:, None] > 0, sums, centers)
            moved /= np.where(weights > 0, weights, 1.0)[:, None]
            shift = float(np.sum((moved - centers) ** 2))
            # Rounding of the sums depends on the partition; a shift within it is none.
            if shift <= (8 * np.finfo(np.float64).eps) ** 2 * self.scale * len(centers):
                if self.verbose:
                    print(f"Converged at iteration {n_iter - 1}: strict convergence.")
                if step.final:
                    return LloydResult(centers, result.inertia, n_iter, result.n_members)
                break
            # The last pass uses the bounds too, so a movement within the tolerance counts as well.
            if center_movement is not None:
                center_movement = center_movement + movement_bounds(centers, moved, self.rows.dtype)
            centers = moved
            if shift <= tol:
                if self.verbose:
                    message = f"center shift {shift} within tolerance {tol}"
                    print(f"Converged at iteration {n_iter - 1}: {message}.")
                break
        return self._label(centers, init_number, center_movement, n_iter)

    def _label(
        self,
        centers: np.ndarray,
        init_number: int,
        center_movement: np.ndarray | None,
        n_iter: int,
    ) -> LloydResult:
        """Return the result with labels and inertia of the final centres, as in scikit-learn."""
        step = self._step(centers, init_number, center_movement, final=True, with_sums=False)
        result = map_reduce(self.engine, LLOYD, self.rows, step)
        return LloydResult(centers, result.inertia, n_iter, result.n_members)

    def _step(self, centers: np.ndarray, *args: Any, **outputs: bool) -> LloydStep:
        outputs |= {"is_deterministic": get_config().deterministic}
        return LloydStep(Centers(centers, self.mean, self.rows.dtype), *args, **outputs)

    def _relocate(
        self, step: LloydStep, sums: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Assign to empty clusters the rows farthest from their centres, as scikit-learn does."""
        empty = np.flatnonzero(weights == 0)
        reduction = Reduction(farthest, partial(combine_farthest, n=len(empty)))
        farthest_rows = map_reduce(self.engine, reduction, self.rows, step, len(empty))
        if not farthest_rows.drawn.keys.any():
            return sums, weights  # every row is a centre, and there are fewer rows than centres
        new_centers = as_dense(farthest_rows.drawn.rows)
        new_centers = new_centers if self.mean is None else new_centers - self.mean
        sums, weights = sums.copy(), weights.copy()
        labels_and_weights = farthest_rows.labels, farthest_rows.weights
        for cluster, row, label, w in zip(empty, new_centers, *labels_and_weights, strict=False):
            # The row is taken off the sums of its cluster, which saves another pass.
            sums[label] -= w * row
            weights[label] -= w
            sums[cluster], weights[cluster] = w * row, w
        return sums, weights
