"""Least squares over its penalty: products of rows are made once, and tell the scores too."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import linalg
from sklearn.base import clone
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import compute_sample_weight

from skfleet._sklearn_private import take_rows
from skfleet.glm import CrossProducts
from skfleet.model_selection._shared_fits._checks import (
    check_finite,
    dense_rows,
    penalty_problem,
    refuse_more,
)
from skfleet.model_selection._shared_fits._from_gram import (
    SCORINGS,
    WORST_OF_SUMS,
    ScoredFromGram,
    ScoreOnly,
    check_condition,
)
from skfleet.model_selection._shared_fits._registry import register_shared_fit

__all__ = ["LeastSquares", "RidgePenalties"]

# With a condition number beyond this, rounding decides on the coefficients.
_WORST_CONDITION = 1e12


class _Penalised(ScoredFromGram):
    """Least squares with a penalty, which may be none, on the sum of squares."""

    def coefficients(
        self, fitted: CrossProducts, params: Sequence[Mapping[str, Any]]
    ) -> np.ndarray:
        """Solve for each penalty."""
        alphas = [one.get("alpha", 0.0) for one in params]
        system = _System(fitted.gram, fitted.xy)
        system.check(min(alphas))
        return np.stack([system.solve_fast(alpha) for alpha in alphas], axis=1).transpose(2, 1, 0)


class RidgePenalties(_Penalised):
    r"""Ridge over its penalty: the products of the centred rows are made once.

    The coefficients are :math:`(X^T X + \alpha I)^{-1} X^T y`, or with more columns than rows
    :math:`X^T (X X^T + \alpha I)^{-1} y` (Hastie, Tibshirani and Friedman, *The Elements of
    Statistical Learning*, 2nd ed., 3.4.1 and 18.3.5). They are solved for as scikit-learn does, so
    that badly conditioned rows give the same too.
    """

    parameters = ("alpha",)

    known = frozenset(
        [
            "alpha",
            "class_weight",
            "copy_X",
            "fit_intercept",
            "max_iter",
            "positive",
            "random_state",
            "solver",
            "tol",
        ]
    )

    def __init__(self, *scorings: str) -> None:
        self.scorings = frozenset(scorings)

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: a solver that stops before the optimum, or a penalty for each target."""
        if params["positive"]:
            return "positive must be False. Got True instead"
        if params["solver"] not in ("auto", "cholesky"):
            return f"solver must be 'auto' or 'cholesky'. Got {params['solver']!r} instead"
        return penalty_problem("alpha", params["alpha"])

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Make the products once, and solve for each penalty."""
        weights = fit_params.pop("sample_weight", None)
        refuse_more(fit_params)
        rows = dense_rows(X)
        targets = np.asarray(y)
        few = slice(0, 2)
        if "class_weight" in estimator.get_params(deep=False):
            if estimator.class_weight is not None:
                balance = compute_sample_weight(estimator.class_weight, y)
                weights = balance if weights is None else np.asarray(weights) * balance
            binarizer = LabelBinarizer(pos_label=1, neg_label=-1)
            axis = 0 if targets.ndim > 1 else None
            few = np.unique(targets, return_index=True, axis=axis)[1]  # type: ignore[assignment]
            targets = binarizer.fit_transform(y)
        targets = targets.astype(float, copy=False).reshape(len(rows), -1)
        check_finite(targets)
        # Fitted on a few rows: all but its coefficients is as if it were fitted on all of them.
        model = clone(estimator).fit(take_rows(X, few), take_rows(y, few))
        solve = _Products(rows, targets, weights, centre=estimator.fit_intercept)
        solve.system.check(min(candidate["alpha"] for candidate in candidates), _WORST_CONDITION)
        fitted = []
        for candidate in candidates:
            coef, intercept = solve(candidate["alpha"])
            one = copy.copy(model).set_params(**candidate)
            one.coef_ = coef.reshape(np.shape(model.coef_))
            if estimator.fit_intercept:
                one.intercept_ = intercept.reshape(np.shape(model.intercept_))[()]
            fitted.append(one)
        return fitted


class _Products:
    """CrossProducts of centred rows and targets, from which coefficients follow for any penalty."""

    def __init__(self, X: np.ndarray, Y: np.ndarray, weights: Any, *, centre: bool) -> None:
        self._x_mean, self._y_mean = np.zeros(X.shape[1]), np.zeros(Y.shape[1])
        if weights is not None:
            weights = np.broadcast_to(np.asarray(weights, dtype=float), (len(X),))
        if centre:
            self._x_mean = np.average(X, axis=0, weights=weights)
            self._y_mean = np.average(Y, axis=0, weights=weights)
        X, Y = X - self._x_mean, Y - self._y_mean
        if weights is not None:
            root = np.sqrt(weights)[:, None]
            X *= root
            Y *= root
        self._wide = X if X.shape[1] > X.shape[0] else None
        wide = self._wide is not None
        self.system = _System(X @ X.T if wide else X.T @ X, Y if wide else X.T @ Y)

    def __call__(self, alpha: float) -> tuple[np.ndarray, np.ndarray]:
        """Give coefficients, of shape (n_targets, n_features), and intercepts."""
        solved = self.system.solve(alpha)
        coef = (solved if self._wide is None else self._wide.T @ solved).T
        return coef, self._y_mean - coef @ self._x_mean


class _System:
    """Equations for any penalty, solved as scikit-learn does: by a Cholesky factorisation."""

    def __init__(self, products: np.ndarray, right: np.ndarray) -> None:
        self._products = products
        self._right = right

    def _shifted(self, alpha: float) -> np.ndarray:
        """Give the matrix of the system for a penalty."""
        shifted = self._products.copy()
        shifted.flat[:: len(shifted) + 1] += alpha
        return shifted

    def check(self, alpha: float, worst: float = WORST_OF_SUMS) -> None:
        """Raise for a system that is as good as singular."""
        check_condition(self._shifted(alpha), worst)

    def solve(self, alpha: float) -> np.ndarray:
        """Give the solution, of shape (n_unknowns, n_targets), to the last bit scikit-learn's."""
        shifted = self._shifted(alpha)
        return linalg.solve(shifted, self._right, assume_a="pos", overwrite_a=True)

    def solve_fast(self, alpha: float) -> np.ndarray:
        """Give the solution without the checks, which take longer for small systems."""
        return linalg.lapack.dposv(self._shifted(alpha), self._right)[1]


class LeastSquares(ScoreOnly, _Penalised):
    """Linear regression with and without an intercept, scored from sums."""

    parameters = ("fit_intercept",)
    known = frozenset(["copy_X", "device", "fit_intercept", "n_jobs", "positive", "tol"])
    scorings = frozenset(SCORINGS)

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: coefficients that must not be negative are no solution of a linear system."""
        return "positive must be False. Got True instead" if params["positive"] else None


class OurLeastSquares(LeastSquares):
    """Linear regression of this library."""

    is_ours = True


class OurRidge(ScoreOnly, RidgePenalties):
    """Ridge of this library, which solves from sums of products itself, whatever its solver."""

    is_ours = True
    known = RidgePenalties.known | {"device"}

    def __init__(self) -> None:
        super().__init__(*SCORINGS)

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why, as for scikit-learn's."""
        return super().refuses({**params, "solver": "auto"})


register_shared_fit("sklearn.linear_model.LinearRegression", LeastSquares())
register_shared_fit("sklearn.linear_model.Ridge", RidgePenalties(*SCORINGS))
register_shared_fit("sklearn.linear_model.RidgeClassifier", RidgePenalties())
register_shared_fit("skfleet.estimators.LinearRegression", OurLeastSquares())
register_shared_fit("skfleet.estimators.Ridge", OurRidge())
