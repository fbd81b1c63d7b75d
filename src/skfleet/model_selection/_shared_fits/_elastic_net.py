"""Linear models over their penalty: coordinate descent on products that are made once."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import enet_path
from sklearn.utils.validation import validate_data

from skfleet.glm import CrossProducts, PathPoint, coordinate_descent, elastic_net_path
from skfleet.model_selection._shared_fits._checks import (
    check_end,
    check_finite,
    dense_rows,
    penalty_problem,
    refuse_more,
)
from skfleet.model_selection._shared_fits._from_gram import (
    SCORINGS,
    ScoredFromGram,
    ScoreOnly,
    check_condition,
)
from skfleet.model_selection._shared_fits._registry import register_shared_fit

__all__ = ["ElasticNetPenalties"]


class ElasticNetPenalties(ScoredFromGram):
    """Lasso and elastic net: products of columns are made once, for every penalty and split.

    On products coordinate descent takes the very steps that it takes on rows, and stops after as
    many. Each penalty begins from zero, as in a fit of its own: from the optimum of another one it
    would end elsewhere within its tolerance.
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
    is_divisible = True

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
        """Make the products once, and descend on them for each candidate."""
        refuse_more(fit_params)
        rows, targets = dense_rows(X), np.asarray(y, dtype=float)
        if targets.ndim != 1:
            raise NotImplementedError("y must have one column")
        check_finite(targets)
        if rows.shape[1] > rows.shape[0]:
            raise NotImplementedError("columns must be no more than rows to train on")
        centre = estimator.fit_intercept
        x_mean = rows.mean(axis=0) if centre else np.zeros(rows.shape[1])
        y_mean = targets.mean() if centre else 0.0
        rows, targets = np.asfortranarray(rows - x_mean), targets - y_mean
        how: dict[str, Any] = {
            "precompute": rows.T @ rows,
            "Xy": rows.T @ targets,
            "copy_X": False,
            "return_n_iter": True,
            "check_input": False,
            **{name: getattr(estimator, name) for name in ("max_iter", "positive", "tol")},
        }
        model = clone(estimator)
        validate_data(model, X, skip_check_array=True)  # takes note of the columns
        fitted = []
        for candidate in candidates:
            one = copy.copy(model).set_params(**candidate)
            alphas, ratio = [one.alpha], one.l1_ratio
            _, coefs, gaps, n_iters = enet_path(rows, targets, alphas=alphas, l1_ratio=ratio, **how)
            check_end(n_iters[0], estimator.max_iter)
            one.coef_, one.dual_gap_, one.n_iter_ = coefs[:, 0], gaps[0], n_iters[0]
            one.intercept_ = y_mean - one.coef_ @ x_mean if centre else 0.0
            fitted.append(one)
        return fitted

    def coefficients(
        self, fitted: CrossProducts, params: Sequence[Mapping[str, Any]]
    ) -> np.ndarray:
        """Descend for each candidate, on a few rows that have the same products."""
        if fitted.xy.shape[1] != 1:
            raise NotImplementedError("y must have one column")
        check_condition(fitted.gram)
        points = self._points(fitted, params)
        for point, one in zip(points, params, strict=True):
            check_end(point.n_iter, one["max_iter"])
        if not all(point.converged for point in points):
            raise NotImplementedError("coordinate descent must converge")
        return np.array([[point.coef for point in points]])

    def _points(
        self, fitted: CrossProducts, params: Sequence[Mapping[str, Any]]
    ) -> list[PathPoint]:
        """Give where each candidate ends."""
        return coordinate_descent(fitted.quadratic(), [_limits(one) for one in params])


def _limits(params: Mapping[str, Any]) -> dict[str, Any]:
    """Give the parameters of a candidate by which it is fitted; a Lasso has no ``l1_ratio``."""
    names = ("alpha", "tol", "max_iter", "positive")
    return {name: params[name] for name in names} | {"l1_ratio": params.get("l1_ratio", 1.0)}


class OurElasticNet(ScoreOnly, ElasticNetPenalties):
    """Lasso and elastic net of this library, which go on from there to the optimum."""

    is_ours = True
    known = ElasticNetPenalties.known | {"device"}

    def _points(
        self, fitted: CrossProducts, params: Sequence[Mapping[str, Any]]
    ) -> list[PathPoint]:
        points: list[PathPoint] = []
        for one in params:
            limits = _limits(one)
            alphas, ratio = np.array([float(limits.pop("alpha"))]), float(limits.pop("l1_ratio"))
            points += elastic_net_path(fitted.quadratic(), alphas, ratio, **limits)
        return points


register_shared_fit("sklearn.linear_model.Lasso", ElasticNetPenalties("alpha"))
register_shared_fit("sklearn.linear_model.ElasticNet", ElasticNetPenalties("alpha", "l1_ratio"))
register_shared_fit("skfleet.estimators.Lasso", OurElasticNet("alpha"))
register_shared_fit("skfleet.estimators.ElasticNet", OurElasticNet("alpha", "l1_ratio"))
