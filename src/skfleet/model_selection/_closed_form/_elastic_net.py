"""Shared fits of Lasso and elastic net: coordinate descent on one Gram matrix."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import enet_path
from sklearn.utils.validation import validate_data

from skfleet.glm import CrossProducts, PathPoint, coordinate_descent, elastic_net_path
from skfleet.model_selection._closed_form._from_gram import (
    SCORINGS,
    ScoredFromGram,
    ScoreOnly,
    check_condition,
)
from skfleet.model_selection._paths._checks import (
    check_converged,
    check_finite,
    check_no_fit_params,
    dense_float64,
    invalid_penalty,
    invalid_value,
    name_set,
)
from skfleet.model_selection._paths._registry import ParamSets, register_default


class ElasticNetPath(ScoredFromGram):
    """Lasso and elastic net: the Gram matrix is computed once for all penalties.

    Coordinate descent takes the same steps on the Gram matrix as on the rows, and stops after the
    same number. Each penalty starts from zero, as in a separate fit: with a warm start it would end
    at another point within its tolerance.
    """

    known = name_set(
        "alpha copy_X fit_intercept l1_ratio max_iter positive precompute random_state selection "
        "tol warm_start"
    )

    scorings = frozenset(SCORINGS)
    is_divisible = True

    def __init__(self, *parameters: str) -> None:
        self.parameters = parameters

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject warm starts and random orders of the coordinates."""
        problem = invalid_value(params, warm_start=False, selection="cyclic")
        if problem is None and not isinstance(params["precompute"], bool):
            return "precompute must be True or False. Got a Gram matrix instead"
        return problem or invalid_penalty("alpha", params["alpha"])

    def fit(
        self, estimator: Any, candidates: ParamSets, X: Any, y: Any, **fit_params: Any
    ) -> list[Any]:
        """Compute the Gram matrix once, and run coordinate descent for each candidate."""
        check_no_fit_params(fit_params)
        rows, targets = dense_float64(X), np.asarray(y, dtype=float)
        if targets.ndim != 1:
            raise NotImplementedError("y must have one column")
        check_finite(targets)
        if rows.shape[1] > rows.shape[0]:
            raise NotImplementedError("columns must be no more than rows to train on")
        centre = estimator.fit_intercept
        x_mean = rows.mean(axis=0) if centre else np.zeros(rows.shape[1])
        y_mean = targets.mean() if centre else 0.0
        rows, targets = np.asfortranarray(rows - x_mean), targets - y_mean
        options: Any = {name: getattr(estimator, name) for name in ("max_iter", "positive", "tol")}
        options |= {"precompute": rows.T @ rows, "Xy": rows.T @ targets}
        options |= {"copy_X": False, "return_n_iter": True, "check_input": False}
        model = clone(estimator)
        validate_data(model, X, skip_check_array=True)  # sets n_features_in_
        models = []
        for candidate in candidates:
            fitted = copy.copy(model).set_params(**candidate)
            penalty = {"alphas": [fitted.alpha], "l1_ratio": fitted.l1_ratio}
            _, coefs, gaps, n_iters = enet_path(rows, targets, **penalty, **options)
            check_converged(n_iters[0], estimator.max_iter)
            fitted.coef_, fitted.dual_gap_, fitted.n_iter_ = coefs[:, 0], gaps[0], n_iters[0]
            fitted.intercept_ = y_mean - fitted.coef_ @ x_mean if centre else 0.0
            models.append(fitted)
        return models

    def coefficients(self, fitted: CrossProducts, params: ParamSets) -> np.ndarray:
        """Run coordinate descent on the cross products for each candidate."""
        if fitted.xy.shape[1] != 1:
            raise NotImplementedError("y must have one column")
        check_condition(fitted.gram)
        points = self._points(fitted, params)
        for point, candidate in zip(points, params, strict=True):
            check_converged(point.n_iter, candidate["max_iter"])
        if not all(point.converged for point in points):
            raise NotImplementedError("coordinate descent must converge")
        return np.array([[point.coef for point in points]])

    def _points(self, fitted: CrossProducts, params: ParamSets) -> list[PathPoint]:
        """Return the solution of each candidate."""
        return coordinate_descent(fitted.quadratic(), [_solver_params(c) for c in params])


def _solver_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the solver's parameters of a candidate; a Lasso has no ``l1_ratio``."""
    names = ("alpha", "tol", "max_iter", "positive")
    return {name: params[name] for name in names} | {"l1_ratio": params.get("l1_ratio", 1.0)}


class SkfleetElasticNetPath(ScoreOnly, ElasticNetPath):
    """Lasso and elastic net of this library, which go on to the exact optimum."""

    is_skfleet = True
    known = ElasticNetPath.known | {"device"}

    def _points(self, fitted: CrossProducts, params: ParamSets) -> list[PathPoint]:
        points: list[PathPoint] = []
        for candidate in params:
            solver = _solver_params(candidate)
            alphas, ratio = np.array([float(solver.pop("alpha"))]), float(solver.pop("l1_ratio"))
            points += elastic_net_path(fitted.quadratic(), alphas, ratio, **solver)
        return points


register_default("sklearn.linear_model.Lasso", ElasticNetPath("alpha"))
register_default("sklearn.linear_model.ElasticNet", ElasticNetPath("alpha", "l1_ratio"))
register_default("skfleet.estimators.Lasso", SkfleetElasticNetPath("alpha"))
register_default("skfleet.estimators.ElasticNet", SkfleetElasticNetPath("alpha", "l1_ratio"))
