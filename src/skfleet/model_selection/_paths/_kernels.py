"""Shared fits of support vector machines and kernel ridge: one kernel matrix for all penalties."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.linalg import blas
from sklearn.base import clone, is_classifier
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.utils import gen_batches

from skfleet._sklearn_private import svm_from_kernel_fit, take_rows
from skfleet.model_selection._paths._checks import (
    dense_float64,
    invalid_penalty,
    invalid_value,
    name_set,
)
from skfleet.model_selection._paths._registry import ParamSets, SharedFit, register_shared_fit

_KERNELS = ("linear", "poly", "rbf", "sigmoid")

# The kernel matrix of more rows exceeds 200 MB, and libsvm computes only the part that it needs.
_MAX_ROWS = 5000

_BATCH_ELEMENTS = 2**20

# Elements below this fraction of the largest need not be libsvm's in single precision. Of others
# so many per row are recomputed exactly as libsvm does, one by one.
_NEGLIGIBLE, _MAX_UNCERTAIN_PER_ROW = 1e-9, 20


class _KernelPath(SharedFit):
    """Estimators that take a precomputed kernel matrix, which does not depend on the penalty."""

    is_divisible = True

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject kernels of the user's own, and invalid penalties."""
        if params["kernel"] not in _KERNELS:
            names = ", ".join(_KERNELS)
            return f"kernel must be one of {names}. Got {params['kernel']!r} instead"
        name = self.parameters[0]
        return invalid_penalty(name, params[name])

    @abstractmethod
    def _model(self, template: Any, fitted: Any, rows: np.ndarray) -> Any:
        """Return the model of the rows, given the model that was fitted on their kernel.

        The template was fitted on a few of the rows: only its solution has to be replaced.
        """

    def fit(
        self, estimator: Any, candidates: ParamSets, X: Any, y: Any, **fit_params: Any
    ) -> list[Any]:
        """Compute the kernel matrix, and fit each candidate on it."""
        rows = self._rows(X)
        if len(rows) > _MAX_ROWS:
            raise NotImplementedError(f"rows must be at most {_MAX_ROWS}")
        gamma = estimator.gamma
        if isinstance(gamma, str):
            variance = rows.var() if gamma == "scale" else 1.0
            gamma = 1.0 / (rows.shape[1] * variance) if variance else 1.0
        kernel = self._kernel(clone(estimator).set_params(gamma=gamma), rows)
        sample = np.arange(2)
        if is_classifier(estimator):
            sample = np.unique(np.asarray(y), return_index=True)[1]
        template = clone(estimator).set_params(gamma=gamma)
        template.fit(take_rows(X, sample), take_rows(y, sample)).set_params(gamma=estimator.gamma)
        models = []
        for candidate in candidates:
            model = clone(estimator).set_params(kernel="precomputed", **candidate)
            fitted = model.fit(kernel, y, **fit_params).set_params(kernel=estimator.kernel)
            models.append(self._model(copy.copy(template), fitted, rows).set_params(**candidate))
        return models

    def _rows(self, X: Any) -> np.ndarray:
        return dense_float64(X)

    def _kernel(self, estimator: Any, rows: np.ndarray) -> np.ndarray:
        """Return the kernel matrix of the rows."""
        params = {name: getattr(estimator, name) for name in ("gamma", "degree", "coef0")}
        return pairwise_kernels(
            rows, metric=estimator.kernel, filter_params=True, n_jobs=1, **params
        )


class KernelRidgePath(_KernelPath):
    """Kernel ridge over its penalty."""

    parameters = ("alpha",)
    known = frozenset(["alpha", "coef0", "degree", "gamma", "kernel", "kernel_params"])
    keeps_rows = True

    def _model(self, template: Any, fitted: Any, rows: np.ndarray) -> Any:
        template.dual_coef_, template.X_fit_ = fitted.dual_coef_, rows
        return template


class SVMPath(_KernelPath):
    """Support vector machines over C, and over epsilon in regression.

    libsvm stores kernels in single precision. Given equal kernels it takes equal steps, and ends at
    the same solution.
    """

    known = name_set(
        "C break_ties cache_size class_weight coef0 decision_function_shape degree epsilon gamma "
        "kernel max_iter probability random_state shrinking tol verbose"
    )

    def __init__(self, *parameters: str) -> None:
        self.parameters = parameters

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject an iteration limit too, and probabilities, which come from random splits."""
        problem = invalid_value(params, max_iter=-1)
        if problem is None and params.get("probability", False) not in (False, "deprecated"):
            return "probability must be False. Got True instead"
        return problem or super().unsupported_reason(params)

    def _rows(self, X: Any) -> np.ndarray:
        # gamma="scale" sums the rows up in their order in memory
        return np.ascontiguousarray(super()._rows(X))

    def _kernel(self, estimator: Any, rows: np.ndarray) -> np.ndarray:
        """Return the kernel matrix, equal to libsvm's in float32 and in float64 on the diagonal."""
        kernel = super()._kernel(estimator, rows)
        libsvm = _LibsvmKernel(estimator, rows)
        # libsvm has the diagonal in double precision, so it is computed in any case as libsvm does.
        uncertain = [(n, n) for n in range(len(rows))]
        for batch in gen_batches(len(rows), max(1, _BATCH_ELEMENTS // len(rows))):
            part = kernel[batch]
            bound = libsvm.rounding(part, batch)
            differs = (part - bound).astype(np.float32) != (part + bound).astype(np.float32)
            i, j = np.nonzero(differs)
            # the float32 rounding of a negligible element is below the float64 rounding of others
            matters = np.abs(part[i, j]) > _NEGLIGIBLE * max(part.max(), -part.min())
            i, j = i[matters] + batch.start, j[matters]
            uncertain += zip(i.tolist(), j.tolist(), strict=True)
            if len(uncertain) > _MAX_UNCERTAIN_PER_ROW * len(rows):
                raise NotImplementedError("kernels must not be lost in rounding")
        for row, column in uncertain:
            kernel[row, column] = libsvm(row, column)
        return kernel

    def _model(self, template: Any, fitted: Any, rows: np.ndarray) -> Any:
        return svm_from_kernel_fit(template, fitted, rows)


class _LibsvmKernel:
    """The kernel of two rows with libsvm's operations: dot products by BLAS, integer powers."""

    def __init__(self, svm: Any, rows: np.ndarray) -> None:
        self._kind, self._rows = svm.kernel, rows
        self._gamma, self._coef0, self._degree = svm.gamma, svm.coef0, svm.degree
        self._norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))

    def __call__(self, i: int, j: int) -> float:
        rows = self._rows
        product = blas.ddot(rows[i], rows[j])
        if self._kind == "linear":
            return float(product)
        if self._kind == "rbf":
            squares = blas.ddot(rows[i], rows[i]) + blas.ddot(rows[j], rows[j])
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
        """Bound the rounding errors of a batch of kernel rows, in this and in libsvm's order."""
        row_norms, norms = self._norms[batch, None], self._norms[None, :]
        eps = np.finfo(float).eps
        sum_error, function_error = 2 * (self._rows.shape[1] + 4) * eps, 16 * eps * np.abs(part)
        if self._kind == "linear":
            return sum_error * row_norms * norms
        if self._kind == "rbf":
            return sum_error * self._gamma * (row_norms + norms) ** 2 * part + function_error
        max_base = self._gamma * row_norms * norms + abs(self._coef0)
        base_error = sum_error * max_base
        if self._kind == "sigmoid":
            return base_error + function_error
        return self._degree * (max_base ** max(self._degree - 1, 0) * base_error + function_error)


register_shared_fit("sklearn.kernel_ridge.KernelRidge", KernelRidgePath())
register_shared_fit("sklearn.svm.SVC", SVMPath("C"))
register_shared_fit("sklearn.svm.SVR", SVMPath("C", "epsilon"))
