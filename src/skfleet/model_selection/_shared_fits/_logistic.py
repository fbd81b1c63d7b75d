"""Logistic regression over its penalty: from the optimum for one to that for the next."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils import compute_class_weight

from skfleet.blocks import row_blocks
from skfleet.engine import LocalEngine
from skfleet.glm import BinaryLogistic, ClassEncoding, Multinomial, Objective, Scaling, WarmNewton
from skfleet.model_selection._shared_fits._checks import check_end, penalty_problem
from skfleet.model_selection._shared_fits._registry import SharedFit, register_shared_fit

__all__ = ["WarmPath"]

# Newton's method takes so many gradients a penalty, and a Hessian every now and then: that is one
# more gradient for so many unknowns. It has no more of those than this, and is given up after so
# many steps.
_FEWEST_STEPS, _PER_HESSIAN, _MOST_UNKNOWNS, _MOST_STEPS = 3, 70, 1000, 20


class WarmPath(SharedFit):
    """Logistic regression: each penalty begins with the coefficients for a stronger one.

    Scores agree within the ``tol`` of the estimator. Where scikit-learn's solver leaves off depends
    on where it began, and to begin there is to fit anew.
    """

    parameters = ("C",)
    is_divisible = True
    is_approximate = True
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
        wanted = {"warm_start": False, "penalty": "deprecated"}
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

        But first the weakest, which takes the most iterations: if they are too many, each fit is to
        stop by itself. If they are many, Newton's method goes the way up to it, to where
        scikit-learn's solver finds nothing left to do: at the end it is asked.
        """
        *others, weakest = sorted(range(len(candidates)), key=lambda n: candidates[n]["C"])
        estimator.set_params(warm_start=True)
        n_iter = _fit(estimator, X, y, candidates[weakest], fit_params)
        fitted = {weakest: copy.copy(estimator)}
        path: _NewtonPath | None = None
        if _pays(n_iter, estimator.coef_.size, X):
            path = _NewtonPath(estimator, X, y, **fit_params)
        else:
            estimator = clone(estimator)

        def ask() -> None:
            if path is not None and _fit(estimator, X, y, {}, fit_params) > path.fewest:
                raise NotImplementedError("its solver must find nothing left to do")

        was_led = False
        for n in others:
            is_led = path is not None and path.lead(estimator, **candidates[n])
            if not is_led:
                if was_led:
                    ask()
                _fit(estimator, X, y, candidates[n], fit_params)
            fitted[n], was_led = copy.copy(estimator), is_led
        if was_led:
            ask()
        for one in fitted.values():
            one.set_params(warm_start=False)
        return [fitted[n] for n in range(len(candidates))]


def _fit(
    estimator: Any, X: Any, y: Any, candidate: Mapping[str, Any], fit_params: Mapping[str, Any]
) -> int:
    """Fit, from where it is, and give the number of iterations."""
    estimator.set_params(**candidate).fit(X, y, **fit_params)
    n_iter = int(np.max(estimator.n_iter_))
    check_end(n_iter, estimator.max_iter)
    return n_iter


class _NewtonPath:
    """Leads an estimator from one optimum to that for a weaker penalty."""

    def __init__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> None:
        # Where there is nothing left to do, this one takes a step none the less.
        self.fewest = int(estimator.solver == "newton-cholesky")
        classes, codes = estimator.classes_, np.searchsorted(estimator.classes_, y)
        weights = None if sample_weight is None else np.asarray(sample_weight)
        if estimator.class_weight is not None:
            of_classes = compute_class_weight(
                estimator.class_weight, classes=classes, y=y, sample_weight=weights
            )
            weights = of_classes[codes] if weights is None else weights * of_classes[codes]
        n_classes, (n_outputs, n_columns) = len(classes), estimator.coef_.shape
        rows = row_blocks(X, codes.astype(float), weights)
        self._total = float(len(y) if weights is None else np.sum(weights))
        self._centres = estimator.fit_intercept
        loss: Any = BinaryLogistic() if n_outputs == 1 else Multinomial(n_classes)
        objective = Objective(
            LocalEngine(1),
            rows,
            loss,
            total_weight=self._total,
            scaling=Scaling(np.zeros(n_columns), np.ones(n_columns)),
            labels=ClassEncoding(),
            fit_intercept=self._centres,
        )
        self._penalised = np.ones((n_outputs, n_columns + self._centres))
        self._penalised[:, n_columns:] = 0.0
        self._newton = WarmNewton(objective, np.zeros(self._penalised.size))

    def lead(self, estimator: Any, C: float) -> bool:
        """Bring an estimator to the optimum for a penalty; False where that cannot be had."""
        l2 = self._penalised.ravel() / (C * self._total)
        if not self._newton.solve(l2, tol=estimator.tol / 2, max_iter=_MOST_STEPS):
            return False
        found = self._newton.coef.reshape(self._penalised.shape)
        kind, n_columns = estimator.coef_.dtype, estimator.coef_.shape[1]
        estimator.set_params(C=C).coef_ = found[:, :n_columns].astype(kind)
        if self._centres:
            estimator.intercept_ = found[:, n_columns].astype(kind)
        estimator.n_iter_ = np.full_like(estimator.n_iter_, self._newton.n_iter)
        return True


def _pays(n_iter: int, n_unknowns: int, X: Any) -> bool:
    """Tell whether Newton's method is the quicker way from here on."""
    if sparse.issparse(X) or n_unknowns > _MOST_UNKNOWNS:
        return False
    return n_iter > _FEWEST_STEPS + n_unknowns / _PER_HESSIAN


register_shared_fit("sklearn.linear_model.LogisticRegression", WarmPath())
