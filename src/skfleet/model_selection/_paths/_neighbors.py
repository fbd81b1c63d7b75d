"""Shared fits of nearest neighbours: one query for the largest `n_neighbors`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import gen_batches

from skfleet._method_override import override_method
from skfleet._sklearn_private import take_rows, uses_tree
from skfleet.model_selection._paths._checks import invalid_size, name_set
from skfleet.model_selection._paths._registry import ParamSets, SharedFit, register_shared_fit

# Brute force and the tree are timed on so many rows, if that is a small part of the query.
_TIMING_ROWS, _MIN_TIMING_RATIO = 64, 8

# Brute force is used only if rounding cannot change the neighbours of so many rows.
_MIN_SEPARATED_FRACTION = 0.9

_BATCH_ELEMENTS = 2**20


class KNeighborsPath(SharedFit):
    """K-neighbors estimators: one query for the largest k serves all smaller ones.

    If the k-th and the next neighbour are equally far, the result depends on the search: such rows
    are queried again with that k. A candidate with k of half the rows or more is fitted by itself,
    as scikit-learn then uses another algorithm.
    """

    parameters = ("n_neighbors", "weights")
    keeps_rows = True
    known = name_set("algorithm leaf_size metric metric_params n_jobs n_neighbors p weights")

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject invalid numbers of neighbours."""
        return invalid_size("n_neighbors", params["n_neighbors"])

    def fit(
        self, estimator: Any, candidates: ParamSets, X: Any, y: Any, **fit_params: Any
    ) -> list[Any]:
        """Fit once, and share a cache of the neighbours among all candidates."""
        sizes = {candidate["n_neighbors"] for candidate in candidates}
        if estimator.algorithm == "auto":
            half = max(1, np.shape(X)[0] // 2)
            sizes = {size for size in sizes if size < half} or {min(sizes)}
        n_neighbors = max(sizes)
        fitted = clone(estimator).set_params(n_neighbors=n_neighbors).fit(X, y, **fit_params)
        cache = _NeighborCache(fitted, n_neighbors, X)
        models = []
        for candidate in candidates:
            model = clone(estimator).set_params(**candidate)
            if candidate["n_neighbors"] in sizes:
                vars(model).update({**vars(fitted), **candidate})
                cache.attach(model)
            else:
                model.fit(X, y, **fit_params)
            models.append(model)
        return models


class _NeighborCache:
    """Cache of the sorted neighbours of the latest query."""

    def __init__(self, fitted: Any, n_neighbors: int, X: Any) -> None:
        self.fitted = fitted
        self._X = X
        self._n_neighbors = min(n_neighbors, fitted.n_samples_fit_)
        self._uses_tree = uses_tree(fitted)  # in the fit, where an error ends only the sharing
        self._neighbors: dict[bytes, _SortedNeighbors] = {}

    def attach(self, model: Any) -> None:
        """Replace ``kneighbors`` of a fitted model by look-ups in this cache."""
        k = model.n_neighbors
        if k > self._n_neighbors:
            return  # the model raises: there are fewer rows than neighbours
        override_method(model, "kneighbors", _PrecomputedKNeighbors(self, k))
        if isinstance(model.weights, str) and model.weights == "uniform":
            # With "uniform" scikit-learn bypasses `kneighbors` where it searches by brute force.
            model.weights = np.ones_like

    def kneighbors(self, X: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return distances and indices of the k nearest rows."""
        from skfleet.engine import Pickled  # which imports distributed

        key = Pickled.dumps(X).digest()
        if key not in self._neighbors:
            self._neighbors = {key: self._search(X)}
        all_distances, all_indices, tolerance = self._neighbors[key]
        distances, indices = all_distances[:, :k], all_indices[:, :k]
        if k < all_distances.shape[1]:
            is_separated = _is_separated(distances[:, -1:], all_distances[:, k : k + 1], tolerance)
            tied = np.flatnonzero(~is_separated)
            if len(tied):
                distances, indices = distances.copy(), indices.copy()
                # Matrix products of fewer rows are rounded otherwise, which would break other ties.
                is_by_row = self._uses_tree
                again = self.fitted.kneighbors(take_rows(X, tied) if is_by_row else X, k)
                chosen = slice(None) if is_by_row else tied
                distances[tied], indices[tied] = (part[chosen] for part in again)
        return distances, indices

    def _search(self, X: Any) -> _SortedNeighbors:
        """Search for one neighbour more than any candidate needs, by the faster algorithm.

        With more than a few columns that is brute force, a matrix product that loses digits.
        Therefore distances are computed again, and brute force is rejected if rounding might change
        the neighbours.
        """
        n = min(self._n_neighbors + 1, self.fitted.n_samples_fit_)
        if self._may_use_brute_force(X):
            brute = NearestNeighbors(algorithm="brute", n_jobs=self.fitted.n_jobs).fit(self._X)
            sample, tree = X[:_TIMING_ROWS], self.fitted
            if _time_search(brute.kneighbors, sample, n) < _time_search(tree.kneighbors, sample, n):
                result = _exact_distances(X, self._X, brute.kneighbors(X, n)[1])
                nearer, farther = result.distances[:, :-1], result.distances[:, 1:]
                is_separated = _is_separated(nearer, farther, result.tolerance).all(axis=1)
                if is_separated.mean() > _MIN_SEPARATED_FRACTION:
                    return result
        distances, indices = self.fitted.kneighbors(X, n)
        return _SortedNeighbors(distances, indices, np.array(-1.0))

    def _may_use_brute_force(self, X: Any) -> bool:
        """Return whether a tree would compute many Euclidean distances in float64.

        Where scikit-learn itself uses brute force, its rounded distances have to be reproduced.
        """
        return (
            self._uses_tree
            and all(type(rows) is np.ndarray and rows.dtype == np.float64 for rows in (X, self._X))
            and len(X) > _MIN_TIMING_RATIO * _TIMING_ROWS
            and self.fitted.effective_metric_ == "euclidean"
            and not self.fitted.effective_metric_params_
        )


class _SortedNeighbors(NamedTuple):
    """Distances and indices of the nearest rows, of shape (n_queries, n_neighbors).

    Squared distances that differ by less than ``tolerance`` may be in the wrong order.
    """

    distances: np.ndarray
    indices: np.ndarray
    tolerance: np.ndarray


def _exact_distances(X: np.ndarray, rows: np.ndarray, indices: np.ndarray) -> _SortedNeighbors:
    """Compute the distances to given neighbours by differences, and sort them."""
    distances = np.empty(indices.shape)
    for batch in gen_batches(len(X), max(1, _BATCH_ELEMENTS // (indices.shape[1] * rows.shape[1]))):
        squared = np.zeros(indices[batch].shape)
        for column, values in zip(rows.T, X[batch].T, strict=True):  # as trees do, to the last bit
            squared += (column[indices[batch]] - values[:, None]) ** 2
        distances[batch] = np.sqrt(squared)
    order = np.argsort(distances, axis=1, kind="stable")
    squared_norms = np.einsum("ij,ij->i", X, X) + np.einsum("ij,ij->i", rows, rows).max()
    return _SortedNeighbors(
        np.take_along_axis(distances, order, axis=1),
        np.take_along_axis(indices, order, axis=1),
        4 * (rows.shape[1] + 4) * np.finfo(float).eps * squared_norms[:, None],
    )


def _is_separated(nearer: np.ndarray, farther: np.ndarray, tolerance: np.ndarray) -> np.ndarray:
    """Return whether distances differ by more than their rounding errors."""
    return (nearer < farther) & (farther**2 - nearer**2 > tolerance)


def _time_search(search: Any, X: np.ndarray, n: int) -> float:
    """Return the seconds that a search takes."""
    start = time.perf_counter()
    search(X, n)
    return time.perf_counter() - start


class _PrecomputedKNeighbors:
    """Replacement of a model's ``kneighbors``."""

    def __init__(self, cache: _NeighborCache, k: int) -> None:
        self._cache = cache
        self._k = k

    def __call__(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Any:
        if X is None or n_neighbors is not None or not hasattr(X, "shape"):
            result = self._cache.fitted.kneighbors(X, n_neighbors or self._k)
        else:
            result = self._cache.kneighbors(X, self._k)
        return result if return_distance else result[1]


for _name in ("KNeighborsClassifier", "KNeighborsRegressor"):
    register_shared_fit(f"sklearn.neighbors.{_name}", KNeighborsPath())
