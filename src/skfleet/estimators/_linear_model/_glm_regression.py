"""Regression for counts, positive and other targets: Poisson, Gamma and Tweedie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from skfleet._validation import (
    check_choice,
    check_count,
    check_flag,
    check_real,
    check_total_weight,
)
from skfleet.blocks import Output
from skfleet.estimators._base import FleetEstimator
from skfleet.estimators._linear_model._glm import (
    SOLVERS,
    Model,
    fit_glm,
    null_of_targets,
    report,
    surveyed,
)
from skfleet.estimators._linear_model._predictor import linear_predictor
from skfleet.glm import Labels, Tweedie
from skfleet.metrics import d2_tweedie_score


def check_targets(y: Any, loss: Tweedie, name: str) -> None:
    """Raise for targets that a loss is not defined for."""
    allowed = loss.allows(y)
    if not bool(np.all(allowed)):
        wrong = np.asarray(y)[~np.asarray(allowed)][0]
        raise ValueError(
            f"y must be {loss.target} for {name}. Got {wrong:g} instead: some value(s) of y are "
            "out of the valid range of the loss. Drop those rows, or choose another distribution."
        )


class _Regressor(RegressorMixin, FleetEstimator, ABC):
    """A regressor with a loss, a link and an L2 penalty."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
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
        check_real("alpha", self.alpha, 0, open="r")
        check_real("tol", self.tol, 0, open="l")
        check_count("max_iter", self.max_iter)
        check_flag("fit_intercept", self.fit_intercept)
        check_choice("solver", self.solver, SOLVERS)

    def predict(self, X: Any) -> Any:
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
        return self._answer(expected, X, Output(self.coef_.dtype), model=model)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
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


class PoissonRegressor(_Regressor):
    r"""Regression for counts, with a log link and an L2 penalty.

    Minimises :math:`\frac{1}{\sum_i w_i} \sum_i w_i (e^{\eta_i} - y_i \eta_i) + \frac{\alpha}{2}
    \|\beta\|^2` with :math:`\eta_i = x_i^T \beta + b`, as
    :class:`sklearn.linear_model.PoissonRegressor` does (McCullagh and Nelder, 1989, Generalized
    Linear Models, chapter 6).

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the L2 penalty, at least 0.
    fit_intercept : bool, default=True
        Fit the unpenalised intercept b; otherwise it is 0.
    solver : str, default="auto"
        "auto" takes Newton's method for up to 600 coefficients (100 if sparse, 1,200 where rows are
        loaded in each pass) and L-BFGS for more. scikit-learn's "lbfgs" and "newton-cholesky"
        choose the method. The default is another than scikit-learn's.
    max_iter : int, default=100
        The most iterations.
    tol : float, default=1e-4
        Stop when no entry of the gradient exceeds `tol` times the largest one of the model that
        only knows the mean, with columns at unit deviation: neither the scale of a column nor that
        of y plays a part, other than in scikit-learn.
    warm_start : bool, default=False
        Start from the solution of the last ``fit``.
    verbose : int, default=0
        Above 0, print which solver ran, its iterations and whether it converged.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients.
    intercept_ : float
        Intercept.
    n_iter_ : int
        Iterations of the solver.
    solver_ : {"newton", "lbfgs"}
        The solver that ran.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X has names that are all text.

    Raises
    ------
    ValueError
        When a parameter, the rows or the targets are not as above.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        When `max_iter` iterations did not reach `tol`.

    See Also
    --------
    GammaRegressor : For positive targets.
    TweedieRegressor : For any of the family.

    Notes
    -----
    One pass over the rows finds means and deviations and, of many rows, draws a sample. Newton's
    method, started from the sample's solution, then takes one pass to begin with and one per
    iteration (typically 2), in which each worker sums a Hessian of n_features x n_features float64
    numbers; L-BFGS takes about one pass per iteration (tens), and sums a gradient. Rows that fit
    stay in the workers' memory; others are loaded in each pass.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.estimators import PoissonRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 3))
    >>> y = rng.poisson(np.exp(X[:, 0]))
    >>> X, y = da.from_array(X, chunks=(100, 3)), da.from_array(y, chunks=100)
    >>> model = PoissonRegressor(alpha=0.01).fit(X, y)
    >>> bool(model.score(X, y) > 0.3)
    True
    """

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
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose

    def _loss(self) -> Tweedie:
        """Return the loss to minimise."""
        return Tweedie(1.0)


class GammaRegressor(_Regressor):
    r"""Regression for positive targets, with a log link and an L2 penalty.

    Minimises :math:`\frac{1}{\sum_i w_i} \sum_i w_i (y_i e^{-\eta_i} + \eta_i) + \frac{\alpha}{2}
    \|\beta\|^2` with :math:`\eta_i = x_i^T \beta + b`, as
    :class:`sklearn.linear_model.GammaRegressor` does (McCullagh and Nelder, 1989, Generalized
    Linear Models, chapter 8).

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the L2 penalty, at least 0.
    fit_intercept : bool, default=True
        Fit the unpenalised intercept b; otherwise it is 0.
    solver : str, default="auto"
        "auto" takes Newton's method for up to 600 coefficients (100 if sparse, 1,200 where rows are
        loaded in each pass) and L-BFGS for more. scikit-learn's "lbfgs" and "newton-cholesky"
        choose the method. The default is another than scikit-learn's.
    max_iter : int, default=100
        The most iterations.
    tol : float, default=1e-4
        Stop when no entry of the gradient exceeds `tol` times the largest one of the model that
        only knows the mean, with columns at unit deviation: neither the scale of a column nor that
        of y plays a part, other than in scikit-learn.
    warm_start : bool, default=False
        Start from the solution of the last ``fit``.
    verbose : int, default=0
        Above 0, print which solver ran, its iterations and whether it converged.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients.
    intercept_ : float
        Intercept.
    n_iter_ : int
        Iterations of the solver.
    solver_ : {"newton", "lbfgs"}
        The solver that ran.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X has names that are all text.

    Raises
    ------
    ValueError
        When a parameter, the rows or the targets are not as above.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        When `max_iter` iterations did not reach `tol`.

    See Also
    --------
    PoissonRegressor : For counts.
    TweedieRegressor : For any of the family.

    Notes
    -----
    One pass over the rows finds means and deviations and, of many rows, draws a sample. Newton's
    method, started from the sample's solution, then takes one pass to begin with and one per
    iteration (typically 2), in which each worker sums a Hessian of n_features x n_features float64
    numbers; L-BFGS takes about one pass per iteration (tens), and sums a gradient. Rows that fit
    stay in the workers' memory; others are loaded in each pass.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.estimators import GammaRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 3))
    >>> y = rng.gamma(2.0, np.exp(X[:, 0]) / 2)
    >>> X, y = da.from_array(X, chunks=(100, 3)), da.from_array(y, chunks=100)
    >>> model = GammaRegressor(alpha=0.01).fit(X, y)
    >>> bool(model.score(X, y) > 0.3)
    True
    """

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
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose

    def _loss(self) -> Tweedie:
        """Return the loss to minimise."""
        return Tweedie(2.0)


class TweedieRegressor(_Regressor):
    r"""Regression for targets whose variance is a power of their mean, with an L2 penalty.

    Minimises :math:`\frac{1}{2 \sum_i w_i} \sum_i w_i d_p(y_i, \mu_i) + \frac{\alpha}{2}
    \|\beta\|^2` with the deviance d of power p and :math:`\mu_i = e^{x_i^T \beta + b}`, or without
    the exponential, as :class:`sklearn.linear_model.TweedieRegressor` does (Jørgensen, 1987,
    Exponential dispersion models).

    Parameters
    ----------
    power : float, default=0.0
        Power p of the mean that the variance is: 0 for the normal, 1 for the Poisson, 2 for the
        Gamma and 3 for the inverse Gaussian distribution; from 1 to 2 for sums of positive amounts,
        of which there may be none. Not between 0 and 1.
    alpha : float, default=1.0
        Strength of the L2 penalty, at least 0.
    fit_intercept : bool, default=True
        Fit the unpenalised intercept b; otherwise it is 0.
    link : {"auto", "identity", "log"}, default="auto"
        What of the mean is linear in the columns; "auto" is the identity for powers of 0 and below,
        else the logarithm.
    solver : str, default="auto"
        "auto" takes Newton's method for up to 600 coefficients (100 if sparse, 1,200 where rows are
        loaded in each pass) and L-BFGS for more. scikit-learn's "lbfgs" and "newton-cholesky"
        choose the method. The default is another than scikit-learn's.
    max_iter : int, default=100
        The most iterations.
    tol : float, default=1e-4
        Stop when no entry of the gradient exceeds `tol` times the largest one of the model that
        only knows the mean, with columns at unit deviation: neither the scale of a column nor that
        of y plays a part, other than in scikit-learn.
    warm_start : bool, default=False
        Start from the solution of the last ``fit``.
    verbose : int, default=0
        Above 0, print which solver ran, its iterations and whether it converged.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients.
    intercept_ : float
        Intercept.
    n_iter_ : int
        Iterations of the solver.
    solver_ : {"newton", "lbfgs"}
        The solver that ran.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X has names that are all text.

    Raises
    ------
    ValueError
        When a parameter, the rows or the targets are not as above.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        When `max_iter` iterations did not reach `tol`.

    See Also
    --------
    PoissonRegressor : For counts.
    GammaRegressor : For positive targets.

    Notes
    -----
    One pass over the rows finds means and deviations and, of many rows, draws a sample. Newton's
    method, started from the sample's solution, then takes one pass to begin with and one per
    iteration (typically 2), in which each worker sums a Hessian of n_features x n_features float64
    numbers; L-BFGS takes about one pass per iteration (tens), and sums a gradient. Rows that fit
    stay in the workers' memory; others are loaded in each pass.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.estimators import TweedieRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 3))
    >>> y = rng.poisson(np.exp(X[:, 0])) * 1.5
    >>> X, y = da.from_array(X, chunks=(100, 3)), da.from_array(y, chunks=100)
    >>> model = TweedieRegressor(power=1.5, alpha=0.01).fit(X, y)
    >>> bool(model.score(X, y) > 0.3)
    True
    """

    def __init__(
        self,
        *,
        power: float = 0.0,
        alpha: float = 1.0,
        fit_intercept: bool = True,
        link: str = "auto",
        solver: str = "auto",
        max_iter: int = 100,
        tol: float = 1e-4,
        warm_start: bool = False,
        verbose: int = 0,
    ) -> None:
        self.power = power
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.link = link
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose

    def _loss(self) -> Tweedie:
        """Return the loss to minimise."""
        log = self.power > 0 if self.link == "auto" else self.link == "log"
        return Tweedie(float(self.power), log_link=log)

    def _check_parameters(self) -> None:
        """Raise for parameters that cannot be, before any work."""
        super()._check_parameters()
        check_real("power", self.power, -np.inf)
        if 0 < self.power < 1:
            raise ValueError(
                f"power must not be between 0 and 1. Got {self.power!r} instead. No distribution "
                "has it; take 0 or 1."
            )
        check_choice("link", self.link, ("auto", "identity", "log"))
