"""Committees: one model for each block, trained side by side, that vote."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_regressor
from sklearn.utils import assert_all_finite, get_tags
from sklearn.utils.metadata_routing import UNUSED, MetadataRouter
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter

from skfleet._captured_output import output_replayer, process_token
from skfleet._config import get_config
from skfleet._delegation import available_where
from skfleet._doc_link import DocumentationLink
from skfleet._linalg import is_sparse
from skfleet._typing import Answer, Estimator, Rows, Values, Weights
from skfleet._validation import (
    check_option,
    check_target_shape,
    check_target_type,
    warn_of_names,
)
from skfleet.blocks import (
    RowBlocks,
    as_sized,
    check_rows,
    fetch,
    is_lazy,
    meta_of,
    n_rows_of,
    row_blocks,
    split_per_sample,
    warn_of_trip,
)
from skfleet.engine import log_pass, training_engine
from skfleet.estimators._base import check_columns, check_two_dims
from skfleet.estimators._metadata_routing import given, routed, router
from skfleet.estimators.meta._voting_member import (
    fit_member,
    predict_label,
    predict_mean,
    predict_proba,
)
from skfleet.inference import OutputSpec, cached_scatter, class_names, map_rows
from skfleet.metrics import check_scoring, find_labels


class _BlockwiseVoting(DocumentationLink, BaseEstimator):
    """What both committees share: a clone of the estimator is trained on every block."""

    # The members' to ask for.
    __metadata_request__fit = {"sample_weight": UNUSED}

    def __init__(self, estimator: Estimator, *, n_blocks: int | None = None) -> None:
        self.estimator = estimator
        self.n_blocks = n_blocks

    def _fit_members(self, rows: RowBlocks, told: dict[str, Any], classes: Any = None) -> None:
        """Train a member on every block that has rows; labels must be in classes, if given."""
        train = partial(
            fit_member, process_token(), self.estimator, told, get_config().device, classes
        )
        with (
            output_replayer(lambda: len(rows.blocks)) as replay,
            training_engine(rows, self.estimator) as (engine, there),
        ):
            tasks = engine.map(train, there.blocks, name="fit-block")
            log_pass("fit-block", len(rows.blocks), len(tasks))
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
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _cut(self, X: Any, y: Any, params: dict[str, Any]) -> tuple[RowBlocks, dict[str, Any]]:
        """Cut the rows: Dask collections as they are, others into `n_blocks`.

        Along with them goes what has a value per row; what has not is returned too.
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
        params = routed(self, "fit", "fit", params)
        check_target_type(y, numeric=is_regressor(self))
        X, y = _as_rows("X", X), _as_rows("y", y)
        weight = _as_rows("sample_weight", params.pop("sample_weight", None))
        warn_of_trip(X, y, weight)
        per_row, told = split_per_sample(params, X)
        if is_lazy(X):
            return row_blocks(X, y, weight, more=per_row, dtype=None), told
        X = X.tocsr() if is_sparse(X) else X
        n_rows = n_rows_of(X)
        n_blocks = min(self.n_blocks or 1, max(1, n_rows))
        cuts = np.diff(np.linspace(0, n_rows, n_blocks + 1).astype(int)).tolist()
        return row_blocks(X, y, weight, more=per_row, dtype=None, cuts=cuts), told

    def _vote(self, func: Any, X: Any, output: OutputSpec, *args: Any) -> Any:
        """Answer with what the members make of the rows, in the container X came in."""
        check_is_fitted(self)
        check_rows(X=X)
        committee = (self.estimators_, self.n_rows_ / self.n_rows_.sum(), *args)
        name = f"{func.__name__.strip('_')}-{type(self).__name__}"
        if not is_lazy(X):
            warn_of_trip(X)
            warn_of_names(self, X)
        else:
            if hasattr(self.estimators_[0], "n_features_in_"):
                check_two_dims(meta_of(X))
                check_columns(self, meta_of(X))
            committee = cached_scatter(self, committee, name=f"model-of-{type(self).__name__}")
        return map_rows(func, committee, _as_rows("X", X), output, convert=False, name=name)

    def get_metadata_routing(self) -> MetadataRouter:
        """Say which metadata the members' ``fit`` gets.

        Returns
        -------
        routing : sklearn.utils.metadata_routing.MetadataRouter
            See scikit-learn's user guide on metadata routing.
        """
        return router(self, {"fit": "fit"})

    def _check_n_blocks(self) -> None:
        """Raise for a number of blocks that cannot be."""
        if self.n_blocks is not None and (
            not isinstance(self.n_blocks, int | np.integer) or self.n_blocks < 1
        ):
            raise ValueError(
                f"n_blocks must be a positive whole number or None. Got {self.n_blocks!r} instead."
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        if inner.estimator_type == "regressor":
            tags.target_tags.multi_output = inner.target_tags.multi_output
        tags.input_tags, tags.non_deterministic = inner.input_tags, inner.non_deterministic
        return tags


def _as_rows(name: str, values: Any) -> Any:
    """Return what has no shape, lists say, as an array."""
    if is_lazy(values) or (values is None and name != "X"):
        return values
    values = as_sized(name, values)
    return values if hasattr(values, "shape") else np.asarray(values)


class _ScoredAnywhere:
    """Scores on rows of any container; stands before scikit-learn's mixin of its kind."""

    def score(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> float:
        """Score the committee: accuracy of a classifier, r2 of a regressor.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.
        y : values of shape (n_samples,)
            True labels or targets.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            The higher the better.
        """
        check_rows(X=X, y=y, sample_weight=sample_weight)
        if is_lazy(X):
            return check_scoring(self)(self, X, y, sample_weight)
        return super().score(X, y, sample_weight=sample_weight)


def _check_soft(self: BlockwiseVotingClassifier) -> None:
    """Raise where only votes are counted."""
    if self.voting != "soft":
        raise AttributeError(
            f"voting must be 'soft' for predict_proba. Got {self.voting!r} instead, which counts "
            "votes alone."
        )


class BlockwiseVotingClassifier(_ScoredAnywhere, ClassifierMixin, _BlockwiseVoting):
    """Train a classifier on every block, side by side, and let them vote.

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
        Into how many blocks rows in this process are cut; by default they are one. Dask collections
        have theirs.

    Attributes
    ----------
    estimators_ : list of classifiers
        The members, in the order of the blocks that have rows.
    n_rows_ : ndarray of shape (n_members,)
        How many rows each was trained on: the weights of their votes.
    classes_ : ndarray of shape (n_classes,)
        All labels, also those that some blocks lack.
    n_features_in_, feature_names_in_
        Those of the first member, where it has them.

    Raises
    ------
    ValueError
        When a parameter has none of the values above, or there are no rows.

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
        X : any rows of shape (n_samples, n_features)
            Rows; frames reach the estimator as frames.
        y : values of shape (n_samples,)
            Labels, however they are cut.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows, if the estimator takes them.
        **params : dict
            Handed on to the members' ``fit``: values per row (as many as there are rows, or Dask
            collections) cut along with them, all others as they are. With metadata routing
            enabled, these and `sample_weight` are what ``fit`` requests.

        Returns
        -------
        self : BlockwiseVotingClassifier
            Fitted.
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
            check_target_shape(y, several=False)
        elif y is not None:
            y = column_or_1d(y, warn=True)
            assert_all_finite(y, input_name="y")
            check_classification_targets(y)
        rows, told = self._cut(X, y, given(params, sample_weight=sample_weight))
        known = None if self.classes is None else np.unique(np.asarray(fetch(self.classes)))
        classes = find_labels(y) if known is None else known
        self._fit_members(rows, told, known)
        self.classes_ = classes
        return self

    def predict(self, X: Rows) -> Answer:
        """Predict the label of every row.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        labels : values of shape (n_samples,)
            In the container X came in; lazy for Dask collections.
        """
        check_is_fitted(self)
        soft = self.voting == "soft"
        return self._vote(predict_label, X, OutputSpec(self.classes_.dtype), self.classes_, soft)

    @available_where(_check_soft)
    def predict_proba(self, X: Rows) -> Answer:
        """Return the mean of the members' probabilities, weighted by their rows.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        probabilities : values of shape (n_samples, n_classes)
            In the container X came in; lazy for Dask collections.
        """
        check_is_fitted(self)
        names = class_names(self.classes_, X)
        output = OutputSpec(np.dtype(np.float64), len(self.classes_), names)
        return self._vote(predict_proba, X, output, self.classes_, True)


class BlockwiseVotingRegressor(_ScoredAnywhere, RegressorMixin, _BlockwiseVoting):
    """Train a regressor on every block, side by side, and average their predictions.

    Parameters
    ----------
    estimator : regressor
        It is never changed: a clone is trained on each block.
    n_blocks : int, default=None
        Into how many blocks rows in this process are cut; by default they are one. Dask collections
        have theirs.

    Attributes
    ----------
    estimators_ : list of regressors
        The members, in the order of the blocks that have rows.
    n_rows_ : ndarray of shape (n_members,)
        How many rows each was trained on: the weights of their predictions.
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
        X : any rows of shape (n_samples, n_features)
            Rows; frames reach the estimator as frames.
        y : values of shape (n_samples,) or (n_samples, n_outputs)
            Targets, however they are cut.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows, if the estimator takes them.
        **params : dict
            Handed on to the members' ``fit``: values per row (as many as there are rows, or Dask
            collections) cut along with them, all others as they are. With metadata routing
            enabled, these and `sample_weight` are what ``fit`` requests.

        Returns
        -------
        self : BlockwiseVotingRegressor
            Fitted.
        """
        self._check_n_blocks()
        check_rows(X=X, y=y, sample_weight=sample_weight)
        self._fit_members(*self._cut(X, y, given(params, sample_weight=sample_weight)))
        shape = y.shape if hasattr(y, "shape") else np.asarray(y).shape
        self._n_outputs = int(shape[1]) if len(shape) == 2 else None
        return self

    def predict(self, X: Rows) -> Answer:
        """Predict the target of every row.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        targets : values of shape (n_samples,) or (n_samples, n_outputs)
            In the container X came in; lazy for Dask collections.
        """
        check_is_fitted(self)
        return self._vote(predict_mean, X, OutputSpec(np.dtype(np.float64), self._n_outputs))
