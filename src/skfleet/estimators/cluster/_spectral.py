"""Spectral clustering of rows of any container, by the Nystroem method on landmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy import linalg
from sklearn.base import ClusterMixin
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.cluster import SpectralClustering as SklearnSpectralClustering
from sklearn.metrics import pairwise_distances_argmin
from sklearn.preprocessing import normalize
from sklearn.utils import check_random_state

from skfleet._array import is_not_numpy, namespace, to_device_of, to_host_if_array
from skfleet._linalg import group_sums
from skfleet._sklearn_private import discretize
from skfleet._typing import RandomState, Rows, Values
from skfleet._validation import check_in_interval, check_option, check_positive_int
from skfleet._warnings import warn, without_convergence_warnings
from skfleet.blocks import RowBlocks, SampledRows, combine_k_smallest, is_lazy
from skfleet.engine import (
    Engine,
    Reduction,
    engine_for,
    is_fit_placed,
    limit_threadpools,
    map_reduce,
    with_row_offsets,
)
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._fleet_estimator import FleetEstimator
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.cluster._affinity import (
    GRAPH_AFFINITIES,
    Affinity,
    check_affinity,
    check_takes_rows,
)
from skfleet.estimators.cluster._center_model import LazyLabels
from skfleet.estimators.cluster._kmeans import KMeans
from skfleet.estimators.cluster._nystrom import Embedding, Spectrum, nystrom_spectrum
from skfleet.estimators.cluster._reductions import sample_by_weight
from skfleet.estimators.cluster._sampling import draw_seed
from skfleet.inference import OutputSpec

# Rows, other than landmarks, on which residuals are estimated.
VALIDATION_ROWS = 128
LABEL = OutputSpec(np.dtype(np.int32))


@document
class SpectralClustering(LazyLabels, ClusterMixin, FleetEstimator):
    r"""Spectral clustering, by the Nystroem method where there are many rows.

    Clusters the rows of the leading eigenvectors of :math:`D^{-1/2} K D^{-1/2}`, each over the
    square root of its degree, for affinities K and their row sums D (Shi and Malik, 2000,
    Normalized cuts and image segmentation), as :class:`sklearn.cluster.SpectralClustering` does. Of
    more rows than `n_landmarks`, K is approximated by :math:`C W^+ C^T` for affinities C to the
    landmarks, which are rows drawn at random, and W between them (Fowlkes, Belongie, Chung and
    Malik, 2004, Spectral grouping using the Nystroem method).

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    eigen_solver : {"arpack", "lobpcg", "amg"} or None, default=None
        Solver of scikit-learn's, where this is exact. The matrices of the approximation are small,
        and LAPACK solves them.
    n_components : int or None, default=None
        Number of eigenvectors; None takes `n_clusters`. They are fewer where the affinities have a
        smaller rank.
    random_state : int, RandomState instance or None, default=None
        Draws landmarks and starts. Rows are drawn by their global number: an int gives the same
        clusters for every cut of the rows and any number of workers.
    n_init : int, default=10
        Number of starts of k-means. They run on the landmarks, in this process; the best one goes
        on over all rows.
    gamma : float, default=1.0
        Coefficient of the kernels "rbf", "poly", "sigmoid", "laplacian" and "chi2".
    affinity : str or callable, default="rbf"
        A kernel of :func:`sklearn.metrics.pairwise.pairwise_kernels`, or a function of two rows
        that returns a number. Affinities should not be negative. ``"nearest_neighbors"``,
        ``"precomputed"`` and ``"precomputed_nearest_neighbors"`` are scikit-learn's own, for rows
        in this process.
    n_neighbors : int, default=10
        Number of neighbours of the last two and ``"nearest_neighbors"``.
    eigen_tol : float or "auto", default="auto"
        Tolerance of `eigen_solver`.
    assign_labels : {"kmeans", "discretize", "cluster_qr"}, default="kmeans"
        How to make labels of eigenvectors. The rotations of ``"cluster_qr"`` (Damle, Minden and
        Ying, 2019, Simple, direct and efficient multi-way spectral clustering) and ``"discretize"``
        (Yu and Shi, 2003, Multiclass spectral clustering) are those of the landmarks.
    degree : float, default=3
        Degree of the kernel "poly".
    coef0 : float, default=1
        Constant of the kernels "poly" and "sigmoid".
    kernel_params : dict or None, default=None
        Other parameters of the affinity, those of a callable say.
    n_jobs : int or None, default=None
        Jobs of scikit-learn's own search for neighbours; all else uses all workers.
    verbose : bool or int, default=False
        Print what runs.
    n_landmarks : int, default=500
        Number of rows that stand for all in the approximation. Up to as many rows, this is
        scikit-learn's own fit.
    {device}

    Attributes
    ----------
    labels_ : array of shape (n_samples,)
        Number of each row's cluster, int32: a NumPy array for rows in this process (of their own
        library for arrays of others), a lazy array or Series for Dask collections. A lazy one stays
        behind when the estimator is pickled.
    residuals_ : ndarray of shape (n_components,)
        Error of each eigenvector v of the approximation, estimated on 128 rows that are no
        landmarks: :math:`\|N v - \lambda v\| / \|v\|` for the exact matrix
        :math:`N = D^{-1/2} K D^{-1/2}`, which then has an eigenvalue this near to :math:`\lambda`
        (Parlett, 1998, The symmetric eigenvalue problem, theorem 4.5.1). Zeros where nothing is
        approximated.
    eigenvalues_ : ndarray of shape (n_components,)
        Leading eigenvalues of the approximation, in decreasing order; 1 is the largest of all. Not
        where scikit-learn's own fit runs.
    affinity_matrix_ : array or sparse matrix of shape (n_samples, n_samples)
        Affinities, only where scikit-learn's own fit runs.
    {features_in}

    Raises
    ------
    ValueError
        If a parameter or X is invalid, there are fewer rows than clusters, or the rows cannot have
        that affinity.

    Warns
    -----
    UserWarning
        If rows have no degree above 0, far from all landmarks say; their coordinates are zero.

    Notes
    -----
    Passes over the rows: one draws the landmarks, one sums up affinities to them, which gives the
    degree of every row, and one sums up products of the normalised affinities. The
    eigenvectors of all rows are then a map of their affinities to the landmarks, lazy for Dask
    rows, and k-means makes one pass over its `n_components` columns, one for each of its iterations
    and one for the labels; the others make none. Up to `n_landmarks` rows take one pass. On
    a cluster each task of the third pass returns ``n_landmarks * (n_landmarks + 128)`` numbers. A
    pass computes `n_landmarks` affinities for each row, which are never stored; rows and
    eigenvectors that fit stay in the workers' memory, others are computed in each pass. Rows on
    Dask that are not persisted are loaded twice: for the three passes, and for the eigenvectors.

    The approximation counts a row's affinity to itself, which scikit-learn's leaves out. With
    ``device="cuda"`` rows on the host have their coordinates computed on the host.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import make_moons
    >>> from skfleet.estimators import SpectralClustering
    >>> X, moons = make_moons(3000, noise=0.05, random_state=0)
    >>> rows = da.from_array(X, chunks=(500, 2))
    >>> model = SpectralClustering(2, gamma=50, n_landmarks=300, random_state=0).fit(rows)
    >>> model.labels_
    dask.array<..., shape=(3000,), dtype=int32, chunksize=(500,), chunktype=numpy.ndarray>
    >>> bool((model.residuals_ < 0.01).all())
    True
    """

    # So many rows, 6,000 x 20, take .43 s in one task, .65 on the blocks of two workers.
    _single_task_bytes = 2.0**20

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        eigen_solver: str | None = None,
        n_components: int | None = None,
        random_state: RandomState = None,
        n_init: int = 10,
        gamma: float = 1.0,
        affinity: str | Callable[..., float] = "rbf",
        n_neighbors: int = 10,
        eigen_tol: float | str = "auto",
        assign_labels: str = "kmeans",
        degree: float = 3,
        coef0: float = 1,
        kernel_params: dict[str, Any] | None = None,
        n_jobs: int | None = None,
        verbose: bool | int = False,
        n_landmarks: int = 500,
        device: str = "auto",
    ) -> None:
        self.n_clusters = n_clusters
        self.eigen_solver = eigen_solver
        self.n_components = n_components
        self.random_state = random_state
        self.n_init = n_init
        self.gamma = gamma
        self.affinity = affinity
        self.n_neighbors = n_neighbors
        self.eigen_tol = eigen_tol
        self.assign_labels = assign_labels
        self.degree = degree
        self.coef0 = coef0
        self.kernel_params = kernel_params
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.n_landmarks = n_landmarks
        self.device = device

    @run_on_device
    def fit(self, X: Rows, y: Values | None = None) -> SpectralClustering:
        """Cluster rows.

        {fit_rows}
        """
        self._check_parameters()
        rows = self._validate_rows(X)
        on_device = rows.on_device or is_not_numpy(X) or rows.blocks[0].to_device
        check_takes_rows(self.affinity, rows, on_device=on_device)
        self._check_n_rows(rows.n_rows)
        for name in ("affinity_matrix_", "eigenvalues_"):  # of another kind of fit
            vars(self).pop(name, None)
        if self.affinity in GRAPH_AFFINITIES:
            self.labels_ = self._fit_exactly(rows.blocks[0].X)
            return self
        rng = check_random_state(self.random_state)
        engine = engine_for(rows)
        with engine.persist(rows) as persisted:
            rows = with_row_offsets(engine, persisted)
            self._check_n_rows(rows.n_rows)
            is_exact = rows.n_rows <= self.n_landmarks
            if is_exact:
                drawn = _draw_rows(engine, rows, rows.n_rows, 0)
            else:
                with limit_threadpools(1):  # the threads of small products would keep spinning
                    spectrum = self._spectrum(engine, rows, rng)
        if is_exact:
            # Drawn rows come in the order of their random keys.
            self.labels_ = self._label_known_rows(X, drawn.rows[np.argsort(drawn.numbers)])
        else:
            self.eigenvalues_, self.residuals_ = spectrum.values, spectrum.residuals
            self.labels_ = self._assign_labels(X, spectrum.embedding, rng)
        return self

    def _label_known_rows(self, X: Rows, known_rows: Any) -> Any:
        """Return the labels of scikit-learn's fit, in the container of X."""
        labels = self._fit_exactly(known_rows)
        if not is_lazy(X):
            self._store_label_function(X, nearest_label, (known_rows, labels))
            return to_device_of(labels, X)
        return self._label_rows(X, nearest_label, (known_rows, labels))

    def _label_rows(self, X: Rows, label: Any, model: Any) -> Any:
        """Return label(model, rows) in the container of X."""
        self._store_label_function(X, label, model)
        return self._predict_blockwise(label, X, LABEL, model=model)

    def _store_label_function(self, X: Rows, label: Any, model: Any) -> None:
        """Keep, in a task that has all Dask rows, what makes their labels."""
        if is_fit_placed() and not is_lazy(X):
            self._label_function = label, model

    def _set_row_attributes(self, X: Rows) -> None:
        self.labels_ = self._label_rows(X, *vars(self).pop("_label_function"))

    def _spectrum(self, engine: Engine, rows: RowBlocks, rng: np.random.RandomState) -> Spectrum:
        """Return the eigenvectors of the approximation; warn of rows without affinities."""
        n_points = min(rows.n_rows, self.n_landmarks + VALIDATION_ROWS)
        points = _draw_rows(engine, rows, n_points, draw_seed(rng)).rows
        rows = replace(rows, checked=True)  # the draw has looked for NaN and infinity
        counts = self.n_landmarks, self._n_eigenvectors
        spectrum = nystrom_spectrum(engine, rows, self._affinity(), points, *counts)
        if spectrum.n_isolated:
            warn(
                f"{spectrum.n_isolated} of {rows.n_rows} rows have no degree above 0, the sum of "
                f"their affinities, by those to {self.n_landmarks} landmarks. Raise n_landmarks, "
                "lower gamma, or scale X."
            )
        return spectrum

    def _assign_labels(self, X: Rows, embedding: Embedding, rng: np.random.RandomState) -> Any:
        """Return the labels of all rows from their coordinates, starting from the landmarks'."""
        if self.verbose:
            print(f"Computing label assignment using {self.assign_labels}")
        of_landmarks = embedding(embedding.landmarks.rows)
        if self.assign_labels != "kmeans":
            if self.assign_labels == "cluster_qr":
                rotation, label = pivoted_rotation(of_landmarks), largest_magnitude
            else:
                rotation, label = discrete_rotation(of_landmarks, rng), largest_coordinate
            rotated = embedding._replace(weights=embedding.weights @ rotation)
            return self._label_rows(X, label, rotated)
        start = SklearnKMeans(self.n_clusters, n_init=self.n_init, random_state=rng)
        # Starts need not converge, and k-means over all rows warns of clusters without rows.
        with without_convergence_warnings(), limit_threadpools(1):
            centers = start.fit(of_landmarks).cluster_centers_
        width = of_landmarks.shape[1]
        names = [f"spectralclustering{i}" for i in range(width)]
        output = OutputSpec(np.dtype(np.float64), width, names, is_rows=True)
        coordinates = self._predict_blockwise(coordinates_of, X, output, model=embedding)
        kmeans = KMeans(self.n_clusters, init=centers, verbose=int(self.verbose)).fit(coordinates)
        self._store_label_function(X, nearest_center, (embedding, kmeans))
        return kmeans.labels_

    def _fit_exactly(self, X: Any) -> np.ndarray:
        """Set the attributes of scikit-learn's fit to rows on the host, and return the labels."""
        params = {k: v for k, v in self.get_params().items() if k not in ("n_landmarks", "device")}
        # scikit-learn's fit writes into the parameter.
        params["kernel_params"] = dict(self.kernel_params or {})
        model = SklearnSpectralClustering(**params).fit(X)
        self.affinity_matrix_ = model.affinity_matrix_
        self.residuals_ = np.zeros(self._n_eigenvectors)
        return model.labels_.astype(np.int32)

    @property
    def _n_eigenvectors(self) -> int:
        return self.n_clusters if self.n_components is None else self.n_components

    def _affinity(self) -> Affinity:
        params = dict(self.kernel_params or {})
        if not callable(self.affinity):
            params |= {"gamma": self.gamma, "degree": self.degree, "coef0": self.coef0}
        return Affinity(self.affinity, params)

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        for name in ("n_clusters", "n_init", "n_neighbors"):
            check_positive_int(name, getattr(self, name))
        if self.n_components is not None:
            check_positive_int("n_components", self.n_components)
        check_positive_int("n_landmarks", self.n_landmarks, 2)
        check_affinity(self.affinity)
        for name in ("gamma", "degree"):
            check_in_interval(name, getattr(self, name), 0)
        check_in_interval("coef0", self.coef0, -np.inf)
        if self.eigen_tol != "auto":
            check_in_interval("eigen_tol", self.eigen_tol, 0)
        if self.eigen_solver is not None:
            check_option("eigen_solver", self.eigen_solver, ("arpack", "lobpcg", "amg"))
        check_option("assign_labels", self.assign_labels, ("kmeans", "discretize", "cluster_qr"))
        if self.kernel_params is not None and not hasattr(self.kernel_params, "items"):
            raise ValueError(
                f"kernel_params must be a dict or None. Got {self.kernel_params!r} instead."
            )

    def _check_n_rows(self, n_rows: int | None) -> None:
        """Raise for too few rows, or landmarks, for the clusters; None is not known yet."""
        if n_rows is None:
            return
        if n_rows < self.n_clusters:
            raise ValueError(f"n_samples={n_rows} should be >= n_clusters={self.n_clusters}.")
        if self.affinity in GRAPH_AFFINITIES or n_rows <= self.n_landmarks:
            return
        least = max(self.n_clusters, self._n_eigenvectors)
        if self.n_landmarks < least:
            raise ValueError(
                f"n_landmarks must be at least {least}, for as many clusters or eigenvectors. Got "
                f"{self.n_landmarks} instead."
            )

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        precomputed = ("precomputed", "precomputed_nearest_neighbors")
        tags.input_tags.pairwise = self.affinity in precomputed
        return tags


def _draw_rows(engine: Engine, rows: RowBlocks, n: int, seed: int) -> SampledRows:
    """Return n rows on the host, drawn without replacement, in one pass."""
    reduction = Reduction(sample_by_weight, partial(combine_k_smallest, n=n))
    return map_reduce(engine, reduction, rows, n, seed)


def pivoted_rotation(coordinates: np.ndarray) -> np.ndarray:
    """Return the rotation towards the rows that a pivoted QR selects (Damle et al., 2019)."""
    *_, pivots = linalg.qr(coordinates.T, pivoting=True, mode="economic")
    # The rotation nearest to these rows, their polar factor.
    left, _, right = linalg.svd(coordinates[pivots[: coordinates.shape[1]]].T)
    return left @ right


def discrete_rotation(coordinates: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Return the rotation in which coordinates are nearest to a partition (Yu and Shi, 2003)."""
    # Rows without affinities have no direction.
    coordinates = coordinates[coordinates.any(axis=1)]
    # scikit-learn returns labels only, from which the rotation for all other rows follows.
    labels = discretize(coordinates, rng)
    scale = np.linalg.norm(coordinates, axis=0)
    directions = normalize(coordinates / scale)
    left, _, right = linalg.svd(group_sums(directions, labels, None, len(scale)))
    return (right.T @ left.T) / scale[:, None]


def coordinates_of(embedding: Embedding, X: Any) -> Any:
    """Return the coordinates of rows, on their device."""
    return embedding(X)


def largest_coordinate(embedding: Embedding, X: Any) -> Any:
    """Return the indices of the largest coordinates of rows, on their device."""
    return _argmax(embedding(X))


def largest_magnitude(embedding: Embedding, X: Any) -> Any:
    """Return the indices of the coordinates that are largest in magnitude, on the rows' device."""
    return _argmax(abs(embedding(X)))


def _argmax(coordinates: Any) -> Any:
    xp = namespace(coordinates)
    return xp.astype(xp.argmax(coordinates, axis=1), xp.int32)


def nearest_center(model: tuple[Embedding, KMeans], X: Any) -> Any:
    """Return the clusters of the coordinates of rows, on their device."""
    embedding, kmeans = model
    return kmeans.predict(embedding(X))


def nearest_label(model: tuple[Any, np.ndarray], X: Any) -> Any:
    """Return the labels of rows that are among known rows, on the device of X."""
    known_rows, labels = model
    # The distance of a row to itself is 0 without rounding.
    nearest = pairwise_distances_argmin(to_host_if_array(X), known_rows, metric="manhattan")
    return to_device_of(labels[nearest], X)
