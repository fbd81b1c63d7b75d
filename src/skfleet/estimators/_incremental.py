"""Training on blocks one after the other, with any estimator that learns by ``partial_fit``."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.utils import check_random_state

from skfleet._linalg import as_csr, is_sparse
from skfleet.blocks import Block, RowBlocks, is_lazy, n_rows_of, row_blocks, slice_rows
from skfleet.engine import engine_for, fold
from skfleet.estimators.wrappers import ParallelPostFit
from skfleet.metrics import find_labels


class Incremental(ParallelPostFit):
    """Train any estimator that has ``partial_fit`` on rows that do not fit, block by block.

    One model goes from block to block, in every epoch in a new order, and learns each block with
    ``partial_fit``. It stays on the workers until it has seen them all.

    Parameters
    ----------
    estimator : estimator with ``partial_fit``
        It is never changed: a clone learns.
    epochs : int, default=1
        How many times ``fit`` goes over all rows.
    shuffle : {"blocks", False}, default="blocks"
        Learn the blocks in a random order, drawn anew in every epoch, or in the order they have.
        Rows within a block keep their order; many estimators (``SGDClassifier``) shuffle these.
    random_state : int, RandomState instance or None, default=None
        Draws the order of the blocks. An int gives the same order in every call.
    batch_size : int, default=None
        Learn at most so many rows with one call of ``partial_fit``. By default a block of a Dask
        collection is learned in one call; rows in this process are cut into blocks of 10,000.
    predict_meta, predict_proba_meta, transform_meta : array, sparse matrix or frame, default=None
        As in `ParallelPostFit`.

    Attributes
    ----------
    estimator_ : estimator
        The trained clone.
    n_samples_seen_ : int
        How many rows it has learned from, counting a row once per epoch.
    classes_, n_features_in_, feature_names_in_
        Those of the trained estimator, where it has them.

    Raises
    ------
    TypeError
        When the estimator has no ``partial_fit``.
    ValueError
        When a parameter has none of the values above.

    See Also
    --------
    ParallelPostFit : Predict on rows that do not fit; Incremental predicts in the same way.

    Notes
    -----
    ``epochs`` passes over the rows, and for a classifier one more over y alone to find the classes,
    unless they are given. Blocks are learned in sequence: a fleet adds memory, not speed. The
    model is copied before each block, so a block that was lost with its worker is learned
    again from the model before it, and exactly once. Blocks are drawn, not rows: an
    answer depends on how the rows are cut (`Bottou, 2012, Stochastic gradient descent tricks
    <https://doi.org/10.1007/978-3-642-35289-8_25>`_, section 2, on why order matters).

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import SGDClassifier
    >>> from skfleet.estimators import Incremental
    >>> X, y = load_digits(return_X_y=True)
    >>> X, y = da.from_array(X, chunks=(200, 64)), da.from_array(y, chunks=200)
    >>> model = Incremental(SGDClassifier(random_state=0), epochs=5, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> model.n_samples_seen_
    8985
    """

    def __init__(
        self,
        estimator: Any,
        *,
        epochs: int = 1,
        shuffle: str | bool = "blocks",
        random_state: Any = None,
        batch_size: int | None = None,
        predict_meta: Any = None,
        predict_proba_meta: Any = None,
        transform_meta: Any = None,
    ) -> None:
        super().__init__(
            estimator,
            predict_meta=predict_meta,
            predict_proba_meta=predict_proba_meta,
            transform_meta=transform_meta,
        )
        self.epochs = epochs
        self.shuffle = shuffle
        self.random_state = random_state
        self.batch_size = batch_size

    def fit(
        self, X: Any, y: Any = None, *, classes: Any = None, sample_weight: Any = None
    ) -> Incremental:
        """Train a new clone for `epochs` passes over the rows.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows; frames reach the estimator as frames.
        y : values of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or targets, however they are cut.
        classes : array-like of shape (n_classes,), default=None
            All labels there are. By default they are looked up in y.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows, handed to ``partial_fit``.

        Returns
        -------
        self : Incremental
            Trained.
        """
        self._check_parameters()
        model = clone(self.estimator)
        return self._learn(model, 0, X, y, classes, sample_weight, self.epochs)

    def partial_fit(
        self, X: Any, y: Any = None, *, classes: Any = None, sample_weight: Any = None
    ) -> Incremental:
        """Go on training with one pass over more rows.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.
        y : values of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or targets.
        classes : array-like of shape (n_classes,), default=None
            All labels there will ever be; needed in the first call if these rows lack some.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        self : Incremental
            Trained further.
        """
        self._check_parameters()
        model = getattr(self, "estimator_", None)
        seen = self.n_samples_seen_ if model is not None else 0
        if model is None:
            model = clone(self.estimator)
        return self._learn(model, seen, X, y, classes, sample_weight, 1)

    def _check_parameters(self) -> None:
        """Raise for parameters that cannot be, before any work."""
        if not hasattr(self.estimator, "partial_fit"):
            raise TypeError(
                f"estimator must have partial_fit. Got {type(self.estimator).__name__} instead. "
                "Take one that learns incrementally (SGDClassifier, MiniBatchKMeans, ...), or "
                "train it with ParallelPostFit on a sample."
            )
        if self.shuffle not in ("blocks", False):
            raise ValueError(f"shuffle must be 'blocks' or False. Got {self.shuffle!r} instead.")
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if name == "batch_size" and value is None:
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive whole number. Got {value!r} instead.")

    def _learn(
        self, model: Any, seen: int, X: Any, y: Any, classes: Any, sample_weight: Any, epochs: int
    ) -> Incremental:
        """Train a model for some epochs, and keep it when all went well."""
        rows = self._cut(X, y, sample_weight)
        engine = engine_for(rows)
        told = {}
        takes_classes = "classes" in inspect.signature(model.partial_fit).parameters
        if takes_classes and is_classifier(model):
            if classes is not None:
                told["classes"] = np.asarray(classes)
            elif not hasattr(model, "classes_"):
                told["classes"] = find_labels(y)
        rng = check_random_state(self.random_state)
        state = (model, seen)
        for _ in range(epochs):
            order = rng.permutation(len(rows.blocks)) if self.shuffle else range(len(rows.blocks))
            epoch = replace(rows, blocks=tuple(rows.blocks[i] for i in order))
            state = fold(engine, _learn_block, state, epoch, told, self.batch_size)
        self.estimator_, self.n_samples_seen_ = state
        return self

    def _cut(self, X: Any, y: Any, sample_weight: Any) -> RowBlocks:
        """Cut the rows; frames, text and lists stay what they are."""
        if is_lazy(X):
            return row_blocks(X, y, sample_weight, dtype=None)
        if is_sparse(X):
            X = as_csr(X)
        elif not hasattr(X, "__len__") and not hasattr(X, "shape"):
            X = np.asarray(X)
        n_rows = n_rows_of(X)
        if n_rows == 0:
            raise ValueError(
                "X must have at least one row. Got 0 sample(s) while a minimum of 1 is required."
            )
        size = self.batch_size or 10_000
        cuts = [min(size, n_rows - low) for low in range(0, n_rows, size)]
        return row_blocks(X, y, sample_weight, dtype=None, cuts=cuts)


def _learn_block(
    state: tuple[Any, int], block: Block, told: dict[str, Any], batch_size: int | None
) -> tuple[Any, int]:
    """Learn a block, leaving the model given as it was."""
    model, seen = state
    model = copy.deepcopy(model)
    n_rows = block.n_rows
    size = batch_size or n_rows
    for low in range(0, n_rows, size):
        high = min(low + size, n_rows)
        y, weight = (slice_rows(part, low, high) for part in (block.y, block.sample_weight))
        extra = told if weight is None else told | {"sample_weight": weight}
        model.partial_fit(slice_rows(block.X, low, high), y, **extra)
    return model, seen + n_rows
