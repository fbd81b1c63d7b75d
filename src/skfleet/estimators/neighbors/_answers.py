"""Answers of scikit-learn's estimators from neighbours that are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import clone

from skfleet.estimators.neighbors._neighbors import Neighbors


class NeighborPairs(NamedTuple):
    """Distances and row numbers, or row numbers alone."""

    return_distance: bool

    def __call__(self, neighbors: Neighbors) -> Any:
        distances, numbers, _ = neighbors
        return (distances, numbers) if self.return_distance else numbers


class NeighborGraph(NamedTuple):
    """The sparse matrix of queries and training rows, with ones or distances."""

    n_rows: int
    mode: str

    def __call__(self, neighbors: Neighbors) -> Any:
        distances, numbers, _ = neighbors
        values = np.ones_like(distances) if self.mode == "connectivity" else distances
        return neighbor_graph(values, numbers, self.n_rows)


class Vote(NamedTuple):
    """A prediction by scikit-learn's estimator, from a graph of distances to rows of its own.

    Its rows are the neighbours of all queries, one after the other; `classes` are the labels of
    each output of a classifier.
    """

    estimator: Any
    method: str
    classes: Sequence[np.ndarray] = ()

    def __call__(self, neighbors: Neighbors) -> Any:
        distances, _, targets = neighbors
        y = targets.reshape(-1, *targets.shape[2:])
        if self.classes:  # a row of each label, lest any be unknown
            sizes = np.array(list(map(len, self.classes)))
            labels = np.arange(sizes.max())[:, None] % sizes
            y = np.concatenate([y, labels[:, 0] if y.ndim == 1 else labels])
        n_rows = len(y)
        numbers = np.arange(distances.size).reshape(distances.shape)
        estimator = clone(self.estimator)  # threads may vote at once
        estimator.fit(sparse.eye_array(n_rows, format="csr"), y)
        graph = neighbor_graph(distances, numbers, n_rows)
        answer = getattr(estimator, self.method)(graph)
        if self.method != "predict" or not self.classes:
            return answer
        if answer.ndim == 1:
            return self.classes[0][answer]
        columns = zip(self.classes, answer.T, strict=True)
        return np.stack([labels[codes] for labels, codes in columns], axis=1)


def neighbor_graph(values: np.ndarray, numbers: np.ndarray, n_rows: int) -> Any:
    """Return values at the numbers of training rows as a sparse matrix of all."""
    n_queries, n_neighbors = numbers.shape
    ends = np.arange(0, n_queries * n_neighbors + 1, n_neighbors)
    return sparse.csr_array((values.ravel(), numbers.ravel(), ends), shape=(n_queries, n_rows))
