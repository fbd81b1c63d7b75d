"""Delegation of predict, transform, score and fitted attributes to the best estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.model_selection import check_cv
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping
from sklearn.utils.validation import check_is_fitted

from skfleet._delegation import DelegatesToInner, available_if_inner_has
from skfleet._doc_link import DocumentationLink
from skfleet._docstrings import compose_docstring
from skfleet._pipeline_steps import last_step
from skfleet._typing import Answer, Rows, Values
from skfleet.blocks import check_rows, is_lazy, with_pandas_text
from skfleet.inference import call_method
from skfleet.metrics import check_scoring
from skfleet.model_selection._lazy_answers import LazyBestEstimator
from skfleet.model_selection._search_html import SearchHTML

_TEXTS = {
    "containers": "{array-like, sparse matrix, dataframe, Dask array or Dask DataFrame}",
    "rows": """Parameters
----------
X : {containers} of shape (n_samples, n_features)
    Input data.

Returns
-------""",
}


def _available(method: Callable[..., Any]) -> Any:
    """Decorate a method that exists where the inner estimator has it; complete its docstring."""
    return available_if_inner_has(method.__name__)(compose_docstring(_TEXTS)(method))


class DelegatesToBestEstimator(
    DocumentationLink,
    SearchHTML,
    LazyBestEstimator,
    DelegatesToInner,
    MetaEstimatorMixin,
    BaseEstimator,
):
    """Mixin for methods that the best estimator computes, lazily for Dask collections."""

    _fitted_name = "best_estimator_"
    scoring: Any
    refit: Any
    resource: str
    cv: Any

    def _call_best(self, method: str, X: Any) -> Any:
        """Call a method of the best estimator."""
        check_is_fitted(self)
        if not self.refit:
            raise AttributeError(
                f"refit must be true to use {method}. Got refit={self.refit!r} instead: no model "
                "was kept. Train one with best_params_."
            )
        return call_method(self, self.best_estimator_, method, X)

    @_available
    def predict(self, X: Rows) -> Answer:
        """Predict with the best model.

        {rows}
        predictions : ndarray or Dask collection of shape (n_samples,) or (n_samples, n_outputs)
            Lazy for Dask collections.
        """
        return self._call_best("predict", X)

    @_available
    def predict_proba(self, X: Rows) -> Answer:
        """Predict probabilities of the classes with the best model.

        {rows}
        probabilities : ndarray or Dask collection of shape (n_samples, n_classes)
            Lazy for Dask collections.
        """
        return self._call_best("predict_proba", X)

    @_available
    def predict_log_proba(self, X: Rows) -> Answer:
        """Predict logarithms of the classes' probabilities with the best model.

        {rows}
        log_probabilities : ndarray or Dask collection of shape (n_samples, n_classes)
            Lazy for Dask collections.
        """
        return self._call_best("predict_log_proba", X)

    @_available
    def decision_function(self, X: Rows) -> Answer:
        """Return the best model's decision values.

        {rows}
        values : ndarray or Dask collection of shape (n_samples,) or (n_samples, n_classes)
            Lazy for Dask collections.
        """
        return self._call_best("decision_function", X)

    @_available
    def score_samples(self, X: Rows) -> Answer:
        """Score every row with the best model.

        {rows}
        scores : ndarray or Dask collection of shape (n_samples,)
            Lazy for Dask collections.
        """
        return self._call_best("score_samples", X)

    @_available
    def transform(self, X: Rows) -> Answer:
        """Transform every row with the best model.

        {rows}
        transformed : ndarray or Dask collection of shape (n_samples, n_features_out)
            Lazy for Dask collections.
        """
        return self._call_best("transform", X)

    @_available
    def inverse_transform(self, X: Rows) -> Answer:
        """Transform every row back with the best model.

        Parameters
        ----------
        X : {containers} of shape (n_samples, n_features_out)
            Transformed data.

        Returns
        -------
        original : ndarray or Dask collection of shape (n_samples, n_features)
            Lazy for Dask collections.
        """
        return self._call_best("inverse_transform", X)

    def score(self, X: Rows, y: Values | None = None, **params: Any) -> float:
        """Score the best model by the metric that `refit` names.

        Parameters
        ----------
        X : {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame} of shape \
                (n_samples, n_features)
            Test data.
        y : array-like, Dask array or Dask Series of shape (n_samples,) or \
                (n_samples, n_outputs), default=None
            True labels or targets.
        **params : dict
            Further parameters of the scorer, such as ``sample_weight``.

        Returns
        -------
        score : float
            The higher the better.
        """
        check_is_fitted(self)
        if not self.refit:
            raise AttributeError(
                f"refit must be true to use score. Got refit={self.refit!r} instead."
            )
        check_rows(X=X, y=y, sample_weight=params.get("sample_weight"))
        if is_lazy(X):
            metric = self.scoring
            if isinstance(metric, dict):
                metric = metric[self.refit]
            elif self.multimetric_:
                metric = self.refit
            return check_scoring(self.best_estimator_, metric)(self, X, y, **params)
        scorer = self.scorer_[self.refit] if self.multimetric_ else self.scorer_
        return scorer(self.best_estimator_, with_pandas_text(X), y, **params)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "cv_results_")

    @property
    def classes_(self) -> Any:
        """Class labels of the best estimator."""
        return self._fitted_best.classes_

    @property
    def n_features_in_(self) -> int:
        """Number of features seen by the best estimator."""
        return self._fitted_best.n_features_in_

    @property
    def feature_names_in_(self) -> Any:
        """Names of the features seen by the best estimator."""
        return self._fitted_best.feature_names_in_

    @property
    def _fitted_best(self) -> Any:
        """Best estimator; AttributeError if there is none."""
        if not hasattr(self, "best_estimator_"):
            raise AttributeError(f"This {type(self).__name__} has no best_estimator_ (yet).")
        return self.best_estimator_

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the metadata routing of the estimator and the scorer.

        Returns
        -------
        routing : sklearn.utils.metadata_routing.MetadataRouter
            ``fit`` passes on what the estimator's ``partial_fit`` or ``fit``, the scorer and `cv`
            request.
        """
        router = MetadataRouter(owner=self).add_self_request(self)
        method = "partial_fit" if self.resource == "calls" else "fit"
        training = MethodMapping().add(caller="fit", callee=method)
        scoring = MethodMapping().add(caller="fit", callee="score")
        scoring.add(caller="score", callee="score")
        router.add(estimator=last_step(self.estimator), method_mapping=training)
        if self.cv is not None:
            splitting = MethodMapping().add(caller="fit", callee="split")
            router.add(splitter=check_cv(self.cv), method_mapping=splitting)
        return router.add(scorer=self._scorer(), method_mapping=scoring)
