"""Principal component analysis that learns batch after batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._array import asarray_like, tree_to_host
from skfleet._linalg import dense_rows, is_sparse_kind, svd_right, to_dense, vstack
from skfleet._typing import Rows, Values
from skfleet._validation import check_bool, check_positive_int
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import engine_for, fold
from skfleet.estimators._column_statistics import Moments, merge_moments, moments
from skfleet.estimators._device_dispatch import run_on_device
from skfleet.estimators.decomposition._base import PrincipalComponents, with_signs

# Rows in a batch of blocks, at least: a decomposition of few rows costs more than they are worth.
BLOCK_BATCH = 10_000


class Batches(NamedTuple):
    """How rows are cut into batches: so many at a time, and at least so many at the end.

    For 0 at a time a block is a batch, and at least so many rows are the first one.
    """

    n_rows: int
    least: int
    n_components: int | None


class Seen(NamedTuple):
    """What is known of the rows seen so far."""

    columns: Moments | None = None
    values: Any = None  # singular values
    vectors: Any = None  # components
    noise: float = 0.0
    waiting: Any = None  # rows that do not make a batch yet


class IncrementalPCA(PrincipalComponents):
    r"""Principal component analysis, learned batch after batch.

    Keeps `n_components` components, and updates them with each batch by a singular value
    decomposition of the components, times their singular values, above the rows of the batch (Ross,
    Lim, Lin and Yang, 2008, Incremental learning for robust visual tracking, section 3), as
    :class:`sklearn.decomposition.IncrementalPCA` does, with the same answer. It takes one pass in
    sequence; :class:`PCA` takes one in parallel, and is exact. Take this one for rows that arrive
    over time.

    Parameters
    ----------
    n_components : int or None, default=None
        How many components to keep; None for the lesser of columns and rows of the first batch.
    whiten : bool, default=False
        Give answers of unit variance along each component.
    copy : bool, default=True
        Accepted as in scikit-learn; X is never changed, so the answer is the same.
    batch_size : int or None, default=None
        Rows in a batch of `fit`; None for five times the number of columns, and for at least 10,000
        of a Dask collection, a departure from scikit-learn: decompositions of a few rows at a time
        take far longer than one of all. Batches go across blocks, so that the answer is the same
        for every cut of the rows.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where to fit: :func:`skfleet.config_context` tells for "auto".

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Orthonormal components, by decreasing variance; the entry of each that is largest in
        magnitude is above 0.
    explained_variance_ : ndarray of shape (n_components_,)
        Variance along each.
    explained_variance_ratio_ : ndarray of shape (n_components_,)
        The same as a share of the variance of all columns.
    singular_values_ : ndarray of shape (n_components_,)
        Singular values that go with the components.
    mean_ : ndarray of shape (n_features,)
        Means of the columns of the rows seen.
    var_ : ndarray of shape (n_features,)
        Variances of the columns of the rows seen.
    noise_variance_ : float
        Mean variance along the directions that the last batch left out.
    n_components_ : int
        Number of components.
    n_samples_seen_ : int
        Number of rows seen.
    batch_size_ : int
        Rows in a batch.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X has names that are all text.

    Raises
    ------
    ValueError
        When a parameter or the rows are not as above, or a first batch has fewer rows than there
        are components.

    Notes
    -----
    One pass over the rows, in their order; the next block is loaded while one is learned. On a
    cluster the state goes from worker to worker: the components, and the rows that do not make a
    batch yet.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.estimators import IncrementalPCA
    >>> X = da.random.default_rng(0).normal(size=(1000, 4), chunks=(130, 4))
    >>> pca = IncrementalPCA(n_components=2, batch_size=200).fit(X)
    >>> pca.components_.shape, pca.n_samples_seen_
    ((2, 4), 1000)
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        whiten: bool = False,
        copy: bool = True,
        batch_size: int | None = None,
        device: str = "auto",
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.copy = copy
        self.batch_size = batch_size
        self.device = device

    @run_on_device
    def fit(self, X: Rows, y: Values | None = None) -> IncrementalPCA:
        """Learn rows batch after batch, from nothing.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored; there for the sake of pipelines.

        Returns
        -------
        self : IncrementalPCA
            Fitted.
        """
        self._check_parameters()
        rows = self._fit_rows(X)
        self._check_width_of(rows)
        n_batch = self.batch_size or max(5 * rows.n_features, BLOCK_BATCH if rows.on_dask else 0)
        self._learn(rows, Seen(), Batches(n_batch, self.n_components or 1, self.n_components))
        self.batch_size_ = n_batch
        return self

    @run_on_device
    def partial_fit(self, X: Rows, y: Values | None = None) -> IncrementalPCA:
        """Learn some more rows.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows, all of which are one batch. Of a Dask collection, each block is one, and the first
            one goes on to the next block until it has a row for each component.
        y : None
            Ignored; there for the sake of pipelines.

        Returns
        -------
        self : IncrementalPCA
            With more rows seen.
        """
        self._check_parameters()
        if is_sparse_kind(X):
            raise TypeError(
                "IncrementalPCA.partial_fit does not support sparse input. Either convert data to "
                "dense or use IncrementalPCA.fit to do so in batches."
            )
        is_first = not hasattr(self, "components_")
        rows = self._fit_rows(X, reset=is_first)
        self._check_width_of(rows)
        batches = Batches(0, self.n_components or rows.n_features, self.n_components)
        self._learn(rows, Seen() if is_first else self._seen(), batches)
        return self

    def _check_parameters(self) -> None:
        """Raise for parameters that cannot be, before any work."""
        for name in ("n_components", "batch_size"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        check_bool("whiten", self.whiten)
        check_bool("copy", self.copy)

    def _check_width_of(self, rows: RowBlocks) -> None:
        """Raise where there are fewer columns than components."""
        n = self.n_components
        if n is not None and n > rows.n_features:
            raise ValueError(
                f"n_components must be at most n_features={rows.n_features}. Got {n} instead."
            )

    def _seen(self) -> Seen:
        """Return the state that the attributes tell of."""
        n_rows = float(self.n_samples_seen_)
        columns = Moments(n_rows, self.mean_.astype(np.float64), self.var_ * n_rows)
        if self.n_components not in (None, len(self.components_)):
            raise ValueError(
                f"n_components must be {len(self.components_)}, as in the first call. Got "
                f"{self.n_components} instead. Fit anew for another number."
            )
        values, vectors = self.singular_values_, self.components_
        return Seen(columns, values.astype(np.float64), vectors.astype(np.float64))

    def _learn(self, rows: RowBlocks, seen: Seen, batches: Batches) -> None:
        """Learn rows, and set the attributes once that has gone well."""
        seen = fold(engine_for(rows), learn, seen, rows, batches)
        if seen.waiting is not None and seen.waiting.shape[0]:
            seen = learn_batch(seen, seen.waiting, batches.n_components)
        if seen.columns is None:
            raise ValueError("X must have at least one row. Got none instead.")
        n_rows, dtype = seen.columns.n_rows, rows.dtype
        squares = seen.values**2
        with np.errstate(invalid="ignore", divide="ignore"):
            variance, shares = squares / max(n_rows - 1, 1), squares / seen.columns.squares.sum()
        self.components_ = seen.vectors.astype(dtype)
        self.singular_values_ = seen.values.astype(dtype)
        self.explained_variance_ = variance.astype(dtype)
        self.explained_variance_ratio_ = shares.astype(dtype)
        self.mean_ = seen.columns.mean.astype(dtype)
        self.var_ = (seen.columns.squares / n_rows).astype(dtype)
        self.noise_variance_ = seen.noise
        self.n_components_, self.n_samples_seen_ = len(seen.vectors), int(n_rows)


def learn(seen: Seen, block: Block, batches: Batches) -> Seen:
    """Learn a block: as one batch, or in batches that go on from block to block."""
    X = to_dense(block.X)
    if seen.waiting is not None:
        X = vstack([asarray_like(seen.waiting, X), X])
    if not batches.n_rows:
        if seen.vectors is None and X.shape[0] < batches.least:
            return seen._replace(waiting=dense_rows(X))
        return learn_batch(seen, X, batches.n_components)
    low = 0
    while X.shape[0] - low >= batches.n_rows + batches.least:
        seen = learn_batch(seen, X[low : low + batches.n_rows, :], batches.n_components)
        low += batches.n_rows
    return seen._replace(waiting=dense_rows(X[low:, :]).copy())


def learn_batch(seen: Seen, X: Any, n_components: int | None) -> Seen:
    """Learn one batch."""
    n_rows, n_columns = X.shape
    columns = tree_to_host(moments(Block(X)))
    if n_components is None:
        n = min(n_rows, n_columns) if seen.vectors is None else len(seen.vectors)
    elif seen.vectors is None and n_components > n_rows:
        raise ValueError(
            f"n_components={n_components} must be less or equal to the batch number of samples "
            f"{n_rows} for the first partial_fit call."
        )
    else:
        n = n_components
    rows = X - asarray_like(columns.mean, X)
    total = columns
    if seen.columns is not None:
        total = merge_moments(seen.columns, columns)
        between = np.sqrt(seen.columns.n_rows / total.n_rows * n_rows)
        known = np.vstack(
            [seen.values[:, None] * seen.vectors, between * (seen.columns.mean - columns.mean)]
        )
        rows = vstack([asarray_like(known, rows), rows])
    values, vectors = svd_right(rows)
    noise = 0.0
    if n not in (n_rows, n_columns):
        noise = float(np.mean(values[n:].astype(np.float64) ** 2)) / max(total.n_rows - 1, 1)
    values, vectors = values[:n].astype(np.float64), vectors[:n].astype(np.float64)
    return Seen(total, values, with_signs(vectors), noise)
