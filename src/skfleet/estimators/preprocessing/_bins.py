"""Bins of columns."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.utils import resample
from sklearn.utils.validation import validate_data

from skfleet._validation import check_total_weight
from skfleet.blocks import Block
from skfleet.engine import NamedCall, Passes, Reduction, SmallFitMixin, join_reductions
from skfleet.estimators._blockwise import (
    BlockwiseTransformer,
    blockwise,
    learned_attributes,
    stock_estimator,
)
from skfleet.estimators._column_statistics import Moments, combine_moments, moments_of_columns
from skfleet.estimators._drawn_rows import count_lengths, drawn_rows
from skfleet.estimators.preprocessing._row_weights import weights_of_rows
from skfleet.quantiles import ColumnsOf, ColumnSummary, quantiles_after, summary_reduction


@blockwise
class KBinsDiscretizer(SmallFitMixin, BlockwiseTransformer, preprocessing.KBinsDiscretizer):
    """On Dask rows ``fit`` is one pass for uniform bins, and two for exact quantiles.

    More than `subsample` rows are subsampled as in scikit-learn: these rows come to this process,
    in two passes. With ``strategy="kmeans"`` up to `subsample` rows come to this process too;
    with ``subsample=None`` each iteration of k-means is a pass.
    """

    @property
    def _is_repeated(self) -> bool:
        return bool(self.strategy == "quantile")

    @property
    def _is_iterative(self) -> bool:
        return bool(self.strategy == "kmeans" and self.subsample is None)

    def _columns(self, block: Block) -> tuple[Any, Any]:
        X = validate_data(self, block.X, dtype="numeric")
        return X, weights_of_rows(block, X)

    def _fit_passes(self, meta: Any) -> Passes:
        name, columns_of = f"fit-{type(self).__name__}", clone(self)._columns
        # raises for invalid numbers of bins
        rows = np.tile([[0.0], [1.0]], self.n_features_in_)
        n_bins = stock_estimator(self, strategy="uniform", subsample=None).fit(rows).n_bins_
        # The first pass: extremes, a sample for quantiles, lengths of blocks, rows if they are few.
        subsample = sys.maxsize if self.subsample is None else self.subsample
        in_memory = 0 if self._is_iterative or self.strategy != "kmeans" else subsample
        reductions = [
            summary_reduction(name, columns_of),
            count_lengths(name, columns_of, in_memory, with_weights=self.subsample is not None),
        ]
        if self._is_iterative:
            call = NamedCall(name, moments_of_columns, columns_of)
            reductions.append(Reduction(call, combine_moments))
        summary, lengths, *column_moments = yield join_reductions(reductions, name)
        is_weighted = summary.sample.weight is not None
        if is_weighted:
            check_total_weight(summary.n_weighted_rows)
            # raises for methods of quantiles that take no weights
            two_bins = stock_estimator(self, subsample=None, n_bins=2)
            two_bins.fit(np.arange(2.0)[:, None], sample_weight=np.ones(2))
        # scikit-learn itself finds the edges wherever rows suffice that are here: drawn ones, all
        # of few, or the two extremes.
        fitted = stock_estimator(self, subsample=None)
        if lengths.n_rows > subsample:
            indices = resample(
                np.arange(lengths.n_rows),
                replace=True,
                n_samples=subsample,
                random_state=self.random_state,
                sample_weight=lengths.all_weights(),
            )
            fitted.fit((yield from drawn_rows(name, columns_of, lengths.lengths, indices)))
        elif lengths.rows is not None:
            fitted.fit(lengths.all_rows(), sample_weight=lengths.all_weights())
        elif self.strategy == "uniform":
            fitted.fit(np.stack([summary.low, summary.high]))
        elif self.strategy == "quantile":
            # Columns may have different numbers of bins: NaN are levels that are left out.
            levels = np.full((n_bins.max() + 1, len(n_bins)), np.nan)
            for j, n in enumerate(n_bins):
                levels[: n + 1, j] = np.linspace(0, 100, n + 1)
            edges = yield from quantiles_after(
                name, columns_of, summary, levels, self.quantile_method
            )
            # As in scikit-learn: weighted quantiles in the rows' type, others in double precision.
            edge_dtype = edges.dtype if is_weighted else np.float64
            _fit_edges(fitted, list(edges.T), n_bins, summary.low.dtype, edge_dtype)
        else:
            edges = yield from _kmeans_edges(name, columns_of, summary, column_moments[0], n_bins)
            _fit_edges(fitted, edges, n_bins, summary.low.dtype, summary.low.dtype)
        vars(self).update(learned_attributes(fitted))


def _fit_edges(
    fitted: preprocessing.KBinsDiscretizer,
    edges: list[np.ndarray],
    n_bins: np.ndarray,
    dtype: Any,
    edge_dtype: Any,
) -> None:
    """Fit on made-up rows whose quantiles are edges, so that narrow bins are removed.

    `dtype` is that of the rows; edges are of `edge_dtype` if that is float32.
    """
    n_rows = n_bins.max() + 1
    rows = np.empty((n_rows, len(n_bins)))
    for j, n in enumerate(n_bins):
        levels = np.linspace(0, 100, n + 1)
        positions = np.percentile(np.arange(n_rows), levels, method="inverted_cdf")
        rows[:, j] = edges[j][np.searchsorted(positions, np.arange(n_rows))]
    dtype = fitted.dtype or (np.float32 if dtype == np.float32 else np.float64)
    fitted.set_params(strategy="quantile", quantile_method="inverted_cdf", dtype=dtype).fit(rows)
    for column in np.flatnonzero((fitted.n_bins_ > 1) & (edge_dtype == np.float32)):
        fitted.bin_edges_[column] = fitted.bin_edges_[column].astype(np.float32)


# -- k-means -----------------------------------------------------------------------------------


# scikit-learn's limit of iterations, and its tolerance as a fraction of the variance.
MAX_ITER, TOLERANCE = 300, 1e-4


class Clusters(NamedTuple):
    """Numbers, weights and sums of the values of clusters, and the values farthest from centers.

    Of the latter: distances, values, weights and clusters.
    """

    n: np.ndarray
    weight: np.ndarray
    total: np.ndarray
    farthest: np.ndarray


def _kmeans_edges(
    name: str,
    columns_of: ColumnsOf,
    summary: ColumnSummary,
    column_moments: Moments,
    n_bins: np.ndarray,
) -> Passes:
    """Return the edges between the centers of scikit-learn's k-means of each column."""
    tolerance = TOLERANCE * column_moments.squares / column_moments.n_rows
    centers: dict[int, np.ndarray] = {}
    edges = [np.full(n + 1, low, float) for n, low in zip(n_bins, summary.low, strict=True)]
    for column in np.flatnonzero(summary.low != summary.high):
        j = int(column)
        uniform = np.linspace(summary.low[j], summary.high[j], n_bins[j] + 1)
        centers[j] = (uniform[1:] + uniform[:-1]) * 0.5
    counts: dict[int, np.ndarray] = {}
    for i in range(MAX_ITER):
        if not centers:
            break
        per_block = NamedCall(name, _assign, columns_of, dict(centers))
        clusters = yield Reduction(per_block, _combine_clusters)
        for j, part in zip(list(centers), clusters, strict=True):
            moved = _move(centers[j], part)
            # the same numbers of values on both sides of each boundary: the same clusters
            is_same = j in counts and np.array_equal(counts[j], part.n)
            shift = ((moved - centers[j]) ** 2).sum()
            counts[j], centers[j] = part.n, np.sort(moved)
            if is_same or shift <= tolerance[j] or i == MAX_ITER - 1:
                c = centers.pop(j)
                edges[j] = np.r_[summary.low[j], (c[1:] + c[:-1]) * 0.5, summary.high[j]]
    return edges


def _assign(columns_of: ColumnsOf, centers: dict[int, np.ndarray], block: Block) -> list[Clusters]:
    X, weight = columns_of(block)
    weight = np.ones(len(X)) if weight is None else weight.astype(np.float64)
    X, weight, clusters = X[weight > 0], weight[weight > 0], []
    for j, c in centers.items():
        x, k = X[:, j].astype(np.float64), len(c)
        distinct, first = np.unique(c, return_index=True)
        labels = first[np.searchsorted((distinct[1:] + distinct[:-1]) / 2, x)]
        distances = np.abs(x - c[labels])
        far = np.argpartition(distances, -k)[-k:] if len(x) > k else np.arange(len(x))
        n, total_weight = np.bincount(labels, minlength=k), np.bincount(labels, weight, k)
        farthest = np.stack([part[far] for part in (distances, x, weight, labels)])
        clusters.append(Clusters(n, total_weight, np.bincount(labels, weight * x, k), farthest))
    return clusters


def _combine_clusters(a: list[Clusters], b: list[Clusters]) -> list[Clusters]:
    combined = []
    for x, z in zip(a, b, strict=True):
        farthest = np.concatenate([x.farthest, z.farthest], axis=1)
        farthest = farthest[:, np.argsort(-farthest[0], kind="stable")[: len(x.n)]]
        combined.append(Clusters(x.n + z.n, x.weight + z.weight, x.total + z.total, farthest))
    return combined


def _move(centers: np.ndarray, clusters: Clusters) -> np.ndarray:
    """Return the means of clusters; empty ones take the values farthest from their centers."""
    weight, total = clusters.weight.copy(), clusters.total.copy()
    farthest = clusters.farthest[:, np.argsort(-clusters.farthest[0], kind="stable")]
    if farthest[0, 0] > 0:
        empty = np.flatnonzero(weight == 0)
        for k, (_, x, w, label) in zip(empty, farthest.T, strict=False):
            total[int(label)] -= x * w
            weight[int(label)] -= w
            total[k], weight[k] = x * w, w
    biggest = int(np.argmax(weight))
    mean = total[biggest] / weight[biggest]
    return np.divide(total, weight, out=np.full(len(total), mean), where=weight > 0)
