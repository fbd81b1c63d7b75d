"""Initial centres of k-means: k-means++ on few rows, k-means|| on many, random rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.metrics import pairwise_distances_argmin

from skfleet._linalg import is_sparse
from skfleet._warnings import without_convergence_warnings
from skfleet.blocks import RowBlocks, combine_k_smallest
from skfleet.engine import Engine, Reduction, map_reduce
from skfleet.estimators._column_statistics import Moments
from skfleet.estimators.cluster._distances import Centers, as_dense
from skfleet.estimators.cluster._reductions import (
    Candidates,
    candidate_weights,
    sample_by_distance,
    sample_by_weight,
)
from skfleet.estimators.cluster._sampling import (
    MAX_SAMPLE_BYTES,
    Samples,
    draw_seed,
    estimated_bytes,
)

# k-means++ runs in the driver up to this number of rows.
MAX_LOCAL_ROWS = 10_000
SAMPLE_ROWS_PER_CLUSTER = 100
# k-means||: rounds, and rows drawn in a round in units of the number of clusters.
ROUNDS, OVERSAMPLING = 3, 2
# Runs of k-means++ on the candidates of k-means||, and iterations on the sample.
CANDIDATES_N_INIT, SAMPLE_MAX_ITER = 5, 50
# Where each pass reads all rows again, a larger sample saves more of them: so many distances an
# iteration, bytes at most, and iterations.
LARGE_SAMPLE_DISTANCES, LARGE_SAMPLE_BYTES, LARGE_SAMPLE_MAX_ITER = 1_000_000, 2**24, 300


@dataclass
class CentroidInit:
    """Initial centres by a named method, for `n_init` runs.

    The first pass draws the initial rows of every run, and a sample of all rows on which the
    centres are refined in the driver.
    """

    kind: str
    k: int
    n_init: int
    rng: np.random.RandomState
    mean: np.ndarray | None = None
    _drawn: Any = field(default=None, repr=False)
    _sample: Any = field(default=None, repr=False)

    def first_pass(self, engine: Engine, rows: RowBlocks) -> Moments:
        """Run the first pass over the rows, and return the moments of the columns."""
        # "random" draws the k centres of its first run, k-means++ and k-means|| one row for each
        # run.
        n = {"given": 0, "random": self.k}.get(self.kind, self.n_init)
        fraction = self._sample_fraction(rows, is_large=engine.is_out_of_core(rows))
        samples = Samples(engine, rows, fraction, self.rng)
        result = samples.first_pass(n)
        self._drawn = result.drawn
        self._sample = samples.current if samples.fraction else None
        return result.columns

    def _sample_fraction(self, rows: RowBlocks, *, is_large: bool) -> float:
        """Return the fraction of the rows to sample."""
        if self.kind not in ("k-means++", "k-means||"):
            return 0.0
        if self._fits_in_driver(rows):
            return 1.0
        n_rows, n_bytes = (
            max(MAX_LOCAL_ROWS, SAMPLE_ROWS_PER_CLUSTER * self.k),
            estimated_bytes(rows),
        )
        fraction = n_rows / rows.n_rows
        if is_large:
            n_rows = LARGE_SAMPLE_DISTANCES // self.k
            fraction = max(fraction, min(n_rows / rows.n_rows, LARGE_SAMPLE_BYTES / n_bytes))
        return min(fraction, MAX_SAMPLE_BYTES / n_bytes, 1.0)

    def _fits_in_driver(self, rows: RowBlocks) -> bool:
        """Return whether k-means++ can run on all rows in the driver."""
        n_bytes = estimated_bytes(rows)
        is_small = rows.n_rows <= MAX_LOCAL_ROWS and n_bytes <= MAX_SAMPLE_BYTES
        return self.kind == "k-means++" and is_small

    def centers(self, engine: Engine, rows: RowBlocks, number: int) -> np.ndarray:
        """Return the initial centres, about the mean, of one run."""
        if self.kind == "random":
            # The rows of the first run came with the first pass.
            if number:
                reduction = Reduction(sample_by_weight, partial(combine_k_smallest, n=self.k))
                self._drawn = map_reduce(engine, reduction, rows, self.k, draw_seed(self.rng))
            return self._pad_with_duplicates(self._as_centers(self._drawn.rows))
        if self._fits_in_driver(rows):
            X, weight = self._sample.X, self._sample.sample_weight
            return self._run_kmeans(X if is_sparse(X) else self._as_centers(X), weight)
        first = number % self._drawn.rows.shape[0]
        first_row = self._drawn.rows[first : first + 1]
        centers = self._scalable_init(engine, rows, first_row, number)
        is_large = engine.is_out_of_core(rows)
        return self._refine_on_sample(
            centers, LARGE_SAMPLE_MAX_ITER if is_large else SAMPLE_MAX_ITER
        )

    def _scalable_init(self, engine: Engine, rows: RowBlocks, first: Any, number: int) -> Any:
        """Return initial centres by k-means|| (Bahmani et al., 2012, section 3).

        A round draws a fixed number of rows. The candidates, weighted by the rows nearest to them,
        are clustered in the driver.
        """
        centers = self._as_centers(first)
        n, n_compared = OVERSAMPLING * self.k, 0
        for _ in range(ROUNDS):
            candidates = self._candidates(centers, n_compared, number, rows.dtype)
            reduction = Reduction(sample_by_distance, partial(combine_k_smallest, n=n))
            drawn = map_reduce(engine, reduction, rows, n, draw_seed(self.rng), candidates)
            n_compared = len(centers)
            if len(drawn.keys) == 0:
                break  # every row is a candidate already
            centers = np.concatenate([centers, self._as_centers(drawn.rows)])
        candidates = self._candidates(centers, n_compared, number, rows.dtype)
        weight = map_reduce(engine, Reduction(candidate_weights), rows, candidates)
        if len(centers) < self.k:
            return self._pad_with_duplicates(centers)
        return self._run_kmeans(centers, weight, n_init=CANDIDATES_N_INIT)

    def _candidates(self, values: Any, n_compared: int, number: int, dtype: Any) -> Candidates:
        all_centers = Centers(values, self.mean, dtype)
        new = Centers(values[n_compared:], self.mean, dtype) if n_compared else all_centers
        return Candidates(all_centers, n_compared, new, number)

    def _run_kmeans(
        self,
        X: Any,
        weight: np.ndarray | None,
        init: Any = "k-means++",
        max_iter: int = 300,
        n_init: int = 1,
    ) -> np.ndarray:
        """Return the centres of k-means on rows in the driver."""
        k = self.k if isinstance(init, str) else len(init)
        options = {"n_init": n_init, "max_iter": max_iter, "random_state": self.rng}
        model = SklearnKMeans(k, init=init, **options)
        # An initialisation need not converge.
        with without_convergence_warnings():
            return model.fit(X, sample_weight=weight).cluster_centers_.astype(np.float64)

    def _refine_on_sample(self, centers: np.ndarray, max_iter: int) -> np.ndarray:
        """Refine centres by k-means on the sample in the driver, which needs no pass."""
        X, weight = self._sample.X, self._sample.sample_weight
        if X.shape[0] < self.k or (weight is not None and not weight.any()):
            return centers
        X = X if is_sparse(X) else self._as_centers(X)
        centers = centers.astype(X.dtype)
        # A centre of few rows, which the sample may have missed, stays where it is.
        nearest = np.unique(pairwise_distances_argmin(X, centers))
        centers[nearest] = self._run_kmeans(X, weight, centers[nearest], max_iter)
        return centers.astype(np.float64)

    def _pad_with_duplicates(self, centers: np.ndarray) -> np.ndarray:
        """Repeat random centres where there are fewer rows than clusters; the caller warns."""
        extra = self.rng.randint(len(centers), size=self.k - len(centers))
        return np.concatenate([centers, centers[extra]])

    def _as_centers(self, rows: Any) -> np.ndarray:
        """Return rows as dense float64 centres about the mean."""
        values = as_dense(rows)
        return values if self.mean is None else values - self.mean
