"""Nearest centres: labels, distances, and Hamerly bounds that make both cheap to update."""

from __future__ import annotations

import copy
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import sklearn
from array_api_compat import device
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

# The distances of these rows to all centres should fit into the processor's cache.
CHUNK_ROWS = 2048
COPY_ROWS = 2**16
# The first rows of a slice predict whether bounds save work for the others.
N_PROBED_ROWS = 512


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
        self._copies: dict[Any, tuple[Any, Any, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_copies": {}}  # which other processes make on their devices

    def __len__(self) -> int:
        return len(self.values)

    def about_mean(self, X: Rows) -> Any:
        """Return centred rows; sparse rows are not changed."""
        return X if self.mean is None or is_sparse(X) else X - asarray_like(self.mean, X)

    def on_device_of(self, X: Any) -> tuple[Any, Any, Any]:
        """Return the centres, their squared norms and the mean on the device of X, in its dtype.

        One copy is made for all blocks of a pass. The mean may be None.
        """
        key = namespace(X).__name__, str(device(X)), X.dtype
        if key not in self._copies:
            mean = np.empty(0) if self.mean is None else self.mean
            numbers = np.concatenate([self.values.ravel(), self.norms, mean])
            copy, (k, d) = asarray_like(numbers, X), self.values.shape
            values, norms = namespace(X).reshape(copy[: k * d], (k, d)), copy[k * d : k * d + k]
            self._copies[key] = values, norms, None if self.mean is None else copy[k * d + k :]
        return self._copies[key]

    @cached_property
    def norms(self) -> np.ndarray:
        """The squared norms of the centres."""
        return np.einsum("ij,ij->i", self.values, self.values)

    @cached_property
    def _minus_2_centers(self) -> np.ndarray:
        """Transposed centres times -2, the factor of the rows in squared distances."""
        return np.ascontiguousarray(-2 * self.values.T, dtype=self.dtype)

    @cached_property
    def max_norm(self) -> float:
        """The largest squared norm of a centre."""
        return float(self.norms.max(initial=0.0))

    @cached_property
    def _assigner(self) -> SklearnKMeans:
        """Return scikit-learn's estimator with these centres, whose ``predict`` is quick.

        It is fitted to one row, which settles how many threads it will take, and then given the
        centres, by the public attribute.
        """
        fitted = _fitted_in_one_thread if self.one_thread else _fitted_to_one_row
        model = copy.copy(fitted(self.values.shape[1], self.dtype))
        model.cluster_centers_ = np.ascontiguousarray(self.values, dtype=self.dtype)
        return model

    def labels(self, rows: Any) -> Any:
        """Return the number of the nearest centre of each host row (about the mean)."""
        if rows.shape[0] <= CHUNK_ROWS and not is_sparse(rows):
            return self.scores(rows).argmin(axis=1).astype(np.int32)
        # Blocks are checked when they are opened.
        with sklearn.config_context(assume_finite=True):
            return self._assigner.predict(with_int32_indices(rows))

    def scores(self, rows: Any) -> Any:
        """Return squared distances of host rows to all centres, less the rows' squared norms."""
        scores = dot(rows, self._minus_2_centers)
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
        """Return labels of host rows, and lower bounds of the extra distance to the second centre.

        Rounding errors are subtracted from the bounds, which may make them negative.
        """
        n_rows, n_columns = rows.shape
        labels = np.empty(n_rows, dtype=np.int32)
        first, second = np.empty((2, n_rows), dtype=self.dtype)
        for low in range(0, n_rows, CHUNK_ROWS):
            chunk = slice(low, low + CHUNK_ROWS)
            scores = self.scores(rows[chunk])
            numbers, nearest = np.arange(len(scores)), scores.argmin(axis=1)
            labels[chunk], first[chunk] = nearest, scores[numbers, nearest]
            scores[numbers, nearest] = np.inf
            scores.min(axis=1, out=second[chunk])
        norms = row_norms(rows)
        rounding = (np.sqrt(n_columns) + 8) * float(np.finfo(self.dtype).eps)
        # Bounds the rounding of both scores, so that a margin never promises too much.
        error = 2 * rounding * (norms + self.max_norm)
        nearer, farther = np.maximum(first + norms, 0.0), np.maximum(second + norms, 0.0)
        # A difference of distances by that of their squares, less the squares' rounding error.
        with np.errstate(invalid="ignore", divide="ignore"):
            margins = (farther - nearer - error) / (np.sqrt(nearer) + np.sqrt(farther))
        return labels, np.where(np.isnan(margins), -np.inf, margins)  # two centres on the row


def _fitted_to_one_row(n_features: int, dtype: np.dtype) -> SklearnKMeans:
    """Return scikit-learn's estimator fitted to one row."""
    return SklearnKMeans(1, n_init=1, max_iter=1).fit(np.zeros((1, n_features), dtype=dtype))


@lru_cache(maxsize=64)
def _fitted_in_one_thread(n_features: int, dtype: np.dtype) -> SklearnKMeans:
    """Return the same for one thread, to be copied: a fit takes as long as a pass over few rows."""
    with limit_threadpools(1):
        return _fitted_to_one_row(n_features, dtype)


class Bounds:
    """Labels of a slice of rows, and when each must be computed again.

    A row keeps its centre until the centres have moved by as much as its second nearest centre was
    farther than its nearest (Hamerly, 2010, Making k-means even faster, with the two bounds of a
    row kept as their difference). `center_movement` is how far that is for each centre, since the
    start; the label of a row is certain while its `expiry` is above the movement of its centre.
    """

    __slots__ = ("expiry", "init_number", "labels", "sums")

    def __init__(self, init_number: int, n_rows: int) -> None:
        self.init_number = init_number
        self.labels = np.zeros(n_rows, dtype=np.int32)
        self.expiry = np.full(n_rows, -np.inf, dtype=np.float32)
        # what the rows of each label add up to, None where that must be computed
        self.sums: Any = None

    def update(
        self, X: Any, centers: Centers, center_movement: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Bring the labels of host rows up to date with moved centres.

        Return the positions of rows that may have another label now, and their labels before; None
        where these are all rows.
        """
        # Rounded up: a movement that is taken for smaller would keep a wrong label.
        center_movement = np.nextafter(center_movement.astype(np.float32), np.float32(np.inf))
        expired = self.expiry <= np.take(center_movement, self.labels)
        changes = None
        if np.mean(expired[:N_PROBED_ROWS]) > 0.5:  # looking at all rows in one go costs less
            self.labels = centers.labels(centers.about_mean(X))
            # The probed rows alone get bounds, by which the next pass decides again.
            self.expiry[N_PROBED_ROWS:] = -np.inf
            indices = np.flatnonzero(expired[:N_PROBED_ROWS])
        else:
            indices = np.flatnonzero(expired)
            changes = indices, self.labels[indices]
        self._refresh(X, indices, centers, center_movement)
        return changes

    def _refresh(
        self, X: Any, indices: np.ndarray, centers: Centers, center_movement: np.ndarray
    ) -> None:
        """Recompute labels and expiry of the indexed rows."""
        if len(indices) == 0:
            return
        chosen = centers.about_mean(X if len(indices) == X.shape[0] else X[indices])
        labels, margins = centers.two_nearest(chosen)
        expiry = center_movement[labels] + margins
        # A little early, for the rounding of float32.
        self.labels[indices], self.expiry[indices] = labels, expiry - 1e-6 * np.abs(expiry)


def movement_bounds(before: np.ndarray, after: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return, for every centre, how much of its rows' margins one movement uses up."""
    movement = np.sqrt(np.sum((after - before) ** 2, axis=1))
    farthest = int(np.argmax(movement))
    # A row's second centre may come nearer by as far as the fastest other one has moved.
    farthest_other = np.full(len(movement), movement[farthest])
    farthest_other[farthest] = np.delete(movement, farthest).max(initial=0.0)
    # Rows are compared with centres that were rounded to their precision.
    rounding = 2 * np.finfo(dtype).eps * np.sqrt(np.max(np.sum(after**2, axis=1)))
    return (movement + farthest_other) * (1 + 1e-12) + rounding


def distances(model: tuple[np.ndarray, np.ndarray | None], X: Any) -> Any:
    """Return the distances of rows to all centres, on the device of X."""
    centers = Centers(*model, dtype_of(X))
    rows = centers.about_mean(X)
    xp = namespace(rows)
    squared = dot(rows, -2 * centers.values.T)
    sizes = asarray_like(centers.norms, squared) + row_norms(rows)[:, None]
    squared += sizes
    # What is nothing but the rounding of the difference is none: a row that is a centre.
    rounding = 4 * float(np.finfo(centers.dtype).eps) * sizes
    return xp.sqrt(xp.where(squared > rounding, squared, xp.zeros_like(squared)))


def labels_of(model: tuple[np.ndarray, np.ndarray | None], X: Any) -> Any:
    """Return the indices of the nearest centres, on the device of X."""
    centers = Centers(*model, dtype_of(X), one_thread=False)
    if is_not_numpy(X):
        return assign(centers, X).labels
    if centers.mean is None:
        return centers.labels(X).astype(np.int32, copy=False)
    labels = np.empty(len(X), dtype=np.int32)
    # Centring copies rows, so only a slice at a time.
    for low in range(0, len(X), COPY_ROWS):
        chunk = slice(low, low + COPY_ROWS)
        labels[chunk] = centers.labels(centers.about_mean(X[chunk]))
    return labels


def as_dense(X: Any) -> np.ndarray:
    """Return rows on the host in float64."""
    return dense_rows(X).astype(np.float64, copy=False)
