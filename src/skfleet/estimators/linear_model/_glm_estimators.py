"""Poisson, Gamma and Tweedie regression."""

from __future__ import annotations

import numpy as np

from skfleet._validation import (
    check_in_interval,
    check_option,
)
from skfleet.estimators.linear_model._glm_base import GlmRegressor
from skfleet.glm import Tweedie


class PoissonRegressor(GlmRegressor):
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
        Fit the intercept b, without a penalty; otherwise it is 0.
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
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device to fit on; "auto" takes that of :func:`skfleet.config_context`.

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
        Number of features seen during ``fit``.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of features seen during ``fit``, where X has names that are all strings.

    Raises
    ------
    ValueError
        If a parameter, X or y is invalid.

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

    def _loss(self) -> Tweedie:
        return Tweedie(1.0)


class GammaRegressor(GlmRegressor):
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
        Fit the intercept b, without a penalty; otherwise it is 0.
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
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device to fit on; "auto" takes that of :func:`skfleet.config_context`.

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
        Number of features seen during ``fit``.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of features seen during ``fit``, where X has names that are all strings.

    Raises
    ------
    ValueError
        If a parameter, X or y is invalid.

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

    def _loss(self) -> Tweedie:
        return Tweedie(2.0)


class TweedieRegressor(GlmRegressor):
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
        Fit the intercept b, without a penalty; otherwise it is 0.
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
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device to fit on; "auto" takes that of :func:`skfleet.config_context`.

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
        Number of features seen during ``fit``.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of features seen during ``fit``, where X has names that are all strings.

    Raises
    ------
    ValueError
        If a parameter, X or y is invalid.

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
        device: str = "auto",
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
        self.device = device

    def _loss(self) -> Tweedie:
        log = self.power > 0 if self.link == "auto" else self.link == "log"
        return Tweedie(float(self.power), log_link=log)

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        super()._check_parameters()
        check_in_interval("power", self.power, -np.inf)
        if 0 < self.power < 1:
            raise ValueError(
                f"power must not be between 0 and 1. Got {self.power!r} instead. No distribution "
                "has it; take 0 or 1."
            )
        check_option("link", self.link, ("auto", "identity", "log"))
