"""Incremental principal component analysis."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._array import asarray_like, tree_to_host
from skfleet._linalg import dense_rows, is_sparse_kind, svd_right, to_dense, vstack
from skfleet._typing import Rows, Values
from skfleet._validation import check_bool, check_positive_int
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import engine_for, fold, is_fit_placed
from skfleet.estimators._column_statistics import Moments, combine_moments, moments
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.decomposition._projector import BasePCA, svd_flip

# Minimum rows of a batch on Dask: a decomposition of few rows is mostly overhead.
BLOCK_BATCH = 10_000


class Batches(NamedTuple):
    """Rows in a batch, and minimum rows of the last batch.

    For `n_rows` of 0 every block is a batch, and `least` is the minimum of the first batch.
    """

    n_rows: int
    least: int
    n_components: int | None


class IncrementalState(NamedTuple):
    """Moments and truncated SVD of the rows seen so far."""

    columns: Moments | None = None
    values: Any = None  # singular values
    vectors: Any = None  # components
    noise: float = 0.0
    buffered_rows: Any = None  # rows that do not fill a batch yet


@document
class IncrementalPCA(BasePCA):
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
        Number of components to keep; None for the lesser of columns and rows of the first batch.
    whiten : bool, default=False
        Scale transformed data to unit variance along each component.
    copy : bool, default=True
        Ignored, present for compatibility with scikit-learn: X is never modified.
    batch_size : int or None, default=None
        Rows in a batch of `fit`; None for five times the number of columns, and for at least 10,000
        of a Dask collection, a departure from scikit-learn: decompositions of a few rows at a time
        take far longer than one of all. Batches go across blocks, so that the answer is the same
        for every cut of the rows.
    {device}

    Attributes
    ----------
    components_ : ndarray of shape (`n_components_`, n_features)
        Orthonormal components, by decreasing variance; the entry of each that is largest in
        magnitude is above 0.
    explained_variance_ : ndarray of shape (`n_components_`,)
        Variance along each.
    explained_variance_ratio_ : ndarray of shape (`n_components_`,)
        The same as a fraction of the variance of all columns.
    singular_values_ : ndarray of shape (`n_components_`,)
        Singular values that go with the components.
    mean_ : ndarray of shape (n_features,)
        Means of the columns of the rows seen.
    var_ : ndarray of shape (n_features,)
        Variances of the columns of the rows seen.
    noise_variance_ : float
        Mean variance along the directions that the last batch left out.
    n_components_ : int
        Number of components.
    n_samples_seen_ : float
        Number of rows seen.
    batch_size_ : int
        Rows in a batch.
    {features_in}

    Raises
    ------
    ValueError
        If a parameter or X is invalid, or a first batch has fewer rows than there
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
    >>> pca.components_.shape, int(pca.n_samples_seen_)
    ((2, 4), 1000)
    """

    _learns_from_blocks = True  # by the size of its batches

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
        """Fit the model batch after batch.

        {fit_rows}
        """
        self._check_parameters()
        rows = self._validate_rows(X)
        self._check_n_components(rows)
        on_dask = rows.on_dask or is_fit_placed()
        n_batch = self.batch_size or max(5 * rows.n_features, BLOCK_BATCH if on_dask else 0)
        batches = Batches(n_batch, self.n_components or 1, self.n_components)
        self._update(rows, IncrementalState(), batches)
        self.batch_size_ = n_batch
        return self

    @run_on_device
    def partial_fit(self, X: Rows, y: Values | None = None) -> IncrementalPCA:
        """Update the model with a batch.

        Parameters
        ----------
        X : {X_type}
            Rows, all of which are one batch. Of a Dask collection, each block is one, and the first
            one goes on to the next block until it has a row for each component.
        {y_ignored}

        {returns_learned}
        """
        self._check_parameters()
        if is_sparse_kind(X):
            raise TypeError(
                "IncrementalPCA.partial_fit does not support sparse input. Either convert data to "
                "dense or use IncrementalPCA.fit to do so in batches."
            )
        is_first = not hasattr(self, "components_")
        rows = self._validate_rows(X, reset=is_first)
        self._check_n_components(rows)
        batches = Batches(0, self.n_components or rows.n_features, self.n_components)
        self._update(rows, IncrementalState() if is_first else self._state(), batches)
        return self

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        for name in ("n_components", "batch_size"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        check_bool("whiten", self.whiten)

    def _check_n_components(self, rows: RowBlocks) -> None:
        """Raise for more components than columns."""
        n = self.n_components
        if n is not None and n > rows.n_features:
            raise ValueError(
                f"n_components must be at most n_features={rows.n_features}. Got {n} instead."
            )

    def _state(self) -> IncrementalState:
        """Return the state of the fitted attributes."""
        n_rows = float(self.n_samples_seen_)
        columns = Moments(n_rows, self.mean_.astype(np.float64), self.var_ * n_rows)
        if self.n_components not in (None, len(self.components_)):
            raise ValueError(
                f"n_components must be {len(self.components_)}, as in the first call. Got "
                f"{self.n_components} instead. Fit anew for another number."
            )
        values, vectors = self.singular_values_, self.components_
        return IncrementalState(columns, values.astype(np.float64), vectors.astype(np.float64))

    def _update(self, rows: RowBlocks, state: IncrementalState, batches: Batches) -> None:
        """Update the state with rows, and set the fitted attributes on success."""
        state = fold(engine_for(rows), update, state, rows, batches)
        if state.buffered_rows is not None and state.buffered_rows.shape[0]:
            state = update_batch(state, state.buffered_rows, batches.n_components)
        if state.columns is None:
            raise ValueError("X must have at least one row. Got none instead.")
        n_rows = state.columns.n_rows
        squares = state.values**2
        with np.errstate(invalid="ignore", divide="ignore"):
            variance, ratios = squares / max(n_rows - 1, 1), squares / state.columns.squares.sum()
        # In double precision for rows in single too, as in scikit-learn.
        self.components_, self.singular_values_ = state.vectors, state.values
        self.explained_variance_, self.explained_variance_ratio_ = variance, ratios
        self.mean_, self.var_ = state.columns.mean, state.columns.squares / n_rows
        self.noise_variance_ = state.noise
        self.n_components_, self.n_samples_seen_ = len(state.vectors), np.float64(n_rows)


def update(state: IncrementalState, block: Block, batches: Batches) -> IncrementalState:
    """Update the state with a block: as one batch, or in batches that may span blocks."""
    X = to_dense(block.X)
    if state.buffered_rows is not None:
        X = vstack([asarray_like(state.buffered_rows, X), X])
    if not batches.n_rows:
        # The first batch must have as many rows as there are components.
        if state.vectors is None and X.shape[0] < batches.least:
            return state._replace(buffered_rows=dense_rows(X))
        return update_batch(state, X, batches.n_components)
    low = 0
    # What is too little for a batch of its own stays with the last one.
    while X.shape[0] - low >= batches.n_rows + batches.least:
        state = update_batch(state, X[low : low + batches.n_rows, :], batches.n_components)
        low += batches.n_rows
    # A copy, as a view would keep the whole block alive.
    return state._replace(buffered_rows=dense_rows(X[low:, :]).copy())


def update_batch(state: IncrementalState, X: Any, n_components: int | None) -> IncrementalState:
    """Update the state with one batch."""
    n_rows, n_columns = X.shape
    columns = tree_to_host(moments(Block(X)))
    if n_components is None:
        n = min(n_rows, n_columns) if state.vectors is None else len(state.vectors)
    elif state.vectors is None and n_components > n_rows:
        raise ValueError(
            f"n_components={n_components} must be less or equal to the batch number of samples "
            f"{n_rows} for the first partial_fit call."
        )
    else:
        n = n_components
    rows = X - asarray_like(columns.mean, X)
    total = columns
    if state.columns is not None:
        total = combine_moments(state.columns, columns)
        # A row for the shift of the mean makes the products those of all rows (Ross et al., 2008).
        between = np.sqrt(state.columns.n_rows / total.n_rows * n_rows)
        shift = between * (state.columns.mean - columns.mean)
        known = np.vstack([state.values[:, None] * state.vectors, shift])
        rows = vstack([asarray_like(known, rows), rows])
    values, vectors = svd_right(rows)
    noise = 0.0
    if n not in (n_rows, n_columns):
        noise = np.mean(values[n:].astype(np.float64) ** 2) / max(total.n_rows - 1, 1)
    values, vectors = values[:n].astype(np.float64), vectors[:n].astype(np.float64)
    return IncrementalState(total, values, svd_flip(vectors), noise)
