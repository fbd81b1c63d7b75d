"""Nearest neighbours: whoever knows the 30 nearest rows knows the 5 nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import joblib
import numpy as np
from sklearn.base import clone

from skfleet.model_selection._families._checks import size_problem
from skfleet.model_selection._families._registry import Family, register_family

__all__ = ["Neighbors"]


class Neighbors(Family):
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
        queries = _Queries(asked, most)
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

    def __init__(self, asked: Any, most: int) -> None:
        self._asked = asked
        self._most = min(most, asked.n_samples_fit_)
        self._found: dict[str, tuple[np.ndarray, np.ndarray]] = {}

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
            beyond = min(self._most + 1, self._asked.n_samples_fit_)
            self._found = {key: self._asked.kneighbors(X, beyond)}
        distances, places = self._found[key]
        near, at = distances[:, :k], places[:, :k]
        if k < distances.shape[1]:
            tied = np.flatnonzero(~(near[:, -1] < distances[:, k]))
            if len(tied):
                near, at = near.copy(), at.copy()
                near[tied], at[tied] = self._asked.kneighbors(X[tied], k)
        return near, at


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
    register_family(f"sklearn.neighbors.{_name}", Neighbors())
