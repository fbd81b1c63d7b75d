"""Ridge regression from one pass: moments about the mean, then a small dense system."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg
from sklearn.base import MultiOutputMixin, RegressorMixin

from skfleet._array import like, to_host
from skfleet._linalg import column_sums, gram, is_sparse, tdot
from skfleet._validation import check_choice, check_unused
from skfleet.blocks import Block, Output
from skfleet.engine import Reduction, engine_for, map_reduce
from skfleet.estimators._base import FleetEstimator
from skfleet.metrics import r2_score

_SOLVERS = ("auto", "svd", "cholesky", "lsqr", "sparse_cg", "sag", "saga", "lbfgs")
# The Gram matrix of more columns than these takes more than 3 GB, and hours to solve.
MOST_COLUMNS = 20_000


class _Products(NamedTuple):
    """Weighted sums of products of rows and targets about their means."""

    weight: float
    x_mean: np.ndarray
    y_mean: np.ndarray
    gram: np.ndarray
    xy: np.ndarray


def ridge_products(block: Block) -> _Products:
    """Return a block's sums of products about its own means."""
    n_rows, n_features = block.X.shape
    y = to_host(block.y).astype(np.float64).reshape(n_rows, -1)
    w = None if block.sample_weight is None else to_host(block.sample_weight).astype(np.float64)
    weight = float(n_rows if w is None else w.sum())
    if weight == 0:
        zeros = np.zeros((n_features, y.shape[1]))
        return _Products(0.0, zeros[:, 0], zeros[0], np.zeros((n_features,) * 2), zeros)
    w_there = None if w is None else like(w, block.X)
    x_mean = column_sums(block.X, w_there) / weight
    y_mean = (y.sum(axis=0) if w is None else w @ y) / weight
    y = y - y_mean
    y_there = like(y if w is None else y * w[:, None], block.X)
    if is_sparse(block.X):
        product = gram(block.X, w) - weight * np.outer(x_mean, x_mean)
        # Weighted deviations of y add up to nothing, so X need not be about its mean.
        return _Products(weight, x_mean, y_mean, product, np.asarray(tdot(block.X, y_there)))
    X = block.X - like(x_mean, block.X)
    xy = to_host(tdot(X, y_there)).astype(np.float64)
    return _Products(weight, x_mean, y_mean, gram(X, w_there), xy)


def merge_products(a: _Products, b: _Products) -> _Products:
    """Merge the sums of two blocks (Chan, Golub and LeVeque, 1983)."""
    weight = a.weight + b.weight
    if weight == 0:
        return a
    share = b.weight / weight
    dx, dy = b.x_mean - a.x_mean, b.y_mean - a.y_mean
    factor = a.weight * share
    return _Products(
        weight,
        a.x_mean + share * dx,
        a.y_mean + share * dy,
        a.gram + b.gram + factor * np.outer(dx, dx),
        a.xy + b.xy + factor * np.outer(dx, dy),
    )


def linear_predictor(model: tuple[np.ndarray, Any], X: Any) -> Any:
    """Return X @ coef.T + intercept, where X is."""
    coef, intercept = model
    return X @ like(coef.T, X) + like(np.asarray(intercept), X)


class Ridge(MultiOutputMixin, RegressorMixin, FleetEstimator):
    r"""Linear least squares with an L2 penalty, in one pass over the rows.

    Minimises :math:`\sum_i w_i (y_i - x_i^T \beta - b)^2 + \alpha \|\beta\|^2` (Hoerl and Kennard,
    1970, Ridge regression), as :class:`sklearn.linear_model.Ridge` does.

    Parameters
    ----------
    alpha : float or array of shape (n_targets,), default=1.0
        Strength of the penalty, at least 0; an array penalises each target by its own.
    fit_intercept : bool, default=True
        Fit the unpenalised intercept b; otherwise it is 0.
    copy_X : bool, default=True
        Accepted as in scikit-learn; X is never changed, so the answer is the same.
    max_iter : int, default=None
        Accepted as in scikit-learn; the solution is direct, so the answer is the same.
    tol : float, default=1e-4
        Accepted as in scikit-learn; the solution is direct, so the answer is the same.
    solver : str, default="auto"
        Any of scikit-learn's ("svd", "cholesky", "lsqr", "sparse_cg", "sag", "saga", "lbfgs"), as a
        request for the same optimum. `solver_` says what ran.
    positive : bool, default=False
        Only False is possible.
    random_state : int, RandomState instance or None, default=None
        Accepted as in scikit-learn; nothing is drawn, so the answer is the same.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercept.
    n_iter_ : None
        There are no iterations.
    solver_ : {"cholesky", "eigen"}
        What solved the normal equations: a Cholesky factorisation, or an eigendecomposition where
        they are singular, which gives the shortest solution.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X has names that are all text.

    Raises
    ------
    ValueError
        When a parameter or the rows are not as above, or there are more than 20,000 columns.

    Notes
    -----
    One pass over the rows, whatever the number of targets and penalties. Each worker keeps a Gram
    matrix of n_features x n_features float64 numbers, and one comes home. Products are summed about
    the means of each block and merged exactly, so large offsets cost no digits. Rows in single
    precision are multiplied in single precision and summed in double.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.datasets import load_diabetes
    >>> from skfleet.estimators import Ridge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X, y = da.from_array(X, chunks=(100, 10)), da.from_array(y, chunks=100)
    >>> model = Ridge(alpha=0.1).fit(X, y)
    >>> round(model.score(X, y), 3)
    0.513
    """

    def __init__(
        self,
        alpha: Any = 1.0,
        *,
        fit_intercept: bool = True,
        copy_X: bool = True,
        max_iter: int | None = None,
        tol: float = 1e-4,
        solver: str = "auto",
        positive: bool = False,
        random_state: Any = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.copy_X = copy_X
        self.max_iter = max_iter
        self.tol = tol
        self.solver = solver
        self.positive = positive
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Ridge:
        """Fit the model in one pass.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.
        y : values of shape (n_samples,) or (n_samples, n_targets)
            Targets, however they are cut.
        sample_weight : float or values of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        self : Ridge
            Fitted.
        """
        check_choice("solver", self.solver, _SOLVERS)
        check_unused("positive", self.positive, False, "Use sklearn.linear_model.Ridge for that.")
        alpha = self._check_alpha()
        rows = self._fit_rows(X, y, sample_weight, y_numeric=True, multi_output=True)
        if rows.n_features > MOST_COLUMNS:
            raise ValueError(
                f"X must have at most {MOST_COLUMNS} columns for Ridge. Got {rows.n_features} "
                "instead. Use an iterative solver, such as SGDRegressor in Incremental."
            )
        sums = map_reduce(engine_for(rows), Reduction(ridge_products, merge_products), rows)
        one_target = sums.xy.shape[1] == 1 and len(getattr(y, "shape", (0,))) == 1
        if alpha.size not in (1, sums.xy.shape[1]):
            raise ValueError(
                f"alpha must be one number, or one per target. Got {alpha.size} numbers for "
                f"{sums.xy.shape[1]} targets."
            )
        if not self.fit_intercept:
            sums = sums._replace(
                gram=sums.gram + sums.weight * np.outer(sums.x_mean, sums.x_mean),
                xy=sums.xy + sums.weight * np.outer(sums.x_mean, sums.y_mean),
            )
        coef, self.solver_ = solve_ridge(sums.gram, sums.xy, alpha)
        intercept = np.zeros(len(coef))
        if self.fit_intercept:
            intercept = sums.y_mean - coef @ sums.x_mean
        self.n_iter_ = None
        self.coef_ = (coef[0] if one_target else coef).astype(rows.dtype, copy=False)
        self.intercept_ = float(intercept[0]) if one_target else intercept.astype(rows.dtype)
        if not self.fit_intercept:
            self.intercept_ = 0.0
        return self

    def _check_alpha(self) -> np.ndarray:
        """Return the penalties as an array of at least one number, or raise."""
        alpha = self.alpha
        if not isinstance(alpha, Real) or isinstance(alpha, bool):
            alpha = np.asarray(alpha, dtype=object)
            if alpha.ndim != 1 or not all(isinstance(a, Real) for a in alpha):
                raise ValueError(
                    f"alpha must be a number, or a one-dimensional array. Got {self.alpha!r} instead."
                )
        alpha = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
        if not (alpha >= 0).all() or not np.isfinite(alpha).all():
            raise ValueError(f"alpha must be finite and at least 0. Got {self.alpha!r} instead.")
        return alpha

    def predict(self, X: Any) -> Any:
        """Predict targets.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_targets)
            In the container X came in; lazy for Dask collections.
        """
        coef = getattr(self, "coef_", np.empty(0))
        output = Output(coef.dtype, None if coef.ndim == 1 else len(coef))
        return self._answer(
            linear_predictor, X, output, model=(coef, getattr(self, "intercept_", 0.0))
        )

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination of the predictions, in one pass.

        Parameters
        ----------
        X : any rows of shape (n_samples, n_features)
            Rows.
        y : values of shape (n_samples,) or (n_samples, n_targets)
            True targets.
        sample_weight : values of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            At most 1.
        """
        return r2_score(y, self.predict(X), sample_weight=sample_weight)


def solve_ridge(product: np.ndarray, xy: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, str]:
    """Solve (product + alpha I) coef = xy for each target; return coef by target, and how."""
    coefs, how = [], "cholesky"
    alphas = np.broadcast_to(alpha, xy.shape[1])
    eigen = None
    for a in np.unique(alphas):
        of_a = alphas == a
        solution = None if eigen is not None else _cholesky(product, xy[:, of_a], a)
        if solution is None:
            eigen = linalg.eigh(product) if eigen is None else eigen
            solution, how = _from_eigen(eigen, xy[:, of_a], a), "eigen"
        coefs.append((np.flatnonzero(of_a), solution))
    coef = np.empty((xy.shape[1], len(product)))
    for where, solution in coefs:
        coef[where] = solution.T
    return coef, how


def _cholesky(product: np.ndarray, xy: np.ndarray, alpha: float) -> np.ndarray | None:
    """Solve by a Cholesky factorisation with columns at unit deviation; None if it is singular."""
    system = product + alpha * np.eye(len(product))
    scale = np.sqrt(np.diag(system))
    if not (scale > 0).all():
        return None
    try:
        factor = linalg.cho_factor(system / np.outer(scale, scale), lower=True)
    except linalg.LinAlgError:
        return None
    if np.diag(factor[0]).min() ** 2 < 10 * len(product) * np.finfo(np.float64).eps:
        return None
    return linalg.cho_solve(factor, xy / scale[:, None]) / scale[:, None]


def _from_eigen(eigen: Any, xy: np.ndarray, alpha: float) -> np.ndarray:
    """Solve from the eigendecomposition of the products: the shortest solution if singular."""
    values, vectors = eigen
    smallest = len(values) * np.finfo(np.float64).eps * max(values[-1], 0.0)
    damped = np.maximum(values, 0.0) + alpha
    keep = damped > smallest
    along = vectors[:, keep]
    return along @ ((along.T @ xy) / damped[keep, None])
