"""What regressions for counts, positive and other targets have in common: fit and answers."""

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
from skfleet._validation import (
    check_bool,
    check_in_interval,
    check_option,
    check_positive_int,
    check_total_weight,
    check_verbose,
)
from skfleet.estimators._base import FleetEstimator
from skfleet.estimators._device_dispatch import run_on_device
from skfleet.estimators.linear_model._base import linear_predictor
from skfleet.estimators.linear_model._glm_fit import (
    SOLVERS,
    Model,
    fit_glm,
    null_of_targets,
    report,
    surveyed,
)
from skfleet.glm import Labels, Tweedie
from skfleet.inference import OutputSpec
from skfleet.metrics import d2_tweedie_score


def check_targets(y: Any, loss: Tweedie, name: str) -> None:
    """Raise for targets that a loss is not defined for."""
    y = astype(y, FLOAT64)
    allowed = loss.allows(y)
    if not bool(namespace(allowed).all(allowed)):
        wrong = to_host(y)[~to_host(allowed)][0]
        raise ValueError(
            f"y must be {loss.target} for {name}. Got {wrong:g} instead: some value(s) of y are "
            "out of the valid range of the loss. Drop those rows, or choose another distribution."
        )


class GlmRegressor(RegressorMixin, FleetEstimator, ABC):
    """A regressor with a loss, a link and an L2 penalty."""

    @run_on_device
    def fit(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.
        y : values of shape (n_samples,)
            Targets, however they are cut.
        sample_weight : float or values of shape (n_samples,), default=None
            Weights of the rows; only their proportions count.

        Returns
        -------
        self : estimator
            Fitted.
        """
        self._check_parameters()
        loss = self._loss()
        check = partial(check_targets, loss=loss, name=type(self).__name__)
        rows = self._fit_rows(X, y, sample_weight, y_numeric=True)
        how = {"fit_intercept": self.fit_intercept, "draw": not self.warm_start}
        with surveyed(rows, X, check=check, **how) as data:
            sums = data.found.targets
            check_total_weight(sums.weight)
            null, total = null_of_targets(
                loss, sums, data.scaling, fit_intercept=self.fit_intercept
            )
            last = getattr(self, "coef_", None)
            warm = self.warm_start and last is not None and len(last) == rows.n_features
            model = Model(
                loss,
                l1=0.0,
                l2=float(self.alpha),
                fit_intercept=self.fit_intercept,
                solver=self.solver,
                tol=self.tol,
                max_iter=self.max_iter,
                start=_as_start(last, self.intercept_) if warm else None,
            )
            found = fit_glm(data, model, null, total, Labels())
        report(found, model, self.verbose)
        self.coef_ = found.coef[0].astype(rows.dtype, copy=False)
        self.intercept_ = float(found.intercept[0])
        self.n_iter_ = found.n_iter
        self.solver_ = found.solver
        return self

    def _check_parameters(self) -> None:
        """Raise for parameters that cannot be, before any work."""
        check_in_interval("alpha", self.alpha, 0, open="r")
        check_in_interval("tol", self.tol, 0, open="l")
        check_positive_int("max_iter", self.max_iter)
        check_bool("fit_intercept", self.fit_intercept)
        check_option("solver", self.solver, SOLVERS)
        check_verbose("verbose", self.verbose)

    def predict(self, X: Rows) -> Answer:
        """Predict the expected targets.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        y : array of shape (n_samples,)
            In the container X came in; lazy for Dask collections.
        """
        check_is_fitted(self)
        model = (self.coef_[None, :], np.array([self.intercept_]), self._loss())
        return self._answer(expected, X, OutputSpec(self.coef_.dtype), model=model)

    @run_on_device
    def score(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> float:
        """Return the share of the deviance that is explained, D squared, in one pass.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.
        y : values of shape (n_samples,)
            True targets.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
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
            tags.target_tags.positive_only = bool(self._loss().target)
        return tags


def expected(model: Any, X: Any) -> Any:
    """Return the expected target of each row."""
    return model[2].mean(linear_predictor(model, X))[:, 0]


def _as_start(coef: np.ndarray, intercept: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a fitted model as a solver starts from it."""
    return coef[None, :].astype(np.float64), np.array([float(intercept)])
