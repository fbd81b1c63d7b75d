"""Kernel methods over their penalties: the kernel of the rows is made once."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.metrics.pairwise import pairwise_kernels

from skfleet._sklearn_private import on_rows, take_rows
from skfleet.model_selection._families._checks import dense_rows, penalty_problem
from skfleet.model_selection._families._registry import Family, register_family

__all__ = ["KernelPenalties", "MachinePenalties"]

_KERNELS = ("linear", "poly", "rbf", "sigmoid")

# The kernel of more rows takes more than a fifth of a gigabyte, and libsvm makes only the part of
# it that it looks at.
_MOST_ROWS = 5000


class _OnKernel(Family):
    """Fits that differ in what is done with the same kernel."""

    is_divisible = True

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: a kernel of the user's, or a penalty that is none."""
        if params["kernel"] not in _KERNELS:
            known = ", ".join(_KERNELS)
            return f"kernel must be one of {known}. Got {params['kernel']!r} instead"
        name = self.parameters[0]
        return penalty_problem(name, params[name])

    @abstractmethod
    def _model(self, template: Any, fitted: Any, rows: np.ndarray) -> Any:
        """Give the model of the rows that was fitted on their kernel.

        The template was fitted on a few of them: all but what was found is as it should be.
        """

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Make the kernel, and fit each candidate on it."""
        rows = dense_rows(X)
        if len(rows) > _MOST_ROWS:
            raise NotImplementedError(f"rows must be at most {_MOST_ROWS}")
        gamma = estimator.gamma
        if isinstance(gamma, str):
            variance = rows.var() if gamma == "scale" else 1.0
            gamma = 1.0 / (rows.shape[1] * variance) if variance else 1.0
        kernel = pairwise_kernels(
            rows,
            metric=estimator.kernel,
            filter_params=True,
            gamma=gamma,
            degree=estimator.degree,
            coef0=estimator.coef0,
            n_jobs=1,
        )
        few = np.arange(2)
        if is_classifier(estimator):
            few = np.unique(np.asarray(y), return_index=True)[1]
        template = clone(estimator).set_params(gamma=gamma)
        template.fit(take_rows(X, few), take_rows(y, few)).set_params(gamma=estimator.gamma)
        found = []
        for candidate in candidates:
            own = clone(estimator).set_params(kernel="precomputed", **candidate)
            fitted = own.fit(kernel, y, **fit_params).set_params(kernel=estimator.kernel)
            found.append(self._model(copy.copy(template), fitted, rows).set_params(**candidate))
        return found


class KernelPenalties(_OnKernel):
    """Kernel ridge over its penalty."""

    parameters = ("alpha",)
    known = frozenset(["alpha", "coef0", "degree", "gamma", "kernel", "kernel_params"])

    def _model(self, template: Any, fitted: Any, rows: np.ndarray) -> Any:
        template.dual_coef_, template.X_fit_ = fitted.dual_coef_, rows
        return template


class MachinePenalties(_OnKernel):
    """Support vector machines over C, and the width of the tube in regression.

    Scores agree within the ``tol`` of the estimator.
    """

    known = frozenset(
        [
            "C",
            "break_ties",
            "cache_size",
            "class_weight",
            "coef0",
            "decision_function_shape",
            "degree",
            "epsilon",
            "gamma",
            "kernel",
            "max_iter",
            "probability",
            "random_state",
            "shrinking",
            "tol",
            "verbose",
        ]
    )

    def __init__(self, *parameters: str) -> None:
        self.parameters = parameters

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why, besides: solvers that are stopped, and probabilities from random splits."""
        if params["max_iter"] != -1 or params["verbose"]:
            return "max_iter must be -1, and verbose False. Got others instead"
        if params.get("probability", False) not in (False, "deprecated"):
            return "probability must be False. Got True instead"
        return super().refuses(params)

    def _model(self, template: Any, fitted: Any, rows: np.ndarray) -> Any:
        return on_rows(template, fitted, rows)


register_family("sklearn.kernel_ridge.KernelRidge", KernelPenalties())
register_family("sklearn.svm.SVC", MachinePenalties("C"))
register_family("sklearn.svm.SVR", MachinePenalties("C", "epsilon"))
