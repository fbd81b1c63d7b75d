"""Base class of forests, on rows of any container."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from skfleet._array import is_not_numpy, to_device_of, to_host, to_host_if_array
from skfleet._sklearn_private import expand_class_weight, set_bootstrap, validate_params
from skfleet._typing import Answer, Rows, Values, Weights
from skfleet._validation import check_total_weight, check_unsupported, without_name_warnings
from skfleet.blocks import (
    as_collection,
    check_rows,
    compute_together,
    is_lazy,
    meta_of,
    target_column,
    with_pandas_text,
)
from skfleet.engine import engine_for, map_reduce
from skfleet.estimators._blockwise import learned_attributes, stock_estimator
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._fleet_estimator import FleetEstimator
from skfleet.estimators._method_dispatch import unchanged_on_failure
from skfleet.estimators.ensemble._groups import (
    Bootstrap,
    check_memory,
    max_rows_of_group,
    threads_of_task,
    threads_of_worker,
)
from skfleet.estimators.ensemble._survey import ForestSurvey, survey
from skfleet.estimators.ensemble._training import TreeTask, train
from skfleet.inference import call_method
from skfleet.metrics import accuracy_score, r2_score

# Bytes of rows, times trees, that a thread fits as soon as machines divide them: 20 trees take
# .27 s for 5,000 x 20 rows either way.
TREE_BYTES = 2**24


@document
class ForestEstimator(FleetEstimator):
    """Base of scikit-learn's forests, which they are for rows in this process."""

    _verbose_shows_bar = True

    def fit(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> Self:
        """Build a forest of trees from the training rows.

        Parameters
        ----------
        {X_train}
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_outputs)
            Labels or targets.
        {fit_weight}

        {returns_self}
        """
        check_rows(X=X, y=y, sample_weight=sample_weight)
        with unchanged_on_failure(self):
            if is_lazy(X):
                self._fit_on_blocks(as_collection(X), y, sample_weight)
                return self
            y, sample_weight = map(to_host_if_array, compute_together(y, sample_weight))
            return super().fit(with_pandas_text(to_host_if_array(X)), y, sample_weight)

    def _begin_task(self, engine: Any) -> float:
        """Have all threads of a machine; several machines divide the trees of many rows."""
        n_trees, (n_threads, n_in_all) = self.n_estimators, threads_of_task(engine)
        self.n_jobs = n_threads
        return math.inf if n_in_all <= n_threads else n_threads * TREE_BYTES / max(1, n_trees)

    def _fit_on_blocks(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Survey the rows, and train the trees on workers."""
        y = target_column(y, several=True)
        rows = self._validate_rows(
            X, y, sample_weight, multi_output=True, y_numeric=is_regressor(self)
        )
        self._check_parameters()
        blocks = tuple(block._replace(to_device=False) for block in rows.blocks)
        rows = replace(rows, blocks=blocks, checked=True)
        engine = engine_for(rows)
        if rows.n_rows is not None and self.max_samples is None and not rows.is_sparse:
            bootstrap = Bootstrap(rows.n_rows, rows.n_rows if self.bootstrap else None)
            memory, n_threads = engine.memory_limit, threads_of_worker(engine)
            check_memory(bootstrap, max_rows_of_group(memory, 4 * rows.n_features, n_threads))
        with engine.persist(rows, to_disk=False) as rows:
            summary = map_reduce(engine, self._survey(), rows)
            weights = self._row_weights(summary)
            trees = self._make_trees(summary)
            n_drawn = set_bootstrap(self, summary.n_rows, weights)
            if trees:
                bootstrap = Bootstrap(summary.n_rows, n_drawn)
                is_balanced = self._is_balanced_by_tree
                task = TreeTask(bootstrap, summary.labels, is_balanced)
                rows = summary.with_lengths(rows)
                self.estimators_ += train(engine, rows, summary, trees, task, weights)

    def _check_parameters(self) -> None:
        """Raise for parameters that need no rows to be known as wrong."""
        validate_params(self)
        advice = "Leave it out, and score on rows of a test set."
        check_unsupported("oob_score", self.oob_score, False, advice)
        if len(self._trees_before) > self.n_estimators:
            raise ValueError(
                "n_estimators must be at least the number of trees before with warm_start=True. "
                f"Got {self.n_estimators} after {len(self._trees_before)} instead. Raise it."
            )
        params = {"class_weight": None} if is_classifier(self) else {}
        self._fit_example(np.ones(2), n_estimators=1, random_state=0, **params)

    @property
    def _trees_before(self) -> list[Any]:
        """The trees that a warm start adds to."""
        return getattr(self, "estimators_", []) if self.warm_start else []

    def _fit_example(self, y: np.ndarray, **params: Any) -> Any:
        """Return scikit-learn's forest, fitted on artificial rows."""
        if self.bootstrap:  # it would warn of a small fraction of these few rows
            params["max_samples"] = None
        example = stock_estimator(self, n_jobs=None, verbose=0, warm_start=False, **params)
        return example.fit(np.zeros((len(y), self.n_features_in_)), y)

    @property
    def _is_balanced_by_tree(self) -> bool:
        is_by_subsample = getattr(self, "class_weight", None) == "balanced_subsample"
        return bool(self.bootstrap and is_by_subsample)

    def _survey(self) -> Any:
        """Return the first pass over the rows."""
        class_weight = getattr(self, "class_weight", None)
        return survey(
            has_labels=is_classifier(self),
            with_y=class_weight is not None and not self._is_balanced_by_tree,
            allows_nan=get_tags(self).input_tags.allow_nan,
            weight_signs=not self.bootstrap,
        )

    def _row_weights(self, summary: ForestSurvey) -> np.ndarray | None:
        """Return the product of the weights of samples and of classes, None without, or raise."""
        if self.criterion == "poisson" and (summary.y_min < 0 or summary.y_sum <= 0):
            raise ValueError(
                "y must be non-negative, with a sum above 0, for Poisson regression. Got a "
                f"minimum of {summary.y_min:g} and a sum of {summary.y_sum:g} instead. Choose "
                "another criterion."
            )
        for labels in summary.labels:
            check_classification_targets(labels)
        weights = summary.sample_weight()
        if weights is not None:
            check_total_weight(summary.total_weight)
        if summary.y_parts:
            of_classes = expand_class_weight(stock_estimator(self), summary.y(), weights)
            weights = of_classes if weights is None else weights * of_classes
        return weights

    def _make_trees(self, summary: ForestSurvey) -> list[Any]:
        """Set the fitted attributes, and return the unfitted trees with their random states.

        scikit-learn's own fit on a few artificial rows checks the parameters, and draws the states.
        """
        trees_before = list(self._trees_before)
        if len(trees_before) == self.n_estimators:
            warnings.warn(
                "Warm-start fitting without increasing n_estimators does not fit new trees.",
                stacklevel=4,
            )
            return []
        y: np.ndarray = np.ones((2, summary.n_outputs))
        if summary.labels:
            n = max(map(len, summary.labels))
            y = np.stack([np.resize(labels, n) for labels in summary.labels], axis=1)
        example = self._fit_example(y[:, 0] if summary.target_dims == 1 else y)
        for name, value in learned_attributes(example).items():
            setattr(self, name, value)
        self.estimators_ = trees_before
        return [clone(tree) for tree in example.estimators_[len(trees_before) :]]

    def predict(self, X: Rows) -> Answer:
        """Predict the label or the target of each row, by the mean of the trees.

        {X_returns}
        y : ndarray or Dask collection of shape (n_samples,) or (n_samples, n_outputs)
            In the container of X; lazy for Dask collections.
        """
        return self._answer("predict", X)

    def apply(self, X: Rows) -> Answer:
        """Return the number of the leaf of each tree that each row ends up in.

        {X_returns}
        X_leaves : ndarray or Dask collection of shape (n_samples, n_estimators)
            In the container of X; lazy for Dask collections.
        """
        return self._answer("apply", X)

    def score(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> float:
        """Return the accuracy of the predicted labels, or the coefficient of determination.

        Parameters
        ----------
        {X_test}
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_outputs)
            True labels or targets.
        {weight_returns_score}
            At most 1.
        """
        measure = accuracy_score if is_classifier(self) else r2_score
        return measure(y, self.predict(X), sample_weight=sample_weight)

    def _answer(self, method: str, X: Any) -> Any:
        """Return the result of scikit-learn's method, by block for Dask rows."""
        check_is_fitted(self)
        check_rows(X=X)
        if is_lazy(X):
            X = as_collection(X)
            with without_name_warnings():  # the call below warns
                self._check_n_columns(meta_of(X), reset=False)
            return call_method(self, self, method, X)
        answer = getattr(super(), method)(to_host(X) if is_not_numpy(X) else with_pandas_text(X))
        if isinstance(answer, list):
            return [to_device_of(part, X) for part in answer]
        return to_device_of(answer, X)


@document
class ForestClassifier(ForestEstimator):
    """Base of the forests that classify."""

    def predict_proba(self, X: Rows) -> Answer:
        """Return the probability of each label, the mean of the trees' fractions.

        {X_returns}
        p : ndarray or Dask collection of shape (n_samples, n_classes), or a list of these
            In the container of X, and in the order of `classes_`; a list for several outputs.
        """
        return self._answer("predict_proba", X)

    def predict_log_proba(self, X: Rows) -> Answer:
        """Return the logarithm of the probability of each label.

        {X_returns}
        p : ndarray or Dask collection of shape (n_samples, n_classes), or a list of these
            In the container of X, and in the order of `classes_`; a list for several outputs.
        """
        return self._answer("predict_log_proba", X)
