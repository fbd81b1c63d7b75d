"""Nearest rows of a block, searched by a matrix product and compared by differences."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import sklearn
from array_api_compat import device
from sklearn.neighbors import NearestNeighbors as BruteForce

from skfleet._array import (
    FLOAT64,
    asarray_like,
    astype,
    dtype_of,
    is_not_numpy,
    namespace,
    to_host,
    to_host_if_array,
)
from skfleet._device import device_memory_available
from skfleet._linalg import (
    column_sums,
    is_sparse,
    row_norms,
    rows_between,
    to_dense,
    with_int32_indices,
)
from skfleet._warnings import IgnoredWarnings
from skfleet.blocks import slice_rows, take_rows

# Elements of the queries that are compared at once, and of their distances to candidates.
CHUNK_ELEMENTS = 2**20
# Candidates for a neighbour from which on ties are looked for among distinct rows.
MAX_TIED = 64
# Elements of a matrix of distances on a device at most, the part of its free memory for them, and
# the bytes that one takes while a row of the matrix is sorted.
DEVICE_ELEMENTS, DEVICE_FRACTION, DEVICE_ELEMENT_BYTES = 2**29, 0.5, 64
# Rows in a group that its least distance stands for.
GROUP_ROWS = 64

_NO_WARNINGS = IgnoredWarnings(Warning)


class PairwiseMetric(NamedTuple):
    """A distance, by scikit-learn's parameters; `name` is that of the effective one."""

    name: Any
    metric: Any
    p: float
    params: dict[str, Any] | None

    @property
    def is_euclidean(self) -> bool:
        return isinstance(self.name, str) and self.name in ("euclidean", "l2", "sqeuclidean")

    def brute_force(self) -> BruteForce:
        """Return scikit-learn's unfitted search."""
        if self.is_euclidean:
            return BruteForce(algorithm="brute", metric="euclidean", n_jobs=1)
        return BruteForce(
            algorithm="brute", metric=self.metric, p=self.p, metric_params=self.params, n_jobs=1
        )


def nearest(
    rows: Any, queries: Any, n_neighbors: int, metric: PairwiseMetric
) -> tuple[np.ndarray, np.ndarray]:
    """Return distances and positions of the nearest rows, on the host, in ascending order.

    Of rows at equal distances the first ones are the nearest.
    """
    if queries.shape[0] == 0:
        return np.empty((0, n_neighbors)), np.empty((0, n_neighbors), dtype=np.int64)
    search = (_DeviceSearch if is_not_numpy(rows) else _HostSearch)(rows, n_neighbors, metric)
    with _NO_WARNINGS, sklearn.config_context(assume_finite=True):
        distances, columns = search.run(_as_rows(queries, rows))
    return distances, columns.astype(np.int64, copy=False)


def _as_rows(queries: Any, rows: Any) -> Any:
    """Return queries in the kind of matrix, and on the device, of the rows."""
    if is_not_numpy(rows):
        return queries if is_not_numpy(queries) else asarray_like(to_dense(queries), rows)
    queries = to_host_if_array(queries)
    return type(rows)(queries) if is_sparse(rows) else to_dense(queries)


class _HostSearch:
    """scikit-learn's brute force among rows, with ties in the order of the rows.

    Its Euclidean distances come from a matrix product, which loses digits: those of one neighbour
    more than are needed are computed again from differences. Queries whose next row might be as
    near as their last neighbour are searched again for more neighbours.
    """

    def __init__(self, rows: Any, n_neighbors: int, metric: PairwiseMetric) -> None:
        self.rows, self.n_neighbors, self.metric = rows, n_neighbors, metric
        self.n_rows, self.n_columns = rows.shape
        # about the mean the product loses fewer digits
        self.shift = None
        if metric.is_euclidean and not is_sparse(rows):
            self.shift = self._in_precision(column_sums(rows) / self.n_rows)
        self.about_mean = self._about_mean(rows)
        self.index_rows()

    def index_rows(self) -> None:
        """Index the rows about their mean, for the search among them."""
        rows = with_int32_indices(self.about_mean)
        self.brute_force = self.metric.brute_force().fit(rows)
        self.eps, self.max_norm = np.finfo(np.float64).eps, 0.0
        if self.metric.is_euclidean:
            self.max_norm = float(row_norms(rows).max())

    def run(self, queries: Any, n_candidates: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return distances and positions of the neighbours, from at first as many candidates."""
        if n_candidates is None:
            n_candidates = min(self.n_neighbors + 1, self.n_rows)
        step = max(1, self.n_at_once(n_candidates))
        parts = [
            self._run_chunk(slice_rows(queries, low, high), n_candidates)
            for low, high in _spans(queries.shape[0], step)
        ]
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))

    def _run_chunk(self, queries: Any, n_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        about_mean = self._about_mean(queries)
        distances, columns = self.candidates(about_mean, n_candidates)
        farthest = distances[:, -1]
        if self.metric.is_euclidean:
            # no other row is nearer than the last candidate, but for rounding
            distances = self.squared_distances(queries, columns)
            scale = to_host(row_norms(about_mean)) + self.max_norm
            farthest = farthest - 4 * (self.n_columns + 4) * self.eps * scale
        order = np.lexsort((columns, distances), axis=-1)[:, : self.n_neighbors]
        distances, columns = (np.take_along_axis(x, order, axis=1) for x in (distances, columns))
        may_tie = np.flatnonzero(~(distances[:, -1] < farthest))
        if self.metric.is_euclidean and self.metric.name != "sqeuclidean":
            distances = np.sqrt(distances)
        if len(may_tie) and n_candidates < self.n_rows:
            tied = self._run_again(take_rows(queries, may_tie), 4 * n_candidates)
            distances[may_tie], columns[may_tie] = tied
        return distances, columns

    def _run_again(self, queries: Any, n_candidates: int) -> tuple[np.ndarray, np.ndarray]:
        """Search for more candidates, or among distinct rows where there are many copies."""
        if n_candidates < MAX_TIED * self.n_neighbors or self.copies is None:
            return self.run(queries, min(n_candidates, self.n_rows))
        parts, step = [], max(1, CHUNK_ELEMENTS // self.n_neighbors**2)
        for low, high in _spans(queries.shape[0], step):
            # The nearest rows are copies of the nearest distinct ones, these in their order too.
            distances, columns = self.distinct.run(queries[low:high])
            columns = self.copies[columns].reshape(high - low, -1)
            distances = np.repeat(distances, self.n_neighbors, axis=1)
            distances[columns == self.n_rows] = np.inf
            order = np.lexsort((columns, distances), axis=-1)[:, : self.n_neighbors]
            parts.append([np.take_along_axis(x, order, axis=1) for x in (distances, columns)])
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))

    @cached_property
    def distinct(self) -> _HostSearch:
        """The search among the first rows of each kind."""
        n_neighbors = min(self.n_neighbors, len(self.copies))
        search = _HostSearch(self.rows[self.copies[:, 0]], n_neighbors, self.metric)
        search.copies = None
        return search

    @cached_property
    def copies(self) -> np.ndarray | None:
        """The positions of the first equal rows of each kind, filled up with the number of rows.

        None for sparse rows, and where all rows differ.
        """
        if is_sparse(self.rows):
            return None
        order = np.lexsort(self.rows.T)
        ordered = self.rows[order]
        is_first = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
        if is_first.all():
            return None
        kind, starts = np.cumsum(is_first) - 1, np.flatnonzero(is_first)
        rank = np.arange(self.n_rows) - starts[kind]
        is_needed = rank < self.n_neighbors
        copies = np.full((len(starts), self.n_neighbors), self.n_rows)
        copies[kind[is_needed], rank[is_needed]] = order[is_needed]
        # In the order of the first copies, as distinct rows at equal distances are.
        return copies[np.argsort(copies[:, 0])]

    def n_at_once(self, n_candidates: int) -> int:
        """Return how many queries are searched for at once."""
        return CHUNK_ELEMENTS // max(n_candidates, self.n_columns)

    def candidates(self, queries: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return distances, squared if Euclidean, and positions of the nearest rows, roughly."""
        distances, columns = self.brute_force.kneighbors(with_int32_indices(queries), n)
        return distances**2 if self.metric.is_euclidean else distances, columns

    def squared_distances(self, queries: Any, columns: np.ndarray) -> np.ndarray:
        """Return squared distances from differences, the same for a pair in any chunk."""
        queries, squared = self._in_precision(queries), np.empty(columns.shape)
        for i, of_queries in enumerate(columns.T):
            squared[:, i] = row_norms(queries - self._in_precision(self.rows[of_queries]))
        return squared

    def _about_mean(self, rows: Any) -> Any:
        if not self.metric.is_euclidean:
            return rows
        rows = self._in_precision(rows)
        return rows if self.shift is None else rows - self.shift

    def _in_precision(self, rows: Any) -> Any:
        return rows.astype(np.float64, copy=False)


class _DeviceSearch(_HostSearch):
    """The same by arrays of another library, for Euclidean distances."""

    copies = None

    def index_rows(self) -> None:
        self.norms = row_norms(self.about_mean)
        self.max_norm = float(namespace(self.norms).max(self.norms))
        self.eps = np.finfo(dtype_of(self.about_mean)).eps
        n_elements = int(DEVICE_FRACTION * device_memory_available()) // DEVICE_ELEMENT_BYTES
        self.n_elements = min(max(n_elements, CHUNK_ELEMENTS), DEVICE_ELEMENTS)

    def n_at_once(self, n_candidates: int) -> int:
        return self.n_elements // self.n_rows

    def candidates(self, queries: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
        # In place: this matrix is as large as the memory allows.
        squared = queries @ self.about_mean.T
        squared *= -2
        squared += self.norms[None, :]
        squared += row_norms(queries)[:, None]
        columns = _smallest(squared, n)
        squared = namespace(squared).take_along_axis(squared, columns, axis=1)
        return to_host(squared), to_host(columns)

    def squared_distances(self, queries: Any, columns: np.ndarray) -> np.ndarray:
        # All columns of the candidates at once, but of so many queries as memory allows.
        xp, positions, parts = namespace(queries), asarray_like(columns, queries), []
        n_numbers = max(1, columns.shape[1] * self.n_columns)
        for low, high in _spans(queries.shape[0], max(1, self.n_elements // n_numbers)):
            numbers = xp.reshape(rows_between(positions, low, high), (-1,))
            rows = xp.take(self.rows, numbers, axis=0)
            shape = high - low, columns.shape[1], self.n_columns
            differences = xp.reshape(astype(rows, FLOAT64), shape)
            differences -= astype(rows_between(queries, low, high), FLOAT64)[:, None, :]
            differences *= differences
            parts.append(xp.sum(differences, axis=2))
        return to_host(parts[0] if len(parts) == 1 else xp.concat(parts))

    def _in_precision(self, rows: Any) -> Any:
        return astype(rows, dtype_of(self.rows))


def _smallest(values: Any, n: int) -> Any:
    """Return the positions of the n least values of each row, in ascending order.

    They are in the n groups of neighbouring columns with the least minima.
    """
    xp = namespace(values)
    n_rows, n_columns = values.shape
    n_groups = n_columns // GROUP_ROWS
    if n_groups < 2 * n:
        return xp.argsort(values, axis=1, stable=True)[:, :n]
    end = n_groups * GROUP_ROWS
    minima = xp.min(xp.reshape(values[:, :end], (n_rows, n_groups, GROUP_ROWS)), axis=2)
    groups = xp.argsort(minima, axis=1, stable=True)[:, :n]
    # In ascending order, so that of equal values the first columns are the nearest.
    groups = xp.sort(groups, axis=1)
    in_group = xp.arange(GROUP_ROWS, device=device(values))
    columns = xp.reshape(groups[:, :, None] * GROUP_ROWS + in_group, (n_rows, -1))
    tail = xp.arange(end, n_columns, device=device(values))[None, :]
    tail = xp.broadcast_to(tail, (n_rows, n_columns - end))
    columns = xp.concat([columns, tail], axis=1)
    among = xp.take_along_axis(values, columns, axis=1)
    order = xp.argsort(among, axis=1, stable=True)[:, :n]
    return xp.take_along_axis(columns, order, axis=1)


def _spans(n_rows: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last row, exclusive, of consecutive parts."""
    for low in range(0, n_rows, step):
        yield low, min(low + step, n_rows)
