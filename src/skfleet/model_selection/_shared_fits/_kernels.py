"""Kernel methods over their penalties: the kernel of the rows is made once."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.linalg import blas
from sklearn.base import clone, is_classifier
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.utils import gen_batches

from skfleet._sklearn_private import svm_from_kernel_fit, take_rows
from skfleet.model_selection._shared_fits._checks import dense_rows, penalty_problem
from skfleet.model_selection._shared_fits._registry import SharedFit, register_shared_fit

__all__ = ["KernelPenalties", "MachinePenalties"]

_KERNELS = ("linear", "poly", "rbf", "sigmoid")

# The kernel of more rows takes more than a fifth of a gigabyte, and libsvm makes only the part of
# it that it looks at.
_MOST_ROWS = 5000

# So many elements of a kernel are looked at at a time.
_ELEMENTS = 2**20

# Of a kernel's elements those that are smaller than the largest by this much need not be libsvm's
# in single precision; and of others so many a row may be computed as it does, one after the other.
_NOTHING, _MOST_IN_DOUBT = 1e-9, 20


class _OnKernel(SharedFit):
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
        rows = self._rows(X)
        if len(rows) > _MOST_ROWS:
            raise NotImplementedError(f"rows must be at most {_MOST_ROWS}")
        gamma = estimator.gamma
        if isinstance(gamma, str):
            variance = rows.var() if gamma == "scale" else 1.0
            gamma = 1.0 / (rows.shape[1] * variance) if variance else 1.0
        kernel = self._kernel(clone(estimator).set_params(gamma=gamma), rows)
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

    def _rows(self, X: Any) -> np.ndarray:
        """Give the rows as the estimator has them."""
        return dense_rows(X)

    def _kernel(self, estimator: Any, rows: np.ndarray) -> np.ndarray:
        """Give the kernel of all rows with all."""
        return pairwise_kernels(
            rows,
            metric=estimator.kernel,
            filter_params=True,
            gamma=estimator.gamma,
            degree=estimator.degree,
            coef0=estimator.coef0,
            n_jobs=1,
        )


class KernelPenalties(_OnKernel):
    """Kernel ridge over its penalty."""

    parameters = ("alpha",)
    known = frozenset(["alpha", "coef0", "degree", "gamma", "kernel", "kernel_params"])

    def _model(self, template: Any, fitted: Any, rows: np.ndarray) -> Any:
        template.dual_coef_, template.X_fit_ = fitted.dual_coef_, rows
        return template


class MachinePenalties(_OnKernel):
    """Support vector machines over C, and the width of the tube in regression.

    libsvm sees kernels in single precision. On the same ones it takes the same way, and ends at the
    same place.
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
        if params["max_iter"] != -1:
            return f"max_iter must be -1. Got {params['max_iter']!r} instead"
        if params.get("probability", False) not in (False, "deprecated"):
            return "probability must be False. Got True instead"
        return super().refuses(params)

    def _rows(self, X: Any) -> np.ndarray:
        """Give the rows in the order in memory that gamma="scale" sums them up in."""
        return np.ascontiguousarray(super()._rows(X))

    def _kernel(self, estimator: Any, rows: np.ndarray) -> np.ndarray:
        """Give the kernel that is libsvm's in single precision, its diagonal to the last bit."""
        kernel = super()._kernel(estimator, rows)
        product = _PairProduct(estimator, rows)
        in_doubt = [(n, n) for n in range(len(rows))]
        for batch in gen_batches(len(rows), max(1, _ELEMENTS // len(rows))):
            part = kernel[batch]
            off = product.rounding(part, batch)
            differs = (part - off).astype(np.float32) != (part + off).astype(np.float32)
            some, others = np.nonzero(differs)
            # The single precision of what is this much smaller is the double of the rest.
            matters = np.abs(part[some, others]) > _NOTHING * max(part.max(), -part.min())
            some, others = some[matters] + batch.start, others[matters]
            in_doubt += zip(some.tolist(), others.tolist(), strict=True)
            if len(in_doubt) > _MOST_IN_DOUBT * len(rows):
                raise NotImplementedError("kernels must not be lost in rounding")
        for one, other in in_doubt:
            kernel[one, other] = product(one, other)
        return kernel

    def _model(self, template: Any, fitted: Any, rows: np.ndarray) -> Any:
        return svm_from_kernel_fit(template, fitted, rows)


class _PairProduct:
    """The kernel of two rows, computed as libsvm does: from their product, by BLAS."""

    def __init__(self, machine: Any, rows: np.ndarray) -> None:
        self._kind, self._rows = machine.kernel, rows
        self._gamma, self._coef0 = machine.gamma, machine.coef0
        self._degree = machine.degree
        self._lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))

    def __call__(self, one: int, other: int) -> float:
        rows = self._rows
        product = blas.ddot(rows[one], rows[other])
        if self._kind == "linear":
            return float(product)
        if self._kind == "rbf":
            squares = blas.ddot(rows[one], rows[one]) + blas.ddot(rows[other], rows[other])
            return math.exp(-self._gamma * (squares - 2 * product))
        base = self._gamma * product + self._coef0
        if self._kind == "sigmoid":
            return math.tanh(base)
        power, times = 1.0, self._degree
        while times:
            power = power * base if times % 2 else power
            base, times = base * base, times // 2
        return power

    def rounding(self, part: np.ndarray, batch: slice) -> np.ndarray:
        """Bound by how much the kernel of some rows may differ from libsvm's."""
        own, all_ = self._lengths[batch, None], self._lengths[None, :]
        eps = np.finfo(float).eps
        of_sums, of_function = 2 * (self._rows.shape[1] + 4) * eps, 16 * eps * np.abs(part)
        if self._kind == "linear":
            return of_sums * own * all_
        if self._kind == "rbf":
            return of_sums * self._gamma * (own + all_) ** 2 * part + of_function
        of_base = of_sums * (self._gamma * own * all_ + abs(self._coef0))
        if self._kind == "sigmoid":
            return of_base + of_function
        largest = self._gamma * own * all_ + abs(self._coef0)
        return self._degree * (largest ** max(self._degree - 1, 0) * of_base + of_function)


register_shared_fit("sklearn.kernel_ridge.KernelRidge", KernelPenalties())
register_shared_fit("sklearn.svm.SVC", MachinePenalties("C"))
register_shared_fit("sklearn.svm.SVR", MachinePenalties("C", "epsilon"))
