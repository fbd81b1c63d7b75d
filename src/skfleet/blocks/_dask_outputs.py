"""Lazy answers for Dask arrays and frames: shape, chunks, dtype and names known before any work."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.highlevelgraph import HighLevelGraph

from skfleet._array import to_device_of
from skfleet._linalg import is_sparse
from skfleet.blocks._containers import is_frame, n_rows_of, slice_rows
from skfleet.blocks._dask_collections import as_collection, meta_of
from skfleet.blocks._dask_graph import is_frame_collection
from skfleet.blocks._dask_scheduler import scheduler
from skfleet.blocks._outputs import OutputSpec, run_rows


class Boxed:
    """A value that Dask passes on without looking inside for parts of a graph."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return Boxed, (self.value,)


def unwrap(opaque: Boxed) -> Any:
    """Return the value inside."""
    return opaque.value


def meta_nonempty(X: Any) -> Any:
    """Return two rows of the kind and types that X has, with values made up."""
    X = as_collection(X)
    if is_frame_collection(X):
        return X._meta_nonempty
    rows = meta_of(X)
    shape = (2, *X.shape[1:])
    if is_sparse(rows):
        return type(rows)(shape, dtype=X.dtype)
    return np.ones_like(X._meta, shape=shape, dtype=X.dtype)  # on the device that the rows are on


def first_real_rows(X: Any) -> Any:
    """Return the first two rows of the first run of X that has any; no others travel."""
    X = as_collection(X)
    runs = (
        X.partitions if is_frame_collection(X) else X.rechunk({1: -1} if X.ndim == 2 else {}).blocks
    )
    n_runs = X.npartitions if is_frame_collection(X) else X.numblocks[0]
    for i in range(n_runs):
        run = runs[i].to_delayed() if is_frame_collection(X) else runs[i].to_delayed().ravel()
        (rows,) = dask.compute(dask.delayed(_head, pure=False)(run[0]), scheduler=scheduler())
        if n_rows_of(rows):
            return rows
    raise ValueError("X must have at least one row. Got none instead.")


def _head(rows: Any) -> Any:
    """Return the first two rows."""
    return slice_rows(rows, 0, min(2, n_rows_of(rows)))


def name_columns(X: Any, names: Sequence[Any]) -> Any:
    """Return an array as a frame whose columns have names."""
    return dd.from_dask_array(X, columns=list(names))


def map_dask_rows(
    func: Any,
    model: Any,
    X: Any,
    output: OutputSpec | Sequence[OutputSpec],
    *,
    check: Any,
    raw: bool,
    name: str,
) -> Any:
    """Return a lazy answer of which shape, chunks, dtype and names are known now."""
    X = as_collection(X)
    # A task of its own: the model is one value that workers pass on, not a copy in each task.
    shared = model
    if not dask.is_dask_collection(model):
        key = _key(f"model-of-{name}")
        shared = dask.delayed(unwrap, pure=False)(Boxed(model), dask_key_name=key)
    answers = (func, shared, output, check, raw)
    map_one = _map_frame if is_frame_collection(X) else _map_array
    if not is_frame_collection(X) and X.ndim == 2:
        X = X.rechunk({1: -1})
    if isinstance(output, OutputSpec):
        task = _rows_of_frame if is_frame_collection(X) else _rows_of_array
        return map_one(task, X, output, name, *answers)
    # One task answers for all outputs of a run of rows, and one per output picks its part.
    every = map_one(_all_outputs, X, OutputSpec(np.dtype(object)), name, *answers)
    return [map_one(_pick, every, one, f"{name}-{i}", i, one) for i, one in enumerate(output)]


def _map_array(task: Any, X: Any, output: OutputSpec, name: str, *args: Any) -> Any:
    """Run a task per chunk of an array."""
    wide = output.width is not None
    settings = {
        "dtype": output.dtype,
        "meta": to_device_of(_without_names(output.empty()), X._meta),
    }
    if X.ndim == 1 or wide:
        chunks = (X.chunks[0], (output.width,)) if wide else (X.chunks[0],)
        new_axis = 1 if X.ndim == 1 and wide else None
        name = _key(name)
        return X.map_blocks(task, *args, name=name, chunks=chunks, new_axis=new_axis, **settings)
    # Dask fuses no task that drops an axis with the one that makes its rows. It does fuse one that
    # keeps the axis, and that one with a last one, into a single task where both have a name.
    kept = X.map_blocks(
        task, *args, dtype=X.dtype, meta=X._meta, name=_key(name), chunks=(X.chunks[0], (1,))
    )
    last = _key(name)
    layer: dict[Any, Any] = {(last, i): (_as_is, (kept.name, i, 0)) for i in range(X.numblocks[0])}
    graph = HighLevelGraph.from_collections(last, layer, dependencies=[kept])
    return da.Array(graph, last, chunks=(X.chunks[0],), **settings)


def _as_is(values: Any) -> Any:
    """Return what another task made."""
    return values


def _map_frame(task: Any, X: Any, output: OutputSpec, name: str, *args: Any) -> Any:
    """Run a task per partition of a frame."""
    meta = _named(output.empty(), meta_of(X).index, output)
    answer = X.map_partitions(task, *args, meta=meta, enforce_metadata=False, token=name)
    if is_sparse(meta):  # no frame: an array, which Dask takes for a dense one
        return da.Array(answer.dask, answer.name, chunks=answer.chunks, meta=meta)
    return answer


def _rows_of_array(rows: Any, func: Any, model: Any, output: Any, check: Any, raw: bool) -> Any:
    """Answer for one chunk; a chunk of an array is never a frame."""
    return _without_names(run_rows(func, model, rows, output, check, raw))


def _rows_of_frame(rows: Any, func: Any, model: Any, output: Any, check: Any, raw: bool) -> Any:
    """Answer for one partition, with its index."""
    return _named(run_rows(func, model, rows, output, check, raw), rows.index, output)


def _all_outputs(rows: Any, func: Any, model: Any, output: Any, check: Any, raw: bool) -> Any:
    """Answer for all outputs of one run of rows, in a box that Dask takes for values."""
    return Boxed((run_rows(func, model, rows, output, check, raw), getattr(rows, "index", None)))


def _pick(box: Boxed, i: int, output: OutputSpec) -> Any:
    """Take one output out of the box."""
    answers, index = box.value
    return _without_names(answers[i]) if index is None else _named(answers[i], index, output)


def _without_names(values: Any) -> Any:
    """Return the values of a frame; anything else as it is."""
    return values.to_numpy() if is_frame(values) else values


def _named(values: Any, index: Any, output: OutputSpec) -> Any:
    """Put an index, and names of columns, to an answer."""
    if is_frame(values) or is_sparse(values):
        return values
    frames = sys.modules[type(index).__module__.partition(".")[0]]  # pandas, or cuDF
    # pandas would look into objects, and make text of them where there are any.
    dtype = object if output.dtype == object and frames is pd else None
    if output.width is None:
        return frames.Series(values, index=index, dtype=dtype)
    columns = None if output.columns is None else pd.Index(output.columns)
    return frames.DataFrame(values, index=index, columns=columns, dtype=dtype)


def _key(name: str) -> str:
    """Make a key: what the dashboard shows, and a part that nothing else has."""
    return f"{name}-{uuid.uuid4().hex}"
