"""Base class of estimators of neighbours, on rows of any container."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from skfleet._array import is_not_numpy, to_device_of, to_host
from skfleet._linalg import row_bytes
from skfleet._sklearn_private import validate_params
from skfleet._typing import Answer as AnswerOfRows
from skfleet._typing import Rows, Values, Weights
from skfleet._validation import check_option, check_positive_int, without_name_warnings
from skfleet.blocks import (
    RowBlocks,
    artificial_rows,
    as_collection,
    check_rows,
    compute_together,
    fix_partitions,
    float_dtype,
    is_frame,
    is_lazy,
    meta_of,
    row_blocks,
    target_column,
    with_pandas_text,
)
from skfleet.estimators._blockwise import learned_attributes, stock_estimator
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._fleet_estimator import FleetEstimator
from skfleet.estimators._method_dispatch import unchanged_on_failure
from skfleet.estimators.neighbors._answers import NeighborGraph, NeighborPairs, Vote
from skfleet.estimators.neighbors._indexed_rows import Answer, IndexedRows, survey
from skfleet.estimators.neighbors._nearest import PairwiseMetric
from skfleet.estimators.neighbors._neighbors import Neighbors, search, without_self
from skfleet.inference import OutputSpec, call_method, class_names, join_delayed, rows_with_index
from skfleet.metrics import accuracy_score, r2_score

# Metrics with parameters that scikit-learn would take from the rows themselves.
_OF_ALL_ROWS = {"seuclidean": ("V",), "mahalanobis": ("V", "VI")}


@document
class NeighborsEstimator(FleetEstimator):
    """Base of scikit-learn's estimators of neighbours, which they are for rows in this process.

    Dask rows, and arrays of other libraries, stay where they are, as `_training`.
    """

    _single_task_bytes = 0.0
    _training: IndexedRows | None = None

    def fit(self, X: Rows, y: Values | None = None) -> Self:
        """Fit the estimator, which remembers the training rows.

        Parameters
        ----------
        {X_train}
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_outputs)
            Labels or targets, of estimators that predict these.

        {returns_self}
        """
        check_rows(X=X, y=y)
        with unchanged_on_failure(self):
            vars(self).pop("_training", None)
            if not is_lazy(X) and not is_not_numpy(X):
                (y,) = compute_together(y)
                return super().fit(with_pandas_text(X), y)
            validate_params(self)
            self._fit_on_blocks(X, y if get_tags(self).target_tags.required else None)
        return self

    def _fit_on_blocks(self, X: Any, y: Any) -> None:
        """Survey the rows, in one pass."""
        X, options = as_collection(X) if is_lazy(X) else X, {}
        if get_tags(self).target_tags.required:
            y = y if is_regressor(self) else target_column(y, several=True)
            options = {"multi_output": True, "y_numeric": is_regressor(self)}
        rows = self._validate_rows(X, y, **options)
        self._set_metric(X, rows)
        if self._allows_nan:
            rows = replace(rows, checked=True)
        training = IndexedRows(X, rows, survey(is_classifier(self), self._allows_nan))
        for labels in training.labels:
            check_classification_targets(labels)
        if training.labels:
            self.outputs_2d_ = len(training.labels) > 1
            self.classes_ = training.labels if self.outputs_2d_ else training.labels[0]
        self.n_samples_fit_ = training.n_rows
        self._training = training

    def _set_metric(self, X: Any, rows: RowBlocks) -> None:
        """Set the effective metric, or raise, by scikit-learn's fits on two rows."""
        example = np.ones((2, rows.n_features))
        if rows.is_sparse:
            example = artificial_rows(meta_of(X))
        check_metric(self.metric, self.metric_params or {})
        for algorithm in sorted({self.algorithm, "brute"} - {"auto"}, reverse=True):
            fitted = stock_estimator(self, algorithm=algorithm).fit(example, [0, 1])
        for name in learned_attributes(fitted):  # of rows in memory before
            vars(self).pop(name, None)
        self.effective_metric_ = fitted.effective_metric_
        self.effective_metric_params_ = fitted.effective_metric_params_
        on_device = rows.on_device or any(b.to_device or is_not_numpy(b.X) for b in rows.blocks)
        if on_device and not self._metric.is_euclidean:
            raise ValueError(
                f"metric must be Euclidean for rows on a device. Got {self.metric!r} with "
                f"p={self.p!r} instead. Leave metric and p out, or copy the rows to the host."
            )

    def kneighbors(
        self, X: Rows | None = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> AnswerOfRows:
        """Find the nearest training rows of each row.

        Parameters
        ----------
        X : {X_type}, default=None
            Queries; by default the training rows, none of which is its own neighbour.
        n_neighbors : int, default=None
            Number of neighbours, by default that of the constructor.
        return_distance : bool, default=True
            Whether to return the distances.

        Returns
        -------
        neigh_dist : ndarray or Dask collection of shape (n_queries, n_neighbors)
            Distances, in ascending order; in the container of X.
        neigh_ind : ndarray or Dask collection of shape (n_queries, n_neighbors)
            Numbers of the training rows. Of rows at one distance the first ones are the nearest.
        """
        params = {"n_neighbors": n_neighbors, "return_distance": return_distance}
        return self._answer("kneighbors", X, NeighborPairs(return_distance), n_neighbors, params)

    def kneighbors_graph(
        self, X: Rows | None = None, n_neighbors: int | None = None, mode: str = "connectivity"
    ) -> AnswerOfRows:
        """Return the graph of the nearest training rows of each row.

        Parameters
        ----------
        X : {X_type}, default=None
            Queries; by default the training rows, none of which is its own neighbour.
        n_neighbors : int, default=None
            Number of neighbours, by default that of the constructor.
        mode : {"connectivity", "distance"}, default="connectivity"
            Whether the values are ones or distances.

        Returns
        -------
        graph : sparse matrix, or Dask array of these, of shape (n_queries, n_samples_fit)
            One row for each query.
        """
        check_is_fitted(self)
        params = {"n_neighbors": n_neighbors, "mode": mode}
        if self._training is not None:
            check_option("mode", mode, ("connectivity", "distance"))
        graph = NeighborGraph(getattr(self, "n_samples_fit_", 0), mode)
        return self._answer("kneighbors_graph", X, graph, n_neighbors, params)

    def _answer(
        self,
        method: str,
        X: Any,
        func: Callable[[Neighbors], Any],
        n_neighbors: int | None = None,
        params: dict[str, Any] | None = None,
    ) -> Any:
        """Return the result of a method: scikit-learn's, or that of a function of neighbours."""
        check_is_fitted(self)
        check_rows(X=X)
        if self._training is None:
            return self._answer_in_memory(method, X, params or {})
        is_self, k = X is None, self.n_neighbors if n_neighbors is None else n_neighbors
        check_positive_int("n_neighbors", k)
        if k + is_self > self.n_samples_fit_:
            raise ValueError(
                f"Expected n_neighbors {'<' if is_self else '<='} n_samples_fit, but "
                f"n_neighbors = {k}, n_samples_fit = {self.n_samples_fit_}"
            )
        if is_lazy(self._training.X if is_self else X):
            return self._answer_lazily(X, func, k)
        if is_self:
            X = self._training.X
        else:
            finite = {"ensure_all_finite": "allow-nan"} if self._allows_nan else {}
            X, _ = self._validate_local(X, reset=False, **finite)
        reduction = search(k + is_self, self._metric, self._training.labels)
        neighbors = self._training.search(reduction, X, self._query_bytes(X, k))
        if is_self:
            neighbors = without_self(neighbors, np.arange(len(neighbors.distances)))
        return _on_device_of(func(neighbors), X)

    def _answer_in_memory(self, method: str, X: Any, params: dict[str, Any]) -> Any:
        """Return the result of scikit-learn's method, by block for Dask rows."""
        if is_lazy(X):
            X = as_collection(X)
            with without_name_warnings():  # the call below warns
                self._check_n_columns(meta_of(X), reset=False)
            return call_method(self, self, method, X, **params)
        on_host = to_host(X) if is_not_numpy(X) else with_pandas_text(X)
        return _on_device_of(getattr(super(), method)(on_host, **params), X)

    def _answer_lazily(self, X: Any, func: Any, n_neighbors: int) -> Any:
        """Return the results for Dask rows as collections, arrays for the training rows."""
        training: Any = self._training
        queries, is_self = None, X is None
        if is_self:
            X = training.X
        else:
            X = rows_with_index(as_collection(X))
            self._check_n_columns(meta_of(X), reset=False)
            source = X
            if is_frame(meta_of(X)):  # whose answer has a part for each of its partitions
                (source,), *_ = fix_partitions([X], [], is_tuned=False)
            queries = row_blocks(source, dtype=None, in_partitions=True)
            queries = replace(queries, dtype=float_dtype(meta_of(X)), checked=self._allows_nan)
        example = func(training.example(n_neighbors))
        several = isinstance(example, tuple | list)
        parts = list(example) if several else [example]
        names = self._column_names(X, func, len(parts))
        outputs = [
            replace(OutputSpec.infer(part, columns), is_array=is_self)
            for part, columns in zip(parts, names, strict=True)
        ]
        delayed, lengths = training.delay_search(
            search(n_neighbors + is_self, self._metric, training.labels),
            queries,
            [Answer(func, output, i if several else None) for i, output in enumerate(outputs)],
            self._query_bytes(meta_of(X), n_neighbors),
        )
        joined = [join_delayed(d, lengths, o, X) for d, o in zip(delayed, outputs, strict=True)]
        return type(example)(joined) if several else joined[0]

    def _check_in_memory(self, X: Any, method: str) -> None:
        """Raise for a method that has no answer by blocks."""
        if is_lazy(X) or is_not_numpy(X) or self._training is not None:
            raise TypeError(
                f"X must be in this process for {method}, in fit and as queries. Got rows on Dask "
                "or on a device instead. Take kneighbors, or compute X."
            )

    def _column_names(self, X: Any, func: Any, n_parts: int) -> list[Any]:
        """Return the names of the columns of each part of a result; None for numbered ones."""
        if getattr(func, "method", "") != "predict_proba":
            return [None] * n_parts
        return [class_names(labels, X) for labels in self._training.labels]

    def _query_bytes(self, X: Any, n_neighbors: int) -> int:
        # twice the neighbours, of two parts of the rows, with a target each
        return row_bytes(X) + 48 * n_neighbors

    @property
    def _metric(self) -> PairwiseMetric:
        return PairwiseMetric(self.effective_metric_, self.metric, self.p, self.metric_params)

    @property
    def _allows_nan(self) -> bool:
        return bool(get_tags(self).input_tags.allow_nan)


@document
class NeighborsPredictor(NeighborsEstimator):
    """Base of estimators that predict from the targets of neighbours."""

    def predict(self, X: Rows | None) -> AnswerOfRows:
        """Predict the target of each row.

        Parameters
        ----------
        X : {X_type}
            Queries. None stands for the training rows, none of which is its own neighbour.

        Returns
        -------
        y : ndarray or Dask collection of shape (n_queries,) or (n_queries, n_outputs)
            In the container of X.
        """
        return self._answer("predict", X, self._vote("predict"))

    def score(self, X: Rows | None, y: Values, sample_weight: Weights | None = None) -> float:
        """Return the accuracy of the predicted labels, or the coefficient of determination.

        Parameters
        ----------
        X : {X_type}
            Test samples. None stands for the training rows, none of which is its own neighbour.
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_outputs)
            True labels or targets.
        {weight_returns_score}
            At most 1.
        """
        measure = accuracy_score if is_classifier(self) else r2_score
        return measure(y, self.predict(X), sample_weight=sample_weight)

    def _vote(self, method: str) -> Vote | None:
        """Return the prediction from neighbours; None where scikit-learn's own is called."""
        if self._training is None:
            return None
        options = {"metric": "precomputed", "algorithm": "brute", "metric_params": None}
        estimator = stock_estimator(self, **options, n_jobs=None)
        return Vote(estimator, method, self._training.labels)


def check_metric(metric: Any, params: dict[str, Any]) -> None:
    """Raise for a metric that parts of the rows cannot be searched by."""
    if not isinstance(metric, str):
        return
    if metric == "precomputed":
        raise ValueError(
            "metric must be one of rows on Dask, or on a device. Got 'precomputed' instead, "
            "of distances to all rows. Compute X."
        )
    if metric in _OF_ALL_ROWS and not params.keys() & _OF_ALL_ROWS[metric]:
        names = " or ".join(_OF_ALL_ROWS[metric])
        raise ValueError(
            f"metric_params must have {names} for metric={metric!r} on Dask rows. Got "
            f"{params!r} instead. Compute it from the rows first."
        )


def _on_device_of(result: Any, X: Any) -> Any:
    """Return an answer, or each of several, on the device of the queries."""
    if isinstance(result, tuple | list):
        return type(result)(to_device_of(part, X) for part in result)
    return to_device_of(result, X)
