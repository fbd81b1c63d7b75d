"""Regression on a target that is transformed first."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn import compose, get_config
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.validation import check_is_fitted

from skfleet._doc_link import DocumentationLink, is_own
from skfleet._pipeline_steps import last_step
from skfleet._sklearn_private import validate_params
from skfleet._typing import Answer, Rows, Values, Weights
from skfleet._validation import check_target_type
from skfleet.blocks import (
    check_rows,
    compute_together,
    is_frame,
    is_lazy,
    meta_of,
    row_blocks,
    with_pandas_text,
)
from skfleet.engine import SmallFitMixin, check_fits_in_memory, is_fit_placed
from skfleet.estimators._blockwise import with_scikit_learns_docstring
from skfleet.estimators._method_dispatch import unchanged_on_failure
from skfleet.estimators.linear_model import LinearRegression
from skfleet.estimators.pipeline._fit import as_blockwise
from skfleet.estimators.pipeline._task_models import is_estimator
from skfleet.inference import OutputSpec, call_method, first_rows, map_rows
from skfleet.metrics import r2_score


@with_scikit_learns_docstring
class TransformedTargetRegressor(
    SmallFitMixin, DocumentationLink, compose.TransformedTargetRegressor
):
    """On a Dask target the transformer is fitted and applied block by block, and the regressor is
    fitted on Dask rows, by default :class:`skfleet.estimators.LinearRegression`; for one of another
    library the rows are computed in the calling process. Predictions of Dask rows are lazy. That
    functions are inverse of each other is checked on the first rows.
    """

    def fit(self, X: Rows, y: Values, **fit_params: Any) -> TransformedTargetRegressor:
        """Fit the transformer on the target, and the regressor on the transformed target.

        Parameters
        ----------
        X : {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame} of shape \
                (n_samples, n_features)
            Training data.
        y : {array-like, Dask array, Dask Series or Dask DataFrame} of shape (n_samples,) or \
                (n_samples, n_outputs)
            Target values.
        **fit_params : dict
            Passed to ``fit`` of the regressor, or what it requests with metadata routing enabled.

        Returns
        -------
        self : TransformedTargetRegressor
            Fitted estimator.
        """
        check_rows(X=X, y=y)
        X = with_pandas_text(X)
        if is_lazy(X) and not _reads_dask_rows(self.regressor):
            check_fits_in_memory(row_blocks(X, dtype=None), type(self.regressor).__name__)
            X, y, *values = compute_together(X, y, *fit_params.values())
            X, fit_params = with_pandas_text(X), dict(zip(fit_params, values, strict=True))
        # A task that has all Dask rows learns what predicts Dask rows too.
        if not is_lazy(y) and (is_lazy(X) or not is_fit_placed()):
            return super().fit(X, y, **fit_params)
        with unchanged_on_failure(self):
            return self._fit_on_dask(X, y, fit_params)

    @property
    def _single_task_bytes(self) -> float:
        if self.regressor is None or not _reads_dask_rows(self.regressor):
            return math.inf if self.regressor is None else 0.0
        return float(getattr(last_step(self.regressor), "_single_task_bytes", 0.0))

    def _fit_on_dask(self, X: Any, y: Any, params: dict[str, Any]) -> TransformedTargetRegressor:
        validate_params(self)
        check_target_type(y, numeric=True)
        self._training_dim = y.ndim
        columns = _as_matrix(y)
        self.transformer_ = self._new_transformer()
        transformed = self.transformer_.fit(columns).transform(columns)
        if self.check_inverse:
            self._check_inverse(first_rows(columns) if is_lazy(columns) else columns[:2])
        if transformed.ndim == 2 and transformed.shape[1] == 1 and y.ndim == 1:
            transformed = transformed[:, 0]
        self.regressor_ = LinearRegression() if self.regressor is None else clone(self.regressor)
        if get_config()["enable_metadata_routing"]:
            params = process_routing(self, "fit", **params).regressor.fit
        self.regressor_.fit(X, transformed, **params)
        if hasattr(self.regressor_, "feature_names_in_"):
            self.feature_names_in_ = self.regressor_.feature_names_in_
        return self

    def _new_transformer(self) -> Any:
        """Return an unfitted transformer of the target, or raise."""
        functions = {"func": self.func, "inverse_func": self.inverse_func}
        if self.transformer is not None:
            if any(functions.values()):
                raise ValueError(
                    "'transformer' and functions 'func'/'inverse_func' cannot both be set."
                )
            return as_blockwise(self.transformer)
        if (self.func is None) != (self.inverse_func is None):
            lacking, existing = sorted(functions, key=lambda name: functions[name] is not None)
            raise ValueError(
                f"When '{existing}' is provided, '{lacking}' must also be provided. If {lacking} "
                "is supposed to be the default, you need to explicitly pass it the identity "
                "function."
            )
        transformer = FunctionTransformer(
            validate=True, check_inverse=self.check_inverse, **functions
        )
        return as_blockwise(transformer.set_output(transform="default"))

    def _check_inverse(self, rows: Any) -> None:
        transformed = self.transformer_.transform(rows)
        if not np.allclose(rows, self.transformer_.inverse_transform(transformed)):
            warnings.warn(
                "The provided functions or transformer are not strictly inverse of each other. If "
                "you are sure you want to proceed regardless, set 'check_inverse=False'",
                stacklevel=4,
            )

    def predict(self, X: Rows, **predict_params: Any) -> Answer:
        """Predict with the regressor, and transform its predictions back.

        Parameters
        ----------
        X : {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame} of shape \
                (n_samples, n_features)
            Samples.
        **predict_params : dict
            Passed to ``predict`` of the regressor.

        Returns
        -------
        y_hat : ndarray or Dask collection of shape (n_samples,) or (n_samples, n_outputs)
            Predicted values, in the container of X.
        """
        check_is_fitted(self)
        if not is_lazy(X):
            return super().predict(with_pandas_text(X), **predict_params)
        return call_method(self, self, "predict", X, **predict_params)

    def score(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> float:
        """Return the coefficient of determination of the predictions.

        Parameters
        ----------
        X : {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame} of shape \
                (n_samples, n_features)
            Test samples.
        y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_outputs)
            True values.
        sample_weight : array-like or Dask collection of shape (n_samples,), default=None
            Sample weights.

        Returns
        -------
        score : float
            At most 1.
        """
        return r2_score(y, self.predict(X), sample_weight=sample_weight)


def _reads_dask_rows(regressor: Any) -> bool:
    """Return whether a regressor, or the first step of a pipeline, is of this library.

    Another one would read the rows as an array, without the names of their columns.
    """
    if type(regressor) is Pipeline:
        regressor = next((step for _, step in regressor.steps if is_estimator(step)), None)
    return regressor is None or is_own(regressor)


def _as_matrix(y: Any) -> Any:
    """Return a target as a matrix without names."""
    meta = meta_of(y) if is_lazy(y) else y
    if meta.ndim > 2:
        raise ValueError(
            f"y must have one or two dimensions on Dask. Got {meta.ndim} instead. Reshape it, or "
            "compute it."
        )
    width = meta.shape[1] if meta.ndim == 2 else 1
    dtype = np.result_type(*meta.dtypes) if is_frame(meta) and meta.ndim == 2 else meta.dtype
    dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(np.float64)
    if not is_lazy(y):
        return _values(dtype, y)
    output = OutputSpec(dtype, width, is_array=True)
    return map_rows(_values, dtype, y, output, convert=False, name="target")


def _values(dtype: np.dtype, rows: Any) -> Any:
    values = rows.to_numpy(dtype) if is_frame(rows) else rows
    return values.reshape(len(values), -1)
