"""Rows in Dask arrays and frames: aligned, cut, each block a small graph that one task runs."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from dask.core import get_dependencies, toposort
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Alias, DataNode

from skfleet import _linalg
from skfleet._array import is_foreign
from skfleet.blocks._blocks import Block, RowBlocks
from skfleet.blocks._local import as_rows, float_dtype, n_rows_of, side_by_side


def is_dask(x: Any) -> bool:
    """Say whether x is a Dask collection."""
    return dask.is_dask_collection(x)


def bring_home(x: Any) -> Any:
    """Return the values of a Dask collection; anything else as it is."""
    return x.compute() if is_dask(x) else x


def is_dask_frame(x: Any) -> bool:
    """Say whether x is a Dask DataFrame or Series."""
    # Of the type: a Delayed value claims to have every attribute.
    return is_dask(x) and hasattr(type(x), "map_partitions") and hasattr(type(x), "npartitions")


def stand_in(X: Any) -> Any:
    """Return rows of the kind, width, names and types that X has, without any row."""
    if is_dask_frame(X):
        return X._meta
    if not isinstance(X, da.Array):
        raise TypeError(
            f"X must be a Dask array or a Dask DataFrame. Got {type(X).__name__} instead. Make one "
            "with dask.array.from_delayed or dask.dataframe.from_delayed."
        )
    meta = X._meta
    if _linalg.is_sparse(meta):
        return type(meta)((0, X.shape[1]), dtype=X.dtype)
    return np.empty((0, *X.shape[1:]), dtype=X.dtype)


class Subgraph:
    """Tasks of a Dask graph that travel as one value: no scheduler looks inside."""

    __slots__ = ("tasks",)

    def __init__(self, tasks: dict[Any, Any]) -> None:
        self.tasks = tasks

    def __reduce__(self) -> tuple[Any, ...]:
        return Subgraph, (self.tasks,)


class Source:
    """What several blocks need (one file cut in two, say), made once where there is no cluster."""

    def __init__(self, graph: dict[Any, Any]) -> None:
        self.graph = graph
        self._values: dict[Any, Any] | None = None
        self._lock = threading.Lock()

    def values(self, keys: Sequence[Any]) -> list[Any]:
        """Return the values of the given keys, computing the whole source on first use."""
        with self._lock:
            if self._values is None:
                every = list(self.graph)
                self._values = dict(zip(every, dask.threaded.get(self.graph, every), strict=True))
            return [self._values[key] for key in keys]


class DaskBlock(NamedTuple):
    """A block that a graph of its own makes from inputs that others use too.

    `inputs` maps keys to futures (rows in the workers' memory) or, in a task, to their values.
    `shared` lists keys that other blocks need as well; `source` can make them.
    """

    graph: Subgraph
    key: Any
    inputs: dict[Any, Any]
    shared: tuple[Any, ...] = ()
    source: Any = None

    def load(self) -> Block:
        """Run the graph here."""
        tasks = dict(self.graph.tasks)
        values = dict(self.inputs)
        if self.source is not None:
            values |= dict(zip(self.shared, self.source.values(self.shared), strict=True))
        tasks |= {key: DataNode(key, value) for key, value in values.items()}
        return dask.get(tasks, self.key)

    @property
    def is_resident(self) -> bool:
        """Whether all that is left to do is to put parts in memory side by side."""
        work = [task for task in self.graph.tasks.values() if not isinstance(task, Alias)]
        return bool(self.inputs) and not self.shared and len(work) == 1


def _join(names: Sequence[str], put: Any, X: Any, *values: Any) -> Block:
    """Put the parts of a block together, and those of X side by side."""
    return _block(names, put(X) if isinstance(X, list) else X, *values)


def _block(names: Sequence[str], X: Any, *values: Any) -> Block:
    """Return a block of rows and named values of theirs."""
    named = dict(zip(names, values, strict=True))
    y, sample_weight = named.pop("y", None), named.pop("sample_weight", None)
    return Block(X, y, sample_weight, more=named or None)


def dask_blocks(
    X: Any, y: Any, sample_weight: Any, more: dict[str, Any], *, dtype: Any
) -> RowBlocks:
    """Cut y, sample_weight and more as X is cut, and make a block of every run of rows."""
    if dtype is not None and is_dask_frame(X):
        X = _as_array(X)
    if dtype is not None and X.ndim != 2:
        raise ValueError(
            f"X must have two dimensions. Got {X.ndim} instead. Reshape it with X.reshape(-1, 1)."
        )
    others = {"y": y, "sample_weight": sample_weight, **more}
    X, others, lengths = _align(X, {k: v for k, v in others.items() if v is not None})
    collections = [X, *others.values()]
    futures = _futures_in(collections)
    parts = list(zip(*map(_parts, _optimize(collections)), strict=True))
    names = list(others)
    put = _linalg.hstack if dtype is None else side_by_side
    join = dask.delayed(partial(_join, names, put), pure=False)
    handles = _own_graphs([join(*part) for part in parts], futures)
    starts = None if lengths is None else np.concatenate([[0], np.cumsum(lengths)])
    blocks = tuple(
        _in_memory(handle, names, part)._replace(
            number=i, start=None if starts is None else int(starts[i])
        )
        for i, (handle, part) in enumerate(zip(handles, parts, strict=True))
    )
    kind = None if dtype is None else float_dtype(stand_in(X))
    dense = lengths is not None and not is_dask_frame(X) and not _linalg.is_sparse(X._meta)
    return RowBlocks(
        blocks,
        lengths,
        X.shape[1] if len(X.shape) == 2 else 1,
        kind,
        checked=False,
        n_bytes=int(X.nbytes) if dense else None,
        on_dask=True,
        on_device=is_foreign(X._meta) or hasattr(X._meta, "to_cupy"),
    )


def _as_array(frame: Any) -> Any:
    """Return the values of a frame or Series, pandas' own types as float64 or objects."""
    dtypes = dict(frame._meta.dtypes) if frame.ndim == 2 else {None: frame._meta.dtype}
    own = {
        name: np.dtype(np.float64) if getattr(dtype, "kind", "O") in "biuf" else np.dtype(object)
        for name, dtype in dtypes.items()
        if not isinstance(dtype, np.dtype)
    }
    if own:
        frame = frame.astype(own if frame.ndim == 2 else own[None])
    return frame.to_dask_array()


def _optimize(collections: Sequence[Any]) -> Iterator[Any]:
    """Optimize collections: arrays together, so that what they share is made once, frames alone.

    dask.optimize (2026.8.0) of a frame and an array together gives the frame the array's values.
    """
    arrays = iter(dask.optimize(*(x for x in collections if not is_dask_frame(x))))
    for x in collections:
        yield dask.optimize(x)[0] if is_dask_frame(x) else next(arrays)


def _parts(x: Any) -> list[Any]:
    """Return a delayed value per run of rows; a list of column parts where columns are cut too."""
    if is_dask_frame(x):
        return x.to_delayed(optimize_graph=False)
    grid = x.to_delayed(optimize_graph=False)
    if x.ndim == 1:
        return list(grid)
    return [row[0] if len(row) == 1 else list(row) for row in grid.reshape(grid.shape[0], -1)]


def known_lengths(x: Any) -> tuple[int, ...] | None:
    """Return the numbers of rows of the chunks, None unless all are known."""
    if is_dask_frame(x) or any(math.isnan(n) for n in x.chunks[0]):
        return None
    return tuple(int(n) for n in x.chunks[0])


def counted(x: Any) -> Any:
    """Return a collection as an array of known length."""
    x = _as_array(x) if is_dask_frame(x) else x
    return x if known_lengths(x) is not None else _with_lengths(x, _measure(x))


def _n_runs(x: Any) -> int:
    """Return into how many runs of rows x is cut."""
    return x.npartitions if is_dask_frame(x) else x.numblocks[0]


def _measure(x: Any) -> tuple[int, ...]:
    """Count the rows of every run."""
    firsts = [p[0] if isinstance(p, list) else p for p in _parts(dask.optimize(x)[0])]
    return tuple(dask.compute(*(dask.delayed(n_rows_of)(p) for p in firsts)))


def _with_lengths(x: Any, lengths: tuple[int, ...]) -> Any:
    """Return x with its lengths known, leaving the caller's own object as it was."""
    return da.Array(x.dask, x.name, chunks=(lengths, *x.chunks[1:]), meta=x._meta)


def _align(X: Any, others: dict[str, Any]) -> tuple[Any, dict[str, Any], tuple[int, ...] | None]:
    """Cut the others as X is cut; lengths are measured only where nothing else helps."""
    lengths = known_lengths(X)
    aligned: dict[str, Any] = {}
    for name, part in others.items():
        if not is_dask(part):
            values = np.asarray(part)
            lengths = lengths or _measure(X)
            _same_length(name, len(values), sum(lengths))
            part = da.from_array(values, chunks=(lengths, *values.shape[1:]))
        if is_dask_frame(part):
            part = _as_array(part)
        own = known_lengths(part)
        if own is None and lengths is None and _n_runs(part) == _n_runs(X):
            pass  # cut alike as far as anyone can tell; opening a block checks it
        else:
            lengths = lengths or _measure(X)
            if own is None:
                own = _measure(part)
                part = _with_lengths(part, own)
            _same_length(name, sum(own), sum(lengths))
            part = part.rechunk({0: lengths})
        aligned[name] = part.rechunk({1: -1}) if part.ndim == 2 else part
    if lengths is not None and not is_dask_frame(X):
        X = _with_lengths(X, lengths)
    return X, aligned, lengths


def _same_length(name: str, got: int, wanted: int) -> None:
    """Raise unless per-row values are as many as rows."""
    if got != wanted:
        raise ValueError(f"{name} must have as many rows as X. Got {got} instead of {wanted}.")


def _own_graphs(outs: Sequence[Any], futures: dict[Any, Any]) -> list[DaskBlock]:
    """Split the graph of delayed blocks into what only one of them needs and what several need.

    What only one block needs becomes that block's own graph: the block is loaded inside one task
    and dropped there. What several need stays in the scheduler's sight.
    """
    merged = HighLevelGraph.merge(*(out.dask for out in outs))
    culled = merged.cull({out.key for out in outs})
    graph = {key: node for key, node in dict(culled).items() if key not in futures}
    known = graph | futures
    needs = {key: get_dependencies(known, task=node) for key, node in graph.items()}
    owner: dict[Any, Any] = {out.key: i for i, out in enumerate(outs)}
    order = toposort(graph, dependencies={k: v & graph.keys() for k, v in needs.items()})
    for key in reversed(order):
        for need in needs[key]:
            owner[need] = owner[key] if owner.get(need, owner[key]) == owner[key] else None
    own: list[dict[Any, Any]] = [{} for _ in outs]
    for key, i in owner.items():
        if i is not None and key in graph:
            own[i][key] = graph[key]
    # of what nobody needs some is left over: layers of arrays are culled as a whole
    common = {key: graph[key] for key, i in owner.items() if i is None and key in graph}
    source = Source(common) if common else None
    blocks = []
    for out, tasks in zip(outs, own, strict=True):
        outside = set().union(*(needs[key] for key in tasks)) - tasks.keys()
        shared = tuple(key for key in outside if key in common)
        inputs = {key: futures[key] for key in outside if key in futures}
        blocks.append(
            DaskBlock(Subgraph(tasks), out.key, inputs, shared, source if shared else None)
        )
    return blocks


def _in_memory(handle: DaskBlock, names: Sequence[str], parts: Sequence[Any]) -> Block:
    """Return a block of futures of its parts where all are in the workers' memory already."""
    if not handle.is_resident or isinstance(parts[0], list):
        return Block(handle)
    tasks, found = handle.graph.tasks, []
    for part in parts:
        key = part.key
        while key in tasks:
            key = tasks[key].target
        found.append(handle.inputs[key])
    return _block(names, *found)


def _futures_in(collections: Sequence[Any]) -> dict[Any, Any]:
    """Return what collections hold on a cluster already, by key."""
    if "distributed" not in sys.modules:
        return {}
    return {future.key: future for future in sys.modules["distributed"].futures_of(collections)}


def spread(X: Any, n_bytes: int) -> Any:
    """Return rows that are in this process as a Dask array of blocks of so many bytes at most."""
    rows = as_rows(X, float_dtype(X)) if hasattr(X, "iloc") or not hasattr(X, "shape") else X
    step = max(1, min(n_bytes // _linalg.row_bytes(rows), -(-rows.shape[0] // 8)))
    return da.from_array(rows, chunks=(step, *rows.shape[1:]), asarray=False)
