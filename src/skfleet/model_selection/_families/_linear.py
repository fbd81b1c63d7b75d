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
    check_end,
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
from skfleet.model_selection._families._registry import register_family

__all__ = ["ElasticNetPenalties"]


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
            alphas = [candidates[n]["alpha"] for n in places]
            how = {"precompute": gram, "Xy": rows.T @ targets, "copy_X": False, **params}
            how |= {"l1_ratio": ratio, "return_n_iter": True}
            # By itself the weakest penalty takes more iterations than at the end of a path.
            cold = enet_path(rows, targets, alphas=alphas[-1:], **how)[3]
            _, coefs, gaps, n_iters = enet_path(rows, targets, alphas=alphas, **how)
            check_end(max(*cold, *n_iters), estimator.max_iter)
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
            limits = dict(zip(names, how, strict=True))
            points = [
                point
                for some in (alphas, alphas.min(keepdims=True))  # by itself it takes longer
                for point in elastic_net_path(
                    fitted.quadratic(), some, float(ratio), excess=1.0, **limits
                )
            ]
            check_end(max(point.n_iter for point in points), limits["max_iter"])
            if not all(point.converged for point in points):
                raise NotImplementedError("coordinate descent must converge")
            coefs[0, chosen] = [point.coef for point in points[:-1]]
        return coefs

    @staticmethod
    def _ratio(estimator: Any, candidate: Mapping[str, Any]) -> float:
        """Give the share of the L1 penalty; all of it in a Lasso."""
        return float(candidate.get("l1_ratio", estimator.l1_ratio))


class OurElasticNet(OnlyScored, ElasticNetPenalties):
    """Lasso and elastic net of this library, which follow the same path."""

    is_ours = True
    known = ElasticNetPenalties.known | {"device"}


register_family("sklearn.linear_model.Lasso", ElasticNetPenalties("alpha"))
register_family("sklearn.linear_model.ElasticNet", ElasticNetPenalties("alpha", "l1_ratio"))
register_family("skfleet.estimators.Lasso", OurElasticNet("alpha"))
register_family("skfleet.estimators.ElasticNet", OurElasticNet("alpha", "l1_ratio"))
