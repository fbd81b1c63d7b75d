"""Classification problems: clusters about the vertices of a hypercube."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.random import sample_without_replacement

from skfleet._validation import check_bool, check_in_interval, check_positive_int, check_seed
from skfleet.datasets._cells import CellRows, draw_seed
from skfleet.datasets._clusters import RowClusters
from skfleet.datasets._generator_docstrings import document

# Bits of the vertices of a hypercube that are drawn without replacement.
DISTINCT_BITS = 30


@dataclass(frozen=True)
class ClassificationRows:
    """Columns of clusters, linear combinations and copies of these, and noise.

    A cluster's informative columns are ``Z @ mixings[k] + centroids[k]`` of normal Z. `sources` are
    the columns that repeated ones copy, `order` is that of the final columns.
    """

    clusters: RowClusters
    centroids: np.ndarray
    mixings: np.ndarray
    redundant: np.ndarray
    sources: np.ndarray
    shift: Any
    scale: Any
    order: np.ndarray

    @property
    def n_draws(self) -> int:
        return len(self.order)

    @property
    def metas(self) -> tuple[np.ndarray, ...]:
        return (np.empty((0, len(self.order))),)

    def __call__(self, rng: np.random.Generator, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        n_informative, n_redundant = self.redundant.shape
        n_random = len(self.order) - n_informative - n_redundant - len(self.sources)
        Z = rng.standard_normal((len(numbers), n_informative))
        noise = rng.standard_normal((len(numbers), n_random))
        clusters = self.clusters(numbers)
        by_cluster = np.argsort(clusters, kind="stable")
        ends = np.searchsorted(clusters[by_cluster], np.arange(len(self.centroids)), side="right")
        for rows, mixing, centroid in zip(
            np.split(by_cluster, ends[:-1]), self.mixings, self.centroids, strict=True
        ):
            Z[rows] = Z[rows] @ mixing + centroid
        useful = np.hstack([Z, Z @ self.redundant])
        X = np.hstack([useful, useful[:, self.sources], noise])
        X += self.shift
        X *= self.scale
        return (X[:, self.order],)


@dataclass(frozen=True)
class ClassLabels:
    """Classes of the clusters of rows, with a fraction of random ones."""

    clusters: RowClusters
    n_classes: int
    flip_y: float
    n_draws = 1
    metas = (np.empty(0, dtype=np.int64),)

    def __call__(self, rng: np.random.Generator, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        is_random = rng.random(len(numbers)) < self.flip_y
        labels = rng.integers(self.n_classes, size=len(numbers))
        return (np.where(is_random, labels, self.clusters(numbers) % self.n_classes),)


@document
def make_classification(
    n_samples: int = 100,
    n_features: int = 20,
    *,
    n_informative: int = 2,
    n_redundant: int = 2,
    n_repeated: int = 0,
    n_classes: int = 2,
    n_clusters_per_class: int = 2,
    weights: Any = None,
    flip_y: float = 0.01,
    class_sep: float = 1.0,
    hypercube: bool = True,
    shift: Any = 0.0,
    scale: Any = 1.0,
    shuffle: bool = True,
    random_state: Any = None,
    return_X_y: bool = True,
    chunks: Any = "auto",
    as_frame: bool = False,
) -> Any:
    r"""Generate a problem of several classes, block by block.

    Informative columns of a row of cluster :math:`k` are :math:`z^T A_k + c_k`, where :math:`z` is
    standard normal, :math:`A_k` has entries from U(-1, 1), and :math:`c_k` is a vertex of a
    hypercube with sides of 2 class_sep (Guyon, 2003, Design of experiments of the NIPS 2003
    variable selection benchmark). The class is :math:`k` modulo `n_classes`.

    Parameters
    ----------
    n_samples : int, default=100
        Number of rows.
    n_features : int, default=20
        Number of columns; those that no other parameter counts are noise.
    n_informative : int, default=2
        Number of informative columns.
    n_redundant : int, default=2
        Number of random linear combinations of the informative columns.
    n_repeated : int, default=0
        Number of copies of informative and redundant columns.
    n_classes : int, default=2
        Number of classes.
    n_clusters_per_class : int, default=2
        Number of clusters in a class.
    weights : array-like of shape (n_classes,) or (n_classes - 1,), default=None
        Fractions of the classes in the rows, equal by default. The last one may be left out.
    flip_y : float, default=0.01
        Probability of a random class for a row.
    class_sep : float, default=1.0
        Distance between the clusters.
    hypercube : bool, default=True
        Whether clusters are about the vertices of a hypercube; else of a random polytope.
    shift : float, array-like of shape (n_features,) or None, default=0.0
        Number to add to the columns; None draws one from U(-class_sep, class_sep) for each.
    scale : float, array-like of shape (n_features,) or None, default=1.0
        Factor of the shifted columns; None draws one from U(1, 101) for each.
    shuffle : bool, default=True
        Whether rows and columns are in a random order. Else a cluster follows another, and the
        columns are informative, redundant, repeated and noise.
    {random_state}
    return_X_y : bool, default=True
        If False, the result is a Bunch.
    {chunks}
    {as_frame}

    Returns
    -------
    {X}
    y : Dask array or Series of shape (n_samples,)
        The classes, int64.
    data : :class:`~sklearn.utils.Bunch`
        Instead of both with ``return_X_y=False``: they are `X` and `y` of it, `feature_info` is a
        word for each column, `parameters` and `DESCR` are the arguments and this text.

    Raises
    ------
    {errors}

    See Also
    --------
    make_blobs : Clusters alone.
    sklearn.datasets.make_classification : The same in the memory of one process.

    Notes
    -----
    No pass over the rows. Clusters have exactly scikit-learn's sizes, so that classes do too where
    `flip_y` is 0. The order of the rows is a Feistel network on row numbers (Black and Rogaway,
    2002): no permutation is in memory. y is drawn without X.

    {cells}

    Examples
    --------
    >>> from skfleet.datasets import make_classification
    >>> from skfleet.estimators import LogisticRegression
    >>> X, y = make_classification(
    ...     10_000, 10, weights=[0.75], flip_y=0, random_state=0, chunks=1_000
    ... )
    >>> int(y.sum())
    2500
    >>> LogisticRegression().fit(X, y).score(X, y) > 0.75
    True
    """
    parameters = {**locals()}
    from skfleet.datasets._collections import drawn_collections, row_lengths

    # Checks first: what follows draws numbers of a generator that may be the caller's.
    _check_counts(parameters)
    check_in_interval("flip_y", flip_y, 0, 1)
    check_in_interval("class_sep", class_sep, 0, open="lr")
    for name in ("hypercube", "shuffle", "return_X_y", "as_frame"):
        check_bool(name, parameters[name])
    shift = _check_per_column("shift", shift, n_features)
    scale = _check_per_column("scale", scale, n_features)
    check_seed("random_state", random_state)
    fractions = _class_fractions(weights, n_classes)
    # Clusters: their centroids, as in scikit-learn, and how many rows each has.
    lengths = row_lengths(chunks, n_samples, n_features)
    rng = check_random_state(random_state)
    n_clusters = n_classes * n_clusters_per_class
    centroids = _hypercube_vertices(n_clusters, n_informative, rng) * 2 * class_sep - class_sep
    if not hypercube:
        centroids *= rng.uniform(size=(n_clusters, 1)) * rng.uniform(size=(1, n_informative))
    sizes = _cluster_sizes(n_samples, fractions, n_clusters_per_class)
    # All that is common to the rows is drawn here. It is small, and goes to every block.
    n_useful = n_informative + n_redundant
    order = np.arange(n_features)
    rows = ClassificationRows(
        RowClusters.draw(n_samples, sizes, rng, shuffle=shuffle),
        centroids,
        rng.uniform(-1, 1, size=(n_clusters, n_informative, n_informative)),
        rng.uniform(-1, 1, size=(n_informative, n_redundant)),
        ((n_useful - 1) * rng.uniform(size=n_repeated) + 0.5).astype(np.intp),
        rng.uniform(-class_sep, class_sep, size=n_features) if shift is None else shift,
        rng.uniform(1, 101, size=n_features) if scale is None else scale,
        rng.permutation(order) if shuffle else order,
    )
    # Rows and labels have a seed each, so that either is drawn without the other.
    draws = (rows, ClassLabels(rows.clusters, n_classes, flip_y))
    sources = [CellRows(x, draw_seed(rng), n_samples) for x in draws]
    X, y = drawn_collections("make-classification", sources, lengths, as_frame=as_frame)
    if return_X_y:
        return X, y
    # What each column is, in the order in which the columns are now.
    groups = np.repeat(
        ["informative", "redundant", "repeated", "random"],
        [n_informative, n_redundant, n_repeated, n_features - n_useful - n_repeated],
    )
    return Bunch(
        DESCR=make_classification.__doc__,
        parameters=parameters,
        feature_info=groups[rows.order].tolist(),
        X=X,
        y=y,
    )


def _check_counts(parameters: dict[str, Any]) -> None:
    """Raise for impossible numbers of rows, columns, classes or clusters."""
    for name in ("n_samples", "n_features", "n_informative", "n_classes", "n_clusters_per_class"):
        check_positive_int(name, parameters[name])
    for name in ("n_redundant", "n_repeated"):
        check_positive_int(name, parameters[name], 0)
    n_informative, n_features = parameters["n_informative"], parameters["n_features"]
    total = n_informative + parameters["n_redundant"] + parameters["n_repeated"]
    if total > n_features:
        raise ValueError(
            f"n_informative + n_redundant + n_repeated must be at most n_features, {n_features}. "
            f"Got {total} instead."
        )
    n_clusters = parameters["n_classes"] * parameters["n_clusters_per_class"]
    if n_informative < log2(n_clusters):
        raise ValueError(
            "n_classes * n_clusters_per_class must be at most 2**n_informative, "
            f"{2**n_informative}. Got {n_clusters} instead."
        )


def _check_per_column(name: str, value: Any, n_features: int) -> Any:
    """Return a number, an array of one for each column, or None; or raise."""
    low, open_ends = (-np.inf, "lr") if name == "shift" else (0, "lr")
    if value is None or not hasattr(value, "__len__"):
        if value is not None:
            check_in_interval(name, value, low, open=open_ends)
        return value
    array = np.asarray(value, dtype=np.float64)
    if array.shape != (n_features,):
        raise ValueError(
            f"{name} must be None, a number or one per column, {n_features}. Got shape "
            f"{array.shape} instead."
        )
    return array


def _class_fractions(weights: Any, n_classes: int) -> np.ndarray:
    """Return the fraction of each class, or raise."""
    if weights is None:
        return np.full(n_classes, 1.0 / n_classes)
    if not hasattr(weights, "__len__") or len(weights) not in (n_classes - 1, n_classes):
        raise ValueError(
            f"weights must be None or numbers for {n_classes} classes, or for all but the last. "
            f"Got {weights!r} instead."
        )
    fractions = np.asarray(weights, dtype=np.float64)
    if len(fractions) == n_classes - 1:
        fractions = np.append(fractions, 1.0 - sum(weights))
    if not (fractions >= 0).all():
        raise ValueError(f"weights must be between 0 and 1 in all. Got {weights!r} instead.")
    return fractions


def _cluster_sizes(n_samples: int, fractions: Sequence[float], n_per_class: int) -> np.ndarray:
    """Return the sizes of the clusters, which are those of scikit-learn."""
    sizes = np.array([int(n_samples * part / n_per_class) for part in fractions] * n_per_class)
    extra, larger = divmod(max(0, n_samples - sizes.sum()), len(sizes))
    return sizes + extra + (np.arange(len(sizes)) < larger)


def _hypercube_vertices(
    n_vertices: int, n_dimensions: int, rng: np.random.RandomState
) -> np.ndarray:
    """Return distinct vertices of the unit hypercube."""
    n_bits = min(n_dimensions, DISTINCT_BITS)
    further = rng.randint(2, size=(n_vertices, n_dimensions - n_bits))
    codes = sample_without_replacement(2**n_bits, n_vertices, random_state=rng)
    bits = codes[:, None] >> np.arange(n_bits)[::-1] & 1
    return np.hstack([further, bits]).astype(np.float64)
