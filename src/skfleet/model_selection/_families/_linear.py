"""Linear models over their penalty: products made once, or a path from the strongest penalty on."""

from __future__ import annotations

import copy
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import linalg, sparse
from sklearn.base import clone
from sklearn.linear_model import enet_path
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import compute_sample_weight
from sklearn.utils.validation import validate_data

from skfleet._sklearn_private import take_rows
from skfleet.model_selection._families._registry import Family, register_family

__all__ = ["ElasticNetPenalties", "RidgePenalties", "WarmPath"]


# With a condition number beyond this, rounding decides on the coefficients.
_WORST_CONDITION = 1e12


class RidgePenalties(Family):
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

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: a solver that stops before the optimum, or a penalty for each target."""
        if params["positive"]:
            return "positive must be False. Got True instead"
        if params["solver"] not in ("auto", "cholesky"):
            return f"solver must be 'auto' or 'cholesky'. Got {params['solver']!r} instead"
        return _penalty_problem("alpha", params["alpha"])

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
        _refuse_more(fit_params)
        rows = _dense(X)
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
        _check_finite(targets)
        # Fitted on a few rows: all but its coefficients is as if it were fitted on all of them.
        model = clone(estimator).fit(take_rows(X, few), take_rows(y, few))
        solve = _Products(rows, targets, weights, centre=estimator.fit_intercept)
        solve.check(min(candidate["alpha"] for candidate in candidates))
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
    """Products of centred rows and targets, from which coefficients follow for any penalty."""

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
        self._products = X @ X.T if self._wide is not None else X.T @ X
        self._right = Y if self._wide is not None else X.T @ Y

    def _shifted(self, alpha: float) -> np.ndarray:
        """Give the matrix of the system for a penalty."""
        shifted = self._products.copy()
        shifted.flat[:: len(shifted) + 1] += alpha
        return shifted

    def check(self, alpha: float) -> None:
        """Raise for a system that is as good as singular."""
        shifted = self._shifted(alpha)
        factor, failed = linalg.lapack.dpotrf(shifted)
        inverse, _ = linalg.lapack.dpocon(factor, np.abs(shifted).sum(axis=0).max())
        if failed or not inverse * _WORST_CONDITION > 1:
            raise NotImplementedError("rows must be better conditioned, or the penalty larger")

    def __call__(self, alpha: float) -> tuple[np.ndarray, np.ndarray]:
        """Give coefficients, of shape (n_targets, n_features), and intercepts."""
        shifted = self._shifted(alpha)
        solved = linalg.solve(shifted, self._right, assume_a="pos", overwrite_a=True)
        coef = (solved if self._wide is None else self._wide.T @ solved).T
        return coef, self._y_mean - coef @ self._x_mean


class ElasticNetPenalties(Family):
    """Lasso and elastic net: one path of coordinate descent, on products that are made once.

    Scores agree within the ``tol`` of the estimator.
    """

    known = frozenset(
        [
            "alpha",
            "copy_X",
            "fit_intercept",
            "l1_ratio",
            "max_iter",
            "positive",
            "precompute",
            "random_state",
            "selection",
            "tol",
            "warm_start",
        ]
    )

    def __init__(self, *parameters: str) -> None:
        self.parameters = parameters

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: what begins elsewhere, or goes in another order."""
        wanted = {"warm_start": False, "selection": "cyclic"}
        for name, value in wanted.items():
            if params[name] != value:
                return f"{name} must be {value!r}. Got {params[name]!r} instead"
        if not isinstance(params["precompute"], bool):
            return "precompute must be True or False. Got a Gram matrix instead"
        return _penalty_problem("alpha", params["alpha"])

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Follow the path of each ``l1_ratio`` from the strongest penalty on."""
        _refuse_more(fit_params)
        rows, targets = _dense(X), np.asarray(y, dtype=float)
        if targets.ndim != 1:
            raise NotImplementedError("y must have one column")
        _check_finite(targets)
        centre = estimator.fit_intercept
        x_mean = rows.mean(axis=0) if centre else np.zeros(rows.shape[1])
        y_mean = targets.mean() if centre else 0.0
        rows, targets = np.asfortranarray(rows - x_mean), targets - y_mean
        gram = rows.T @ rows if rows.shape[1] <= rows.shape[0] else False
        model = clone(estimator)
        validate_data(model, X, skip_check_array=True)  # takes note of the columns
        params = {name: getattr(estimator, name) for name in ("max_iter", "positive", "tol")}
        fitted: dict[int, Any] = {}
        for ratio in {self._ratio(estimator, candidate) for candidate in candidates}:
            places = [n for n, one in enumerate(candidates) if self._ratio(estimator, one) == ratio]
            places.sort(key=lambda n: -candidates[n]["alpha"])
            _, coefs, gaps, n_iters = enet_path(
                rows,
                targets,
                l1_ratio=ratio,
                alphas=[candidates[n]["alpha"] for n in places],
                precompute=gram,
                Xy=rows.T @ targets,
                copy_X=False,
                return_n_iter=True,
                **params,
            )
            _check_end(max(n_iters), estimator.max_iter)
            for n, coef, gap, n_iter in zip(places, coefs.T, gaps, n_iters, strict=True):
                one = copy.copy(model).set_params(**candidates[n])
                one.coef_, one.dual_gap_, one.n_iter_ = coef.copy(), gap, int(n_iter)
                one.intercept_ = y_mean - coef @ x_mean
                fitted[n] = one
        return [fitted[n] for n in range(len(candidates))]

    @staticmethod
    def _ratio(estimator: Any, candidate: Mapping[str, Any]) -> float:
        """Give the share of the L1 penalty; all of it in a Lasso."""
        return float(candidate.get("l1_ratio", estimator.l1_ratio))


class WarmPath(Family):
    """Logistic regression: each penalty begins with the coefficients for a stronger one.

    Scores agree within the ``tol`` of the estimator.
    """

    parameters = ("C",)
    known = frozenset(
        [
            "C",
            "class_weight",
            "dual",
            "fit_intercept",
            "intercept_scaling",
            "l1_ratio",
            "max_iter",
            "n_jobs",
            "penalty",
            "random_state",
            "solver",
            "tol",
            "verbose",
            "warm_start",
        ]
    )

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: solvers that begin anew, or stop when they slow down, optimum or not."""
        wanted = {"warm_start": False, "verbose": 0, "penalty": "deprecated"}
        for name, value in wanted.items():
            if params[name] != value:
                return f"{name} must be {value!r}. Got {params[name]!r} instead"
        solver = params["solver"]
        known = ("lbfgs", "newton-cg", "newton-cholesky")
        if solver not in known:
            return f"solver must be one of {', '.join(known)}. Got {solver!r} instead"
        return _penalty_problem("C", params["C"])

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Fit one after the other, from the strongest penalty on."""
        estimator.set_params(warm_start=True)
        fitted: dict[int, Any] = {}
        for n in sorted(range(len(candidates)), key=lambda n: candidates[n]["C"]):
            estimator.set_params(**candidates[n]).fit(X, y, **fit_params)
            _check_end(np.max(estimator.n_iter_), estimator.max_iter)
            fitted[n] = copy.copy(estimator).set_params(warm_start=False)
        return [fitted[n] for n in range(len(candidates))]


def _penalty_problem(name: str, value: Any) -> str | None:
    """Tell what is wrong with a penalty."""
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Real)
        or not 0 < float(value) < np.inf
    ):
        return f"{name} must be a positive number. Got {value!r} instead"
    return None


def _check_end(n_iter: int, max_iter: int) -> None:
    """Raise for a path that was left before its end: others would be left elsewhere."""
    if n_iter >= max_iter:
        raise NotImplementedError(f"it must converge within max_iter={max_iter} iterations")


def _refuse_more(fit_params: Mapping[str, Any]) -> None:
    """Raise for parameters of ``fit`` that nobody here knows."""
    if any(value is not None for value in fit_params.values()):
        raise NotImplementedError(f"fit must not be given {', '.join(sorted(fit_params))}")


def _dense(X: Any) -> np.ndarray:
    """Give rows as an array of doubles, or raise."""
    if sparse.issparse(X):
        raise NotImplementedError("rows must be dense")
    rows = np.asarray(X)
    if rows.dtype.kind not in "biuf" or rows.dtype.itemsize > 8 or rows.dtype == np.float32:
        raise NotImplementedError(f"rows must be float64 or integers. Got {rows.dtype} instead")
    rows = rows.astype(float, copy=False)
    _check_finite(rows)
    return rows


def _check_finite(values: np.ndarray) -> None:
    """Raise for what each fit is to refuse by itself."""
    if not np.isfinite(values.sum()):
        raise NotImplementedError("rows and targets must be finite")


register_family("sklearn.linear_model.Ridge", RidgePenalties())
register_family("sklearn.linear_model.RidgeClassifier", RidgePenalties())
register_family("sklearn.linear_model.Lasso", ElasticNetPenalties("alpha"))
register_family("sklearn.linear_model.ElasticNet", ElasticNetPenalties("alpha", "l1_ratio"))
register_family("sklearn.linear_model.LogisticRegression", WarmPath())
