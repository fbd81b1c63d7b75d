"""Voting ensembles of one model per block, trained in parallel."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_regressor
from sklearn.utils import assert_all_finite, get_tags
from sklearn.utils.metadata_routing import UNUSED, MetadataRouter
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter

from skfleet._array import to_host_if_array
from skfleet._captured_output import output_replayer, process_token
from skfleet._config import get_config
from skfleet._delegation import available_where
from skfleet._doc_link import DocumentationLink
from skfleet._linalg import is_sparse
from skfleet._typing import Answer, Estimator, Rows, Values, Weights
from skfleet._validation import check_option, check_target_type, warn_of_names
from skfleet.blocks import (
    RowBlocks,
    as_sized,
    check_rows,
    fetch,
    is_lazy,
    meta_of,
    n_rows_of,
    row_blocks,
    separate_per_sample,
    target_column,
    warn_of_trip,
)
from skfleet.engine import FitProgressMixin, begin_pass, log_pass, training_engine
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._fleet_estimator import check_columns, check_two_dims
from skfleet.estimators._metadata_routing import drop_none, make_router, route_params
from skfleet.estimators.meta._voting_member import (
    fit_member,
    predict_label,
    predict_mean,
    predict_proba,
)
from skfleet.inference import OutputSpec, class_names, map_model
from skfleet.metrics import check_scoring, unique_labels


class _BlockwiseVoting(FitProgressMixin, DocumentationLink, BaseEstimator):
    """Base class of blockwise ensembles: a clone of the estimator is trained on every block."""

    _learns_from_blocks = True

    # Only the members request sample_weight.
    __metadata_request__fit = {"sample_weight": UNUSED}

    def __init__(self, estimator: Estimator, *, n_blocks: int | None = None) -> None:
        self.estimator = estimator
        self.n_blocks = n_blocks

    def _fit_members(
        self, rows: RowBlocks, fit_params: dict[str, Any], classes: Any = None
    ) -> None:
        """Train a member on every block with rows; raise for labels not in `classes`, if given."""
        device = get_config().device
        train = partial(fit_member, process_token(), self.estimator, fit_params, device, classes)
        with (
            output_replayer(lambda: len(rows.blocks)) as replay,
            training_engine(rows, self.estimator) as (engine, placed_rows),
        ):
            progress, blocks = begin_pass(len(rows.blocks)), placed_rows.blocks
            tasks = engine.map(train, blocks, name="fit-block")
            log_pass("fit-block", len(rows.blocks), len(tasks))
            if progress is not None:
                progress.watch_blocks(engine, tasks, [[block] for block in blocks], placed_rows)
            fitted = []
            for pair, notes in engine.gather(tasks):
                replay(notes)
                fitted += [] if pair is None else [pair]
        if not fitted:
            raise ValueError("X must have at least one row. Got none instead.")
        self.estimators_ = [model for model, _ in fitted]
        self.n_rows_ = np.array([n for _, n in fitted])
        self.n_features_in_ = getattr(self.estimators_[0], "n_features_in_", rows.n_features)
        names = getattr(self.estimators_[0], "feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = names
        # From an earlier fit, to a dataframe.
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _partition(
        self, X: Any, y: Any, params: dict[str, Any]
    ) -> tuple[RowBlocks, dict[str, Any]]:
        """Partition the rows by their chunks, or into `n_blocks`, with per-sample fit parameters.

        Also return the other fit parameters.
        """
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )
        if "sample_weight" in params and not has_fit_parameter(self.estimator, "sample_weight"):
            raise TypeError(
                f"estimator must take sample_weight. Got {type(self.estimator).__name__} instead. "
                "Leave the weights out."
            )
        params = route_params(self, "fit", "fit", params)
        check_target_type(y, numeric=is_regressor(self))
        X, y = _as_sized_array("X", X), _as_sized_array("y", y)
        weight = _as_sized_array("sample_weight", params.pop("sample_weight", None))
        warn_of_trip(X, y, weight)
        per_row, fit_params = separate_per_sample(params, X)
        if is_lazy(X):
            options = {"per_sample": per_row, "dtype": None, "in_partitions": True}
            return row_blocks(X, y, weight, **options), fit_params
        X = X.tocsr() if is_sparse(X) else X
        n_rows = n_rows_of(X)
        n_blocks = min(self.n_blocks or 1, max(1, n_rows))
        block_sizes = np.diff(np.linspace(0, n_rows, n_blocks + 1).astype(int)).tolist()
        options = {"per_sample": per_row, "dtype": None, "block_sizes": block_sizes}
        return row_blocks(X, y, weight, **options), fit_params

    def _predict_blockwise(self, func: Any, X: Any, output: OutputSpec, *args: Any) -> Any:
        """Return the combined predictions of the members, in the container of X."""
        check_is_fitted(self)
        check_rows(X=X)
        ensemble = (self.estimators_, self.n_rows_ / self.n_rows_.sum(), *args)
        if not is_lazy(X):
            warn_of_trip(X)
            warn_of_names(self, X)
        elif hasattr(self.estimators_[0], "n_features_in_"):
            check_two_dims(meta_of(X))
            check_columns(self, meta_of(X))
        rows, method = _as_sized_array("X", X), func.__name__.strip("_")
        return map_model(self, func, ensemble, rows, output, method=method, convert=False)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the metadata routing of the members' ``fit``.

        Returns
        -------
        routing : sklearn.utils.metadata_routing.MetadataRouter
            See scikit-learn's user guide on metadata routing.
        """
        return make_router(self, {"fit": "fit"})

    def _check_n_blocks(self) -> None:
        """Raise for an invalid `n_blocks`."""
        n = self.n_blocks
        if n is not None and (not isinstance(n, int | np.integer) or n < 1):
            raise ValueError(
                f"n_blocks must be a positive whole number or None. Got {n!r} instead."
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        if inner.estimator_type == "regressor":
            tags.target_tags.multi_output = inner.target_tags.multi_output
        tags.input_tags, tags.non_deterministic = inner.input_tags, inner.non_deterministic
        return tags


def _as_sized_array(name: str, values: Any) -> Any:
    """Return values without a shape, such as lists, as an array."""
    if is_lazy(values) or (values is None and name != "X"):
        return values
    values = as_sized(name, values)
    return values if hasattr(values, "shape") else np.asarray(values)


@document
class _BlockwiseScoreMixin:
    """Mixin with `score` on data of any container, to precede scikit-learn's mixin."""

    def score(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> float:
        """Score the ensemble: accuracy of a classifier, r2 of a regressor.

        Parameters
        ----------
        {X_test}
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            True labels or target values.
        {weight_returns_score}
            The higher the better.
        """
        check_rows(X=X, y=y, sample_weight=sample_weight)
        if is_lazy(X):
            return check_scoring(self)(self, X, y, sample_weight)
        return super().score(X, y, sample_weight=sample_weight)


def _check_soft(self: BlockwiseVotingClassifier) -> None:
    """Raise AttributeError for hard voting."""
    if self.voting != "soft":
        raise AttributeError(
            f"voting must be 'soft' for predict_proba. Got {self.voting!r} instead, which counts "
            "votes alone."
        )


@document
class BlockwiseVotingClassifier(_BlockwiseScoreMixin, ClassifierMixin, _BlockwiseVoting):
    """Voting ensemble of classifiers, each trained on one block.

    For estimators without ``partial_fit``, and rows that are well mixed: each member sees one block
    alone.

    Parameters
    ----------
    estimator : classifier
        It is never changed: a clone is trained on each block.
    voting : {"hard", "soft"}, default="hard"
        Predict the label with the most votes, or the one with the highest mean probability.
    classes : array-like of shape (n_classes,), default=None
        All labels there are, which saves a pass over y. By default they are looked up there.
    n_blocks : int, default=None
        Number of blocks for data in this process, by default 1. Dask collections keep their
        chunks.

    Attributes
    ----------
    estimators_ : list of classifiers
        The members, in the order of the blocks that have rows.
    n_rows_ : ndarray of shape (n_members,)
        Number of training samples of each: the weights of their votes.
    classes_ : ndarray of shape (n_classes,)
        All labels, also those that some blocks lack.
    n_features_in_, feature_names_in_
        Those of the first member, where it has them.

    Raises
    ------
    ValueError
        If a parameter is invalid, or there are no rows.

    See Also
    --------
    Incremental : Take one model from block to block.

    Notes
    -----
    One pass over the rows, a task a block, and one pass over y alone to find the labels, unless
    they are given. A block with a single label gets a member that always answers it. A label that a
    member does not know has probability 0 from it. This is voting over disjoint parts of the rows
    (`Chawla et al., 2004, Learning ensembles from bites
    <https://jmlr.org/papers/v5/chawla04a.html>`_).

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from skfleet.estimators import BlockwiseVotingClassifier
    >>> X, y = (da.from_array(v, chunks=300) for v in load_digits(return_X_y=True))
    >>> model = BlockwiseVotingClassifier(DecisionTreeClassifier(random_state=0), voting="soft")
    >>> model.fit(X, y).score(X, y) > 0.9
    True
    """

    def __init__(
        self,
        estimator: Estimator,
        *,
        voting: str = "hard",
        classes: Values | None = None,
        n_blocks: int | None = None,
    ) -> None:
        super().__init__(estimator, n_blocks=n_blocks)
        self.voting = voting
        self.classes = classes

    def fit(
        self, X: Rows, y: Values, sample_weight: Weights | None = None, **params: Any
    ) -> BlockwiseVotingClassifier:
        """Train a clone of the estimator on every block.

        Parameters
        ----------
        X : {X_type}
            Training data; dataframes reach the estimator as dataframes.
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            Class labels.
        {fit_members}
        """
        check_option("voting", self.voting, ("hard", "soft"))
        if self.voting == "soft" and not hasattr(self.estimator, "predict_proba"):
            raise TypeError(
                f"estimator must have predict_proba for voting='soft'. "
                f"Got {type(self.estimator).__name__} instead. Take voting='hard'."
            )
        self._check_n_blocks()
        check_rows(X=X, y=y, sample_weight=sample_weight)
        if is_lazy(y):
            y = target_column(y)
        elif y is not None:
            y = column_or_1d(to_host_if_array(y), warn=True)
            assert_all_finite(y, input_name="y")
            check_classification_targets(y)
        rows, fit_params = self._partition(X, y, drop_none(params, sample_weight=sample_weight))
        requested = None if self.classes is None else np.unique(np.asarray(fetch(self.classes)))
        # A pass over y: each member knows the labels of its own block only.
        classes = unique_labels(y) if requested is None else requested
        self._fit_members(rows, fit_params, requested)
        self.classes_ = classes
        return self

    def predict(self, X: Rows) -> Answer:
        """Predict the label of every row.

        {X_returns}
        labels : ndarray or Dask collection of shape (n_samples,)
            In the container of X; lazy for Dask collections.
        """
        check_is_fitted(self)
        output, soft = OutputSpec.of_labels(self.classes_), self.voting == "soft"
        return self._predict_blockwise(predict_label, X, output, self.classes_, soft)

    @available_where(_check_soft)
    def predict_proba(self, X: Rows) -> Answer:
        """Return the mean of the members' probabilities, weighted by their rows.

        {X_returns}
        probabilities : ndarray or Dask collection of shape (n_samples, n_classes)
            In the container of X; lazy for Dask collections.
        """
        check_is_fitted(self)
        names = class_names(self.classes_, X)
        output = OutputSpec(np.dtype(np.float64), len(self.classes_), names)
        return self._predict_blockwise(predict_proba, X, output, self.classes_, True)


@document
class BlockwiseVotingRegressor(_BlockwiseScoreMixin, RegressorMixin, _BlockwiseVoting):
    """Ensemble of regressors, each trained on one block, that averages their predictions.

    Parameters
    ----------
    estimator : regressor
        It is never changed: a clone is trained on each block.
    n_blocks : int, default=None
        Number of blocks for data in this process, by default 1. Dask collections keep their
        chunks.

    Attributes
    ----------
    estimators_ : list of regressors
        The members, in the order of the blocks that have rows.
    n_rows_ : ndarray of shape (n_members,)
        Number of training samples of each: the weights of their predictions.
    n_features_in_, feature_names_in_
        Those of the first member, where it has them.

    Raises
    ------
    ValueError
        When `n_blocks` is no number of blocks, or there are no rows.

    See Also
    --------
    BlockwiseVotingClassifier : The same for labels.

    Notes
    -----
    One pass over the rows, a task a block.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from skfleet.estimators import BlockwiseVotingRegressor
    >>> X, y = (da.from_array(v, chunks=150) for v in load_diabetes(return_X_y=True))
    >>> BlockwiseVotingRegressor(Ridge(alpha=0.01)).fit(X, y).score(X, y) > 0.4
    True
    """

    def fit(
        self, X: Rows, y: Values, sample_weight: Weights | None = None, **params: Any
    ) -> BlockwiseVotingRegressor:
        """Train a clone of the estimator on every block.

        Parameters
        ----------
        X : {X_type}
            Training data; dataframes reach the estimator as dataframes.
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_outputs)
            Target values.
        {fit_members}
        """
        self._check_n_blocks()
        check_rows(X=X, y=y, sample_weight=sample_weight)
        y = target_column(_as_sized_array("y", y), several=True)
        self._fit_members(*self._partition(X, y, drop_none(params, sample_weight=sample_weight)))
        self._n_outputs = int(y.shape[1]) if len(y.shape) == 2 else None
        return self

    def predict(self, X: Rows) -> Answer:
        """Predict the target of every row.

        {X_returns}
        targets : ndarray or Dask collection of shape (n_samples,) or (n_samples, n_outputs)
            In the container of X; lazy for Dask collections.
        """
        check_is_fitted(self)
        output = OutputSpec(np.dtype(np.float64), self._n_outputs)
        return self._predict_blockwise(predict_mean, X, output)
