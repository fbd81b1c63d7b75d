"""Committees: one model for each block, trained side by side, that vote."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils import assert_all_finite, get_tags
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter

from skfleet._config import config_context, get_config
from skfleet._linalg import is_sparse
from skfleet._validation import check_choice
from skfleet.blocks import (
    Block,
    Output,
    RowBlocks,
    is_lazy,
    map_rows,
    n_rows_of,
    open_block,
    row_blocks,
    split_per_row,
)
from skfleet.engine import lend, log_pass, where_it_learns
from skfleet.estimators._routing import given, routed, router
from skfleet.metrics import check_scoring, find_labels
from skfleet.metrics._statistics import host_values


class _BlockwiseVoting(BaseEstimator):
    """What both committees share: a clone of the estimator is trained on every block."""

    # The members' to ask for.
    __metadata_request__fit = {"sample_weight": UNUSED}

    def __init__(self, estimator: Any, *, n_blocks: int | None = None) -> None:
        self.estimator = estimator
        self.n_blocks = n_blocks

    def _fit_members(self, X: Any, y: Any, params: dict[str, Any]) -> None:
        """Train a member on every block that has rows."""
        if "sample_weight" in params and not has_fit_parameter(self.estimator, "sample_weight"):
            raise TypeError(
                f"estimator must take sample_weight. Got {type(self.estimator).__name__} instead. "
                "Leave the weights out."
            )
        rows, told = self._cut(X, y, routed(self, "fit", "fit", params))
        fit_member = partial(_fit_member, self.estimator, told, get_config().device)
        with where_it_learns(rows, self.estimator) as (engine, there):
            tasks = engine.map(fit_member, there.blocks, name="fit-block")
            log_pass("fit-block", len(rows.blocks), len(tasks))
            fitted = [pair for pair in engine.gather(tasks) if pair is not None]
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
        X, y = _as_rows(X), _as_rows(y)
        weight = _as_rows(params.pop("sample_weight", None))
        per_row, told = split_per_row(params, X)
        if is_lazy(X):
            return row_blocks(X, y, weight, more=per_row, dtype=None), told
        X = X.tocsr() if is_sparse(X) else X
        n_rows = n_rows_of(X)
        n_blocks = min(self.n_blocks or 1, max(1, n_rows))
        cuts = np.diff(np.linspace(0, n_rows, n_blocks + 1).astype(int)).tolist()
        return row_blocks(X, y, weight, more=per_row, dtype=None, cuts=cuts), told

    def _vote(self, func: Any, X: Any, output: Output, *args: Any) -> Any:
        """Answer with what the members make of the rows, in the container X came in."""
        check_is_fitted(self)
        committee = (self.estimators_, self.n_rows_ / self.n_rows_.sum(), *args)
        name = f"{func.__name__.strip('_')}-{type(self).__name__}"
        if is_lazy(X):
            committee = lend(self, committee, name=f"model-of-{type(self).__name__}")
        return map_rows(func, committee, _as_rows(X), output, raw=True, name=name)

    def get_metadata_routing(self) -> Any:
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


def _as_rows(values: Any) -> Any:
    """Return what has no shape, lists say, as an array."""
    return values if values is None or hasattr(values, "shape") else np.asarray(values)


class _ScoredAnywhere:
    """Scores on rows of any container; stands before scikit-learn's mixin of its kind."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
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
        if is_lazy(X):
            return check_scoring(self)(self, X, y, sample_weight)
        return super().score(X, y, sample_weight=sample_weight)


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
    One pass over the rows, a task a block, and one pass over y alone to find the labels. A block
    with a single label gets a member that always answers it. A label that a member does not know
    has probability 0 from it. This is voting over disjoint parts of the rows (`Chawla et al., 2004,
    Learning ensembles from bites <https://jmlr.org/papers/v5/chawla04a.html>`_).

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
        self, estimator: Any, *, voting: str = "hard", n_blocks: int | None = None
    ) -> None:
        super().__init__(estimator, n_blocks=n_blocks)
        self.voting = voting

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, **params: Any
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
        check_choice("voting", self.voting, ("hard", "soft"))
        if self.voting == "soft" and not hasattr(self.estimator, "predict_proba"):
            raise TypeError(
                f"estimator must have predict_proba for voting='soft'. "
                f"Got {type(self.estimator).__name__} instead. Take voting='hard'."
            )
        self._check_n_blocks()
        if not is_lazy(y):
            y = column_or_1d(y, warn=True)
            assert_all_finite(y, input_name="y")
            check_classification_targets(y)
        classes = find_labels(y)
        self._fit_members(X, y, given(params, sample_weight=sample_weight))
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> Any:
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
        return self._vote(_predict_label, X, Output(self.classes_.dtype), self.classes_, soft)

    @available_if(lambda self: self.voting == "soft")
    def predict_proba(self, X: Any) -> Any:
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
        output = Output(np.dtype(np.float64), len(self.classes_), self.classes_)
        return self._vote(_predict_proba, X, output, self.classes_, True)


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
        self, X: Any, y: Any, sample_weight: Any = None, **params: Any
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
        self._fit_members(X, y, given(params, sample_weight=sample_weight))
        shape = y.shape if hasattr(y, "shape") else np.asarray(y).shape
        self._n_outputs = int(shape[1]) if len(shape) == 2 else None
        return self

    def predict(self, X: Any) -> Any:
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
        return self._vote(_predict_mean, X, Output(np.dtype(np.float64), self._n_outputs))


def _fit_member(
    estimator: Any, told: dict[str, Any], device: str, handle: Block
) -> tuple[Any, int] | None:
    """Train a clone on one block, which may leave the device open; one without rows has none."""
    block = open_block(handle)
    if not block.n_rows:
        return None
    params = told | (block.more or {})
    if block.sample_weight is not None:
        params["sample_weight"] = block.sample_weight
    try:
        if get_tags(estimator).estimator_type == "classifier":
            labels = np.unique(host_values(block.y))
            if len(labels) == 1:
                return _Constant(labels).fit(block.X), block.n_rows
        with config_context(device=device):
            return clone(estimator).fit(block.X, block.y, **params), block.n_rows
    except Exception as error:
        error.add_note(f"While fitting block {block.number}.")
        raise


class _Constant(BaseEstimator):
    """Answers the one label there was."""

    def __init__(self, classes: np.ndarray) -> None:
        self.classes_ = self.classes = classes

    def fit(self, X: Any) -> _Constant:
        """Remember how wide the rows are."""
        self.n_features_in_ = int(X.shape[1])
        if hasattr(X, "columns"):
            self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the label for every row."""
        return np.full(n_rows_of(X), self.classes_[0])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return certainty for every row."""
        return np.ones((n_rows_of(X), 1))


def _predict_proba(committee: Any, X: Any) -> np.ndarray:
    """Average the members' probabilities."""
    members, shares, classes, _ = committee
    total = np.zeros((n_rows_of(X), len(classes)))
    for member, share in zip(members, shares, strict=True):
        total[:, np.searchsorted(classes, member.classes_)] += share * member.predict_proba(X)
    return total


def _predict_label(committee: Any, X: Any) -> np.ndarray:
    """Return the labels that the members vote for; of equal votes the smaller label's count."""
    members, shares, classes, soft = committee
    if soft:
        return classes[np.argmax(_predict_proba(committee, X), axis=1)]
    votes = np.zeros((n_rows_of(X), len(classes)))
    rows = np.arange(len(votes))
    for member, share in zip(members, shares, strict=True):
        votes[rows, np.searchsorted(classes, host_values(member.predict(X)))] += share
    return classes[np.argmax(votes, axis=1)]


def _predict_mean(committee: Any, X: Any) -> np.ndarray:
    """Average the members' predictions."""
    members, shares = committee
    return sum(
        share * np.asarray(host_values(member.predict(X)), dtype=np.float64)
        for member, share in zip(members, shares, strict=True)
    )
