"""Initial components of a mixture: from k-means, from drawn rows, or at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from sklearn.cluster import kmeans_plusplus

from skfleet._array import FLOAT64
from skfleet._linalg import dense_rows, gram
from skfleet.blocks import (
    Block,
    RowBlocks,
    SampledRows,
    combine_k_smallest,
    k_smallest,
    row_uniform,
)
from skfleet.engine import Engine, Reduction, map_reduce
from skfleet.estimators._column_statistics import combine_moments, moments
from skfleet.estimators.cluster import KMeans
from skfleet.estimators.mixture._expectation import nearest_component_sums, random_sums
from skfleet.estimators.mixture._gaussians import (
    ComponentSums,
    Gaussians,
    covariances_shape,
    maximize,
    origins_of,
)

INIT_PARAMS = ("kmeans", "k-means++", "random", "random_from_data")
# Rows on which k-means++ runs in the driver, as float64 of at most so many bytes.
MAX_LOCAL_ROWS, ROWS_PER_COMPONENT, MAX_LOCAL_BYTES = 10_000, 100, 2**26


class Components(NamedTuple):
    """Fractions of the rows, means and covariances of components."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray


@dataclass
class ComponentInit:
    """Initial components by a named method: an M step from initial responsibilities."""

    method: str
    kind: str  # the covariance type
    n_components: int
    reg_covar: float
    rng: np.random.RandomState

    def components(self, engine: Engine, rows: RowBlocks) -> Components:
        """Return the components of a start, in a few passes over the rows."""
        if self.method in ("k-means++", "random_from_data"):
            weights, means, covariances = self._around_drawn_rows(engine, rows)
        else:
            by_method = self._by_k_means if self.method == "kmeans" else self._at_random
            sums, origins = by_method(engine, rows)
            weights, means, covariances = maximize(self.kind, sums, origins, self.reg_covar)
        return Components(weights / rows.n_rows, means, covariances)

    def _by_k_means(self, engine: Engine, rows: RowBlocks) -> tuple[ComponentSums, np.ndarray]:
        """Return the sums of the rows of each cluster of k-means."""
        clusters = KMeans(self.n_components, n_init=1, random_state=self.rng)
        clusters._fit_rows(engine, rows)
        centers = clusters.cluster_centers_.astype(np.float64)
        ones = np.ones(self.n_components)
        nearest = Gaussians("spherical", ones, centers, ones, ones)
        reduction = Reduction(nearest_component_sums)
        sums = map_reduce(engine, reduction, in_double(rows), nearest, self.kind)
        return sums, origins_of(self.kind, centers)

    def _at_random(self, engine: Engine, rows: RowBlocks) -> tuple[ComponentSums, np.ndarray]:
        """Return the sums of rows by responsibilities at random, about their mean."""
        mean = map_reduce(engine, Reduction(moments, combine_moments), rows).mean
        origins = np.broadcast_to(mean, (self.n_components, len(mean)))
        seeds = [self._seed() for _ in range(self.n_components)]
        reduction = Reduction(random_sums)
        sums = map_reduce(engine, reduction, in_double(rows), seeds, self.kind, origins)
        return sums, origins

    def _around_drawn_rows(
        self, engine: Engine, rows: RowBlocks
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return components that have one row each, as scikit-learn's of these methods do."""
        n, n_components = self.n_components, self.n_components
        if self.method == "k-means++":
            n_rows = max(MAX_LOCAL_ROWS, ROWS_PER_COMPONENT * n)
            n = max(n, min(n_rows, MAX_LOCAL_BYTES // (8 * rows.n_features)))
        reduction = Reduction(_draw, partial(combine_k_smallest, n=n))
        drawn = map_reduce(engine, reduction, rows, n, self._seed()).rows
        drawn = dense_rows(drawn).astype(np.float64)
        if self.method == "k-means++":
            drawn, _ = kmeans_plusplus(drawn, n_components, random_state=self.rng)
        # About themselves, all their sums are zero.
        products = np.zeros(covariances_shape(self.kind, n_components, rows.n_features))
        sums = ComponentSums(np.ones(n_components), np.zeros(drawn.shape), products)
        weights, means, covariances = maximize(self.kind, sums, drawn, self.reg_covar)
        if self.kind == "tied":
            # scikit-learn takes off the products of these rows from those of all, about zero
            all_products = map_reduce(engine, Reduction(_products), in_double(rows))
            covariances += (all_products - (weights * means.T) @ means) / weights.sum()
        return weights, means, covariances

    def _seed(self) -> int:
        return int(self.rng.randint(np.iinfo(np.int32).max))


def in_double(rows: RowBlocks) -> RowBlocks:
    """Return the same rows, of which kernels see float64."""
    return replace(rows, dtype=FLOAT64)


def _draw(block: Block, n: int, seed: int) -> SampledRows:
    draws = row_uniform(seed, block.row_offset, block.n_rows, block.X)
    return k_smallest(draws, block.row_offset, block.X, n)


def _products(block: Block) -> np.ndarray:
    return gram(block.X)
