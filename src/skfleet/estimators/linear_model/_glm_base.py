"""Base class of generalised linear regressors with a Tweedie loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from skfleet._array import FLOAT64, astype, namespace, to_host
from skfleet._typing import Answer, Rows, Values, Weights
from skfleet._validation import check_in_interval, check_option, check_positive_int
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._fleet_estimator import FleetEstimator
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.linear_model._glm_fit import (
    SOLVERS,
    GLMSpec,
    first_pass,
    fit_glm,
    null_model_from_targets,
)
from skfleet.estimators.linear_model._linear_estimators import linear_predictor
from skfleet.glm import ClassEncoding, Tweedie
from skfleet.inference import OutputSpec
from skfleet.metrics import d2_tweedie_score


def check_targets(y: Any, loss: Tweedie, name: str) -> None:
    """Raise for targets outside the range of a loss."""
    y = astype(y, FLOAT64)
    allowed = loss.in_y_true_range(y)
    if not bool(namespace(allowed).all(allowed)):
        wrong = to_host(y)[~to_host(allowed)][0]
        raise ValueError(
            f"y must be {loss.valid_targets} for {name}. Got {wrong:g} instead: some value(s) of y "
            "are out of the valid range of the loss. Drop those rows, or choose another "
            "distribution."
        )


@document
class GlmRegressor(RegressorMixin, FleetEstimator, ABC):
    """A regressor with a loss, a link and an L2 penalty."""

    _verbose_shows_bar = True

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        fit_intercept: bool = True,
        solver: str = "auto",
        max_iter: int = 100,
        tol: float = 1e-4,
        warm_start: bool = False,
        verbose: int = 0,
        device: str = "auto",
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.device = device

    @run_on_device
    def fit(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        {X_train}
        {y}
        sample_weight : float, array-like or Dask collection of shape (n_samples,), default=None
            Sample weights; only their proportions count.

        {returns_self}
        """
        self._check_parameters()
        loss = self._loss()
        check = partial(check_targets, loss=loss, name=type(self).__name__)
        rows = self._validate_rows(X, y, sample_weight, y_numeric=True)
        options = {"fit_intercept": self.fit_intercept, "use_sample": not self.warm_start}
        with first_pass(rows, check=check, **options) as data:
            model = GLMSpec.of(self, loss, 0.0, float(self.alpha), (rows.n_features,))
            null, total = null_model_from_targets(model, data)
            fitted = fit_glm(data, model, null, total, ClassEncoding())
        self.coef_ = fitted.coef[0].astype(rows.dtype, copy=False)
        # a number of NumPy's in the precision of the rows, but 0.0 of Python's, as in scikit-learn
        intercept = fitted.intercept.astype(rows.dtype)
        self.intercept_ = intercept[0] if self.fit_intercept else 0.0
        self.n_iter_ = fitted.n_iter
        self.solver_ = fitted.solver
        return self

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        check_in_interval("alpha", self.alpha, 0, open="r")
        check_in_interval("tol", self.tol, 0, open="l")
        check_positive_int("max_iter", self.max_iter)
        check_option("solver", self.solver, SOLVERS)

    def predict(self, X: Rows) -> Answer:
        """Predict the expected targets.

        {X_returns}
        y : ndarray or Dask collection of shape (n_samples,)
            In the container of X; lazy for Dask collections.
        """
        check_is_fitted(self)
        model = (self.coef_[None, :], np.array([self.intercept_]), self._loss())
        return self._predict_blockwise(
            expected, X, OutputSpec(self.coef_.dtype), model=model, takes_parts=True
        )

    @run_on_device
    def score(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> float:
        """Return the fraction of the deviance that is explained, D squared, in one pass.

        Parameters
        ----------
        {X_test}
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            True target values.
        {weight_returns_score}
            At most 1; 0 for predicting the mean.
        """
        power = self._loss().power
        return d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=power)

    @abstractmethod
    def _loss(self) -> Tweedie:
        """Return the loss to minimise."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        with suppress(TypeError, ValueError):  # a power that fit will refuse
            tags.target_tags.positive_only = bool(self._loss().valid_targets)
        return tags


def expected(model: Any, X: Any) -> Any:
    return model[2].mean(linear_predictor(model, X))[:, 0]
