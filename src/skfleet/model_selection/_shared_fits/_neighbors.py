"""Nearest neighbours: whoever knows the 30 nearest rows knows the 5 nearest."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import joblib
import numpy as np
from sklearn.base import clone
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import gen_batches

from skfleet._sklearn_private import uses_tree
from skfleet.model_selection._shared_fits._checks import size_problem
from skfleet.model_selection._shared_fits._registry import SharedFit, register_shared_fit

__all__ = ["Neighbors"]

# So many rows tell which way to search is quicker, where there are so many times as many.
_FEW, _MANY = 64, 8

# The share of rows whose neighbours rounding must not decide on.
_MOST_APART = 0.9

# So many differences of coordinates are made at a time.
_ELEMENTS = 2**20


class Neighbors(SharedFit):
    """Estimators that ask the k nearest rows: the most that a candidate asks for are found once.

    Where the k-th and the next row are equally far, which of them is among the nearest depends on
    the search: such rows are asked for again, with that k. A candidate that is searched for in
    another way, because it asks for half of all rows, is fitted by itself.
    """

    parameters = ("n_neighbors", "weights")
    known = frozenset(
        {
            "algorithm",
            "leaf_size",
            "metric",
            "metric_params",
            "n_jobs",
            "n_neighbors",
            "p",
            "weights",
        }
    )

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: numbers of neighbours that the estimator itself is to refuse."""
        return size_problem("n_neighbors", params["n_neighbors"])

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Fit one that finds neighbours for all."""
        sizes = {candidate["n_neighbors"] for candidate in candidates}
        if estimator.algorithm == "auto":
            half = max(1, np.shape(X)[0] // 2)
            sizes = {size for size in sizes if size < half} or {min(sizes)}
        most = max(sizes)
        asked = clone(estimator).set_params(n_neighbors=most).fit(X, y, **fit_params)
        queries = _Queries(asked, most, X)
        fitted = []
        for candidate in candidates:
            model = clone(estimator).set_params(**candidate)
            if candidate["n_neighbors"] in sizes:
                vars(model).update({**vars(asked), **candidate})
                queries.serve(model)
            else:
                model.fit(X, y, **fit_params)
            fitted.append(model)
        return fitted


class _Queries:
    """The neighbours of rows that were asked for, the nearest first."""

    def __init__(self, asked: Any, most: int, X: Any) -> None:
        self._asked = asked
        self._X = X
        self._most = min(most, asked.n_samples_fit_)
        self._found: dict[str, _Found] = {}

    def serve(self, model: Any) -> None:
        """Let a fitted model find its neighbours here."""
        k = model.n_neighbors
        if k > self._most:
            return  # there are not so many rows, as it will say itself
        vars(model)["kneighbors"] = _Nearest(self, k)
        if isinstance(model.weights, str) and model.weights == "uniform":
            # Else rows found by brute force would be counted while they are found.
            model.weights = _alike

    def nearest(self, X: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Give distances and places of the k nearest."""
        key = joblib.hash(X)
        if key not in self._found:
            self._found = {key: self._search(X)}
        distances, places, doubt = self._found[key]
        near, at = distances[:, :k], places[:, :k]
        if k < distances.shape[1]:
            tied = np.flatnonzero(~_is_apart(near[:, -1:], distances[:, k : k + 1], doubt))
            if len(tied):
                near, at = near.copy(), at.copy()
                near[tied], at[tied] = self._asked.kneighbors(X[tied], k)
        return near, at

    def _search(self, X: Any) -> _Found:
        """Find one more than are asked for, in the quicker way.

        In more than a few columns that is to multiply all rows with all, which loses digits: so
        distances are computed again, and where rounding decides who is among the nearest, it shows.
        """
        n = min(self._most + 1, self._asked.n_samples_fit_)
        if self._may_multiply(X):
            brute = NearestNeighbors(algorithm="brute", n_jobs=self._asked.n_jobs).fit(self._X)
            few = X[:_FEW]
            if _seconds(brute.kneighbors, few, n) < _seconds(self._asked.kneighbors, few, n):
                found = _exact(X, self._X, brute.kneighbors(X, n)[1])
                apart = _is_apart(found.distances[:, :-1], found.distances[:, 1:], found.doubt)
                if apart.all(axis=1).mean() > _MOST_APART:
                    return found
        distances, places = self._asked.kneighbors(X, n)
        return _Found(distances, places, np.array(-1.0))

    def _may_multiply(self, X: Any) -> bool:
        """Tell whether a tree finds Euclidean distances, and there are many to find.

        Whoever multiplies rows himself is to get his own distances, digits that are lost included.
        """
        rows = (X, self._X)
        return (
            uses_tree(self._asked)
            and all(type(one) is np.ndarray and one.dtype == np.float64 for one in rows)
            and len(X) > _MANY * _FEW
            and self._asked.effective_metric_ == "euclidean"
            and not self._asked.effective_metric_params_
        )


class _Found(NamedTuple):
    """Distances to the nearest rows and their places, of shape (n_rows, n).

    Squared distances of other rows that are within ``doubt`` might be smaller.
    """

    distances: np.ndarray
    places: np.ndarray
    doubt: np.ndarray


def _exact(X: np.ndarray, rows: np.ndarray, places: np.ndarray) -> _Found:
    """Compute the distances to some rows, and put them in order."""
    distances = np.empty(places.shape)
    for batch in gen_batches(len(X), max(1, _ELEMENTS // (places.shape[1] * rows.shape[1]))):
        squared = np.zeros(places[batch].shape)
        for column, values in zip(rows.T, X[batch].T, strict=True):  # as trees do, to the last bit
            squared += (column[places[batch]] - values[:, None]) ** 2
        distances[batch] = np.sqrt(squared)
    order = np.argsort(distances, axis=1, kind="stable")
    lengths = np.einsum("ij,ij->i", X, X) + np.einsum("ij,ij->i", rows, rows).max()
    return _Found(
        np.take_along_axis(distances, order, axis=1),
        np.take_along_axis(places, order, axis=1),
        4 * (rows.shape[1] + 4) * np.finfo(float).eps * lengths[:, None],
    )


def _is_apart(near: np.ndarray, far: np.ndarray, doubt: np.ndarray) -> np.ndarray:
    """Tell which rows are nearer than others without a doubt."""
    return (near < far) & (far**2 - near**2 > doubt)


def _seconds(search: Any, X: np.ndarray, n: int) -> float:
    """Time a search."""
    start = time.perf_counter()
    search(X, n)
    return time.perf_counter() - start


class _Nearest:
    """Stands in for the ``kneighbors`` of a model."""

    def __init__(self, queries: _Queries, k: int) -> None:
        self._queries = queries
        self._k = k

    def __call__(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Any:
        if X is None or n_neighbors is not None or not hasattr(X, "shape"):
            found = self._queries._asked.kneighbors(X, n_neighbors or self._k)
        else:
            found = self._queries.nearest(X, self._k)
        return found if return_distance else found[1]


def _alike(distances: np.ndarray) -> np.ndarray:
    """Weigh all neighbours alike."""
    return np.ones_like(distances)


for _name in ("KNeighborsClassifier", "KNeighborsRegressor"):
    register_shared_fit(f"sklearn.neighbors.{_name}", Neighbors())
