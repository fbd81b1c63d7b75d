"""k-means clustering that learns from small batches of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.cluster import kmeans_plusplus
from sklearn.utils import check_random_state

from skfleet._array import dtype_of, tree_to_host
from skfleet._linalg import (
    dense_rows,
    is_sparse,
    is_sparse_kind,
    with_int32_indices,
)
from skfleet._typing import RandomState, Rows, Values, Weights
from skfleet._validation import (
    check_bool,
    check_in_interval,
    check_positive_int,
    check_total_weight,
    check_verbose,
)
from skfleet.blocks import Block, RowBlocks, take_to_host
from skfleet.engine import (
    Engine,
    engine_for,
    fold,
    limit_threadpools,
    map_reduce,
    with_row_offsets,
)
from skfleet.estimators._column_statistics import moments
from skfleet.estimators._device_dispatch import run_on_device
from skfleet.estimators.cluster._base import CenterModel, labels_in, mean_to_take_off
from skfleet.estimators.cluster._distances import Centers
from skfleet.estimators.cluster._mini_batch_step import Learned, Progress, learn_batch
from skfleet.estimators.cluster._reductions import LLOYD, Step, weights_of
from skfleet.estimators.cluster._sampling import MOST_BYTES, Samples, draw_seed, estimated_bytes

# A sample is such a share of the rows, but takes so many bytes and holds so many batches at least.
SHARE, FEWEST_BYTES, FEWEST_BATCHES = 1 / 50, 2**24, 10


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
        Stop when the squared movement of the centres in a step is at most so many times the mean
        variance of the columns; 0 for never.
    max_no_improvement : int or None, default=10
        Stop after so many steps in which the smoothed inertia of the batches was no better than
        before; None for never.
    init_size : int or None, default=None
        Rows to start from; None for three batches, and at least three times `n_clusters`.
    n_init : "auto" or int, default="auto"
        How many starts to compare, on `init_size` rows. "auto" is 3 for ``"random"`` or a callable
        and 1 otherwise.
    reassignment_ratio : float, default=0.01
        Centres of less than this share of the largest centre's weight begin anew on rows of a
        batch, every now and then.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where to fit: :func:`skfleet.config_context` tells for "auto".

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
        """Find the centres.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows to cluster.
        y : None
            Ignored; there for the sake of pipelines.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows: how often they are drawn, and what they count for in the inertia.

        Returns
        -------
        self : MiniBatchKMeans
            Fitted.
        """
        self._check_parameters()
        rows = self._fit_rows(X, sample_weight=sample_weight)
        given = self._given_centers(rows)
        rng = check_random_state(self.random_state)
        engine = engine_for(rows)
        with engine.persist(rows) as held:
            rows = with_row_offsets(engine, held)
            self._check_n_rows(rows.n_rows)
            rows = rows if rows.on_dask else engine.with_block_cache(rows)
            size, sparse = min(self.batch_size, rows.n_rows), is_sparse_kind(X)
            n_bytes = estimated_bytes(rows, sparse)
            of_bytes = np.clip(n_bytes * SHARE, FEWEST_BYTES, MOST_BYTES) / n_bytes
            share = min(max(of_bytes, FEWEST_BATCHES * size / rows.n_rows), 1.0)
            samples = Samples(engine, rows, share, rng)
            found = samples.look(self._init_rows(rows.n_rows))
            samples.rows = rows = replace(rows, checked=True)
            mean = None if sparse else mean_to_take_off(found.columns, rows.dtype)
            if callable(self.init):
                given = self._call_init(X, rows, rng)
            centers = self._start(given, found.drawn.rows, None, mean, rng)
            learned = Learned(centers, np.zeros(self.n_clusters), mean, rng)
            tol = self.tol * float(np.mean(found.columns.squares)) / rows.n_rows
            progress = Progress(rows.n_rows, size, tol, self.max_no_improvement)
            learned = self._steps(learned, samples, size, progress)
            samples.current = None
            self._take(learned, rows.dtype)
            self.n_iter_ = -(-learned.n_steps * size // rows.n_rows)
            if self.compute_labels:
                self._label(X, engine, rows)
            else:
                known = progress.average
                known = learned.inertia / size if known is None else known
                self.inertia_ = known * samples.weight
        return self

    def _steps(self, learned: Learned, samples: Samples, size: int, progress: Progress) -> Learned:
        """Make one step after the other, until they help no more."""
        n_steps = max(self.max_iter * progress.n_rows // size, 1)
        with limit_threadpools(1):  # the products of a batch are small
            for batch in samples.batches(size):
                before = learned
                learned = learn_batch(
                    learned, batch, None, self.reassignment_ratio, verbose=bool(self.verbose)
                )
                if self.verbose:
                    print(
                        f"Minibatch step {learned.n_steps}/{n_steps}: mean batch inertia: "
                        f"{learned.inertia / size}"
                    )
                if progress.is_over(before, learned) or learned.n_steps == n_steps:
                    break
        return learned

    @run_on_device
    def partial_fit(
        self, X: Rows, y: Values | None = None, sample_weight: Weights | None = None
    ) -> MiniBatchKMeans:
        """Make one step.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows, all of which are one batch. Of a Dask collection, each block is one.
        y : None
            Ignored; there for the sake of pipelines.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        self : MiniBatchKMeans
            One step further, or as many as there are blocks.
        """
        self._check_parameters()
        learned = getattr(self, "_learned", None)
        rows = self._fit_rows(X, sample_weight=sample_weight, reset=learned is None)
        engine = engine_for(rows)
        if learned is None:
            given = self._given_centers(rows)
            rng = check_random_state(self.random_state)
            if callable(self.init):
                given = self._call_init(X, rows, rng)
            start = partial(self._start_from, given, draw_seed(rng))
        else:
            start = None
        learned = fold(engine, learn_block, learned, rows, start, self.reassignment_ratio)
        if learned is None:
            raise ValueError("X must have at least one row. Got none instead.")
        self._take(learned, rows.dtype)
        if self.compute_labels:
            rows = rows if rows.on_dask else engine.with_block_cache(rows)
            self._label(X, engine, rows)
        return self

    def _start_from(self, given: np.ndarray | None, seed: int, block: Block) -> Learned:
        """Return where to start from, given a first batch."""
        rng = np.random.RandomState(seed)
        self._check_n_rows(block.n_rows)
        mean = None
        if not is_sparse(block.X):
            mean = mean_to_take_off(tree_to_host(moments(block)), dtype_of(block.X))
        chosen = rng.permutation(block.n_rows)[: self._init_rows(block.n_rows)]
        weight = weights_of(block)[chosen]
        check_total_weight(float(weight.sum()))
        centers = self._start(given, take_to_host(block.X, chosen), weight, mean, rng)
        return Learned(centers, np.zeros(self.n_clusters), mean, rng)

    def _start(
        self,
        given: np.ndarray | None,
        X: Any,
        weight: np.ndarray | None,
        mean: np.ndarray | None,
        rng: np.random.RandomState,
    ) -> np.ndarray:
        """Return the centres that are given, or the best of some from rows on the host."""
        if given is not None:
            return given if mean is None else given - mean
        best, least = None, np.inf
        X = with_int32_indices(X) if mean is None else X - mean.astype(X.dtype)
        share = None if weight is None else weight / weight.sum()
        several = X.shape[0] if weight is None else np.count_nonzero(weight)
        for _ in range(self._n_starts(3)):
            if self.init == "random" or several < self.n_clusters:
                repeat = several < self.n_clusters
                found = X[rng.choice(X.shape[0], self.n_clusters, repeat, share)]
            else:
                found, _ = kmeans_plusplus(
                    X, self.n_clusters, sample_weight=weight, random_state=rng
                )
            near = Centers(dense_rows(found), None, X.dtype)
            squared = near.squared(X, near.labels(X))
            inertia = float(squared.sum() if weight is None else weight @ squared)
            if inertia < least:
                best, least = near.values, inertia
        return best

    def _init_rows(self, n_rows: int) -> int:
        """Return from how many rows to start."""
        n = self.init_size or max(3 * self.batch_size, 3 * self.n_clusters)
        return min(max(n, self.n_clusters), n_rows)

    def _take(self, learned: Learned, dtype: Any) -> None:
        """Take over what was learned."""
        self._learned = learned
        self._take_centers(learned.centers, learned.mean, dtype)
        self.n_steps_ = learned.n_steps

    def _label(self, X: Any, engine: Engine, rows: RowBlocks) -> None:
        """Find the labels and the inertia of all rows."""
        near = Centers(self._learned.centers, self._learned.mean, rows.dtype)
        step = Step(near, final=True, with_sums=False)
        self.inertia_ = map_reduce(engine, LLOYD, rows, step).inertia
        self.labels_ = self.predict(X) if rows.on_dask else labels_in(rows)

    def _check_parameters(self) -> None:
        """Raise for parameters that cannot be, before any work."""
        self._check_start(("k-means++", "random"))
        for name in ("max_iter", "batch_size"):
            check_positive_int(name, getattr(self, name))
        for name in ("max_no_improvement", "init_size"):
            if getattr(self, name) is not None:
                check_positive_int(
                    name, getattr(self, name), 0 if name == "max_no_improvement" else 1
                )
        check_bool("compute_labels", self.compute_labels)
        check_verbose("verbose", self.verbose)
        check_in_interval("tol", self.tol, 0)
        check_in_interval("reassignment_ratio", self.reassignment_ratio, 0)


def learn_block(learned: Learned | None, block: Block, start: Any, ratio: float) -> Learned:
    """Make a step with all rows of a block, from a start that the first one gives."""
    if learned is None:
        learned = start(block)
    return learn_batch(learned, block.X, block.sample_weight, ratio)
