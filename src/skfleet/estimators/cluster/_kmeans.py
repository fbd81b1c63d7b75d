"""k-means clustering of rows of any container, one pass over them per iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from skfleet._typing import RandomState, Rows, Values, Weights
from skfleet._validation import check_in_interval, check_option, check_positive_int
from skfleet._warnings import warn
from skfleet.blocks import RowBlocks
from skfleet.engine import Engine, engine_for, with_row_offsets
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.cluster._center_model import CenterModel, centering_mean, labels_from_cache
from skfleet.estimators.cluster._init import CentroidInit
from skfleet.estimators.cluster._lloyd import LloydSolver


@document
class KMeans(CenterModel):
    r"""k-means clustering by Lloyd's algorithm.

    Minimises the inertia :math:`\sum_i w_i \min_j \|x_i - c_j\|^2` over centres :math:`c_j`
    (Lloyd, 1982, Least squares quantization in PCM), as :class:`sklearn.cluster.KMeans` does.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    init : {"k-means++", "k-means||", "random"}, callable or array, default="k-means++"
        Where to start. ``"k-means++"`` is greedy k-means++ and Lloyd's iterations in the driver on
        up to 10,000 rows, and k-means|| on more; ``"k-means||"`` is that in any case
        (Bahmani et al., 2012, Scalable k-means++), with three rounds that draw ``2 * n_clusters``
        rows each; ``"random"`` draws rows; an array of shape (n_clusters, n_features) gives the
        centres. A callable gets X, n_clusters and a ``random_state``, and so needs X in this
        process.
    n_init : "auto" or int, default="auto"
        Number of initialisations to try; the smallest inertia wins. "auto" is 10 for
        ``"random"`` or a callable and 1 otherwise.
    max_iter : int, default=300
        The most iterations over all rows from one start; those on a sample do not count.
    tol : float, default=1e-4
        Tolerance of the squared movement of the centres, relative to the mean variance of the
        columns.
    verbose : int, default=0
        Above 0, print the inertia of every iteration.
    random_state : int, RandomState instance or None, default=None
        Draws the start. Rows are drawn by their global number: an int gives the same centres for
        every cut of the rows and any number of workers.
    copy_x : bool, default=True
        Ignored, present for compatibility with scikit-learn: X is never modified.
    algorithm : {"auto", "lloyd", "elkan"}, default="auto"
        All give the same answer, to rounding. "lloyd" compares every row with every centre in
        every iteration. "auto", and "elkan" with it, keeps bounds (Hamerly, 2010, Making k-means
        even faster), eight bytes a row, for rows that are in memory or in the workers' disk
        cache, and compares those only whose bounds allow another centre, once these are few.
        Rows of this process of up to 64 MB are iterated on by scikit-learn's compiled "lloyd" in
        any case, unless ``deterministic`` or `verbose` is set.
    {device}

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
    {features_in}

    Raises
    ------
    ValueError
        If a parameter or X is invalid, or there are fewer rows than clusters.

    Notes
    -----
    Passes over the rows: one for the means and variances of the columns, which also draws rows to
    start from; four more for k-means||, and one for each further start of ``"random"``; one per
    iteration, and one more in an iteration that finds a cluster empty and gives it the row farthest
    from its centre; and one at the end for labels and inertia, of rows that are loaded in each pass
    only if the centres still moved. The start by k-means|| goes on with iterations on a sample of
    100 rows a cluster, but at least 10,000, in the driver. On a cluster each task of an iteration
    returns ``n_clusters * (n_features + 1)`` numbers, which are added up in a tree. Rows that fit
    stay in the workers' memory; others are loaded in each pass. On a GPU every row is compared with
    every centre in each iteration, without a matrix of distances where the rows are CuPy's.

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
        init: str | Values | Callable[..., Any] = "k-means++",
        n_init: str | int = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        verbose: int = 0,
        random_state: RandomState = None,
        copy_x: bool = True,
        algorithm: str = "auto",
        device: str = "auto",
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
        self.device = device

    @run_on_device
    def fit(self, X: Rows, y: Values | None = None, sample_weight: Weights | None = None) -> KMeans:
        """Compute the cluster centres.

        Parameters
        ----------
        X : {X_type}
            Training data to cluster.
        {y_ignored}
        {sample_weight}

        {returns_fitted}
        """
        self._check_parameters()
        rows = self._validate_rows(X, sample_weight=sample_weight)
        if self.algorithm == "elkan" and self.n_clusters == 1:
            warn(
                "algorithm='elkan' doesn't make sense for a single cluster. Using 'lloyd' instead.",
                RuntimeWarning,
            )
        fixed_centers = self._init_centers(rows)
        if rows.n_rows is not None:
            self._check_n_rows(rows.n_rows)
        labels = self._fit_rows(engine_for(rows), rows, fixed_centers, X)
        self.labels_ = self.predict(X) if labels is None else labels
        return self

    def _fit_rows(
        self,
        engine: Engine,
        rows: RowBlocks,
        fixed_centers: np.ndarray | None = None,
        X: Rows | None = None,
    ) -> Any:
        """Compute the centres, and return the labels of rows in this process.

        `fixed_centers` are those of an array `init`, X is for a callable one.
        """
        # Where to start from.
        kind = self.init if isinstance(self.init, str) else "given"
        rng = check_random_state(self.random_state)
        init = CentroidInit(kind, self.n_clusters, self._n_inits(10), rng)
        with engine.persist(rows) as persisted:
            # Rows are drawn by their numbers, for which blocks must have known lengths.
            rows = with_row_offsets(engine, persisted)
            self._check_n_rows(rows.n_rows)
            with_bounds = self.algorithm != "lloyd"
            if with_bounds or not rows.on_dask:  # or labels, for rows in this process
                rows = engine.with_block_cache(rows)
            # Means and variances: the scale of `tol` and of rounding. Dense rows are taken about
            # their mean, so that an offset costs distances no digits.
            columns = init.first_pass(engine, rows)
            # The first pass has looked for NaN and infinity.
            rows = replace(rows, checked=True)
            init.mean = mean = None if rows.is_sparse else centering_mean(columns, rows.dtype)
            solver = LloydSolver(
                engine,
                rows,
                mean,
                self.max_iter,
                tol=self.tol,
                variance=float(np.mean(columns.squares / columns.n_rows)),
                scale=float(np.sum(columns.squares / columns.n_rows + columns.mean**2)),
                with_bounds=with_bounds,
                verbose=bool(self.verbose),
            )
            # Starts one after the other: the block caches have room for the bounds of one.
            best = None
            for number in range(init.n_init):
                centers = fixed_centers
                # A callable may return other centres for every run.
                if callable(self.init):
                    centers = self._call_init(X, rows, rng)
                if centers is None:
                    centers = init.centers(engine, rows, number)
                elif mean is not None:
                    centers = centers - mean
                result = solver.run(centers, number)
                # The labels of a run are in the cache until the next one overwrites them.
                if best is None or result.inertia < best.inertia:
                    best, labels = result, None if rows.on_dask else labels_from_cache(rows)
        # As in scikit-learn, empty clusters are a warning, not an error.
        n_distinct = int(np.count_nonzero(best.n_members))
        if n_distinct < self.n_clusters:
            warn(
                f"Number of distinct clusters ({n_distinct}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to duplicate points in X.",
                ConvergenceWarning,
            )
        self.inertia_, self.n_iter_ = best.inertia, best.n_iter
        self._set_centers(best.centers, mean, rows.dtype)
        return labels

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        self._check_init(("k-means++", "k-means||", "random"))
        check_positive_int("max_iter", self.max_iter)
        check_in_interval("tol", self.tol, 0)
        check_option("algorithm", self.algorithm, ("auto", "lloyd", "elkan"))
