"""Mini-batch k-means clustering."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.cluster import kmeans_plusplus
from sklearn.utils import check_random_state

from skfleet._array import dtype_of, tree_to_host
from skfleet._linalg import dense_rows, is_sparse, with_int32_indices
from skfleet._typing import RandomState, Rows, Values, Weights
from skfleet._validation import (
    check_bool,
    check_in_interval,
    check_positive_int,
    check_total_weight,
)
from skfleet._warnings import warn
from skfleet.blocks import Block, RowBlocks, take_to_host
from skfleet.engine import Engine, engine_for, fold, limit_threadpools, map_reduce, with_row_offsets
from skfleet.estimators._column_statistics import moments
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.cluster._center_model import CenterModel, centering_mean, labels_from_cache
from skfleet.estimators.cluster._distances import Centers
from skfleet.estimators.cluster._mini_batch_step import (
    MiniBatchConvergence,
    MiniBatchState,
    mini_batch_step,
)
from skfleet.estimators.cluster._reductions import LLOYD, LloydStep, host_weights
from skfleet.estimators.cluster._sampling import (
    MAX_SAMPLE_BYTES,
    Samples,
    draw_seed,
    estimated_bytes,
)

# The sample in the driver: a fraction of the rows, with a lower bound in bytes and in batches.
SAMPLE_FRACTION, MIN_SAMPLE_BYTES, MIN_SAMPLE_BATCHES = 1 / 50, 2**24, 10


@document
class MiniBatchKMeans(CenterModel):
    r"""k-means clustering from small batches of rows.

    Each step moves the centres to the means of all rows that any batch has assigned to them
    (Sculley, 2010, Web-scale k-means clustering, section 2), as
    :class:`sklearn.cluster.MiniBatchKMeans` does. It needs fewer passes than :class:`KMeans`, and
    ends with a larger inertia. `partial_fit` makes it one for
    :class:`Incremental`, on any device.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    init : {"k-means++", "random"}, callable or array, default="k-means++"
        Where to start: greedy k-means++ on `init_size` rows, rows at random, an array of shape
        (n_clusters, n_features), or a callable that gets X, n_clusters and a ``random_state`` and
        so needs X in this process.
    max_iter : int, default=100
        The most steps, as a multiple of those that go through all rows.
    batch_size : int, default=1024
        Rows in a batch of `fit`.
    verbose : int, default=0
        Above 0, print the inertia of every batch.
    compute_labels : bool, default=True
        Find the labels and the inertia of all rows at the end, which takes a pass.
    random_state : int, RandomState instance or None, default=None
        Draws the start and the batches, by the rows' global numbers: an int gives `fit` the same
        centres for every cut of the rows and any number of workers.
    tol : float, default=0.0
        Tolerance of the squared movement of the centres in a step, relative to the mean variance of
        the columns; 0 disables it.
    max_no_improvement : int or None, default=10
        Number of consecutive steps without improvement of the smoothed inertia of the batches to
        stop after; None disables it.
    init_size : int or None, default=None
        Rows to start from; None for three batches, and at least three times `n_clusters`.
    n_init : "auto" or int, default="auto"
        Number of initialisations to compare, on `init_size` rows. "auto" is 3 for
        ``"random"`` or a callable and 1 otherwise.
    reassignment_ratio : float, default=0.01
        Centres with less than this fraction of the largest weight are periodically reassigned to
        random rows of a batch.
    {device}

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Centres.
    labels_ : array of shape (n_samples,)
        Number of each row's cluster, int32, where `compute_labels`: as :class:`KMeans` gives it.
    inertia_ : float
        Weighted sum of squared distances to the nearest centre, over all rows; without
        `compute_labels` an estimate from the batches.
    n_iter_ : int
        Steps, as a multiple of those that go through all rows, rounded up.
    n_steps_ : int
        Steps.
    {features_in}

    Raises
    ------
    ValueError
        If a parameter or X is invalid, or there are fewer rows than clusters.

    Notes
    -----
    Passes over the rows: one that draws a sample, a fiftieth of all rows and from 16 to 64 MB, from
    which batches are drawn in the driver; one more for each further sample, once as many rows have
    been drawn from one as it has; and one at the end for labels and inertia. `partial_fit` takes
    one in sequence, and one for labels and inertia.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.estimators import MiniBatchKMeans
    >>> X = da.random.default_rng(0).normal(size=(20_000, 3), chunks=(1_500, 3))
    >>> model = MiniBatchKMeans(n_clusters=5, random_state=0).fit(X)
    >>> model.cluster_centers_.shape
    (5, 3)
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: str | Values | Callable[..., Any] = "k-means++",
        max_iter: int = 100,
        batch_size: int = 1024,
        verbose: int = 0,
        compute_labels: bool = True,
        random_state: RandomState = None,
        tol: float = 0.0,
        max_no_improvement: int | None = 10,
        init_size: int | None = None,
        n_init: str | int = "auto",
        reassignment_ratio: float = 0.01,
        device: str = "auto",
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.verbose = verbose
        self.compute_labels = compute_labels
        self.random_state = random_state
        self.tol = tol
        self.max_no_improvement = max_no_improvement
        self.init_size = init_size
        self.n_init = n_init
        self.reassignment_ratio = reassignment_ratio
        self.device = device

    @run_on_device
    def fit(
        self, X: Rows, y: Values | None = None, sample_weight: Weights | None = None
    ) -> MiniBatchKMeans:
        """Compute the cluster centres.

        Parameters
        ----------
        X : {X_type}
            Training data to cluster.
        {y_ignored}
        sample_weight : array-like, Dask array or Dask Series of shape (n_samples,), default=None
            Sample weights: how often they are drawn, and what they count for in the inertia.

        {returns_fitted}
        """
        self._check_parameters()
        rows = self._validate_rows(X, sample_weight=sample_weight)
        fixed_centers = self._init_centers(rows)
        rng = check_random_state(self.random_state)
        engine = engine_for(rows)
        with engine.persist(rows) as persisted:
            rows = with_row_offsets(engine, persisted)
            self._check_n_rows(rows.n_rows)
            # The last pass leaves the labels of rows in this process in the cache.
            rows = rows if rows.on_dask else engine.with_block_cache(rows)
            size = min(self.batch_size, rows.n_rows)
            n_bytes = estimated_bytes(rows)
            sample_bytes = np.clip(n_bytes * SAMPLE_FRACTION, MIN_SAMPLE_BYTES, MAX_SAMPLE_BYTES)
            fraction = max(sample_bytes / n_bytes, MIN_SAMPLE_BATCHES * size / rows.n_rows)
            samples = Samples(engine, rows, min(fraction, 1.0), rng)
            summary = samples.first_pass(self._init_rows(rows.n_rows))
            samples.rows = rows = replace(rows, checked=True)
            mean = None if rows.is_sparse else centering_mean(summary.columns, rows.dtype)
            if callable(self.init):
                fixed_centers = self._call_init(X, rows, rng)
            centers = self._init_best_of(fixed_centers, summary.drawn.rows, None, mean, rng)
            state = MiniBatchState(centers, np.zeros(self.n_clusters), mean, rng)
            tol = self.tol * float(np.mean(summary.columns.squares)) / rows.n_rows
            convergence = MiniBatchConvergence(rows.n_rows, size, tol, self.max_no_improvement)
            state = self._run_steps(state, samples, size, convergence)
            # Makes room for the pass that labels all rows.
            samples.current = None
            self._set_state(state, rows.dtype)
            self.n_iter_ = -(-state.n_steps * size // rows.n_rows)
            if self.compute_labels:
                self._set_labels(X, engine, rows)
            else:
                ewa_inertia = convergence.ewa_inertia
                ewa_inertia = state.inertia / size if ewa_inertia is None else ewa_inertia
                self.inertia_ = ewa_inertia * samples.weight
        return self

    def _run_steps(
        self, state: MiniBatchState, samples: Samples, size: int, convergence: MiniBatchConvergence
    ) -> MiniBatchState:
        """Run steps on batches from the samples until convergence."""
        n_steps = max(self.max_iter * convergence.n_rows // size, 1)
        with limit_threadpools(1):  # the products of a batch are small
            for batch in samples.batches(size):
                before, ratio = state, self.reassignment_ratio
                state = mini_batch_step(state, batch, None, ratio, verbose=bool(self.verbose))
                if self.verbose:
                    progress = f"Minibatch step {state.n_steps}/{n_steps}"
                    print(f"{progress}: mean batch inertia: {state.inertia / size}")
                reason = convergence.reason_to_stop(before, state)
                if reason and self.verbose:
                    print(f"Converged ({reason}) at step {state.n_steps}/{n_steps}")
                if reason or state.n_steps == n_steps:
                    break
        return state

    @run_on_device
    def partial_fit(
        self, X: Rows, y: Values | None = None, sample_weight: Weights | None = None
    ) -> MiniBatchKMeans:
        """Update the centres by one step for each block.

        Parameters
        ----------
        X : {X_type}
            Rows, all of which are one batch. Of a Dask collection, each block is one.
        {y_ignored}
        {sample_weight}

        {returns_learned}
        """
        self._check_parameters()
        state = getattr(self, "_state", None)
        rows = self._validate_rows(X, sample_weight=sample_weight, reset=state is None)
        engine = engine_for(rows)
        start = None
        if state is None:
            fixed_centers = self._init_centers(rows)
            rng = check_random_state(self.random_state)
            if callable(self.init):
                fixed_centers = self._call_init(X, rows, rng)
            # The task of the first block initialises the state, so that its rows never come to the
            # driver.
            start = partial(self._init_state, fixed_centers, draw_seed(rng))
        state = fold(engine, mini_batch_step_on_block, state, rows, start, self.reassignment_ratio)
        if state is None:
            raise ValueError("X must have at least one row. Got none instead.")
        self._set_state(state, rows.dtype)
        if self.compute_labels:
            rows = rows if rows.on_dask else engine.with_block_cache(rows)
            self._set_labels(X, engine, rows)
        return self

    def _init_state(
        self, fixed_centers: np.ndarray | None, seed: int, block: Block
    ) -> MiniBatchState:
        """Return the initial state, from a first batch."""
        rng = np.random.RandomState(seed)
        self._check_n_rows(block.n_rows)
        mean = None
        if not is_sparse(block.X):
            mean = centering_mean(tree_to_host(moments(block)), dtype_of(block.X))
        chosen = rng.permutation(block.n_rows)[: self._init_rows(block.n_rows)]
        weight = host_weights(block)[chosen]
        check_total_weight(float(weight.sum()))
        X = take_to_host(block.X, chosen)
        centers = self._init_best_of(fixed_centers, X, weight, mean, rng)
        return MiniBatchState(centers, np.zeros(self.n_clusters), mean, rng)

    def _init_best_of(
        self, fixed_centers: Any, X: Any, weight: Any, mean: Any, rng: np.random.RandomState
    ) -> np.ndarray:
        """Return fixed initial centres, or the best of several initialisations on host rows."""
        n_inits = self._n_inits(3)
        if fixed_centers is not None:
            return fixed_centers if mean is None else fixed_centers - mean
        best, min_inertia = None, np.inf
        X = with_int32_indices(X) if mean is None else X - mean.astype(X.dtype)
        probabilities = None if weight is None else weight / weight.sum()
        n_rows = X.shape[0] if weight is None else np.count_nonzero(weight)
        for _ in range(n_inits):
            if self.init == "random" or n_rows < self.n_clusters:
                repeat = n_rows < self.n_clusters
                candidate = X[rng.choice(X.shape[0], self.n_clusters, repeat, probabilities)]
            else:
                options = {"sample_weight": weight, "random_state": rng}
                candidate, _ = kmeans_plusplus(X, self.n_clusters, **options)
            centers = Centers(dense_rows(candidate), None, X.dtype)
            squared = centers.squared(X, centers.labels(X))
            inertia = float(squared.sum() if weight is None else weight @ squared)
            if inertia < min_inertia:
                best, min_inertia = centers.values, inertia
        return best

    def _init_rows(self, n_rows: int) -> int:
        n = self.init_size or max(3 * self.batch_size, 3 * self.n_clusters)
        if n < self.n_clusters:
            warn(
                f"init_size={n} should be larger than n_clusters={self.n_clusters}. Setting it to "
                "min(3*n_clusters, n_samples)",
                RuntimeWarning,
            )
            n = 3 * self.n_clusters
        return min(n, n_rows)

    def _set_state(self, state: MiniBatchState, dtype: Any) -> None:
        self._state = state
        self._set_centers(state.centers, state.mean, dtype)
        self.n_steps_ = state.n_steps

    def _set_labels(self, X: Any, engine: Engine, rows: RowBlocks) -> None:
        """Set `labels_` and `inertia_` of all rows, by one pass."""
        centers = Centers(self._state.centers, self._state.mean, rows.dtype)
        step = LloydStep(centers, final=True, with_sums=False)
        self.inertia_ = map_reduce(engine, LLOYD, rows, step).inertia
        self.labels_ = self.predict(X) if rows.on_dask else labels_from_cache(rows)

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        self._check_init(("k-means++", "random"))
        for name in ("max_iter", "batch_size"):
            check_positive_int(name, getattr(self, name))
        for name, low in (("max_no_improvement", 0), ("init_size", 1)):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name), low)
        check_bool("compute_labels", self.compute_labels)
        check_in_interval("tol", self.tol, 0)
        check_in_interval("reassignment_ratio", self.reassignment_ratio, 0)


def mini_batch_step_on_block(
    state: MiniBatchState | None, block: Block, start: Any, ratio: float
) -> MiniBatchState:
    """Update a state with all rows of a block; the first block initialises it."""
    if state is None:
        state = start(block)
    return mini_batch_step(state, block.X, block.sample_weight, ratio)
