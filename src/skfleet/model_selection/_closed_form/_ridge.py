"""Shared fits of ridge regression and least squares: one Gram matrix for all penalties."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import linalg
from sklearn.base import clone
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import compute_sample_weight

from skfleet._sklearn_private import take_rows
from skfleet.glm import CrossProducts
from skfleet.model_selection._closed_form._from_gram import (
    MAX_CONDITION,
    SCORINGS,
    ScoredFromGram,
    ScoreOnly,
    check_condition,
)
from skfleet.model_selection._paths._checks import (
    check_finite,
    check_no_fit_params,
    dense_float64,
    invalid_penalty,
    invalid_value,
    name_set,
)
from skfleet.model_selection._paths._registry import ParamSets, register_default

# Beyond this condition number the coefficients are rounding errors.
_MAX_FIT_CONDITION = 1e12

# Squared ratio of singular values below which the smaller one is not known from a Gram matrix.
_MIN_SQUARED_RATIO = 1e-12

# Tolerance of scikit-learn's iterative solver of sparse rows up to which it ends at the optimum.
_MAX_SPARSE_TOL = 1e-11


class _RidgeFromGram(ScoredFromGram):
    """Least squares with or without an L2 penalty, scored from cross products."""

    def coefficients(self, fitted: CrossProducts, params: ParamSets) -> np.ndarray:
        """Solve for each penalty."""
        alphas = [candidate.get("alpha", 0.0) for candidate in params]
        system = _GramSystem(fitted.gram, fitted.xy)
        system.check(min(alphas))
        return np.stack([system.solve_fast(alpha) for alpha in alphas], axis=1).transpose(2, 1, 0)


class RidgePath(_RidgeFromGram):
    r"""Ridge over its penalty: the Gram matrix of the centred rows is computed once.

    The coefficients are :math:`(X^T X + \alpha I)^{-1} X^T y`, or with more columns than rows
    :math:`X^T (X X^T + \alpha I)^{-1} y` (Hastie, Tibshirani and Friedman, *The Elements of
    Statistical Learning*, 2nd ed., 3.4.1 and 18.3.5). The solver is scikit-learn's, so that the
    results are the same for ill-conditioned rows too.
    """

    parameters = ("alpha",)

    known = name_set(
        "alpha class_weight copy_X fit_intercept max_iter positive random_state solver tol"
    )

    def __init__(self, *scorings: str) -> None:
        self.scorings = frozenset(scorings)

    def accepts_sparse(self, params: Mapping[str, Any]) -> bool:
        """Return whether the solver for sparse rows ends near the optimum."""
        is_exact = params["solver"] == "auto" and params["max_iter"] is None
        return self.is_skfleet or (is_exact and params["tol"] <= _MAX_SPARSE_TOL)

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject iterative solvers, and a penalty per target."""
        problem = invalid_value(params, positive=False)
        if problem is None and params["solver"] not in ("auto", "cholesky"):
            return f"solver must be 'auto' or 'cholesky'. Got {params['solver']!r} instead"
        return problem or invalid_penalty("alpha", params["alpha"])

    def fit(
        self, estimator: Any, candidates: ParamSets, X: Any, y: Any, **fit_params: Any
    ) -> list[Any]:
        """Compute the Gram matrix once, and solve for each penalty."""
        weights = fit_params.pop("sample_weight", None)
        check_no_fit_params(fit_params)
        rows = dense_float64(X)
        targets = np.asarray(y)
        sample = slice(0, 2)
        if "class_weight" in estimator.get_params(deep=False):
            if estimator.class_weight is not None:
                balanced = compute_sample_weight(estimator.class_weight, y)
                weights = balanced if weights is None else np.asarray(weights) * balanced
            binarizer = LabelBinarizer(pos_label=1, neg_label=-1)
            axis = 0 if targets.ndim > 1 else None
            # A row of each label, so that a fit on these knows all of them.
            sample = np.unique(targets, return_index=True, axis=axis)[1]  # type: ignore[assignment]
            targets = binarizer.fit_transform(y)
        targets = targets.astype(float, copy=False).reshape(len(rows), -1)
        check_finite(targets)
        # all attributes but the coefficients are those of a fit on all rows
        template = clone(estimator).fit(take_rows(X, sample), take_rows(y, sample))
        solve = _CenteredSystem(rows, targets, weights, centre=estimator.fit_intercept)
        solve.system.check(min(candidate["alpha"] for candidate in candidates), _MAX_FIT_CONDITION)
        models = []
        for candidate in candidates:
            coef, intercept = solve(candidate["alpha"])
            model = copy.copy(template).set_params(**candidate)
            model.coef_ = coef.reshape(np.shape(template.coef_))
            if estimator.fit_intercept:
                model.intercept_ = intercept.reshape(np.shape(template.intercept_))[()]
            models.append(model)
        return models


class _CenteredSystem:
    """Normal equations of centred rows, in the primal or, with more columns, the dual form."""

    def __init__(self, X: np.ndarray, Y: np.ndarray, weights: Any, *, centre: bool) -> None:
        self._x_mean, self._y_mean = np.zeros(X.shape[1]), np.zeros(Y.shape[1])
        if weights is not None:
            weights = np.broadcast_to(np.asarray(weights, dtype=float), (len(X),))
        if centre:
            self._x_mean = np.average(X, axis=0, weights=weights)
            self._y_mean = np.average(Y, axis=0, weights=weights)
        X, Y = X - self._x_mean, Y - self._y_mean
        if weights is not None:
            sqrt_weights = np.sqrt(weights)[:, None]
            X *= sqrt_weights
            Y *= sqrt_weights
        is_dual = X.shape[1] > X.shape[0]
        self._dual_rows = X if is_dual else None
        self.system = _GramSystem(X @ X.T if is_dual else X.T @ X, Y if is_dual else X.T @ Y)

    def __call__(self, alpha: float) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients of shape (n_targets, n_features), and intercepts."""
        solution = self.system.solve(alpha)
        coef = (solution if self._dual_rows is None else self._dual_rows.T @ solution).T
        return coef, self._y_mean - coef @ self._x_mean


class _GramSystem:
    """Gram matrix and right-hand sides of a ridge regression, for any penalty."""

    def __init__(self, gram: np.ndarray, rhs: np.ndarray) -> None:
        self._gram = gram
        self._rhs = rhs

    def _shifted(self, alpha: float) -> np.ndarray:
        shifted = self._gram.copy()
        shifted.flat[:: len(shifted) + 1] += alpha
        return shifted

    def check(self, alpha: float, max_condition: float = MAX_CONDITION) -> None:
        """Raise for an ill-conditioned system."""
        check_condition(self._shifted(alpha), max_condition)

    def solve(self, alpha: float) -> np.ndarray:
        """Return the solution of shape (n_unknowns, n_targets), by scikit-learn's routine."""
        shifted = self._shifted(alpha)
        return linalg.solve(shifted, self._rhs, assume_a="pos", overwrite_a=True)

    def solve_fast(self, alpha: float) -> np.ndarray:
        """Return the solution without checks, which take longer than to solve a small system."""
        return linalg.lapack.dposv(self._shifted(alpha), self._rhs)[1]


class LeastSquares(ScoreOnly, _RidgeFromGram):
    """Linear regression with and without an intercept, scored from cross products."""

    parameters = ("fit_intercept",)
    known = frozenset(["copy_X", "device", "fit_intercept", "n_jobs", "positive", "tol"])
    scorings = frozenset(SCORINGS)

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject non-negative least squares, which is no linear system."""
        return invalid_value(params, positive=False)

    def coefficients(self, fitted: CrossProducts, params: ParamSets) -> np.ndarray:
        """Solve once; scikit-learn's solver drops singular values relative to the largest one."""
        tol = 0.0 if self.is_skfleet else max(candidate["tol"] for candidate in params)
        if tol > 0:
            squares = linalg.eigvalsh(fitted.gram, check_finite=False)
            if not squares[0] > max(4 * tol**2, _MIN_SQUARED_RATIO) * squares[-1]:
                raise NotImplementedError("columns must be of more similar scales")
        return super().coefficients(fitted, params)


class SkfleetLeastSquares(LeastSquares):
    """Linear regression of this library."""

    is_skfleet = True


class SkfleetRidgePath(ScoreOnly, RidgePath):
    """Ridge of this library, which solves the normal equations with any `solver`."""

    is_skfleet = True
    known = RidgePath.known | {"device"}

    def __init__(self) -> None:
        super().__init__(*SCORINGS)

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject the same parameters as for scikit-learn's, but for the solver."""
        return super().unsupported_reason({**params, "solver": "auto"})


register_default("sklearn.linear_model.LinearRegression", LeastSquares())
register_default("sklearn.linear_model.Ridge", RidgePath(*SCORINGS))
register_default("skfleet.estimators.LinearRegression", SkfleetLeastSquares())
register_default("skfleet.estimators.Ridge", SkfleetRidgePath())
