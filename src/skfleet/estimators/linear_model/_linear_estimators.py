"""Base classes of linear models, and class weights."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_scalar
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import check_is_fitted

from skfleet._array import (
    is_not_numpy,
    namespace,
    to_device_of,
    to_host,
)
from skfleet._linalg import affine, dense_rows, is_sparse
from skfleet._sklearn_private import invalid_parameter
from skfleet._typing import Answer, Rows, Values, Weights
from skfleet._validation import check_in_interval
from skfleet.blocks import RowBlocks, check_rows
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._fleet_estimator import FleetEstimator
from skfleet.glm import Products, round_coef
from skfleet.inference import OutputSpec, class_names
from skfleet.metrics import accuracy_score, r2_score


def linear_predictor(model: tuple[Any, ...], X: Any) -> Any:
    """Return X @ coef.T + intercept, on the device of X."""
    return affine(X, model[0].T, model[1])


def round_model(coef: np.ndarray, sums: Products, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients and intercepts by target, in the precision of the rows."""
    return round_coef(coef, sums.x_mean, sums.y_mean, dtype)


def y_ndim(y: Any) -> int:
    check_rows(y=y)
    return len(y.shape) if hasattr(y, "shape") else np.asarray(y).ndim


def check_array_like(name: str, values: Any) -> np.ndarray:
    """Return a number, or an array-like of numbers, as an array of objects.

    Raise scikit-learn's error, a ValueError and a TypeError, for what it does not iterate.
    """
    array = np.asarray(values, dtype=object)
    is_number = isinstance(values, Real)
    if array.ndim == 0 and not is_number and not hasattr(values, "__array__"):
        advice = f"Give list({name})." if isinstance(values, Iterable) else "Give a list of them."
        advice = "Give numbers." if isinstance(values, str) else advice
        raise invalid_parameter(
            f"{name} must be a number or an array-like of numbers. Got a {type(values).__name__} "
            f"instead. {advice}"
        )
    return array


def check_alphas(alphas: Any, *, allow_zero: bool) -> np.ndarray:
    """Return penalties to try as an array of numbers; raise as scikit-learn does for others."""
    values = np.atleast_1d(check_array_like("alphas", alphas))
    if values.ndim > 1:
        raise ValueError(
            f"alphas must have one dimension. Got {values.ndim} instead. Give them in a list."
        )
    if not values.size:
        raise ValueError("alphas must have at least one number. Got none instead. Give some.")
    for i, alpha in enumerate(values):
        name = f"alphas[{i}]" if len(values) > 1 else "alphas"
        boundaries = "left" if allow_zero else "neither"
        check_scalar(alpha, name, Real, min_val=0.0, include_boundaries=boundaries)
        check_in_interval(name, alpha, 0, open="r")
    return values.astype(np.float64)


@document
class LinearRegressor(RegressorMixin, FleetEstimator):
    """Base class of linear regressors."""

    def predict(self, X: Rows) -> Answer:
        """Predict targets.

        {X_returns}
        y : ndarray or Dask collection of shape (n_samples,) or (n_samples, n_targets)
            In the container of X; lazy for Dask collections.
        """
        check_is_fitted(self)
        coef = self.coef_
        coef = dense_rows(coef).ravel() if is_sparse(coef) else coef  # of one target
        output = OutputSpec(coef.dtype, None if coef.ndim == 1 else len(coef))
        return self._predict_blockwise(
            linear_predictor, X, output, model=(coef, self.intercept_), takes_parts=True
        )

    def score(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> float:
        """Return the coefficient of determination of the predictions, in one pass.

        Parameters
        ----------
        {X_test}
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_targets)
            True target values.
        {weight_returns_score}
            At most 1.
        """
        return r2_score(y, self.predict(X), sample_weight=sample_weight)

    def _set_coef(
        self,
        coef: np.ndarray,
        intercept: np.ndarray,
        rows: RowBlocks,
        *,
        one_target: bool,
        column: bool,
    ) -> None:
        """Set `coef_` and `intercept_`, in the precision of the rows."""
        self.coef_ = (coef[0] if one_target else coef).astype(rows.dtype, copy=False)
        intercept = intercept.astype(rows.dtype)
        self.intercept_ = (intercept[0] if column else intercept) if self.fit_intercept else 0.0


@document
class LinearClassifier(ClassifierMixin, FleetEstimator):
    """Base class of linear classifiers."""

    def decision_function(self, X: Rows) -> Answer:
        """Predict confidence scores for samples.

        {X_returns}
        scores : ndarray or Dask collection of shape (n_samples,) or (n_samples, n_classes)
            One value a row for two classes; above 0 predicts ``classes_[1]``. In the container X
            came in; lazy for Dask collections.
        """
        check_is_fitted(self)
        n_outputs = 1 if self.coef_.ndim == 1 else self.coef_.shape[0]
        output = OutputSpec(self.coef_.dtype, None if n_outputs == 1 else n_outputs)
        return self._predict_from_linear(_scores, X, output)

    def predict(self, X: Rows) -> Answer:
        """Predict a label for every row.

        {X_returns}
        labels : ndarray or Dask collection of shape (n_samples,)
            In the container of X; lazy for Dask collections.
        """
        check_is_fitted(self)
        output = OutputSpec.of_labels(self.classes_)
        return self._predict_from_linear(predicted_labels, X, output)

    def score(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> float:
        """Return the accuracy of the predicted labels, in one pass.

        Parameters
        ----------
        {X_test}
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            True labels.
        {weight_returns_score}
            The fraction of labels that are right.
        """
        return accuracy_score(y, self.predict(X), sample_weight=sample_weight)

    def _predict_per_class(self, func: Any, X: Any) -> Any:
        """Predict by a function that returns a column per class."""
        check_is_fitted(self)
        names = class_names(self.classes_, X)
        output = OutputSpec(self.coef_.dtype, len(self.classes_), names)
        return self._predict_from_linear(func, X, output)

    def _predict_from_linear(self, func: Any, X: Any, output: OutputSpec) -> Any:
        coef = self.coef_ if self.coef_.ndim == 2 else self.coef_[None, :]
        model = (coef, self.intercept_, self.classes_)
        return self._predict_blockwise(func, X, output, model=model, takes_parts=True)


class SparseCoefficients:
    """Mixin for converting `coef_` to and from a sparse matrix."""

    def sparsify(self) -> Self:
        """Convert `coef_` to a SciPy sparse matrix, which saves memory where most of it is zero.

        Returns
        -------
        self : estimator
            With sparse `coef_`; fit again, or call `densify`, for a dense one.
        """
        check_is_fitted(self)
        self.coef_ = sparse.csr_matrix(self.coef_)
        return self

    def densify(self) -> Self:
        """Convert `coef_` back to a dense array.

        Returns
        -------
        self : estimator
            With dense `coef_`.
        """
        check_is_fitted(self)
        self.coef_ = dense_rows(self.coef_)
        return self


def check_class_weight(class_weight: Any) -> None:
    """Raise unless class weights are None, "balanced" or a dict without negative values."""
    if class_weight is None or (isinstance(class_weight, str) and class_weight == "balanced"):
        return
    if not isinstance(class_weight, dict):
        raise ValueError(
            f"class_weight must be None, 'balanced' or a dict. Got {class_weight!r} instead."
        )
    if any(not weight >= 0 for weight in class_weight.values()):
        raise ValueError(f"class_weight must not be negative. Got {class_weight!r} instead.")


def weights_of_classes(class_weight: Any, counts: Any) -> np.ndarray | None:
    """Return the weights of the classes in order, None for weights of 1."""
    if class_weight is None:
        return None
    if isinstance(class_weight, str):
        return counts.weight.sum() / (len(counts.labels) * counts.weight)
    # y is every label once, so that scikit-learn raises for keys that are no label.
    return compute_class_weight(class_weight, classes=counts.labels, y=counts.labels)


def _scores(model: Any, X: Any) -> Any:
    eta = linear_predictor(model, X)
    return eta[:, 0] if eta.shape[1] == 1 else eta


def predicted_labels(model: Any, X: Any) -> Any:
    """Return predicted labels, on the host where no device can hold them."""
    eta = linear_predictor(model, X)
    xp = namespace(eta)
    codes = xp.astype(eta[:, 0] > 0, xp.int64) if eta.shape[1] == 1 else xp.argmax(eta, axis=1)
    labels = to_device_of(model[2], codes)
    return xp.take(labels, codes) if is_not_numpy(labels) else labels[to_host(codes)]
