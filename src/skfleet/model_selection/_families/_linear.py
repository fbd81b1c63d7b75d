"""Linear models over their penalty: a path from the strongest one on."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import enet_path
from sklearn.utils.validation import validate_data

from skfleet.glm import elastic_net_path
from skfleet.glm._products import Products
from skfleet.model_selection._families._checks import (
    check_finite,
    dense_rows,
    penalty_problem,
    refuse_more,
)
from skfleet.model_selection._families._from_sums import (
    SCORINGS,
    FromSums,
    OnlyScored,
    check_condition,
)
from skfleet.model_selection._families._registry import Family, register_family

__all__ = ["ElasticNetPenalties", "WarmPath"]


# A Newton step takes as long as so many gradients for each unknown, and there are two to a penalty.
# It has no more unknowns than these.
_STEPS_PER_UNKNOWN, _MOST_UNKNOWNS = 0.3, 500


class ElasticNetPenalties(FromSums):
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

    scorings = frozenset(SCORINGS)

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
        return penalty_problem("alpha", params["alpha"])

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Follow the path of each ``l1_ratio`` from the strongest penalty on."""
        refuse_more(fit_params)
        rows, targets = dense_rows(X), np.asarray(y, dtype=float)
        if targets.ndim != 1:
            raise NotImplementedError("y must have one column")
        check_finite(targets)
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

    def coefficients(self, fitted: Products, params: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Follow the path of each ``l1_ratio``, on a few rows that have the same products."""
        if fitted.xy.shape[1] != 1:
            raise NotImplementedError("y must have one column")
        check_condition(fitted.gram)
        coefs = np.empty((1, len(params), len(fitted.gram)))
        names = ("tol", "max_iter", "positive")
        kinds = [(one.get("l1_ratio", 1.0), *(one[name] for name in names)) for one in params]
        for kind in set(kinds):
            chosen = [n for n, one in enumerate(kinds) if one == kind]
            alphas = np.array([params[n]["alpha"] for n in chosen], dtype=float)
            ratio, *how = kind
            path = elastic_net_path(
                fitted.quadratic(),
                alphas,
                float(ratio),
                excess=1.0,
                **dict(zip(names, how, strict=True)),
            )
            if not all(point.converged for point in path):
                raise NotImplementedError("coordinate descent must converge")
            coefs[0, chosen] = [point.coef for point in path]
        return coefs

    @staticmethod
    def _ratio(estimator: Any, candidate: Mapping[str, Any]) -> float:
        """Give the share of the L1 penalty; all of it in a Lasso."""
        return float(candidate.get("l1_ratio", estimator.l1_ratio))


class OurElasticNet(OnlyScored, ElasticNetPenalties):
    """Lasso and elastic net of this library, which follow the same path."""


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
        return penalty_problem("C", params["C"])

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Fit one after the other, from the strongest penalty on.

        Gradients alone may take hundreds of passes for each on badly conditioned rows, where Newton
        steps from the optimum before take one or two; each costs as much as some gradients for
        every column.
        """
        estimator.set_params(warm_start=True)
        solver, fitted = estimator.solver, {}
        for n in sorted(range(len(candidates)), key=lambda n: candidates[n]["C"]):
            estimator.set_params(**candidates[n]).fit(X, y, **fit_params)
            n_iter = np.max(estimator.n_iter_)
            _check_end(n_iter, estimator.max_iter)
            fitted[n] = copy.copy(estimator).set_params(warm_start=False, solver=solver)
            n_unknowns = estimator.coef_.size
            if n_iter > _STEPS_PER_UNKNOWN * n_unknowns and n_unknowns <= _MOST_UNKNOWNS:
                estimator.set_params(solver="newton-cholesky")
        return [fitted[n] for n in range(len(candidates))]


def _check_end(n_iter: int, max_iter: int) -> None:
    """Raise for a path that was left before its end: others would be left elsewhere."""
    if n_iter >= max_iter:
        raise NotImplementedError(f"it must converge within max_iter={max_iter} iterations")


register_family("sklearn.linear_model.Lasso", ElasticNetPenalties("alpha"))
register_family("sklearn.linear_model.ElasticNet", ElasticNetPenalties("alpha", "l1_ratio"))
register_family("sklearn.linear_model.LogisticRegression", WarmPath())
register_family("skfleet.estimators.Lasso", OurElasticNet("alpha"))
register_family("skfleet.estimators.ElasticNet", OurElasticNet("alpha", "l1_ratio"))
