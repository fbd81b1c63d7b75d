"""Ordinary least squares, in one pass over the rows."""

from __future__ import annotations

import numpy as np
from sklearn.base import MultiOutputMixin

from skfleet._typing import Rows, Values, Weights
from skfleet._validation import check_bool, check_in_interval
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.linear_model._iterative_least_squares import (
    exceeds_gram_limit,
    fit_iteratively,
    warn_unless_solved,
)
from skfleet.estimators.linear_model._linear_estimators import LinearRegressor, round_model, y_ndim
from skfleet.glm import compute_products


@document
class LinearRegression(MultiOutputMixin, LinearRegressor):
    r"""Ordinary least squares, in one pass over the rows.

    Minimises :math:`\sum_i w_i (y_i - x_i^T \beta - b)^2`, as
    :class:`sklearn.linear_model.LinearRegression` does (Björck, 1996, Numerical Methods for Least
    Squares Problems, section 2.2).

    Parameters
    ----------
    fit_intercept : bool, default=True
        Fit the intercept b; otherwise it is 0.
    {copy_X}
    tol : float, default=1e-6
        Directions of X whose singular value is at most `tol` times the largest count for nothing,
        with columns at unit length (scikit-learn takes them as they are, and so drops columns that
        are small). The solution is the shortest one where there are such directions.
    {n_jobs}
    {positive}
    {device}

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercept.
    rank_ : int
        Number of directions of X that count. Not for sparse rows, nor with `positive`.
    singular_ : ndarray of shape (min(n_samples, n_features),)
        Singular values of X about its mean. Not for sparse rows, nor with `positive`.
    {features_in_and_errors}

    See Also
    --------
    Ridge : With a penalty.
    ElasticNet : With a penalty that leaves columns out.

    Notes
    -----
    One pass over the rows, whatever the number of targets, for up to 20,000 columns, 5,000 if they
    are sparse; with more, L-BFGS makes about one pass per iteration, and stops when no entry of the
    gradient exceeds `tol` times the largest one at the start; of many solutions it finds one, not
    the shortest. Each worker keeps a Gram matrix of n_features x n_features float64 numbers, and
    one is sent to the client. Products are summed about the means of each block and merged exactly,
    so large offsets cost no digits. Up to as many rows as columns are taken as they are, and where
    rows are ill-conditioned, a second pass sums them up in double precision, or finds a triangular
    factor of them (up to 5,000 columns), as products square their condition.

    Examples
    --------
    {diabetes}
    >>> model = LinearRegression().fit(X, y)
    >>> round(model.score(X, y), 3), model.rank_
    (0.518, 10)
    """

    def __init__(
        self,
        *,
        fit_intercept: bool = True,
        copy_X: bool = True,
        tol: float = 1e-6,
        n_jobs: int | None = None,
        positive: bool = False,
        device: str = "auto",
    ) -> None:
        self.fit_intercept = fit_intercept
        self.copy_X = copy_X
        self.tol = tol
        self.n_jobs = n_jobs
        self.positive = positive
        self.device = device

    @run_on_device
    def fit(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> LinearRegression:
        """Fit the model in one pass.

        {fit_targets}
        """
        check_in_interval("tol", self.tol, 0)
        check_bool("positive", self.positive)
        rows = self._validate_rows(X, y, sample_weight, y_numeric=True, multi_output=True)
        column = y_ndim(y) == 1
        if exceeds_gram_limit(rows):
            if self.positive:
                raise ValueError(
                    f"positive must be False for X of {rows.n_features} columns. Got True instead. "
                    "Leave columns out first."
                )
            fit = fit_iteratively(rows, self)
            self._set_coef(fit.coef, fit.intercept, rows, one_target=column, column=column)
            return self
        sums = compute_products(rows, centred=self.fit_intercept)
        sums = sums if self.fit_intercept else sums.uncentered()
        if self.positive:
            coef, converged = sums.solve_positive(0.0)
            warn_unless_solved(converged)
        else:
            coef, _, rank = sums.solve_ridge(0.0, tol=self.tol)
            if not rows.is_sparse:
                n_values = min(rows.n_features, int(rows.n_rows or rows.n_features))
                values = np.zeros(n_values, rows.dtype)
                known = sums.singular_values()[:n_values]
                values[: len(known)] = known
                self.rank_, self.singular_ = rank, values
        coef, intercept = round_model(coef, sums, rows.dtype)
        self._set_coef(coef, intercept, rows, one_target=column, column=column)
        return self
