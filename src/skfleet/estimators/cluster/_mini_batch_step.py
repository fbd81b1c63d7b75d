"""k-means by small batches of rows: one step, and when to stop."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import dtype_of, is_not_numpy, to_host, tree_to_host
from skfleet._linalg import dense_rows
from skfleet.blocks import take_to_host
from skfleet.estimators.cluster._device_assign import assign, weight_beside
from skfleet.estimators.cluster._distances import Centers
from skfleet.estimators.cluster._reductions import sums_of


class Learned(NamedTuple):
    """What has been learned: centres about a mean, with the weight of the rows that made each."""

    centers: np.ndarray
    weights: np.ndarray
    mean: np.ndarray | None
    rng: np.random.RandomState
    n_steps: int = 0
    n_since: int = 0  # rows since centres of little weight were last looked for
    inertia: float = 0.0  # of the last batch, before its step


def learn_batch(
    learned: Learned, X: Any, weight: Any, ratio: float, *, verbose: bool = False
) -> Learned:
    """Move centres towards the rows of a batch that are nearest to them (Sculley, 2010).

    A centre is the mean of all rows that any batch has given it. Every now and then centres that
    have got less than `ratio` times the weight of the heaviest begin anew, on rows of the batch.
    """
    k = len(learned.centers)
    near = Centers(learned.centers, learned.mean, dtype_of(X))
    found = _sums(near, X, weight)
    inertia = found["inertia"]
    weights = learned.weights + found["weights"]
    moved = learned.centers * learned.weights[:, None] + found["sums"]
    moved = np.where(found["weights"][:, None] > 0, moved, learned.centers)
    moved /= np.where(found["weights"] > 0, weights, 1.0)[:, None]
    rng, n_rows = copy.deepcopy(learned.rng), int(X.shape[0])
    n_since = learned.n_since + n_rows
    if (learned.weights == 0).any() or n_since >= 10 * k:
        n_since = 0
        light = _light(weights, ratio, n_rows)
        if light.any():
            if verbose:
                print(f"[MiniBatchKMeans] Reassigning {light.sum()} cluster centers.")
            chosen = rng.choice(n_rows, replace=False, size=light.sum())
            moved[light] = dense_rows(near.about_mean(take_to_host(X, chosen))).astype(np.float64)
            weights[light] = weights[~light].min()
    return Learned(moved, weights, learned.mean, rng, learned.n_steps + 1, n_since, inertia)


def _sums(near: Centers, X: Any, weight: Any) -> dict[str, Any]:
    """Return inertia, sums of rows and weights by their nearest centre, on the host."""
    if is_not_numpy(X):
        there = assign(near, X, weight_beside(weight, X), inertia=True, sums=True)
        parts = {"sums": there.sums[:, :-1], "weights": there.sums[:, -1]}
        return tree_to_host(parts | {"inertia": there.inertia})
    weight = None if weight is None else to_host(weight).astype(np.float64, copy=False)
    rows = near.about_mean(X)
    labels = near.labels(rows)
    squared = near.squared(rows, labels)
    inertia = float(squared.sum() if weight is None else weight @ squared)
    return {"inertia": inertia, **sums_of(rows, labels, weight, len(near))}


def _light(weights: np.ndarray, ratio: float, n_rows: int) -> np.ndarray:
    """Say which centres are to begin anew: the lightest, and for at most half of the rows."""
    light = weights < ratio * weights.max()
    if light.sum() > 0.5 * n_rows:
        light[np.argsort(weights)[int(0.5 * n_rows) :]] = False
    return light


@dataclass
class Progress:
    """Whether steps still help, by an average of their batches' inertia that forgets slowly."""

    n_rows: int
    batch_size: int
    tol: float
    patience: int | None
    average: float | None = None
    least: float = field(default=np.inf)
    n_worse: int = 0

    def is_over(self, before: Learned, after: Learned) -> bool:
        """Take note of a step, and say whether it was the last one."""
        if after.n_steps == 1:
            return False  # the inertia of the start
        inertia = after.inertia / self.batch_size
        share = min(2 * self.batch_size / (self.n_rows + 1), 1.0)
        known = inertia if self.average is None else self.average
        self.average = known + share * (inertia - known)
        if self.tol > 0 and np.sum((after.centers - before.centers) ** 2) <= self.tol:
            return True
        self.n_worse = 0 if self.average < self.least else self.n_worse + 1
        self.least = min(self.least, self.average)
        return self.patience is not None and self.n_worse >= self.patience
