"""Shared fits over the number of output columns: PCA, truncated SVD, univariate selection."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_selection import chi2, f_classif, f_regression, r_regression

from skfleet._sklearn_private import take_columns
from skfleet.model_selection._paths._checks import (
    check_no_fit_params,
    invalid_size,
    invalid_value,
    name_set,
)
from skfleet.model_selection._paths._registry import ParamSets, SharedFit, register_shared_fit

# Relative to the largest singular value. Vectors of singular values with a smaller gap are not
# unique, and those of smaller singular values carry rounding into the steps that follow.
_MIN_RELATIVE_GAP = 1e-6

# deterministic score functions
_SCORE_FUNCS = (chi2, f_classif, f_regression, r_regression)


class _ComponentsPath(SharedFit):
    """Decomposition of which each candidate keeps the first components."""

    parameters = ("n_components",)
    _attributes = name_set(
        "components_ explained_variance_ explained_variance_ratio_ singular_values_"
    )

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject a number of components that depends on the data."""
        return invalid_size("n_components", params["n_components"])

    @abstractmethod
    def _largest(self, estimator: Any, sizes: Sequence[int], X: Any, y: Any) -> Any:
        """Fit a decomposition with at least as many components as any candidate."""

    def fit(
        self, estimator: Any, candidates: ParamSets, X: Any, y: Any, **fit_params: Any
    ) -> list[Any]:
        """Decompose once, and return the first components for each candidate."""
        sizes = self._sizes(candidates, fit_params)
        return self._truncate_all(self._largest(estimator, sizes, X, y), sizes)

    @staticmethod
    def _sizes(candidates: ParamSets, fit_params: Mapping[str, Any]) -> list[int]:
        """Return the number of components of each candidate."""
        check_no_fit_params(fit_params)
        return [int(candidate["n_components"]) for candidate in candidates]

    def _truncate_all(self, largest: Any, sizes: Sequence[int]) -> list[Any]:
        """Return the truncated decomposition of each size."""
        values = largest.singular_values_
        if not values[max(sizes) - 1] > _MIN_RELATIVE_GAP * values[0]:
            raise NotImplementedError("components must be larger than rounding")
        return [self._truncate(largest, size) for size in sizes]

    def _truncate(self, largest: Any, size: int) -> Any:
        """Return the decomposition with the first `size` components."""
        model = copy.copy(largest).set_params(n_components=size)
        for name in self._attributes:
            # scikit-learn's memory order: it affects the rounding of products
            setattr(model, name, np.array(getattr(largest, name)[:size], order="K"))
        return model


class PCAPath(_ComponentsPath):
    """PCA by a full decomposition, of which each candidate takes the first components."""

    known = name_set(
        "copy iterated_power n_components n_oversamples power_iteration_normalizer random_state "
        "svd_solver tol whiten"
    )

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject solvers whose components depend on their number."""
        if params["svd_solver"] not in ("auto", "full", "covariance_eigh"):
            return (
                "svd_solver must be 'auto', 'full' or 'covariance_eigh'. "
                f"Got {params['svd_solver']!r} instead"
            )
        return invalid_value(params, copy=True) or super().unsupported_reason(params)

    def fit_transform(
        self, estimator: Any, candidates: ParamSets, X: Any, y: Any, **fit_params: Any
    ) -> list[tuple[Any, Any]]:
        """Decompose once, and return the first components with the transformed rows.

        After an SVD ``fit_transform`` takes the rows from it, with other rounding than
        ``transform``; after an eigendecomposition of the covariance the two are the same.
        """
        if self._solver(estimator, X) != "full":
            return super().fit_transform(estimator, candidates, X, y, **fit_params)
        sizes = self._sizes(candidates, fit_params)
        self._check(sizes, X)
        largest = estimator.set_params(n_components=None)
        rows = largest.fit_transform(X, y)
        models = self._truncate_all(largest, sizes)
        return [
            (model, take_columns(rows, slice(n))) for model, n in zip(models, sizes, strict=True)
        ]

    def _largest(self, estimator: Any, sizes: Sequence[int], X: Any, y: Any) -> Any:
        self._solver(estimator, X)
        self._check(sizes, X)
        return estimator.set_params(n_components=None).fit(X, y)

    @staticmethod
    def _solver(estimator: Any, X: Any) -> str:
        """Return the solver that "auto" stands for, as documented by scikit-learn, or raise."""
        n_rows, n_columns = X.shape
        if sparse.issparse(X):
            raise NotImplementedError("rows must be dense")
        if estimator.svd_solver != "auto":
            return str(estimator.svd_solver)
        if n_columns <= 1000 and n_rows >= 10 * n_columns:
            return "covariance_eigh"
        if max(X.shape) <= 500:
            return "full"
        raise NotImplementedError(
            "svd_solver must be 'full' or 'covariance_eigh' for so many columns. Got 'auto' instead"
        )

    @staticmethod
    def _check(sizes: Sequence[int], X: Any) -> None:
        """Raise for more components than rows or columns."""
        if max(sizes) > min(X.shape):
            raise NotImplementedError(f"n_components must be at most {min(X.shape)}")

    def _truncate(self, largest: Any, size: int) -> Any:
        model = super()._truncate(largest, size)
        model.n_components_ = size
        noise = largest.explained_variance_[size:]
        model.noise_variance_ = noise.mean() if len(noise) else 0.0
        return model


class TruncatedSVDPath(_ComponentsPath):
    """Truncated SVD by ARPACK, which iterates to machine precision with ``tol=0``."""

    known = name_set(
        "algorithm n_components n_iter n_oversamples power_iteration_normalizer random_state tol"
    )

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject the randomized solver, whose draws depend on the number of components."""
        problem = invalid_value(params, algorithm="arpack", tol=0.0)
        return problem or super().unsupported_reason(params)

    def _largest(self, estimator: Any, sizes: Sequence[int], X: Any, y: Any) -> Any:
        largest = estimator.set_params(n_components=max(sizes)).fit(X, y)
        values = largest.singular_values_
        last = np.array(sorted(set(sizes))[:-1], dtype=int) - 1
        if not (values[last] - values[last + 1] > _MIN_RELATIVE_GAP * values[0]).all():
            raise NotImplementedError("singular values must be apart where they are cut")
        return largest


class SelectKPath(SharedFit):
    """Univariate feature selection: the scores of columns do not depend on the number selected."""

    def __init__(self, size: str, max_size: float) -> None:
        self.parameters = (size,)
        self.known = frozenset([size, "score_func"])
        self._max_size = max_size

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject score functions that may be random."""
        if not any(params["score_func"] is func for func in _SCORE_FUNCS):
            names = ", ".join(func.__name__ for func in _SCORE_FUNCS)
            return f"score_func must be one of {names}. Got {params['score_func']!r} instead"
        (name,) = self.parameters
        size = params[name]
        if isinstance(size, (bool, str)) or not 0 <= size <= self._max_size:
            return f"{name} must be a number from 0 to {self._max_size}. Got {size!r} instead"
        return None

    def fit(
        self, estimator: Any, candidates: ParamSets, X: Any, y: Any, **fit_params: Any
    ) -> list[Any]:
        """Compute the scores of the columns once."""
        check_no_fit_params(fit_params)
        (name,) = self.parameters
        if name == "k" and max(candidate[name] for candidate in candidates) > X.shape[1]:
            raise NotImplementedError(f"k must be at most {X.shape[1]}")
        fitted = estimator.fit(X, y)
        return [copy.copy(fitted).set_params(**candidate) for candidate in candidates]


register_shared_fit("sklearn.decomposition.PCA", PCAPath())
register_shared_fit("sklearn.decomposition.TruncatedSVD", TruncatedSVDPath())
register_shared_fit("sklearn.feature_selection.SelectKBest", SelectKPath("k", np.inf))
register_shared_fit("sklearn.feature_selection.SelectPercentile", SelectKPath("percentile", 100))
