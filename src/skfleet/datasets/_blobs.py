"""Isotropic Gaussian blobs."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils import check_array, check_random_state

from skfleet._validation import check_bool, check_in_interval, check_positive_int, check_seed
from skfleet.datasets._cells import CellRows, draw_seed
from skfleet.datasets._clusters import RowClusters, equal_sizes
from skfleet.datasets._generator_docstrings import document


@dataclass(frozen=True)
class BlobRows:
    """Normal rows about the centers of their clusters."""

    clusters: RowClusters
    centers: np.ndarray
    stds: np.ndarray

    @property
    def n_draws(self) -> int:
        return self.centers.shape[1]

    @property
    def metas(self) -> tuple[np.ndarray, ...]:
        return (np.empty((0, self.n_draws)),)

    def __call__(self, rng: np.random.Generator, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        clusters = self.clusters(numbers)
        X = rng.standard_normal((len(numbers), self.n_draws))
        X *= self.stds[clusters, None]
        X += self.centers[clusters]
        return (X,)


@dataclass(frozen=True)
class ClusterLabels:
    """Numbers of the clusters of rows."""

    clusters: RowClusters
    n_draws = 1
    metas = (np.empty(0, dtype=np.int64),)

    def __call__(self, rng: np.random.Generator, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        return (self.clusters(numbers),)


@document
def make_blobs(
    n_samples: Any = 100,
    n_features: int = 2,
    *,
    centers: Any = None,
    cluster_std: Any = 1.0,
    center_box: Any = (-10.0, 10.0),
    shuffle: bool = True,
    random_state: Any = None,
    return_centers: bool = False,
    chunks: Any = "auto",
    as_frame: bool = False,
) -> tuple[Any, ...]:
    r"""Generate isotropic Gaussian blobs for clustering, block by block.

    A row of cluster :math:`k` is :math:`x \sim N(\mu_k, \sigma_k^2 I)`.

    Parameters
    ----------
    n_samples : int or array-like, default=100
        Number of rows, divided equally among the clusters, or the number in each cluster.
    n_features : int, default=2
        Number of columns; ignored if `centers` are coordinates.
    centers : int or array-like of shape (n_centers, n_features), default=None
        Number of centers, 3 by default, or their coordinates.
    cluster_std : float or array-like of float, default=1.0
        Standard deviation of all clusters, or of each.
    center_box : tuple of float (min, max), default=(-10.0, 10.0)
        Bounds of the coordinates of random centers.
    shuffle : bool, default=True
        Whether the rows are in a random order; else one cluster follows another.
    {random_state}
    return_centers : bool, default=False
        If True, the centers are returned too.
    {chunks}
    {as_frame}

    Returns
    -------
    {X}
    y : Dask array or Series of shape (n_samples,)
        The cluster of each row, int64.
    centers : ndarray of shape (n_centers, n_features)
        The centers. Only with `return_centers`.

    Raises
    ------
    {errors}

    See Also
    --------
    make_classification : Classes of several clusters, and columns without information.
    sklearn.datasets.make_blobs : The same in the memory of one process.

    Notes
    -----
    No pass over the rows. Clusters have exactly scikit-learn's sizes. The order of the rows is a
    Feistel network on row numbers (Black and Rogaway, 2002): no permutation is in memory. Centers
    are scikit-learn's for the same seed.

    {cells}

    Examples
    --------
    >>> from skfleet.datasets import make_blobs
    >>> X, y = make_blobs(1_000_000, 4, centers=5, random_state=0, chunks=100_000)
    >>> X
    dask.array<make-blobs, shape=(1000000, 4), dtype=float64, chunksize=(100000, 4), ...>
    >>> y[:5].compute()
    array([2, 0, 3, 4, 2])
    """
    from skfleet.datasets._collections import drawn_collections, row_lengths

    _check_counts(n_samples, n_features)
    for name, value in (("shuffle", shuffle), ("return_centers", return_centers)):
        check_bool(name, value)
    check_bool("as_frame", as_frame)
    check_seed("random_state", random_state)
    rng = check_random_state(random_state)
    centers = _draw_centers(n_samples, n_features, centers, center_box, rng)
    stds = _check_stds(cluster_std, len(centers))
    is_total = isinstance(n_samples, Integral)
    sizes = equal_sizes(n_samples, len(centers)) if is_total else np.asarray(n_samples)
    n_rows = int(sizes.sum())
    lengths = row_lengths(chunks, n_rows, centers.shape[1])
    clusters = RowClusters.draw(n_rows, sizes, rng, shuffle=shuffle)
    draws = (BlobRows(clusters, centers, stds), ClusterLabels(clusters))
    sources = [CellRows(x, draw_seed(rng), n_rows) for x in draws]
    rows = drawn_collections("make-blobs", sources, lengths, as_frame=as_frame)
    return (*rows, centers) if return_centers else tuple(rows)


def _check_counts(n_samples: Any, n_features: Any) -> None:
    """Raise for impossible numbers of rows or columns."""
    check_positive_int("n_features", n_features)
    if not hasattr(n_samples, "__len__"):
        check_positive_int("n_samples", n_samples)
        return
    for size in n_samples:
        check_positive_int("Every number in n_samples", size, 0)
    if sum(n_samples) == 0:
        raise ValueError(f"n_samples must hold a number above 0. Got {n_samples!r} instead.")


def _draw_centers(
    n_samples: Any, n_features: int, centers: Any, box: Any, rng: np.random.RandomState
) -> np.ndarray:
    """Return the coordinates of the centers: those of scikit-learn for the same generator."""
    is_total = isinstance(n_samples, Integral)
    n_centers = 3 if is_total else len(n_samples)
    if centers is None or (is_total and not hasattr(centers, "__len__")):
        if centers is not None:
            check_positive_int("centers", centers)
            n_centers = centers
        low, high = _check_box(box)
        return rng.uniform(low, high, size=(n_centers, n_features))
    if np.ndim(centers) != 2 or (not is_total and len(centers) != n_centers):
        raise ValueError(
            "centers must be None, coordinates of shape (n_centers, n_features) for as many sizes "
            f"in n_samples, or a number where n_samples is one. Got {centers!r} instead."
        )
    return check_array(centers, input_name="centers")


def _check_box(box: Any) -> tuple[float, float]:
    """Return the bounds of random centers, or raise."""
    if not hasattr(box, "__len__") or len(box) != 2 or not box[0] <= box[1]:
        raise ValueError(f"center_box must be a pair (min, max). Got {box!r} instead.")
    return box[0], box[1]


def _check_stds(cluster_std: Any, n_centers: int) -> np.ndarray:
    """Return the standard deviation of each cluster, or raise."""
    if not hasattr(cluster_std, "__len__"):
        check_in_interval("cluster_std", cluster_std, 0, open="r")
        return np.full(n_centers, float(cluster_std))
    if len(cluster_std) != n_centers:
        raise ValueError(
            f"cluster_std must be a number or one per center, {n_centers}. Got "
            f"{len(cluster_std)} instead."
        )
    for value in cluster_std:
        check_in_interval("Every number in cluster_std", value, 0, open="r")
    return np.array([*cluster_std], dtype=np.float64)
