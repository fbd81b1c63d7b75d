"""Nearest centres: which they are, how far, and for how long they are sure to stay the nearest."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import sklearn
from sklearn.cluster import KMeans as SklearnKMeans

from skfleet._array import asarray_like, dtype_of, is_not_numpy, namespace
from skfleet._linalg import (
    dense_rows,
    dot,
    is_sparse,
    row_norms,
    squared_distances_to,
    with_int32_indices,
)
from skfleet._typing import Rows
from skfleet.engine import limit_threadpools
from skfleet.estimators.cluster._device_assign import assign

# Rows whose distances to all centres are held at once: they should stay in the processor's cache.
ROWS_AT_ONCE = 2048
# Rows of an answer that are copied at once.
COPIED_AT_ONCE = 2**16
# How many rows of a piece tell whether bounds would spare the others.
PROBES = 512


class Centers:
    """Centres about a mean, and the distances of rows to them, in the precision of the rows.

    Rows are taken about the mean as well, which keeps small distances exact; where the mean is
    None, rows are near enough to the origin.
    """

    def __init__(
        self, values: np.ndarray, mean: np.ndarray | None, dtype: Any, *, one_thread: bool = True
    ) -> None:
        self.values = np.ascontiguousarray(values, dtype=np.float64)
        self.mean = mean
        self.dtype = np.dtype(dtype)
        self.one_thread = one_thread

    def __len__(self) -> int:
        return len(self.values)

    def about_mean(self, X: Rows) -> Any:
        """Return rows about the mean; sparse rows stay as they are."""
        return X if self.mean is None or is_sparse(X) else X - asarray_like(self.mean, X)

    @cached_property
    def norms(self) -> np.ndarray:
        """The squared norms of the centres."""
        return np.einsum("ij,ij->i", self.values, self.values)

    @cached_property
    def _doubled(self) -> np.ndarray:
        """Minus two times the centres, as what rows are multiplied with."""
        return np.ascontiguousarray(-2 * self.values.T, dtype=self.dtype)

    @cached_property
    def largest(self) -> float:
        """The largest squared norm of a centre."""
        return float(self.norms.max(initial=0.0))

    @cached_property
    def _assigner(self) -> SklearnKMeans:
        """Return scikit-learn's estimator with these centres, whose ``predict`` is quick.

        It is fitted to one row, which settles how many threads it will take, and then given the
        centres, by the public attribute.
        """
        with limit_threadpools(1) if self.one_thread else nullcontext():
            model = SklearnKMeans(1, n_init=1, max_iter=1)
            model.fit(np.zeros((1, self.values.shape[1]), dtype=self.dtype))
        model.cluster_centers_ = np.ascontiguousarray(self.values, dtype=self.dtype)
        return model

    def labels(self, rows: Any) -> Any:
        """Return the number of the nearest centre of each host row (about the mean)."""
        if rows.shape[0] <= ROWS_AT_ONCE and not is_sparse(rows):
            return self.scores(rows).argmin(axis=1).astype(np.int32)
        with sklearn.config_context(assume_finite=True):
            return self._assigner.predict(with_int32_indices(rows))

    def scores(self, rows: Any) -> Any:
        """Return squared distances of host rows to all centres, less the rows' squared norms."""
        scores = dot(rows, self._doubled)
        scores += self.norms.astype(scores.dtype)
        return scores

    def squared(self, rows: Any, labels: Any) -> np.ndarray:
        """Return the squared distance of each host row (about the mean) to its centre.

        Distances that are nothing but rounding count as none.
        """
        eps = float(np.finfo(self.dtype).eps)
        squared = squared_distances_to(rows, self.values, labels)
        rounding = 8 * eps if is_sparse(rows) else (8 * eps) ** 2  # those are subtracted
        # so near to its centre, a row is of the centre's size
        squared[squared <= rounding * 3 * self.norms[labels]] = 0.0
        return squared

    def two_nearest(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return labels of host rows, and how much farther the second nearest centre is at least.

        Of that difference what rounding may have added is taken off; it may be below 0.
        """
        n_rows, n_columns = rows.shape
        labels = np.empty(n_rows, dtype=np.int32)
        first, second = np.empty((2, n_rows), dtype=self.dtype)
        for low in range(0, n_rows, ROWS_AT_ONCE):
            here = slice(low, low + ROWS_AT_ONCE)
            scores = self.scores(rows[here])
            numbers, nearest = np.arange(len(scores)), scores.argmin(axis=1)
            labels[here], first[here] = nearest, scores[numbers, nearest]
            scores[numbers, nearest] = np.inf
            scores.min(axis=1, out=second[here])
        norms = row_norms(rows)
        rounding = (np.sqrt(n_columns) + 8) * float(np.finfo(self.dtype).eps)
        error = 2 * rounding * (norms + self.largest)
        nearer, farther = np.maximum(first + norms, 0.0), np.maximum(second + norms, 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            margins = (farther - nearer - error) / (np.sqrt(nearer) + np.sqrt(farther))
        return labels, np.where(np.isnan(margins), -np.inf, margins)  # two centres on the row


class Bounds:
    """The labels of the rows of a piece, and when each is to be looked at again.

    A row keeps its centre until the centres have moved by as much as its second nearest centre was
    farther than its nearest (Hamerly, 2010, Making k-means even faster, with the two bounds of a
    row kept as their difference). `used` says how far that is for each centre, since the start; a
    row's label is sure while its `expiry` is above what its centre has used.
    """

    __slots__ = ("expiry", "labels", "start")

    def __init__(self, start: int, n_rows: int) -> None:
        self.start = start
        self.labels = np.zeros(n_rows, dtype=np.int32)
        self.expiry = np.full(n_rows, -np.inf, dtype=np.float32)

    def update(self, rows: Any, centers: Centers, used: np.ndarray) -> np.ndarray:
        """Bring the labels up to date with moved centres and return them."""
        used = np.nextafter(used.astype(np.float32), np.float32(np.inf))
        expired = self.expiry <= np.take(used, self.labels)
        if np.mean(expired[:PROBES]) > 0.5:  # looking at all rows in one go costs less
            self.labels = centers.labels(rows)
            self.expiry[PROBES:] = -np.inf
            expired = expired[:PROBES]
        self._look(rows, np.flatnonzero(expired), centers, used)
        return self.labels

    def _look(self, rows: Any, which: np.ndarray, centers: Centers, used: np.ndarray) -> None:
        """Look at some rows again."""
        if len(which) == 0:
            return
        chosen = rows if len(which) == rows.shape[0] else rows[which]
        labels, margins = centers.two_nearest(chosen)
        expiry = used[labels] + margins
        self.labels[which], self.expiry[which] = labels, expiry - 1e-6 * np.abs(expiry)


def drift(before: np.ndarray, after: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return, for every centre, how much of their margins its rows have used in one movement."""
    moved = np.sqrt(np.sum((after - before) ** 2, axis=1))
    farthest = int(np.argmax(moved))
    others = np.full(len(moved), moved[farthest])
    others[farthest] = np.delete(moved, farthest).max(initial=0.0)
    # Rows are compared with centres that were rounded to their precision.
    rounding = 2 * np.finfo(dtype).eps * np.sqrt(np.max(np.sum(after**2, axis=1)))
    return (moved + others) * (1 + 1e-12) + rounding


def distances(model: tuple[np.ndarray, np.ndarray | None], X: Any) -> Any:
    """Return the distances of rows to all centres, where X is."""
    centers = Centers(*model, dtype_of(X))
    rows = centers.about_mean(X)
    xp = namespace(rows)
    squared = dot(rows, -2 * centers.values.T)
    squared += asarray_like(centers.norms, squared) + row_norms(rows)[:, None]
    return xp.sqrt(xp.where(squared > 0, squared, xp.zeros_like(squared)))


def labels_of(model: tuple[np.ndarray, np.ndarray | None], X: Any) -> Any:
    """Return the numbers of the nearest centres, where X is."""
    centers = Centers(*model, dtype_of(X), one_thread=False)
    if is_not_numpy(X):
        return assign(centers, X).labels
    if centers.mean is None:
        return centers.labels(X).astype(np.int32, copy=False)
    labels = np.empty(len(X), dtype=np.int32)
    for low in range(0, len(X), COPIED_AT_ONCE):
        here = slice(low, low + COPIED_AT_ONCE)
        labels[here] = centers.labels(centers.about_mean(X[here]))
    return labels


def as_dense(X: Any) -> np.ndarray:
    """Return rows on the host in float64."""
    return dense_rows(X).astype(np.float64, copy=False)
