"""Transformers whose result holds that for fewer columns: components, and columns by their rank."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_selection import chi2, f_classif, f_regression, r_regression

from skfleet._sklearn_private import take_columns
from skfleet.model_selection._shared_fits._checks import refuse_more, size_problem
from skfleet.model_selection._shared_fits._registry import SharedFit, register_shared_fit

__all__ = ["PrincipalComponents", "SingularVectors", "Univariate"]

# Singular values that differ by less than this, relative to the largest, share their vectors; and
# of smaller ones, rounding shows in the rows that whatever follows is fitted on.
_APART = 1e-6

# What is the same whenever it is asked.
_SCORE_FUNCS = (chi2, f_classif, f_regression, r_regression)


class _Components(SharedFit):
    """A decomposition of which the first components are kept."""

    parameters = ("n_components",)
    _attributes = (
        "components_",
        "explained_variance_",
        "explained_variance_ratio_",
        "singular_values_",
    )

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: a number of components that the rows decide on."""
        return size_problem("n_components", params["n_components"])

    @abstractmethod
    def _largest(self, estimator: Any, sizes: Sequence[int], X: Any, y: Any) -> Any:
        """Fit what holds all that are asked for."""

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Decompose once, and give the first components."""
        sizes = self._sizes(candidates, fit_params)
        return self._cuts(self._largest(estimator, sizes, X, y), sizes)

    @staticmethod
    def _sizes(candidates: Sequence[Mapping[str, Any]], fit_params: Mapping[str, Any]) -> list[int]:
        """Give how many components each candidate asks for."""
        refuse_more(fit_params)
        return [int(one["n_components"]) for one in candidates]

    def _cuts(self, largest: Any, sizes: Sequence[int]) -> list[Any]:
        """Give the decomposition into as many components as each candidate asks for."""
        values = largest.singular_values_
        if not values[max(sizes) - 1] > _APART * values[0]:
            raise NotImplementedError("components must be larger than rounding")
        return [self._cut(largest, size) for size in sizes]

    def _cut(self, largest: Any, size: int) -> Any:
        """Give the decomposition into fewer components."""
        cut = copy.copy(largest).set_params(n_components=size)
        for name in self._attributes:
            # in the order in memory that scikit-learn gives it, which shows in products
            setattr(cut, name, np.array(getattr(largest, name)[:size], order="K"))
        return cut


class PrincipalComponents(_Components):
    """PCA by a full decomposition, of which each number of components is a part."""

    known = frozenset(
        [
            "copy",
            "iterated_power",
            "n_components",
            "n_oversamples",
            "power_iteration_normalizer",
            "random_state",
            "svd_solver",
            "tol",
            "whiten",
        ]
    )

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: solvers that look for no more components than they are asked for."""
        if params["svd_solver"] not in ("auto", "full", "covariance_eigh"):
            return (
                "svd_solver must be 'auto', 'full' or 'covariance_eigh'. "
                f"Got {params['svd_solver']!r} instead"
            )
        if not params["copy"]:
            return "copy must be True. Got False instead"
        return super().refuses(params)

    def fit_transform(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[tuple[Any, Any]]:
        """Decompose once, and give the first components and the rows in them.

        A decomposition of the rows has them itself; that of their covariance transforms them.
        """
        if self._solver(estimator, X) != "full":
            return super().fit_transform(estimator, candidates, X, y, **fit_params)
        sizes = self._sizes(candidates, fit_params)
        self._check(sizes, X)
        largest = estimator.set_params(n_components=None)
        rows = largest.fit_transform(X, y)
        cuts = self._cuts(largest, sizes)
        return [(one, take_columns(rows, size)) for one, size in zip(cuts, sizes, strict=True)]

    def _largest(self, estimator: Any, sizes: Sequence[int], X: Any, y: Any) -> Any:
        self._solver(estimator, X)
        self._check(sizes, X)
        return estimator.set_params(n_components=None).fit(X, y)

    @staticmethod
    def _solver(estimator: Any, X: Any) -> str:
        """Tell which solver "auto" is, as scikit-learn's documentation does, or raise."""
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
        """Raise for more components than there can be."""
        if max(sizes) > min(X.shape):
            raise NotImplementedError(f"n_components must be at most {min(X.shape)}")

    def _cut(self, largest: Any, size: int) -> Any:
        cut = super()._cut(largest, size)
        cut.n_components_ = size
        rest = largest.explained_variance_[size:]
        cut.noise_variance_ = rest.mean() if len(rest) else 0.0
        return cut


class SingularVectors(_Components):
    """TruncatedSVD by ARPACK, which goes on until the vectors are as precise as can be."""

    known = frozenset(
        [
            "algorithm",
            "n_components",
            "n_iter",
            "n_oversamples",
            "power_iteration_normalizer",
            "random_state",
            "tol",
        ]
    )

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: random vectors, of which there are as many as components."""
        for name, wanted in {"algorithm": "arpack", "tol": 0.0}.items():
            if params[name] != wanted:
                return f"{name} must be {wanted!r}. Got {params[name]!r} instead"
        return super().refuses(params)

    def _largest(self, estimator: Any, sizes: Sequence[int], X: Any, y: Any) -> Any:
        largest = estimator.set_params(n_components=max(sizes)).fit(X, y)
        values = largest.singular_values_
        last = np.array(sorted(set(sizes))[:-1], dtype=int) - 1
        if not (values[last] - values[last + 1] > _APART * values[0]).all():
            raise NotImplementedError("singular values must be apart where they are cut")
        return largest


class Univariate(SharedFit):
    """Columns by their rank: the scores of all are the same, however many are kept."""

    def __init__(self, size: str, most: float) -> None:
        self.parameters = (size,)
        self.known = frozenset([size, "score_func"])
        self._most = most

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: scores that may be others each time."""
        if not any(params["score_func"] is one for one in _SCORE_FUNCS):
            names = ", ".join(one.__name__ for one in _SCORE_FUNCS)
            return f"score_func must be one of {names}. Got {params['score_func']!r} instead"
        (name,) = self.parameters
        size = params[name]
        if isinstance(size, (bool, str)) or not 0 <= size <= self._most:
            return f"{name} must be a number from 0 to {self._most}. Got {size!r} instead"
        return None

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Score the columns once."""
        refuse_more(fit_params)
        (name,) = self.parameters
        if name == "k" and max(one[name] for one in candidates) > X.shape[1]:
            raise NotImplementedError(f"k must be at most {X.shape[1]}")
        scored = estimator.fit(X, y)
        return [copy.copy(scored).set_params(**one) for one in candidates]


register_shared_fit("sklearn.decomposition.PCA", PrincipalComponents())
register_shared_fit("sklearn.decomposition.TruncatedSVD", SingularVectors())
register_shared_fit("sklearn.feature_selection.SelectKBest", Univariate("k", np.inf))
register_shared_fit("sklearn.feature_selection.SelectPercentile", Univariate("percentile", 100))
