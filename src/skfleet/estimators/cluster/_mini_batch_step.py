"""One step of mini-batch k-means, and its convergence test."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import dtype_of, is_not_numpy, to_host, tree_to_host
from skfleet.blocks import take_to_host
from skfleet.estimators.cluster._device_assign import assign, weight_on_device
from skfleet.estimators.cluster._distances import Centers, as_dense
from skfleet.estimators.cluster._reductions import sums_by_cluster


class MiniBatchState(NamedTuple):
    """Centres about a mean, with the weight of the rows assigned to each so far."""

    centers: np.ndarray
    weights: np.ndarray
    mean: np.ndarray | None
    rng: np.random.RandomState
    n_steps: int = 0
    n_since_reassignment: int = 0  # rows since the last reassignment of clusters
    inertia: float = 0.0  # of the last batch, before its step


def mini_batch_step(
    state: MiniBatchState, X: Any, weight: Any, ratio: float, *, verbose: bool = False
) -> MiniBatchState:
    """Update centres with the rows of a batch that are nearest to them (Sculley, 2010).

    A centre is the mean of all rows ever assigned to it. Periodically, centres with less than
    `ratio` times the largest weight are reassigned to random rows of the batch.
    """
    k = len(state.centers)
    centers = Centers(state.centers, state.mean, dtype_of(X))
    batch_sums = _sums(centers, X, weight)
    inertia = batch_sums["inertia"]
    weights = state.weights + batch_sums["weights"]
    moved = state.centers * state.weights[:, None] + batch_sums["sums"]
    moved = np.where(batch_sums["weights"][:, None] > 0, moved, state.centers)
    moved /= np.where(batch_sums["weights"] > 0, weights, 1.0)[:, None]
    rng, n_rows = state.rng, int(X.shape[0])
    n_since_reassignment = state.n_since_reassignment + n_rows
    # As often as scikit-learn's.
    if (state.weights == 0).any() or n_since_reassignment >= 10 * k:
        n_since_reassignment = 0
        is_light = _low_weight_clusters(weights, ratio, n_rows)
        if is_light.any():
            if verbose:
                print(f"[MiniBatchKMeans] Reassigning {is_light.sum()} cluster centers.")
            # The state stays as it is: a task that Dask runs again must draw the same rows.
            rng = copy.deepcopy(rng)
            chosen = rng.choice(n_rows, replace=False, size=is_light.sum())
            moved[is_light] = as_dense(centers.about_mean(take_to_host(X, chosen)))
            # As in scikit-learn: with no weight, the centres would be reassigned at once again.
            weights[is_light] = weights[~is_light].min()
    return MiniBatchState(
        moved, weights, state.mean, rng, state.n_steps + 1, n_since_reassignment, inertia
    )


def _sums(centers: Centers, X: Any, weight: Any) -> dict[str, Any]:
    """Return inertia, sums of rows and weights by their nearest centre, on the host."""
    if is_not_numpy(X):
        assignment = assign(centers, X, weight_on_device(weight, X), inertia=True, sums=True)
        parts = {"sums": assignment.sums[:, :-1], "weights": assignment.sums[:, -1]}
        return tree_to_host(parts | {"inertia": assignment.inertia})
    weight = None if weight is None else to_host(weight).astype(np.float64, copy=False)
    rows = centers.about_mean(X)
    labels = centers.labels(rows)
    squared = centers.squared(rows, labels)
    inertia = float(squared.sum() if weight is None else weight @ squared)
    return {"inertia": inertia, **sums_by_cluster(rows, labels, weight, len(centers))._asdict()}


def _low_weight_clusters(weights: np.ndarray, ratio: float, n_rows: int) -> np.ndarray:
    """Return a mask of the clusters to reassign: the lightest, at most half as many as rows."""
    is_light = weights < ratio * weights.max()
    if is_light.sum() > 0.5 * n_rows:
        is_light[np.argsort(weights)[int(0.5 * n_rows) :]] = False
    return is_light


@dataclass
class MiniBatchConvergence:
    """Convergence test on the exponentially weighted average (ewa) of the batch inertia."""

    n_rows: int
    batch_size: int
    tol: float
    max_no_improvement: int | None
    ewa_inertia: float | None = None
    ewa_inertia_min: float = np.inf
    n_no_improvement: int = 0

    def reason_to_stop(self, before: MiniBatchState, after: MiniBatchState) -> str | None:
        """Record a step; return how the steps have converged, None if they have not."""
        if after.n_steps == 1:
            return None  # the inertia of the start
        inertia = after.inertia / self.batch_size
        # scikit-learn's smoothing, whose span is the batches of an epoch.
        fraction = min(2 * self.batch_size / (self.n_rows + 1), 1.0)
        previous = inertia if self.ewa_inertia is None else self.ewa_inertia
        self.ewa_inertia = previous + fraction * (inertia - previous)
        if self.tol > 0 and np.sum((after.centers - before.centers) ** 2) <= self.tol:
            return "small centers change"
        is_better = self.ewa_inertia < self.ewa_inertia_min
        self.n_no_improvement = 0 if is_better else self.n_no_improvement + 1
        self.ewa_inertia_min = min(self.ewa_inertia_min, self.ewa_inertia)
        most = self.max_no_improvement
        if most is not None and self.n_no_improvement >= most:
            return "lack of improvement in inertia"
        return None
