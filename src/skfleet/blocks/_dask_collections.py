"""Dask arrays, DataFrames and bags as aligned blocks, each a small graph that one task runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, zip_longest
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import dask
import dask.array as da
import numpy as np
from dask.base import collections_to_expr, is_dask_collection
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task

from skfleet import _linalg
from skfleet._dask_settings import dask_setting
from skfleet._typing import Matrix, Rows, RowsT, Table, Values
from skfleet.blocks._block import Block, BlockRef, RowBlocks, file_block_bytes
from skfleet.blocks._containers import (
    as_matrix,
    as_vector,
    filled_down,
    float_dtype,
    has_categories,
    hstack_lazily,
    is_frame,
    is_on_device,
    n_rows_of,
    slice_rows,
    stack_rows,
    without_categories,
)
from skfleet.blocks._dask_align import (
    align,
    check_order,
    check_shuffles,
    copy_lengths,
    known_lengths,
)
from skfleet.blocks._dask_graph import (
    DaskBlock,
    Graph,
    JointGraph,
    as_reference,
    blocks_of_graph,
    count_rows,
    frame_layers,
    futures_of,
    is_frame_collection,
    is_part,
    keys_of_partitions,
    shuffle_method,
    with_keys_by_content,
)
from skfleet.blocks._dask_scheduler import scheduler
from skfleet.blocks._label_codes import LabelCodes

if TYPE_CHECKING:
    import dask.dataframe as dd
    import pandas as pd
    from dask.bag import Bag

    from skfleet.blocks._dask_types import DaskRows, PartitionKey


def compute_together(*values: Any) -> list[Any]:
    """Return the values of Dask collections, computed in one graph; others are not changed.

    Rows must be of one order, and frames must have one index.
    """
    computed = list(values)
    lazy = [i for i, x in enumerate(values) if is_dask_collection(x)]
    collections = [with_whole_rows(values[i]) for i in lazy]
    if any(map(is_part, collections)):
        from skfleet.blocks._dask_take import with_fewer_columns

        collections = [with_fewer_columns(x) if is_part(x) else x for x in collections]
    names = ["X"] + ["Every value per row"] * (len(lazy) - 1)
    graph, keys, *_ = joint_graph(collections)
    check_shuffles(graph, keys, names, collections)
    name = f"compute-{id(graph):x}"
    whole = HighLevelGraph.from_collections(name, graph, dependencies=())
    parts = [[Delayed(key, whole, layer=name) for key in x] for x in keys]
    (parts,) = dask.compute(parts, scheduler=scheduler())
    for i, x, of_x in zip(lazy, collections, parts, strict=True):
        computed[i] = _concatenate(x, of_x)
    frames = [computed[i] for i in lazy if is_frame_collection(values[i])]
    if frames:
        _check_index(frames[0], names[1 : len(frames)], frames[1:])
    return computed


def persist_together(collections: Sequence[Any], client: Any) -> tuple[list[Any], list[object]]:
    """Return collections in the memory of a client's workers, and the futures in them.

    In one graph: what they share would else be computed for each, under equal keys.
    """
    graph, columns, *_ = joint_graph(collections)
    keys = list(flatten(columns))
    futures = dict(zip(keys, client.get(graph, keys, sync=False), strict=True))
    persisted = []
    for x, own in zip(collections, columns, strict=True):
        rebuild, args = x.__dask_postpersist__()
        of_x = [futures[key] for key in flatten(own)]
        # an array is known by its keys of before, which the joint graph has renamed
        names = flatten(own if is_frame_collection(x) else x.__dask_keys__())
        persisted.append(rebuild(dict(zip(names, of_x, strict=True)), *args))
        if is_frame_collection(x):
            copy_lengths(x, persisted[-1])
    return persisted, list(futures.values())


def with_whole_rows(x: RowsT) -> RowsT:
    """Return an array with one chunk along all axes but the first; others are not changed."""
    return x.rechunk(dict.fromkeys(range(1, x.ndim), -1)) if isinstance(x, da.Array) else x


def _with_whole_pictures(x: DaskRows) -> DaskRows:
    """Return an array of more than two axes in chunks of whole rows; others are not changed.

    The chunks of a matrix are joined along columns where a block is opened.
    """
    return with_whole_rows(x) if x.ndim > 2 else x


def _concatenate(x: DaskRows, parts: Sequence[object]) -> Any:
    """Return the partitions of a collection as one value."""
    if isinstance(x, da.Array):
        return stack_rows(parts)
    finish, options = x.__dask_postcompute__()
    return finish(parts, *options)


def as_collection(X: object) -> DaskRows:
    """Return a Dask collection as an array or a frame: a bag as a Series of its items.

    A Delayed value, or any other collection of unknown rows, raises a TypeError.
    """
    if isinstance(X, da.Array) or is_frame_collection(X):
        return X
    bag = sys.modules.get("dask.bag")
    if bag is not None and isinstance(X, bag.Bag):
        return _series_of_items(X)
    raise TypeError(
        f"X must be a Dask array, a Dask DataFrame or a bag of text. Got {type(X).__name__} "
        "instead. Make one with dask.array.from_delayed or dask.dataframe.from_delayed."
    )


def _series_of_items(bag: Bag) -> dd.Series:
    """Return a bag as a Series of objects with the partitions of the bag."""
    import dask.dataframe as dd
    import pandas as pd

    series = dask.delayed(partial(_series, pd), pure=True)
    items = bag.to_delayed()
    if futures := futures_of([bag]):  # which the optimization of a bag drops
        graph = {**items[0].dask, **futures}
        items = [Delayed(part.key, graph) for part in items]
    # text would be converted to Arrow's, and what is no text would fail
    with dask_setting("dataframe.convert-string", False):
        parts = [series(part) for part in items]
        return dd.from_delayed(parts, meta=pd.Series([], dtype=object), verify_meta=False)


def _series(frames: ModuleType, items: Iterable[object]) -> pd.Series:
    # the items of a bag's partition may be an iterator
    return frames.Series(list(items), dtype=object)


def meta_of(X: object) -> Any:
    """Return no rows of the container, width, names and types of X."""
    X = as_collection(X)
    meta = X._meta
    if is_frame_collection(X):
        return meta
    if _linalg.is_sparse(meta):
        return type(meta)((0, X.shape[1]), dtype=X.dtype)
    return np.empty((0, *X.shape[1:]), dtype=X.dtype)


def artificial_rows(meta: Table) -> Any:
    """Return two rows of the container and types of empty ones, with arbitrary values."""
    if is_frame(meta):
        from dask.dataframe.utils import meta_nonempty

        return filled_down(meta_nonempty(meta))  # with gaps in columns of nullable types
    shape = (2, *meta.shape[1:])
    if _linalg.is_sparse(meta):
        return type(meta)(shape, dtype=meta.dtype)
    return np.ones_like(meta, shape=shape)  # on the device that the rows are on


def dask_blocks(
    X: Rows | Bag,
    y: Values | None,
    sample_weight: Values | None,
    per_sample: Mapping[str, Values],
    *,
    dtype: Literal["float"] | None,
    piece_bytes: int | None = None,
) -> RowBlocks:
    """Return aligned blocks of X, y, sample_weight and per_sample, in the partitions of X.

    With `piece_bytes`, those of large Parquet files are in pieces (see `joint_graph`).

    1. Optimize all collections into one graph.
    2. Repartition like X the values that are partitioned otherwise; count rows only if needed.
    3. Add a task per block that joins its parts, checks their index, and converts frames.
    4. Split the graph: a block has the tasks that it alone needs, and shared tasks stay apart.
    5. Replace blocks whose parts are in the workers' memory by the futures of the parts.
    """
    X = _with_whole_pictures(as_collection(X))
    if dtype is not None:
        X = _check_numeric(X)
    # What comes with X is on Dask too, and aligned in the graph, or here, and cut by lengths.
    columns = {"y": y, "sample_weight": sample_weight, **per_sample}
    columns = {name: values for name, values in columns.items() if values is not None}
    collections = {name: _column(name, v) for name, v in columns.items() if is_dask_collection(v)}
    host = {name: np.asarray(v) for name, v in columns.items() if not is_dask_collection(v)}
    graph, keys, partitions, files, known = joint_graph([X, *collections.values()], piece_bytes)
    lengths = align(graph, keys, X, collections, host, known)

    # A task for each block. The name of its key need not be unique on the cluster: the task becomes
    # a part of the block's own graph.
    starts = None if lengths is None else list(accumulate(lengths, initial=0))
    has_values = is_frame_collection(X) and dtype is not None
    takes_values = has_values or any(map(is_frame_collection, collections.values()))
    hstack = _linalg.hstack if dtype is None else hstack_lazily
    assemble = partial(_assemble, [*collections, *host], hstack, has_values)
    outputs = []
    for i, parts in enumerate(zip(*keys, strict=True)):
        key = (f"block-{id(graph):x}", i)
        cut = (slice_rows(v, *starts[i : i + 2]) for v in host.values()) if starts else ()
        graph[key] = Task(key, assemble, *map(as_reference, parts), *cut)
        outputs.append(key)
    # From here on each block carries the tasks that it alone needs.
    dask_blocks = blocks_of_graph(graph, outputs)
    if partitions is None and all(map(is_frame_collection, [X, *collections.values()])):
        from skfleet.blocks._dask_pieces import nbytes_of_numbers

        of_files = nbytes_of_numbers([X, *collections.values()])
        n_bytes = None if of_files is None else of_files / len(outputs)
        dask_blocks = [b._replace(n_bytes=n_bytes) for b in dask_blocks]
    elif partitions is not None:
        files = files if lengths is None else ""  # rows of this process are cut for whole pieces
        dask_blocks = [
            b._replace(partition=i, files=files)
            for b, i in zip(dask_blocks, partitions, strict=True)
        ]
    # Blocks in the workers' memory need no task at all, unless their parts are converted or joined.
    names = list(collections)
    blocks = tuple(
        _resident_block(block, names, parts, takes_values or bool(host))._replace(
            number=i, row_offset=None if starts is None else starts[i]
        )
        for i, (block, parts) in enumerate(zip(dask_blocks, zip(*keys, strict=True), strict=True))
    )
    # What is known without computing: the size of frames and of sparse rows is not.
    kind = None if dtype is None else float_dtype(meta_of(X))
    n_bytes, is_sparse = None, _linalg.is_sparse(X._meta)
    # not by the shape of a frame: for its length Dask makes an expression
    n_columns = len(X.columns) if is_frame_collection(X) else math.prod(X.shape[1:2])
    if lengths is not None and not is_frame_collection(X) and not is_sparse:
        n_bytes = sum(lengths) * X.dtype.itemsize * math.prod(X.shape[1:])
    return RowBlocks(
        blocks,
        lengths,
        n_columns,
        kind,
        checked=False,
        n_bytes=n_bytes,
        on_dask=True,
        on_device=is_on_device(X),
        is_sparse=is_sparse,
    )


def compute_chunk_sizes(*collections: DaskRows) -> list[DaskRows]:
    """Return collections as arrays of known lengths, whose rows have one order in every pass."""
    numeric = [_with_whole_pictures(_as_numeric(x)) for x in collections]
    all_lengths = [known_lengths(x) for x in numeric]
    if None not in all_lengths:
        return numeric
    graph, keys, *_ = joint_graph(numeric, is_repeated=True)
    check_order(graph, keys)
    unknown = [i for i, lengths in enumerate(all_lengths) if lengths is None]
    for i, lengths in zip(unknown, count_rows(graph, [keys[i] for i in unknown]), strict=True):
        all_lengths[i] = lengths
    return [
        _as_array(graph, partition_keys, x, lengths)
        for partition_keys, x, lengths in zip(keys, numeric, all_lengths, strict=True)
    ]


def fix_partitions(
    collections: Sequence[DaskRows], values: Sequence[DaskRows], *, is_tuned: bool
) -> tuple[list[DaskRows], list[tuple[int, ...] | None], list[BlockRef]]:
    """Return collections whose partitions are final, their known lengths, and tasks for the others.

    A task's result lists, of each collection of unknown length, the number of rows in a partition,
    or nothing after its last one; and of each of `values` likewise the rows as a `LabelCodes`.
    There is no task where all is known. Large files are read in pieces, of which each has a task.
    """
    fixed = [*collections, *(_column("Every value per row", x) for x in values)]
    frames = [i for i, x in enumerate(fixed) if is_frame_collection(x)]
    piece_bytes = file_block_bytes()
    if frames:
        from skfleet.blocks._dask_optimize import optimize_frames
        from skfleet.blocks._dask_pieces import has_large_files

        # Several large files are not read as one.
        is_tuned = is_tuned and not has_large_files([fixed[i] for i in frames], piece_bytes)
        method = shuffle_method(is_repeated=True)
        optimized = optimize_frames([fixed[i] for i in frames], is_tuned=is_tuned, method=method)
        for i, x in zip(frames, optimized, strict=True):
            fixed[i] = x
    graph, keys, partitions, files, _ = joint_graph(fixed, piece_bytes, is_repeated=True)
    check_order(graph, keys)
    lengths = [known_lengths(x) for x in collections]
    counted = [keys[i] for i, n in enumerate(lengths) if n is None]
    outputs = []
    for i, parts in enumerate(zip_longest(*counted, *keys[len(collections) :])):
        refs = [List() if key is None else List(as_reference(key)) for key in parts]
        key = (f"count-{id(graph):x}", i)
        graph[key] = Task(key, partial(_count_and_encode, len(counted)), *refs)
        outputs.append(key)
    blocks = blocks_of_graph(graph, outputs)
    if blocks and partitions is not None:
        blocks = [
            block._replace(partition=i, files=files)
            for block, i in zip(blocks, partitions, strict=True)
        ]
    return (
        fixed[: len(collections)],
        lengths,
        [BlockRef(block, number=i) for i, block in enumerate(blocks)],
    )


def _count_and_encode(n_counted: int, *parts: Sequence[Table | list[Matrix]]) -> list[list[Any]]:
    """Return the numbers of rows of the first parts and the codes of the others, in lists."""
    counts = [[n_rows_of(rows[0] if isinstance(rows, list) else rows) for rows in x] for x in parts]
    return counts[:n_counted] + [
        [LabelCodes.encode(_as_one_array(rows)) for rows in x] for x in parts[n_counted:]
    ]


def _as_array(
    graph: Graph, keys: Sequence[PartitionKey], x: DaskRows, lengths: Sequence[int] | None
) -> da.Array:
    """Return partitions of known lengths as an array."""
    meta = _values(x._meta) if is_frame_collection(x) else x._meta
    name = f"values-{dask.base.tokenize(x)}"
    ends = (0,) * (len(x.shape) - 1)
    layer = dict(graph)
    for i, key in enumerate(keys):
        out = (name, i, *ends)
        layer[out] = Task(out, _as_one_array, as_reference(key))
    whole = HighLevelGraph.from_collections(name, layer, dependencies=())
    chunks = (lengths, *((n,) for n in x.shape[1:]))
    return da.Array(whole, name, chunks=chunks, meta=meta, dtype=meta.dtype)


def _as_one_array(part: Table | list[Matrix]) -> Any:
    """Return a partition as one array: the values of a frame, column chunks joined."""
    return _values(_linalg.hstack(part) if isinstance(part, list) else part)


def _check_numeric(X: DaskRows) -> DaskRows:
    """Return a matrix of numbers, or raise."""
    if X.ndim != 2:
        advice = "Take one with df[[name]]" if is_frame_collection(X) else "Use X.reshape(-1, 1)"
        raise ValueError(f"X must have two dimensions. Got {X.ndim} instead. {advice}.")
    return _as_numeric(X)


def _column(name: str, values: object) -> DaskRows:
    """Return a Dask column of values per row, or raise for a collection without rows."""
    if not (isinstance(values, da.Array) or is_frame_collection(values)):
        raise TypeError(
            f"{name} must be a Dask array or Series. Got {type(values).__name__} instead. Make one "
            "with dask.array.from_delayed, or compute it."
        )
    return _with_whole_pictures(_as_numeric(values))


def _as_numeric(x: DaskRows) -> DaskRows:
    """Return a frame with columns of NumPy dtypes; an array is not changed.

    Numbers of pandas' extension dtypes become float64, as in scikit-learn, categories what they
    are of, and all other extension dtypes object.
    """
    x = as_collection(x)
    if not is_frame_collection(x):
        return x
    if has_categories(x._meta):
        x = x.map_partitions(without_categories, meta=without_categories(x._meta))
    dtypes = dict(x._meta.dtypes) if x.ndim == 2 else {None: x._meta.dtype}
    extension_dtypes = {
        name: np.dtype(np.float64) if getattr(dtype, "kind", "O") in "biuf" else np.dtype(object)
        for name, dtype in dtypes.items()
        if not isinstance(dtype, np.dtype)
    }
    if not extension_dtypes:
        return x
    return x.astype(extension_dtypes if x.ndim == 2 else extension_dtypes[None])


def joint_graph(
    collections: Sequence[Any], piece_bytes: int | None = None, *, is_repeated: bool = False
) -> JointGraph:
    """Return one optimized graph of all collections, and the keys of each one's partitions.

    Frames are optimized together, as in `dask.compute`, and so are arrays, so that shared tasks run
    once. That is required, not only faster: a shuffle that runs twice may give two orders of rows.
    For frames and arrays together `dask.compute` (2026.8.0) has no graph with keys in the order of
    the collections. The frames that arrays are made of (see `FrameLayer`) count as frames.

    The key of a partition is a list of keys where an array has several chunks along columns.

    With `piece_bytes`, frames that are read from Parquet files row by row, and arrays that are made
    of such frames, have smaller partitions than Dask gives them, of about so many bytes.

    A graph that runs in several passes has shuffles that give the same order in each of them.
    """
    arrays = [x for x in collections if not is_frame_collection(x)]
    if len(arrays) < len(collections) or frame_layers(arrays):
        from skfleet.blocks._dask_optimize import graph_of_frames

        method = shuffle_method(is_repeated=is_repeated)
        return graph_of_frames(collections, piece_bytes, method=method)
    if not arrays:
        return JointGraph({}, [])
    # `dask.optimize` (2026.8.0) would fuse what two arrays share into each of them
    tasks, new_keys = with_keys_by_content(collections_to_expr(arrays).optimize())
    return JointGraph(tasks | futures_of(arrays), [keys_of_partitions(x, new_keys) for x in arrays])


def _assemble(
    names: Sequence[str],
    hstack: Callable[[Sequence[Matrix]], Table],
    takes_values: bool,
    X: Table | list[Matrix],
    *values: Table | list[Matrix],
) -> Block:
    """Return a block of its parts, with column chunks of X joined; frames must have one index."""
    _check_index(X, names, values)
    X = hstack(X) if isinstance(X, list) else X
    X = _values(X) if takes_values else X
    return Block(*_fields(names, X, *map(_as_one_array, values)))


def _check_index(X: Any, names: Sequence[str], values: Sequence[Any]) -> None:
    """Raise for frames of as many rows and another index than X."""
    for name, part in zip(names, values, strict=True):
        is_comparable = is_frame(X) and is_frame(part) and len(part) == len(X)
        if is_comparable and not part.index.equals(X.index):
            raise ValueError(
                f"{name} must have the index of X, in every partition. Got other labels "
                "instead. Take both from one Dask DataFrame, or leave the index behind with "
                "to_dask_array(lengths=True)."
            )


def _values(part: Table) -> Any:
    """Return the values of a frame, as a view where possible; arrays are not changed."""
    return as_vector(part) if is_frame(part) else part


def _fields(names: Sequence[str], X: object, *values: object) -> BlockRef:
    """Return rows, or their future, as fields with their parameters per sample, by name."""
    named = dict(zip(names, values, strict=True))
    y, sample_weight = named.pop("y", None), named.pop("sample_weight", None)
    return BlockRef(X, y, sample_weight, per_sample=named or None)


def _resident_block(
    block: DaskBlock, names: Sequence[str], parts: Sequence[Any], has_work: bool
) -> BlockRef:
    """Return a reference of the futures of its parts, if all are in the workers' memory already."""
    if has_work:
        block = block._replace(is_resident=False)
    if not block.is_resident or any(isinstance(part, list) for part in parts):
        return BlockRef(block)
    return _fields(names, *map(block.future_of, parts))


def from_local(X: Rows, n_bytes: int) -> da.Array:
    """Return rows in this process as a Dask array with chunks of at most n_bytes."""
    rows = as_matrix(X, float_dtype(X)) if hasattr(X, "iloc") or not hasattr(X, "shape") else X
    step = max(1, min(n_bytes // _linalg.row_bytes(rows), -(-rows.shape[0] // 8)))
    return da.from_array(rows, chunks=(step, *rows.shape[1:]), asarray=False)
