"""Where k-means starts: k-means++ on few rows, k-means|| on many, rows at random."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.cluster import kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning

from skfleet._linalg import is_sparse, vstack
from skfleet._validation import check_total_weight
from skfleet.blocks import Block, DrawnRows, RowBlocks, merge_smallest, row_uniforms, smallest
from skfleet.engine import Engine, Reduction, map_reduce
from skfleet.estimators._kmeans_kernels import (
    as_dense,
    candidate_weights,
    squared_distances,
    weights_of,
)

# Up to so many rows k-means++ runs on all of them, in the driver.
FEW_ROWS = 10_000
# k-means||: rounds, and rows drawn in a round in units of the number of clusters.
ROUNDS = 3
OVERSAMPLING = 2


def first_centers(
    engine: Engine, rows: RowBlocks, kind: str, k: int, mean: np.ndarray, rng: np.random.RandomState
) -> np.ndarray:
    """Return k centres about the mean, by the method of the given name."""
    if kind == "random":
        return _filled(_dense_about(_draw(engine, rows, k, rng).rows, mean), k, rng)
    if kind == "k-means++" and rows.n_rows <= FEW_ROWS:
        found = map_reduce(engine, Reduction(_all_rows, _merge_all), rows)
        found.sort(key=lambda part: part[0])
        X, weight = vstack([part[1] for part in found]), np.concatenate([p[2] for p in found])
        check_total_weight(float(weight.sum()))
        X = X if is_sparse(X) else X - mean
        centers, _ = kmeans_plusplus(X, k, sample_weight=weight, random_state=rng)
        return as_dense(centers)
    return _kmeans_parallel(engine, rows, k, mean, rng)


def _kmeans_parallel(
    engine: Engine, rows: RowBlocks, k: int, mean: np.ndarray, rng: np.random.RandomState
) -> np.ndarray:
    """Start by k-means|| (Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, 2012, section 3).

    A round draws a fixed number of rows without replacement, with probabilities in proportion to
    weight times squared distance, by the smallest of exponential variates (Efraimidis and
    Spirakis, 2006): this needs no pass for the normalising sum. The candidates, weighted by the
    rows nearest to them, are clustered in the driver.
    """
    candidates = _dense_about(_draw(engine, rows, 1, rng).rows, mean)
    for _ in range(ROUNDS):
        drawn = _draw(engine, rows, OVERSAMPLING * k, rng, candidates, mean)
        if len(drawn.keys) == 0:
            break  # every row is a candidate already
        candidates = np.concatenate([candidates, _dense_about(drawn.rows, mean)])
    weight = map_reduce(engine, Reduction(candidate_weights), rows, candidates, mean)
    if len(candidates) < k:
        return _filled(candidates, k, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return (
            SklearnKMeans(k, n_init=5, random_state=rng)
            .fit(candidates, sample_weight=weight)
            .cluster_centers_
        )


def _draw(
    engine: Engine,
    rows: RowBlocks,
    n: int,
    rng: np.random.RandomState,
    centers: np.ndarray | None = None,
    mean: np.ndarray | None = None,
) -> DrawnRows:
    """Draw n rows by weight, or by weight times squared distance to the nearest centre."""
    seed = int(rng.randint(np.iinfo(np.int32).max))
    reduction = Reduction(_drawn, partial(merge_smallest, n=n))
    drawn = map_reduce(engine, reduction, rows, n, seed, centers, mean)
    if centers is None:
        check_total_weight(float(len(drawn.keys)))  # a row with a weight is always drawn
    return drawn


def _drawn(block: Block, n: int, seed: int, centers: Any, mean: Any) -> DrawnRows:
    """Draw from one block: the rows with the smallest exponential variates."""
    rate = weights_of(block)
    if centers is not None:
        rate = rate * squared_distances(block, centers, mean)[0]
    with np.errstate(divide="ignore"):
        keys = -np.log1p(-row_uniforms(seed, block.start, block.n_rows)) / rate
    return smallest(np.where(rate > 0, keys, np.inf), block.start, block.X, n)


def _filled(centers: np.ndarray, k: int, rng: np.random.RandomState) -> np.ndarray:
    """Repeat some centres where fewer rows than clusters can be told apart; the caller warns."""
    extra = rng.randint(len(centers), size=k - len(centers))
    return np.concatenate([centers, centers[extra]])


def _all_rows(block: Block) -> list[tuple[int, Any, np.ndarray]]:
    """Return the rows of a block as they are, to be put in order later."""
    everything = np.arange(block.n_rows)
    return [(block.start, smallest(everything, 0, block.X, block.n_rows).rows, weights_of(block))]


def _merge_all(a: list, b: list) -> list:
    """Collect rows."""
    return a + b


def _dense_about(rows: Any, mean: np.ndarray) -> np.ndarray:
    """Return rows as centres: dense, and about the mean unless they are sparse."""
    return as_dense(rows) if is_sparse(rows) else as_dense(rows) - mean
