"""Lazy predictions for Dask arrays and frames, with chunks, dtype and names known in advance."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Alias, Task, TaskRef

from skfleet._array import to_device_of
from skfleet._linalg import is_sparse
from skfleet.blocks import (
    artificial_rows,
    as_collection,
    by_rows,
    copy_lengths,
    frame_of_files,
    is_frame,
    map_by_rows,
    map_to_array,
    meta_of,
    n_rows_of,
    paired_with,
    scheduler,
    slice_rows,
    stack_rows,
    with_pandas_text,
    with_whole_rows,
)
from skfleet.engine import identity
from skfleet.inference._frame_rows import frame_rows, set_frame_rows
from skfleet.inference._output import OutputSpec, apply_to_rows, with_index


class Boxed:
    """A value that Dask passes on without looking inside for parts of a graph."""

    __slots__ = ("_token", "value")

    def __init__(self, value: Any) -> None:
        self.value, self._token = value, uuid.uuid4().hex

    def __dask_tokenize__(self) -> str:  # which would pickle the value
        return self._token

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.value,)


class BoxedOutputs(Boxed):
    """Several outputs for some rows, and the index of these."""

    __slots__ = ()

    def joined_with(self, boxes: Sequence[BoxedOutputs]) -> BoxedOutputs:
        """Return the outputs for these rows and for those of boxes below them."""
        outputs, indexes = zip(*(box.value for box in (self, *boxes)), strict=True)
        index = None if indexes[0] is None else indexes[0].append(list(indexes[1:]))
        return BoxedOutputs(([stack_rows(parts) for parts in zip(*outputs, strict=True)], index))


def meta_nonempty(X: Any) -> Any:
    """Return two rows of the container and types of X, with arbitrary values."""
    X = as_collection(X)
    if isinstance(X, da.Array) and not is_sparse(X._meta):  # whose meta may lack its dimensions
        return np.ones_like(X._meta, shape=(2, *X.shape[1:]), dtype=X.dtype)
    return artificial_rows(meta_of(X))


def first_rows(X: Any) -> Any:
    """Return the first two rows of the first partition of X that has any; only they are fetched."""
    X = as_collection(X)
    is_array = isinstance(X, da.Array)
    X = with_whole_rows(X)
    for i in range(X.numblocks[0] if is_array else X.npartitions):
        part = X.blocks[i].to_delayed().flat[0] if is_array else X.partitions[i].to_delayed()[0]
        (rows,) = dask.compute(dask.delayed(_head, pure=False)(part), scheduler=scheduler())
        if n_rows_of(rows):
            return rows
    raise ValueError("X must have at least one row. Got none instead.")


def _head(rows: Any) -> Any:
    return slice_rows(rows, 0, min(2, n_rows_of(rows)))


def map_dask_rows(
    func: Any,
    model: Any,
    X: Any,
    output: OutputSpec | Sequence[OutputSpec],
    *,
    check: Any,
    convert: bool,
    takes_parts: bool,
    name: str,
) -> Any:
    """Return func(model, rows) as a lazy collection, or a list of them for several outputs."""
    X = as_collection(X)
    specs = [output] if isinstance(output, OutputSpec) else output
    source, X = frame_rows(X), with_whole_rows(X)
    if source is not None and not any(spec.is_array or spec.is_rows for spec in specs):
        X = source(takes_parts)
    is_array = isinstance(X, da.Array)
    # The model has a task of its own: workers pass on one value, instead of a copy in each task.
    if not (isinstance(model, Boxed) or dask.is_dask_collection(model)):
        key = _unique_key(f"model-of-{name}")
        unbox = dask.delayed(attrgetter("value"), pure=False)
        model = unbox(Boxed(model), dask_key_name=key)
    args = (name, func, model, output, check, convert)
    map_blocks = _map_array if is_array else _map_frame
    if isinstance(output, OutputSpec):
        task = _apply_to_chunk if is_array else _apply_to_partition
        result = map_blocks(task, X, output, name, *args)
        if isinstance(result, da.Array) and (source is not None or not is_array):
            set_frame_rows(result, partial(_boxed_rows, source if is_array else X, name, args))
        elif not is_array:
            copy_lengths(X, result)
        return result
    # One task computes all outputs of a block of rows, and one task per output selects from it.
    boxes = map_blocks(_apply_boxed, X, OutputSpec(np.dtype(object)), name, *args)
    return [
        map_blocks(_select_output, boxes, spec, f"{name}-{i}", i, spec)
        for i, spec in enumerate(output)
    ]


def map_dask_partitions(
    func: Any,
    model: Any,
    X: Any,
    values: Sequence[np.ndarray],
    result: Any,
    *,
    rows_of: Any = None,
    name: str,
) -> Any:
    """Return func(model, rows, values) of each partition and its values per row, lazily.

    A frame's result is paired with the rows of the frame `rows_of`, which are those of X.
    """
    if not dask.is_dask_collection(model):
        unbox = dask.delayed(attrgetter("value"), pure=False)
        model = unbox(Boxed(model), dask_key_name=_unique_key(f"model-of-{name}"))
    chunks = (tuple(map(len, values)), *((n,) for n in result.shape[1:]))
    if isinstance(X, da.Array):
        X, key = with_whole_rows(X), _unique_key(name)
        ref, ends = TaskRef(model.key), (0,) * (len(result.shape) - 1)
        layer: dict[Any, Any] = {}
        for i, of_rows in enumerate(values):
            out = (key, i, *ends)
            layer[out] = Task(out, func, ref, TaskRef((X.name, i, *_ends(X))), of_rows)
        graph = HighLevelGraph.from_collections(key, layer, dependencies=[X, model])
        return da.Array(graph, key, chunks=chunks, meta=result)
    import dask.dataframe as dd

    of_partitions = dd.from_map(identity, list(values), meta=X._meta.index.to_series()[:0])
    args = (_call_on_partition, of_partitions, func, model)
    if is_frame(result):
        answer = X.map_partitions(
            *args, meta=result, enforce_metadata=False, align_dataframes=False, token=name
        )
        return answer if rows_of is None else paired_with(answer, rows_of)
    array = map_to_array(X, *args, meta=result, token=name)
    return da.Array(array.dask, array.name, chunks=chunks, meta=result)


def join_delayed(parts: Sequence[Any], lengths: Sequence[float], output: OutputSpec, X: Any) -> Any:
    """Return Delayed results of consecutive rows as one collection, a frame where X is one.

    `lengths` are the numbers of rows, NaN where unknown. The parts of a frame have its index.
    """
    if is_frame(meta_of(X)) and not (output.is_array or is_sparse(output.empty())):
        import dask.dataframe as dd

        meta = with_index(output.empty(), meta_of(X).index, output)
        return paired_with(dd.from_delayed(parts, meta=meta, verify_meta=False), X)
    key = _unique_key("results")
    ends = _ends(output.empty())
    layer: dict[Any, Any] = {
        (key, i, *ends): Alias((key, i, *ends), part.key) for i, part in enumerate(parts)
    }
    graph = HighLevelGraph.from_collections(key, layer, dependencies=parts)
    chunks = (tuple(lengths), *((n,) for n in output.empty().shape[1:]))
    meta = to_device_of(_without_names(output.empty()), X._meta)
    return da.Array(graph, key, chunks=chunks, dtype=output.dtype, meta=meta)


def _boxed_rows(source: Any, name: str, args: tuple[Any, ...], takes_parts: bool = False) -> Any:
    """Return boxes of transformed rows and their index, as the partitions of a Series."""
    X = source() if callable(source) else source
    meta = meta_of(X).index.to_series()[:0]
    options = {"meta": meta, "enforce_metadata": False, "token": name}
    boxes = X.map_partitions(_apply_to_box, takes_parts, *args, **options)
    copy_lengths(X, boxes)
    return boxes


def rows_with_index(X: Any) -> Any:
    """Return a dense array that is made of a frame as a frame; others are not changed."""
    source = frame_rows(X)
    if source is None or is_sparse(X._meta):
        return X
    output = OutputSpec(X.dtype, X.shape[1])
    boxes = source()
    meta = with_index(output.empty(), meta_of(boxes).index, output)
    frame = boxes.map_partitions(_opened_box, output, meta=meta, enforce_metadata=False)
    copy_lengths(boxes, frame)
    return frame


@by_rows
def _opened_box(box: Boxed, output: OutputSpec) -> Any:
    rows, index = box.value
    return with_index(rows, index, output)


def _call_on_partition(rows: Any, values: np.ndarray, func: Any, model: Any) -> Any:
    return func(model, with_pandas_text(rows), values)


def _map_array(task: Any, X: Any, output: OutputSpec, name: str, *args: Any) -> Any:
    """Run a task per chunk of an array."""
    meta = to_device_of(_without_names(output.empty()), X._meta)
    types, chunks = {"dtype": output.dtype, "meta": meta}, (X.chunks[0],)
    chunks += tuple((n,) for n in meta.shape[1:])
    frame = frame_of_files(X) if X.ndim == len(meta.shape) == 2 else None
    if frame is not None:
        return map_to_array(frame, task, *args, meta=meta, token=name)
    if len(chunks) >= X.ndim:
        new_axes = list(range(X.ndim, len(chunks))) or None
        name = _unique_key(name)
        return X.map_blocks(task, *args, name=name, chunks=chunks, new_axis=new_axes, **types)
    # Dask fuses no task that drops an axis with the one that makes its rows. It does fuse one that
    # keeps the axis, and that one with a last one, into a single task where both have a name.
    key, like_rows = _unique_key(name), {"dtype": X.dtype, "meta": X._meta}
    in_all_axes = (X.chunks[0], *[(1,)] * (X.ndim - 1))
    results = X.map_blocks(task, *args, name=_unique_key(name), chunks=in_all_axes, **like_rows)
    ends = _ends(meta)
    layer: dict[Any, Any] = {
        (key, i, *ends): (identity, (results.name, i, *_ends(X))) for i in range(X.numblocks[0])
    }
    graph = HighLevelGraph.from_collections(key, layer, dependencies=[results])
    return da.Array(graph, key, chunks=chunks, **types)


def _ends(rows: Any) -> tuple[int, ...]:
    """Return the numbers of a chunk of whole rows along all axes but the first."""
    return (0,) * (len(rows.shape) - 1)


def _map_frame(task: Any, X: Any, output: OutputSpec, name: str, *args: Any) -> Any:
    """Run a task per partition of a frame."""
    empty = output.empty()
    if not is_frame(empty) and (output.is_array or len(empty.shape) > 2):
        return map_to_array(X, _apply_to_chunk, *args, meta=empty, token=name)
    meta = with_index(empty, meta_of(X).index, output)
    if is_sparse(meta):
        return map_to_array(X, task, *args, meta=meta, token=name)
    result = map_by_rows(X, task, *args, meta=meta, token=name)
    if result.ndim == 1 or output.is_rows:
        return result
    from skfleet.inference._response_frame import ResponseFrame

    return ResponseFrame(result.expr)


# Dask passes `block_id` to tasks of chunks, and `partition_info` to those of partitions.


@by_rows
def _apply_to_chunk(
    rows: Any, name: str, *args: Any, block_id: Any = None, partition_info: Any = None
) -> Any:
    with _note_on_failure(name, block_id, partition_info):
        # a chunk of an array is never a frame
        return _without_names(_apply(rows, *args))


@by_rows
def _apply_to_partition(rows: Any, name: str, *args: Any, partition_info: Any = None) -> Any:
    _, _, output, *_ = args
    with _note_on_failure(name, None, partition_info):
        return with_index(_apply(rows, *args), _index_of(rows), output)


@by_rows
def _apply_to_box(
    rows: Any,
    takes_parts: bool,
    name: str,
    func: Any,
    model: Any,
    *args: Any,
    partition_info: Any = None,
) -> Any:
    model = _unboxed(model)
    if takes_parts and hasattr(model, "_leaves_parts"):
        model = copy.copy(model)
        model._leaves_parts = True
    with _note_on_failure(name, None, partition_info):
        return Boxed((_without_names(_apply(rows, func, model, *args)), _index_of(rows)))


@by_rows
def _apply_boxed(
    rows: Any, name: str, *args: Any, block_id: Any = None, partition_info: Any = None
) -> Any:
    """Return all outputs for one block of rows, boxed, with the index of the rows."""
    with _note_on_failure(name, block_id, partition_info):
        return BoxedOutputs((_apply(rows, *args), _index_of(rows)))


def _index_of(rows: Any) -> Any:
    return rows.value[1] if isinstance(rows, Boxed) else getattr(rows, "index", None)


def _apply(rows: Any, func: Any, model: Any, *options: Any) -> Any:
    rows = rows.value[0] if isinstance(rows, Boxed) else rows
    return apply_to_rows(func, _unboxed(model), rows, *options)


def _unboxed(model: Any) -> Any:
    return model.value if isinstance(model, Boxed) else model


@contextmanager
def _note_on_failure(name: str, block_id: Any, partition_info: Any) -> Iterator[None]:
    """Add the number of the block to errors."""
    try:
        yield
    except Exception as error:
        number = partition_info["number"] if block_id is None else block_id[0]
        error.add_note(f"While mapping block {number} ({name}).")
        raise


def _select_output(box: Boxed, i: int, output: OutputSpec) -> Any:
    results, index = box.value
    return _without_names(results[i]) if index is None else with_index(results[i], index, output)


def _without_names(values: Any) -> Any:
    return values.to_numpy() if is_frame(values) else values


def _unique_key(name: str) -> str:
    """Return a key with a prefix for the dashboard."""
    return f"{name}-{uuid.uuid4().hex}"
