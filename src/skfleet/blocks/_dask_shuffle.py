"""Rows of Dask collections in a random order, across all partitions."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pandas as pd
from dask.dataframe.dask_expr import new_collection
from dask.task_spec import Task

from skfleet import _linalg
from skfleet._dask_private import Expr
from skfleet._typing import Table
from skfleet.blocks._containers import is_frame, n_rows_of
from skfleet.blocks._dask_collections import (
    joint_graph,
    known_lengths,
    meta_of,
    with_whole_rows,
)
from skfleet.blocks._dask_graph import Graph, as_reference, count_rows, recut, shuffle_method
from skfleet.blocks._dask_optimize import map_to_array
from skfleet.blocks._sampling import row_uniform

if TYPE_CHECKING:
    import dask.dataframe as dd

    from skfleet.blocks._dask_types import DaskRows

# Draws that are in memory at a time while rows are assigned to partitions.
DRAWS = 2**22


def shuffle_partitions(collections: Sequence[DaskRows], seed: int) -> list[DaskRows]:
    """Return the rows of collections, lazily, in the order of one random draw for each row.

    The draw depends on the seed and on the row's number. There are as many partitions as before.
    """
    _check_dense(collections)
    collections = [with_whole_rows(x) for x in collections]
    graph, keys, *_ = joint_graph(collections, is_repeated=True)
    sizes: list[Any] = [known_lengths(x) for x in collections]
    unknown = [i for i, lengths in enumerate(sizes) if lengths is None]
    for i, lengths in zip(unknown, count_rows(graph, [keys[i] for i in unknown]), strict=True):
        sizes[i] = lengths
    totals = [sum(lengths) for lengths in sizes]
    if len(set(totals)) > 1:
        raise ValueError(f"Found input variables with inconsistent numbers of samples: {totals}")
    for i, lengths in enumerate(sizes):
        if lengths != sizes[0]:
            keys[i] = recut(graph, keys[i], lengths, sizes[0])
    join, n = partial(_join, seed), len(keys[0])
    metas, divisions = [meta_of(x) for x in collections], np.linspace(0.0, 1.0, n + 1)
    joined = new_collection(JoinedRows(graph, keys, sizes[0], join, join(0, *metas)))
    method = shuffle_method(is_repeated=True)
    ordered = joined.set_index("draw", divisions=list(divisions), shuffle_method=method)
    lengths = _count_by_partition(seed, totals[0], divisions)
    return [_select(ordered, i, meta, lengths) for i, meta in enumerate(metas)]


class JoinedRows(Expr):
    """Expression of the rows of several collections as one frame.

    `graph` has their partitions, with `keys` for each collection. Unlike those of a frame made with
    ``from_delayed``, its tasks have no aliases (see `map_to_array`).
    """

    _parameters = ["graph", "keys", "lengths", "join", "meta"]

    @property
    def _meta(self) -> pd.DataFrame:
        return self.meta

    @cached_property
    def _name(self) -> str:
        return f"join-rows-{uuid.uuid4().hex}"

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (len(self.lengths) + 1)

    def _layer(self) -> Graph:
        layer, starts = dict(self.graph), accumulate(self.lengths[:-1], initial=0)
        for i, (start, *parts) in enumerate(zip(starts, *self.keys, strict=True)):
            key = (self._name, i)
            layer[key] = Task(key, self.join, start, *map(as_reference, parts))
        return layer


def _check_dense(collections: Sequence[DaskRows]) -> None:
    """Raise for sparse rows, which have no shuffle."""
    if any(_linalg.is_sparse(x._meta) for x in collections):
        raise TypeError(
            "Every array must be dense to be shuffled across partitions. Got sparse chunks "
            "instead. Shuffle the rows before they are encoded."
        )


def _join(seed: int, start: int, *parts: Any) -> pd.DataFrame:
    """Return the rows of a partition of all collections as one frame, with a draw for each."""
    columns: dict[str, Any] = {"draw": row_uniform(seed, start, n_rows_of(parts[0]))}
    for i, part in enumerate(parts):
        if is_frame(part):
            columns[f"{i} index"] = part.index
            series = [part] if part.ndim == 1 else [part.iloc[:, k] for k in range(part.shape[1])]
            columns |= {f"{i} {k}": values.array for k, values in enumerate(series)}
        else:
            flat = part.reshape(len(part), math.prod(part.shape[1:]))
            columns |= {f"{i} {k}": flat[:, k] for k in range(flat.shape[1])}
    return pd.DataFrame(columns)


def _select(ordered: dd.DataFrame, i: int, meta: Table, lengths: tuple[int, ...]) -> DaskRows:
    """Return the rows of one of the collections."""
    select, ordered = partial(_select_of_partition, i, meta), ordered.clear_divisions()
    if is_frame(meta):
        return ordered.map_partitions(
            select, meta=meta, enforce_metadata=False, token="shuffle-rows"
        )
    array = map_to_array(ordered, select, meta=meta, token="shuffle-rows")
    chunks = (lengths, *((width,) for width in meta.shape[1:]))
    return da.Array(array.dask, array.name, chunks=chunks, meta=meta)


def _select_of_partition(
    i: int, meta: Any, joined: pd.DataFrame
) -> np.ndarray | pd.DataFrame | pd.Series:
    names = [name for name in joined.columns if name.startswith(f"{i} ") and name != f"{i} index"]
    if not is_frame(meta):
        values = joined[names].to_numpy(dtype=meta.dtype)
        return values.reshape(len(values), *meta.shape[1:])
    index = pd.Index(joined[f"{i} index"].array, name=meta.index.name)
    if meta.ndim == 1:
        return pd.Series(joined[names[0]].array, index=index, name=meta.name)
    rows = pd.DataFrame({k: joined[name].array for k, name in enumerate(names)}, index=index)
    return rows.set_axis(meta.columns, axis=1)


def _count_by_partition(seed: int, n_rows: int, divisions: np.ndarray) -> tuple[int, ...]:
    """Return the numbers of rows whose draws are in each range."""
    counts = np.zeros(len(divisions) - 1, dtype=np.int64)
    for low in range(0, n_rows, DRAWS):
        draws = row_uniform(seed, low, min(DRAWS, n_rows - low))
        partitions = np.searchsorted(divisions, draws, side="right") - 1
        counts += np.bincount(partitions, minlength=len(counts))
    return tuple(counts.tolist())
