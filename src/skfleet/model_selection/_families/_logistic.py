"""Logistic regression over its penalty: from the optimum for one to that for the next."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import compute_sample_weight

from skfleet.blocks import row_blocks
from skfleet.engine import LocalEngine
from skfleet.glm import BinaryLogistic, Labels, Multinomial, Objective, Scaling, WarmNewton
from skfleet.model_selection._families._checks import check_end, penalty_problem
from skfleet.model_selection._families._registry import Family, register_family

__all__ = ["WarmPath"]

# Newton's method takes so many gradients a penalty, and a Hessian every now and then: that is one
# more gradient for so many unknowns. It has no more of those than this, and is given up after so
# many steps.
_FEWEST_STEPS, _PER_HESSIAN, _MOST_UNKNOWNS, _MOST_STEPS = 3, 70, 1000, 20


class WarmPath(Family):
    """Logistic regression: each penalty begins with the coefficients for a stronger one.

    Scores agree within the ``tol`` of the estimator.
    """

    parameters = ("C",)
    is_divisible = True
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

        scikit-learn's solver begins where the last one ended; or, where that would take many
        gradients, where Newton's method finds nothing left to do.
        """
        estimator.set_params(warm_start=True)
        path: _NewtonPath | None = None
        fitted = {}
        for n in sorted(range(len(candidates)), key=lambda n: candidates[n]["C"]):
            if path is not None:
                path.lead(estimator, candidates[n]["C"])
            estimator.set_params(**candidates[n]).fit(X, y, **fit_params)
            n_iter = np.max(estimator.n_iter_)
            check_end(n_iter, estimator.max_iter)
            fitted[n] = copy.copy(estimator).set_params(warm_start=False)
            if path is None and _pays(n_iter, estimator.coef_.size) and not sparse.issparse(X):
                path = _NewtonPath(estimator, X, y, **fit_params)
        return [fitted[n] for n in range(len(candidates))]


class _NewtonPath:
    """Leads an estimator from an optimum to near that for another penalty."""

    def __init__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> None:
        weights = sample_weight
        if estimator.class_weight is not None:
            weights = compute_sample_weight(estimator.class_weight, y)
            weights = weights if sample_weight is None else weights * np.asarray(sample_weight)
        n_classes, (n_outputs, n_columns) = len(estimator.classes_), estimator.coef_.shape
        rows = row_blocks(X, np.searchsorted(estimator.classes_, y).astype(float), weights)
        self._total = float(len(y) if weights is None else np.sum(weights))
        self._centres = estimator.fit_intercept
        loss: Any = BinaryLogistic() if n_outputs == 1 else Multinomial(n_classes)
        objective = Objective(
            LocalEngine(1),
            rows,
            loss,
            total_weight=self._total,
            scaling=Scaling(np.zeros(n_columns), np.ones(n_columns)),
            labels=Labels(),
            fit_intercept=self._centres,
        )
        coef = estimator.coef_
        if self._centres:
            coef = np.column_stack([coef, estimator.intercept_])
        self._penalised = np.ones_like(coef)
        self._penalised[:, n_columns:] = 0.0
        self._newton = WarmNewton(objective, coef.astype(float).ravel())

    def lead(self, estimator: Any, C: float) -> None:
        """Set the coefficients to those for a penalty; leave them where that cannot be had."""
        l2 = self._penalised.ravel() / (C * self._total)
        if not self._newton.solve(l2, tol=estimator.tol / 2, max_iter=_MOST_STEPS):
            return
        found = self._newton.coef.reshape(self._penalised.shape)
        kind, n_columns = estimator.coef_.dtype, estimator.coef_.shape[1]
        estimator.coef_ = found[:, :n_columns].astype(kind)
        if self._centres:
            estimator.intercept_ = found[:, n_columns].astype(kind)


def _pays(n_iter: int, n_unknowns: int) -> bool:
    """Tell whether Newton's method is the quicker way from here on."""
    return n_unknowns <= _MOST_UNKNOWNS and n_iter > _FEWEST_STEPS + n_unknowns / _PER_HESSIAN


register_family("sklearn.linear_model.LogisticRegression", WarmPath())
