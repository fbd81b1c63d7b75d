"""Lasso and elastic net by coordinate descent on the Gram matrix, from one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import MultiOutputMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from skfleet._typing import RandomState, Rows, Values, Weights
from skfleet._validation import check_bool, check_in_interval, check_option, check_positive_int
from skfleet._warnings import warn
from skfleet.blocks import RowBlocks
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.linear_model._iterative_least_squares import (
    exceeds_gram_limit,
    fit_iteratively,
)
from skfleet.estimators.linear_model._linear_estimators import LinearRegressor, round_model, y_ndim
from skfleet.glm import PathPoint, Products, compute_products, elastic_net_path


def check_coordinate_descent(model: Any) -> None:
    """Raise for invalid parameters of coordinate descent."""
    check_in_interval("tol", model.tol, 0)
    check_positive_int("max_iter", model.max_iter)
    check_bool("positive", model.positive)
    check_option("selection", model.selection, ("cyclic", "random"))
    if np.ndim(model.precompute) == 0 and not (
        isinstance(model.precompute, str) and model.precompute == "auto"
    ):
        check_bool("precompute", model.precompute)


def check_gram(gram: Any, sums: Products, n_rows: int | None) -> None:
    """Raise for a Gram matrix that is not that of the rows, or warn where it cannot be.

    It is of the rows about their means, with weights that add up to the number of rows.
    """
    if np.allclose(sums.x_mean, 0.0):
        expected = sums.gram if n_rows is None else sums.gram * (n_rows / sums.weight)
        gram = np.asarray(gram)
        rtol = 1e-4 if gram.dtype == np.float32 else 1e-7
        if gram.shape != expected.shape or not np.allclose(gram, expected, rtol=rtol, atol=1e-5):
            raise ValueError(
                "Gram matrix passed in via 'precompute' parameter did not pass validation: it must "
                "be that of X, with sample_weight. Leave it out: a fit makes it in its one pass."
            )
    else:
        warn(
            "Gram matrix was provided but X was centered to fit intercept: recomputing Gram matrix."
        )


def warn_unless_converged(points: list[PathPoint], model: Any) -> None:
    """Warn of path points that did not converge."""
    if not all(point.converged for point in points):
        warn(
            f"Coordinate descent did not reach tol={model.tol:g} in max_iter={model.max_iter} "
            "sweeps. Increase max_iter, or alpha.",
            ConvergenceWarning,
        )


@document
class ElasticNet(MultiOutputMixin, LinearRegressor):
    r"""Linear least squares with L1 and L2 penalties, in one pass over the rows.

    Minimises :math:`\frac{1}{2 \sum_i w_i} \sum_i w_i (y_i - x_i^T \beta - b)^2 + \alpha \rho
    \|\beta\|_1 + \frac{\alpha (1 - \rho)}{2} \|\beta\|^2` with :math:`\rho` = `l1_ratio`, as
    :class:`sklearn.linear_model.ElasticNet` does (Zou and Hastie, 2005, Regularization and variable
    selection via the elastic net).

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalties, at least 0.
    l1_ratio : float, default=0.5
        Fraction of the L1 penalty, from 0 to 1.
    {elastic_net_gram}
    max_iter : int, default=1000
        The most sweeps over the coefficients.
    {copy_X}
    tol : float, default=1e-4
        Stop when the duality gap is at most `tol` times the sum of squares of y, as in
        scikit-learn. The coefficients in use are then solved for, where that takes little.
    {elastic_net_options}

    Attributes
    ----------
    {elastic_net_attributes}

    See Also
    --------
    Lasso : With the L1 penalty alone.
    ElasticNetCV : With the penalties chosen by cross-validation, in one pass too.

    Notes
    -----
    One pass over the rows, whatever the number of targets and sweeps, for up to 20,000 columns,
    5,000 if they are sparse: it sums the products of columns and targets, and all else happens on
    these, or on the rows where they are no more than the columns. Of ill-conditioned rows in single
    precision a second pass sums them up in double precision. With more columns proximal Newton
    steps take a pass each (typically 5 to 20), for the products of the columns in use. Each worker
    keeps a Gram matrix of n_features x n_features float64 numbers, and one is sent to the client.

    Examples
    --------
    {diabetes}
    >>> model = ElasticNet(alpha=0.01, l1_ratio=0.9).fit(X, y)
    >>> round(model.score(X, y), 2), int((model.coef_ != 0).sum())
    (0.49, 10)
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        l1_ratio: float = 0.5,
        fit_intercept: bool = True,
        precompute: bool | str = False,
        max_iter: int = 1000,
        copy_X: bool = True,
        tol: float = 1e-4,
        warm_start: bool = False,
        positive: bool = False,
        random_state: RandomState = None,
        selection: str = "cyclic",
        device: str = "auto",
    ) -> None:
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.precompute = precompute
        self.max_iter = max_iter
        self.copy_X = copy_X
        self.tol = tol
        self.warm_start = warm_start
        self.positive = positive
        self.random_state = random_state
        self.selection = selection
        self.device = device

    @run_on_device
    def fit(
        self,
        X: Rows,
        y: Values,
        sample_weight: Weights | None = None,
        check_input: bool = True,
    ) -> ElasticNet:
        """Fit the model in one pass.

        Parameters
        ----------
        {X_train}
        {y_targets}
        sample_weight : float, array-like or Dask collection of shape (n_samples,), default=None
            Sample weights; only their proportions count.
        check_input : bool, default=True
            Ignored, present for compatibility with scikit-learn: the input is always checked.

        {returns_self}
        """
        if self.alpha == 0:
            warn(
                "With alpha=0, this algorithm does not converge well. You are advised to use the "
                "LinearRegression estimator"
            )
        check_in_interval("alpha", self.alpha, 0, open="r")
        check_in_interval("l1_ratio", self.l1_ratio, 0, 1)
        check_coordinate_descent(self)
        rows = self._validate_rows(X, y, sample_weight, y_numeric=True, multi_output=True)
        if exceeds_gram_limit(rows):
            self._iterate(rows, column=y_ndim(y) == 1)
            return self
        has_l1 = self.alpha * self.l1_ratio > 0
        sums = compute_products(rows, centred=self.fit_intercept, has_l1=has_l1)
        sums = sums if self.fit_intercept else sums.uncentered()
        if np.ndim(self.precompute) and not rows.is_sparse:
            check_gram(self.precompute, sums, rows.n_rows)
        points = self._solve(sums, rows, column=y_ndim(y) == 1)
        warn_unless_converged(points, self)
        return self

    def _iterate(self, rows: RowBlocks, *, column: bool) -> None:
        """Fit the model without a Gram matrix."""
        if self.positive or not column:
            raise ValueError(
                f"positive must be False and y one column for X of {rows.n_features} columns. Got "
                f"positive={self.positive!r} instead. Leave columns out first."
            )
        l1, l2 = self.alpha * self.l1_ratio, self.alpha * (1 - self.l1_ratio)
        fitted = fit_iteratively(rows, self, l1=l1, l2=l2)
        self._set_coef(fitted.coef, fitted.intercept, rows, one_target=True, column=column)
        self.n_iter_, self.dual_gap_ = fitted.n_iter, rows.dtype.type(np.nan)

    def _solve(self, sums: Products, rows: Any, *, column: bool) -> list[PathPoint]:
        """Fit to the cross products (uncentred without an intercept) of every target."""
        n_targets = sums.xy.shape[1]
        previous = np.atleast_2d(getattr(self, "coef_", np.empty((0, 0))))
        warm = self.warm_start and previous.shape == (n_targets, rows.n_features)
        points = []
        for j in range(n_targets):
            points += elastic_net_path(
                sums.quadratic(j),
                np.array([float(self.alpha)]),
                float(self.l1_ratio),
                tol=self.tol,
                max_iter=self.max_iter,
                positive=self.positive,
                start=previous[j].astype(np.float64) if warm else None,
            )
        coef = np.stack([point.coef for point in points])
        self.n_iter_: Any = [point.n_iter for point in points]
        self.dual_gap_: Any = np.array([point.dual_gap for point in points], dtype=rows.dtype)
        if n_targets == 1:
            self.n_iter_, self.dual_gap_ = self.n_iter_[0], self.dual_gap_[0]
        coef, intercept = round_model(coef, sums, rows.dtype)
        self._set_coef(coef, intercept, rows, one_target=n_targets == 1, column=column)
        return points

    @property
    def sparse_coef_(self) -> Any:
        """The coefficients as a sparse matrix."""
        check_is_fitted(self)
        return sparse.csr_matrix(np.atleast_2d(self.coef_))


@document
class Lasso(ElasticNet):
    r"""Linear least squares with an L1 penalty, in one pass over the rows.

    Minimises :math:`\frac{1}{2 \sum_i w_i} \sum_i w_i (y_i - x_i^T \beta - b)^2 + \alpha
    \|\beta\|_1`, as :class:`sklearn.linear_model.Lasso` does (Tibshirani, 1996, Regression
    shrinkage and selection via the lasso).

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty, at least 0.
    {elastic_net_gram}
    {copy_X}
    max_iter : int, default=1000
        The most sweeps over the coefficients.
    tol : float, default=1e-4
        When to stop, as for :class:`ElasticNet`.
    {elastic_net_options}

    Attributes
    ----------
    {elastic_net_attributes}

    See Also
    --------
    ElasticNet : With an L2 penalty besides.
    LassoCV : With the penalty chosen by cross-validation, in one pass too.

    Notes
    -----
    One pass over the rows, as for :class:`ElasticNet`.

    Examples
    --------
    {diabetes}
    >>> model = Lasso(alpha=0.5).fit(X, y)
    >>> int((model.coef_ != 0).sum())
    4
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        precompute: bool | str = False,
        copy_X: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-4,
        warm_start: bool = False,
        positive: bool = False,
        random_state: RandomState = None,
        selection: str = "cyclic",
        device: str = "auto",
    ) -> None:
        super().__init__(
            alpha,
            fit_intercept=fit_intercept,
            precompute=precompute,
            max_iter=max_iter,
            copy_X=copy_X,
            tol=tol,
            warm_start=warm_start,
            positive=positive,
            random_state=random_state,
            selection=selection,
            device=device,
        )
        self.l1_ratio = 1.0
