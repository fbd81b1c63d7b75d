"""k-means clustering of rows of any container, one pass over them per iteration."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from skfleet._array import namespace
from skfleet._linalg import is_sparse_kind
from skfleet._validation import check_choice, check_count, check_real
from skfleet.blocks import Notes, Output, RowBlocks, is_lazy
from skfleet.engine import Reduction, engine_for, map_reduce, with_starts
from skfleet.estimators._base import FleetEstimator
from skfleet.estimators._cluster._lloyd import Iterations
from skfleet.estimators._cluster._nearest import Centers, as_dense, distances, labels_of
from skfleet.estimators._cluster._passes import Step, lloyd
from skfleet.estimators._cluster._start import Starts
from skfleet.estimators._moments import Moments

_STARTS = ("k-means++", "k-means||", "random")


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, FleetEstimator):
    r"""k-means clustering by Lloyd's algorithm.

    Minimises the inertia :math:`\sum_i w_i \min_j \|x_i - c_j\|^2` over centres :math:`c_j`
    (Lloyd, 1982, Least squares quantization in PCM), as :class:`sklearn.cluster.KMeans` does.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    init : {"k-means++", "k-means||", "random"}, callable or array, default="k-means++"
        Where to start. ``"k-means++"`` is greedy k-means++ on up to 10,000 rows and k-means|| on
        more; ``"k-means||"`` is that in any case (Bahmani et al., 2012, Scalable k-means++), with
        three rounds that draw ``2 * n_clusters`` rows each; ``"random"`` draws rows; an array of
        shape (n_clusters, n_features) gives the centres. A callable gets X, n_clusters and a
        ``random_state``, and so needs X in this process.
    n_init : "auto" or int, default="auto"
        How many starts to try; the least inertia wins. "auto" is 10 for ``"random"`` or a callable
        and 1 otherwise.
    max_iter : int, default=300
        The most iterations of one start.
    tol : float, default=1e-4
        Stop when the squared movement of the centres is at most so many times the mean variance
        of the columns.
    verbose : int, default=0
        Above 0, print the inertia of every iteration.
    random_state : int, RandomState instance or None, default=None
        Draws the start. Rows are drawn by their global number: an int gives the same centres for
        every cut of the rows and any number of workers.
    copy_x : bool, default=True
        Accepted as in scikit-learn; X is never changed, so the answer is the same.
    algorithm : {"auto", "lloyd", "elkan"}, default="auto"
        All give the same answer. "lloyd" compares every row with every centre in every iteration.
        "auto", and "elkan" with it, keeps bounds (Hamerly, 2010, Making k-means even faster)
        beside rows that are in memory, eight bytes a row, and compares those only whose bounds
        allow another centre, once these are few.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Centres.
    labels_ : array of shape (n_samples,)
        Number of each row's cluster, int32: a NumPy array for rows in this process (of their own
        library for arrays of others), a lazy array or Series for Dask collections. A lazy one stays
        behind when the estimator is pickled.
    inertia_ : float
        Weighted sum of squared distances to the nearest centre, over all rows.
    n_iter_ : int
        Iterations of the start that won.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X has names that are all text.

    Raises
    ------
    ValueError
        When a parameter or the rows are not as above, or there are fewer rows than clusters.

    Notes
    -----
    Passes over the rows: one for the column means and variances, then for the start one
    (``"k-means++"`` on few rows, ``"random"``), five (k-means||) or none, then one per iteration,
    one more in an iteration that finds a cluster empty and gives it the row farthest from its
    centre, and one for the inertia at the end unless the centres had stopped moving. On a cluster
    an iteration brings ``n_clusters * (n_features + 3)`` numbers home. Rows that fit stay in the
    workers' memory; others are loaded in each pass.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.estimators import KMeans
    >>> X = da.from_array(np.array([[1.0, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]]), chunks=2)
    >>> model = KMeans(n_clusters=2, random_state=0).fit(X)
    >>> np.sort(model.cluster_centers_, axis=0)
    array([[ 1.,  2.],
           [10.,  2.]])
    >>> model.inertia_
    16.0
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means++",
        n_init: Any = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        verbose: int = 0,
        random_state: Any = None,
        copy_x: bool = True,
        algorithm: str = "auto",
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.copy_x = copy_x
        self.algorithm = algorithm

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KMeans:
        """Find the centres.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows to cluster.
        y : None
            Ignored; there for the sake of pipelines.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        self : KMeans
            Fitted.
        """
        self._check_parameters()
        rows = self._fit_rows(X, sample_weight=sample_weight)
        given = self._given_centers(rows)
        kind = self.init if isinstance(self.init, str) else "given"
        starts = Starts(
            kind,
            self.n_clusters,
            self._n_starts(),
            check_random_state(self.random_state),
            is_sparse_kind(X),
        )
        engine = engine_for(rows)
        with engine.hold(rows) as held:
            rows = with_starts(engine, held)
            if rows.n_rows < self.n_clusters:
                raise ValueError(
                    f"n_samples={rows.n_rows} should be >= n_clusters={self.n_clusters}."
                )
            rows = engine.with_notes(rows)
            columns = starts.look(engine, rows)
            rows = replace(rows, checked=True)
            starts.mean = mean = None if starts.is_sparse else _mean_to_take_off(columns, rows)
            iterations = Iterations(
                engine,
                rows,
                mean,
                self.max_iter,
                tol=self.tol * float(np.mean(columns.squares / columns.n_rows)),
                scale=float(np.sum(columns.squares / columns.n_rows + columns.mean**2)),
                with_bounds=self.algorithm != "lloyd",
                verbose=bool(self.verbose),
            )
            best = None
            for number in range(starts.n_starts):
                centers = given
                if callable(self.init):
                    centers = self._check_centers(
                        self.init(X, self.n_clusters, random_state=starts.rng), rows
                    )
                if centers is None:
                    centers = starts.centers(engine, rows, number)
                elif mean is not None:
                    centers = centers - mean
                found = iterations.run(centers, number)
                if best is None or found.inertia < best.inertia:
                    best, labels = found, _labels_in(rows)
        n_distinct = int(np.count_nonzero(best.n_members))
        if n_distinct < self.n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({n_distinct}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        self.inertia_, self.n_iter_ = best.inertia, best.n_iter
        self._mean = mean
        centers = best.centers if mean is None else best.centers + mean
        self.cluster_centers_ = centers.astype(rows.dtype, copy=False)
        self._n_features_out = self.n_clusters
        self.labels_ = self.predict(X) if is_lazy(X) else labels
        return self

    def predict(self, X: Any) -> Any:
        """Return the number of the nearest centre for every row.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        labels : array of shape (n_samples,)
            int32, in the container X came in.
        """
        return self._answer(labels_of, X, Output(np.dtype(np.int32)), model=self._model)

    def transform(self, X: Any) -> Any:
        """Return the distances of every row to all centres.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        distances : array of shape (n_samples, n_clusters)
            In the container X came in.
        """
        columns = self.get_feature_names_out() if hasattr(self, "cluster_centers_") else None
        dtype = getattr(getattr(self, "cluster_centers_", None), "dtype", np.dtype(np.float64))
        output = Output(dtype, self.n_clusters, columns)
        return self._answer(distances, X, output, model=self._model)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the negative inertia of rows, in one pass.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            Minus the weighted sum of squared distances to the nearest centre.
        """
        check_is_fitted(self)
        rows = self._fit_rows(X, sample_weight=sample_weight, reset=False)
        centers, mean = self._model
        step = Step(Centers(centers, mean, rows.dtype), final=True)
        return -map_reduce(engine_for(rows), Reduction(lloyd), rows, step).inertia

    @property
    def _model(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """What answers need: the centres about the mean, and the mean, if it matters."""
        if not hasattr(self, "cluster_centers_"):
            return None
        centers = self.cluster_centers_.astype(np.float64)
        return centers if self._mean is None else centers - self._mean, self._mean

    def _check_parameters(self) -> None:
        """Raise for parameters that cannot be, before any work."""
        check_count("n_clusters", self.n_clusters)
        check_count("max_iter", self.max_iter)
        if self.n_init != "auto":
            check_count("n_init", self.n_init)
        check_real("tol", self.tol, 0)
        check_choice("algorithm", self.algorithm, ("auto", "lloyd", "elkan"))
        if isinstance(self.init, str) and self.init not in _STARTS:
            names = ", ".join(map(repr, _STARTS))
            raise ValueError(
                f"init must be one of {names}, a callable or an array. Got {self.init!r} instead."
            )

    def _n_starts(self) -> int:
        """How many starts to try."""
        if not isinstance(self.init, str) and not callable(self.init):
            return 1  # every start would be the same one
        if self.n_init != "auto":
            return self.n_init
        return 10 if self.init == "random" or callable(self.init) else 1

    def _given_centers(self, rows: RowBlocks) -> np.ndarray | None:
        """Return the centres that the caller gives, None where they are to be found."""
        if isinstance(self.init, str):
            return None
        if callable(self.init):
            if rows.on_dask:
                raise ValueError(
                    "init must not be a callable for a Dask collection. Got one, which needs all "
                    "rows at once. Give init an array, or 'k-means||'."
                )
            return None
        return self._check_centers(self.init, rows)

    def _check_centers(self, centers: Any, rows: RowBlocks) -> np.ndarray:
        """Return given centres as numbers of the right shape, or raise."""
        centers = as_dense(centers if hasattr(centers, "shape") else np.asarray(centers))
        wanted = (self.n_clusters, rows.n_features)
        if centers.shape != wanted:
            raise ValueError(
                f"The shape of the initial centers {centers.shape} does not match n_clusters and "
                f"the number of features of the data, {wanted}."
            )
        if not np.isfinite(centers).all():
            raise ValueError("init must be finite. Got centres with NaN or infinity instead.")
        return centers

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        # Lazy labels hold on to the rows, and to the cluster where these are in its memory.
        return {k: v for k, v in state.items() if not (k == "labels_" and is_lazy(v))}


# Up to so many times the variance, a mean costs no digits that matter.
SMALL_MEAN = {"float64": 100.0, "float32": 1.0}


def _mean_to_take_off(columns: Moments, rows: RowBlocks) -> np.ndarray | None:
    """Return the mean to take rows about, exact in their precision; None where it is small."""
    variance = float(np.sum(columns.squares)) / columns.n_rows
    if float(columns.mean @ columns.mean) <= SMALL_MEAN[rows.dtype.name] * variance:
        return None
    return columns.mean.astype(rows.dtype).astype(np.float64)


def _labels_in(rows: RowBlocks) -> Any:
    """Return the labels that a last pass has left beside rows in this process."""
    found: dict[int, Any] = {}
    for block in rows.blocks:
        if isinstance(block.notes, Notes):
            left = block.notes.items()
            found |= {key[1]: labels for key, labels in left if isinstance(key, tuple)}
    parts = [found[start] for start in sorted(found)]
    xp = namespace(*parts)
    return xp.astype(xp.concat(parts), xp.int32) if parts else None
