"""ParallelPostFit: blockwise prediction on Dask collections with any fitted estimator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.utils.metadata_routing import UNUSED, MetadataRouter
from sklearn.utils.validation import check_is_fitted

from skfleet._delegation import (
    DelegatesToInner,
    LearnedAttributes,
    available_if_inner_has,
    available_where,
    require_method,
)
from skfleet._doc_link import DocumentationLink
from skfleet._typing import Answer, Estimator, Rows, Scoring, Table, Values, Weights
from skfleet.blocks import check_rows, is_lazy, warn_of_trip, with_pandas_text
from skfleet.engine import FitProgressMixin
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._fleet_estimator import FleetEstimator
from skfleet.estimators._metadata_routing import drop_none, make_router, route_params
from skfleet.estimators._method_dispatch import fit_on_device
from skfleet.inference import call_method
from skfleet.metrics import check_scoring

# The methods whose metadata scikit-learn can route.
ROUTED_METHODS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "transform",
    "inverse_transform",
    "score",
)


def _check_has_score(self: ParallelPostFit) -> None:
    """Raise unless the estimator can be scored: by `scoring`, its type, or its own method."""
    if self.scoring is None and not is_classifier(self) and not is_regressor(self):
        require_method(self._inner, "score")


@document
class ParallelPostFit(
    FitProgressMixin, DocumentationLink, DelegatesToInner, LearnedAttributes, BaseEstimator
):
    """Predict and transform data of any size with any estimator.

    The wrapped estimator is trained as it is, on rows that fit into this process (or is fitted
    already); one that computes on a GPU is trained on a GPU worker where this process has none. Its
    methods are then offered on rows of any container: each block of a Dask array or DataFrame is
    passed to the estimator on the worker that holds it, and results are lazy.

    Parameters
    ----------
    estimator : estimator
        Any estimator or pipeline with scikit-learn's interface. It is never changed: ``fit`` trains
        a clone. Without ``fit`` the estimator itself is used if it is fitted.
    scoring : str or callable, default=None
        What ``score`` computes: one of `skfleet.metrics.get_scorer_names`, or a callable
        ``(estimator, X, y)``. By default the estimator's own ``score`` on rows in this process, and
        on Dask collections accuracy for classifiers and r2 for regressors.
    predict_meta, predict_proba_meta, transform_meta : array, sparse matrix or frame, default=None
        Empty output of the method (type, dtype, width, column names). By default it is inferred by
        running the method on two artificial rows or, if the estimator rejects them, on the first
        two rows, for which the first block is loaded.

    Attributes
    ----------
    estimator_ : estimator
        The fitted clone; there after ``fit``.
    classes_, n_features_in_, coef_, ...
        Those of the fitted estimator, where it has them: all that end in an underscore.

    Raises
    ------
    TypeError
        When ``fit`` is given a Dask collection and the estimator does not train on those.
    sklearn.exceptions.NotFittedError
        When neither the wrapper nor the estimator is fitted.
    skfleet.exceptions.PlacementError
        When it needs a GPU that no worker has.

    See Also
    --------
    Incremental : Train an estimator on rows that do not fit, block by block.

    Notes
    -----
    One pass over the rows per prediction, one task per block. The model is a separate key in the
    graph, which each worker receives once. A model of a megabyte or more is scattered, and stays
    on the cluster for as long as this object lives, and is sent again only if it has changed, or
    where Dask took an idle worker's copy back; such an answer belongs to that cluster. A model of
    cuML answers on workers with a GPU, and its ``as_sklearn()`` on the others.

    ``predict``, ``predict_proba``, ``predict_log_proba``, ``decision_function``, ``transform``,
    ``inverse_transform``, ``score_samples``, ``kneighbors``, ``set_output`` and ``score`` exist
    when the estimator has them. Rows in this process give the estimator's own answer. A Dask array
    gives a lazy array, of sparse blocks where the answers are sparse; a Dask DataFrame gives a lazy
    Series or frame with its index; several outputs give a list of these. Every block is answered by
    itself: estimators whose answer for a row depends on the others (``NMF.transform`` iterates
    until all rows have converged) answer a little differently for other cuts.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skfleet.estimators import ParallelPostFit
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ParallelPostFit(LogisticRegression(max_iter=1000)).fit(X, y)
    >>> many = da.from_array(X, chunks=(50, 4)).repeat(100, axis=0)
    >>> answer = model.predict(many)
    >>> answer.shape, answer.dtype
    ((15000,), dtype('int64'))
    """

    # Only the wrapped estimator requests sample_weight.
    __metadata_request__score = {"sample_weight": UNUSED}

    def __init__(
        self,
        estimator: Estimator,
        *,
        scoring: Scoring = None,
        predict_meta: Table | None = None,
        predict_proba_meta: Table | None = None,
        transform_meta: Table | None = None,
    ) -> None:
        self.estimator = estimator
        self.scoring = scoring
        self.predict_meta = predict_meta
        self.predict_proba_meta = predict_proba_meta
        self.transform_meta = transform_meta

    @available_where(lambda self: require_method(self.estimator, "fit"))
    def fit(self, X: Rows, y: Values | None = None, **params: Any) -> ParallelPostFit:
        """Fit a clone of the estimator.

        Parameters
        ----------
        X : array-like, sparse matrix or frame of shape (n_samples, n_features)
            Rows in this process; rows of any kind for scikit-fleet's own estimators.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Target values.
        **params : dict
            Handed on to the estimator's ``fit``; with metadata routing enabled, what it requests.

        {returns_fitted}
        """
        check_rows(X=X, y=y)
        if self.scoring is not None:
            check_scoring(self, self.scoring)
        is_local = self._fits_on_local_rows
        if is_lazy(X) and is_local:
            raise TypeError(
                f"X must be in this process to fit {type(self.estimator).__name__}. Got a Dask "
                "collection instead. Fit on a sample of it, or use Incremental if the estimator "
                "has partial_fit."
            )
        model, params = clone(self.estimator), route_params(self, "fit", "fit", params)
        if not is_local:  # it dispatches to its device by itself
            self.estimator_, self._worker_model = model.fit(X, y, **params), None
        else:
            rows = with_pandas_text(X)
            self.estimator_, self._worker_model = fit_on_device(model, rows, y, params)
        return self

    @property
    def _fits_on_local_rows(self) -> bool:
        """Return whether ``fit`` takes rows in this process only."""
        return not isinstance(self.estimator, FleetEstimator)

    def __sklearn_is_fitted__(self) -> bool:
        wrapped = self._inner
        if not hasattr(wrapped, "fit"):  # scikit-learn does not say; by its rule, where it learns
            learned = [name for name in vars(wrapped) if name.endswith("_")]
            return bool(learned) or not hasattr(wrapped, "partial_fit")
        try:
            check_is_fitted(wrapped)
        except NotFittedError:
            return False
        return True

    def _check_is_fitted(self) -> None:
        """Raise NotFittedError unless the inner estimator is fitted."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet. Call 'fit' with "
                "appropriate arguments before using this estimator."
            )

    def _fitted_estimator(self) -> Any:
        if not self.__sklearn_is_fitted__():
            raise AttributeError(f"This {type(self).__name__} is not fitted yet.")
        return self._inner

    def _call_method(self, X: Any, method: str, meta: Any = None, /, **params: Any) -> Any:
        """Call a method of the fitted estimator, with output in the container of X."""
        self._check_is_fitted()
        warn_of_trip(X)
        if method in ROUTED_METHODS:
            params = route_params(self, method, method, params)
        in_tasks = getattr(self, "_worker_model", None)
        return call_method(self, self._inner, method, X, meta, in_tasks, **params)

    @available_if_inner_has("predict")
    def predict(self, X: Rows, **params: Any) -> Answer:
        """Predict for every row.

        {X_params_returns}
        predictions : ndarray or Dask collection of shape (n_samples,) or (n_samples, n_outputs)
            In the container of X; lazy for Dask collections.
        """
        return self._call_method(X, "predict", self.predict_meta, **params)

    @available_if_inner_has("predict_proba")
    def predict_proba(self, X: Rows, **params: Any) -> Answer:
        """Predict probabilities of the classes for every row.

        {X_params_returns}
        probabilities : ndarray, Dask collection or list of these, of shape (n_samples, n_classes)
            In the container of X, the columns of a frame named by the classes.
        """
        return self._call_method(X, "predict_proba", self.predict_proba_meta, **params)

    @available_if_inner_has("predict_log_proba")
    def predict_log_proba(self, X: Rows, **params: Any) -> Answer:
        """Predict logarithms of the classes' probabilities for every row.

        {X_params_returns}
        log_probabilities : ndarray, Dask collection or list of these
            As for ``predict_proba``.
        """
        return self._call_method(X, "predict_log_proba", self.predict_proba_meta, **params)

    @available_if_inner_has("decision_function")
    def decision_function(self, X: Rows, **params: Any) -> Answer:
        """Return the decision values of every row.

        {X_params_returns}
        values : ndarray or Dask collection of shape (n_samples,) or (n_samples, n_classes)
            In the container of X.
        """
        return self._call_method(X, "decision_function", **params)

    @available_if_inner_has("transform")
    def transform(self, X: Rows, **params: Any) -> Answer:
        """Transform every row.

        {X_params_returns}
        transformed : ndarray or Dask collection of shape (n_samples, n_features_out)
            In the container of X, sparse where the estimator's answers are. A frame's columns
            are named as in ``get_feature_names_out``.
        """
        return self._call_method(X, "transform", self.transform_meta, **params)

    @available_if_inner_has("inverse_transform")
    def inverse_transform(self, X: Rows, **params: Any) -> Answer:
        """Transform every row back.

        Parameters
        ----------
        X : array-like, sparse matrix or Dask collection of shape (n_samples, n_features_out)
            Samples.
        {method_params}

        Returns
        -------
        original : ndarray or Dask collection of shape (n_samples, n_features)
            In the container of X.
        """
        return self._call_method(X, "inverse_transform", **params)

    @available_if_inner_has("score_samples")
    def score_samples(self, X: Rows) -> Answer:
        """Return a score of every sample, such as its log-likelihood.

        {X_returns}
        scores : ndarray or Dask collection of shape (n_samples,)
            In the container of X.
        """
        return self._call_method(X, "score_samples")

    @available_if_inner_has("kneighbors")
    def kneighbors(
        self, X: Rows | None = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Answer:
        """Find the nearest neighbours of every sample.

        Parameters
        ----------
        X : array-like or Dask collection of shape (n_samples, n_features), default=None
            Query points; None for the training points, which are not their own neighbours.
        n_neighbors : int, default=None
            Number of neighbours; by default that of the estimator.
        return_distance : bool, default=True
            Return the distances too.

        Returns
        -------
        distances : ndarray or Dask collection of shape (n_samples, n_neighbors)
            In the container of X; only if `return_distance`.
        neighbors : ndarray or Dask collection of shape (n_samples, n_neighbors)
            Numbers of training rows, the nearest first.
        """
        kwargs = {"n_neighbors": n_neighbors, "return_distance": return_distance}
        return self._call_method(X, "kneighbors", **kwargs)

    @available_if_inner_has("set_output")
    def set_output(self, *, transform: str | None = None) -> ParallelPostFit:
        """Set the output container of ``transform``.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, default=None
            As in scikit-learn; None leaves it as it is. As in its pipelines, it is set on the
            wrapped estimator.

        Returns
        -------
        self : ParallelPostFit
            Estimator instance.
        """
        for estimator in {id(e): e for e in (self.estimator, self._inner)}.values():
            estimator.set_output(transform=transform)
        return self

    @available_if_inner_has("get_feature_names_out")
    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> np.ndarray:
        """Return the names of the columns of ``transform``."""
        return self._fitted_estimator().get_feature_names_out(input_features)

    @available_where(_check_has_score)
    def score(
        self, X: Rows, y: Values | None = None, sample_weight: Weights | None = None, **params: Any
    ) -> float:
        """Score the fitted estimator.

        By `scoring`. Without it, rows in this process are scored by the estimator itself, and Dask
        collections by accuracy or the coefficient of determination, in one pass.

        Parameters
        ----------
        {X_test}
        y : array-like or Dask array of shape (n_samples,) or (n_samples, n_outputs), default=None
            True labels or target values.
        {sample_weight}
        **params : dict
            Handed on to the estimator's own ``score``.

        Returns
        -------
        score : float
            The higher the better.
        """
        self._check_is_fitted()
        check_rows(X=X, y=y, sample_weight=sample_weight)
        warn_of_trip(X, y, sample_weight)
        params = drop_none(params, sample_weight=sample_weight)
        params = route_params(self, "score", "score", params)
        if self.scoring is None and not is_lazy(X) and hasattr(self._inner, "score"):
            return self._inner.score(with_pandas_text(X), y, **params)
        return check_scoring(self, self.scoring)(self, X, y, **params)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the metadata routing of the wrapped estimator's methods.

        Returns
        -------
        routing : sklearn.utils.metadata_routing.MetadataRouter
            See scikit-learn's user guide on metadata routing.
        """
        return make_router(self, {"fit": "fit"} | {method: method for method in ROUTED_METHODS})
