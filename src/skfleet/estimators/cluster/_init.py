"""Where k-means starts: k-means++ on few rows, k-means|| on many, rows at random."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin

from skfleet._linalg import is_sparse
from skfleet.blocks import RowBlocks, combine_k_smallest
from skfleet.engine import Engine, Reduction, map_reduce
from skfleet.estimators._column_statistics import Moments
from skfleet.estimators.cluster._distances import Centers, as_dense
from skfleet.estimators.cluster._reductions import (
    Candidates,
    candidate_weights,
    drawn_by_distance,
    drawn_by_weight,
)
from skfleet.estimators.cluster._sampling import MOST_BYTES, Samples, draw_seed, estimated_bytes

# Up to so many rows k-means++ runs on all of them, in the driver.
FEW_ROWS = 10_000
# A sample has so many rows a cluster, and at least the number above.
ROWS_A_CLUSTER = 100
# k-means||: rounds, and rows drawn in a round in units of the number of clusters.
ROUNDS, OVERSAMPLING = 3, 2
# How often k-means++ is tried in the driver; the iterations on a sample end early.
TRIES, SAMPLE_ITER = 5, 50


@dataclass
class Starts:
    """Where to start from, several times over, by the method of the given name.

    The rows that a start begins with, and a sample of all rows on which to go on from there, come
    out of the first pass.
    """

    kind: str
    k: int
    n_starts: int
    rng: np.random.RandomState
    is_sparse: bool
    mean: np.ndarray | None = None
    _drawn: Any = field(default=None, repr=False)
    _sample: Any = field(default=None, repr=False)

    def look(self, engine: Engine, rows: RowBlocks) -> Moments:
        """Make the first pass, and return the moments of the columns."""
        n = {"given": 0, "random": self.k}.get(self.kind, self.n_starts)
        samples = Samples(engine, rows, self._share(rows), self.rng)
        found = samples.look(n)
        self._drawn = found.drawn
        self._sample = samples.current if samples.share else None
        return found.columns

    def _share(self, rows: RowBlocks) -> float:
        """Return which share of the rows to draw for a sample."""
        if self.kind not in ("k-means++", "k-means||"):
            return 0.0
        if self._is_small(rows):
            return 1.0
        wanted = max(FEW_ROWS, ROWS_A_CLUSTER * self.k) / rows.n_rows
        return min(wanted, MOST_BYTES / estimated_bytes(rows, self.is_sparse), 1.0)

    def _is_small(self, rows: RowBlocks) -> bool:
        """Say whether k-means++ on all rows, in the driver, is what was asked for."""
        few = rows.n_rows <= FEW_ROWS and estimated_bytes(rows, self.is_sparse) <= MOST_BYTES
        return self.kind == "k-means++" and few

    def centers(self, engine: Engine, rows: RowBlocks, number: int) -> np.ndarray:
        """Return the centres about the mean of the start with the given number."""
        if self.kind == "random":
            if number:
                reduction = Reduction(drawn_by_weight, partial(combine_k_smallest, n=self.k))
                self._drawn = map_reduce(engine, reduction, rows, self.k, draw_seed(self.rng))
            return self._filled(self._about(self._drawn.rows))
        if self._is_small(rows):
            X, weight = self._sample.X, self._sample.sample_weight
            return self._cluster(X if is_sparse(X) else self._about(X), weight)
        first = number % self._drawn.rows.shape[0]
        centers = self._parallel(engine, rows, self._drawn.rows[first : first + 1], number)
        return self._on_sample(centers)

    def _parallel(self, engine: Engine, rows: RowBlocks, first: Any, number: int) -> np.ndarray:
        """Start by k-means|| (Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, 2012, section 3).

        A round draws a fixed number of rows. The candidates, weighted by the rows nearest to them,
        are clustered in the driver.
        """
        found = self._about(first)
        n, n_known = OVERSAMPLING * self.k, 0
        for _ in range(ROUNDS):
            candidates = self._candidates(found, n_known, number, rows.dtype)
            reduction = Reduction(drawn_by_distance, partial(combine_k_smallest, n=n))
            drawn = map_reduce(engine, reduction, rows, n, draw_seed(self.rng), candidates)
            n_known = len(found)
            if len(drawn.keys) == 0:
                break  # every row is a candidate already
            found = np.concatenate([found, self._about(drawn.rows)])
        candidates = self._candidates(found, n_known, number, rows.dtype)
        weight = map_reduce(engine, Reduction(candidate_weights), rows, candidates)
        return self._filled(found) if len(found) < self.k else self._cluster(found, weight)

    def _candidates(self, values: np.ndarray, n_known: int, number: int, dtype: Any) -> Candidates:
        """Return what a round sends to the rows."""
        everything = Centers(values, self.mean, dtype)
        new = Centers(values[n_known:], self.mean, dtype) if n_known else everything
        return Candidates(everything, n_known, new, number)

    def _cluster(self, X: Any, weight: np.ndarray | None, init: Any = "k-means++") -> np.ndarray:
        """Return the centres that k-means finds in rows in the driver."""
        given = not isinstance(init, str)
        settings = {"n_init": 1 if given else TRIES, "max_iter": SAMPLE_ITER if given else 300}
        k = len(init) if given else self.k
        model = SklearnKMeans(k, init=init, random_state=self.rng, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model.fit(X, sample_weight=weight).cluster_centers_.astype(np.float64)

    def _on_sample(self, centers: np.ndarray) -> np.ndarray:
        """Move centres on a sample first, where an iteration needs no pass."""
        X, weight = self._sample.X, self._sample.sample_weight
        if X.shape[0] < self.k or (weight is not None and not weight.any()):
            return centers
        X = X if is_sparse(X) else self._about(X)
        centers = centers.astype(X.dtype)
        # A centre of few rows, which the sample may have missed, stays where it is.
        seen = np.unique(pairwise_distances_argmin(X, centers))
        centers[seen] = self._cluster(X, weight, init=centers[seen])
        return centers.astype(np.float64)

    def _filled(self, centers: np.ndarray) -> np.ndarray:
        """Repeat some centres where there are fewer rows than clusters; the caller warns."""
        extra = self.rng.randint(len(centers), size=self.k - len(centers))
        return np.concatenate([centers, centers[extra]])

    def _about(self, rows: Any) -> np.ndarray:
        """Return rows as centres: dense, in float64, about the mean."""
        values = as_dense(rows)
        return values if self.mean is None else values - self.mean
