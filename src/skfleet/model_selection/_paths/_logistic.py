"""Shared fits of logistic regression: a regularisation path with warm starts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils import compute_class_weight

from skfleet.blocks import row_blocks
from skfleet.engine import LocalEngine
from skfleet.glm import BinaryLogistic, ClassEncoding, Multinomial, Objective, Scaling, WarmNewton
from skfleet.model_selection._paths._checks import (
    check_converged,
    invalid_penalty,
    invalid_value,
    name_set,
)
from skfleet.model_selection._paths._registry import ParamSets, SharedFit, register_shared_fit

# Cost of Newton's method per penalty: so many gradients, and now and then a Hessian, which costs
# one more gradient for each `_UNKNOWNS_PER_STEP` unknowns.
_MIN_STEPS, _UNKNOWNS_PER_STEP, _MAX_UNKNOWNS, _MAX_STEPS = 3, 70, 1000, 20


class LogisticPath(SharedFit):
    """Logistic regression: each penalty starts from the coefficients of a stronger one.

    Scores agree within the ``tol`` of the estimator only: the point at which scikit-learn's solver
    stops depends on its start, and a cold start is a separate fit.
    """

    parameters = ("C",)
    is_divisible = True
    is_approximate = True
    known = name_set(
        "C class_weight dual fit_intercept intercept_scaling l1_ratio max_iter n_jobs penalty "
        "random_state solver tol verbose warm_start"
    )

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject solvers without warm starts, and those that may stop far from the optimum."""
        problem = invalid_value(params, warm_start=False, penalty="deprecated")
        solver, solvers = params["solver"], ("lbfgs", "newton-cg", "newton-cholesky")
        if problem is None and solver not in solvers:
            return f"solver must be one of {', '.join(solvers)}. Got {solver!r} instead"
        return problem or invalid_penalty("C", params["C"])

    def fit(
        self, estimator: Any, candidates: ParamSets, X: Any, y: Any, **fit_params: Any
    ) -> list[Any]:
        """Fit the penalties one after the other, from the strongest to the weakest.

        1. Fit the weakest penalty, which takes most iterations. If it does not converge, fits are
           not shared, so that each stops by itself.
        2. If it took many iterations, follow the path by Newton's method; else by scikit-learn's
           solver with warm starts. Where Newton's method fails, use scikit-learn's solver.
        3. At the end of each stretch by Newton's method, let scikit-learn's solver confirm that the
           model has converged.
        """
        *stronger, weakest = sorted(range(len(candidates)), key=lambda n: candidates[n]["C"])
        estimator.set_params(warm_start=True)
        n_iter = _fit(estimator, X, y, candidates[weakest], fit_params)
        fitted = {weakest: copy.copy(estimator)}
        path: _NewtonPath | None = None
        if _newton_is_faster(n_iter, estimator.coef_.size, X):
            path = _NewtonPath(estimator, X, y, **fit_params)
        else:
            estimator = clone(estimator)

        def check_optimum() -> None:
            if path is not None and _fit(estimator, X, y, {}, fit_params) > path.min_iter:
                raise NotImplementedError("its solver must find nothing left to do")

        is_unconfirmed = False
        for n in stronger:
            has_advanced = path is not None and path.advance(estimator, **candidates[n])
            if not has_advanced:
                if is_unconfirmed:
                    check_optimum()
                _fit(estimator, X, y, candidates[n], fit_params)
            fitted[n], is_unconfirmed = copy.copy(estimator), has_advanced
        if is_unconfirmed:
            check_optimum()
        for model in fitted.values():
            model.set_params(warm_start=False)
        return [fitted[n] for n in range(len(candidates))]


def _fit(
    estimator: Any, X: Any, y: Any, candidate: Mapping[str, Any], fit_params: Mapping[str, Any]
) -> int:
    """Fit from the current coefficients, and return the number of iterations."""
    estimator.set_params(**candidate).fit(X, y, **fit_params)
    n_iter = int(np.max(estimator.n_iter_))
    check_converged(n_iter, estimator.max_iter)
    return n_iter


class _NewtonPath:
    """Regularisation path by Newton's method with warm starts."""

    def __init__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> None:
        # iterations that the solver reports at an optimum
        self.min_iter = int(estimator.solver == "newton-cholesky")
        classes, codes = estimator.classes_, np.searchsorted(estimator.classes_, y)
        weights = None if sample_weight is None else np.asarray(sample_weight)
        if estimator.class_weight is not None:
            class_weights = compute_class_weight(
                estimator.class_weight, classes=classes, y=y, sample_weight=weights
            )
            weights = class_weights[codes] if weights is None else weights * class_weights[codes]
        n_classes, (n_outputs, n_columns) = len(classes), estimator.coef_.shape
        rows = row_blocks(X, codes.astype(float), weights)
        self._total_weight = float(len(y) if weights is None else np.sum(weights))
        self._has_intercept = estimator.fit_intercept
        loss: Any = BinaryLogistic() if n_outputs == 1 else Multinomial(n_classes)
        objective = Objective(
            LocalEngine(1),
            rows,
            loss,
            total_weight=self._total_weight,
            scaling=Scaling(np.zeros(n_columns), np.ones(n_columns)),
            labels=ClassEncoding(),
            fit_intercept=self._has_intercept,
        )
        self._penalised = np.ones((n_outputs, n_columns + self._has_intercept))
        self._penalised[:, n_columns:] = 0.0
        self._newton = WarmNewton(objective, np.zeros(self._penalised.size))

    def advance(self, estimator: Any, C: float) -> bool:
        """Move an estimator to the optimum for C; return False if that fails."""
        l2 = self._penalised.ravel() / (C * self._total_weight)
        if not self._newton.solve(l2, tol=estimator.tol / 2, max_iter=_MAX_STEPS):
            return False
        coef = self._newton.coef.reshape(self._penalised.shape)
        dtype, n_columns = estimator.coef_.dtype, estimator.coef_.shape[1]
        estimator.set_params(C=C).coef_ = coef[:, :n_columns].astype(dtype)
        if self._has_intercept:
            estimator.intercept_ = coef[:, n_columns].astype(dtype)
        estimator.n_iter_ = np.full_like(estimator.n_iter_, self._newton.n_iter)
        return True


def _newton_is_faster(n_iter: int, n_unknowns: int, X: Any) -> bool:
    """Return whether Newton's method is faster than so many iterations of the solver."""
    if sparse.issparse(X) or n_unknowns > _MAX_UNKNOWNS:
        return False
    return n_iter > _MIN_STEPS + n_unknowns / _UNKNOWNS_PER_STEP


register_shared_fit("sklearn.linear_model.LogisticRegression", LogisticPath())
