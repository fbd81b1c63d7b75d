"""One optimized graph for Dask collections with frames among them, and arrays of joined frames."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import dask.array as da
from dask.base import collections_to_expr
from dask.core import flatten
from dask.dataframe.dask_expr.io import BlockwiseIO
from dask.highlevelgraph import HighLevelGraph
from dask.utils import get_default_shuffle_method

from skfleet._dask_private import Blockwise, ShuffleBase, graph_of_tasks
from skfleet._dask_settings import dask_setting
from skfleet.blocks._dask_align import copy_lengths, known_lengths
from skfleet.blocks._dask_futures import is_future
from skfleet.blocks._dask_graph import (
    FrameLayer,
    Graph,
    JointGraph,
    frame_layers,
    futures_of,
    is_frame_collection,
    is_part,
    keys_of_partitions,
    layers_of,
    with_keys_by_content,
    with_result_keys,
)
from skfleet.blocks._dask_partitions import PartitionsOf, identity
from skfleet.blocks._dask_pieces import (
    has_large_files,
    in_pieces,
    is_read_by_rows,
    readers_of_pieces,
    without_joins,
)
from skfleet.blocks._dask_take import lengths_of_part, lengths_of_pieces
from skfleet.blocks._dask_to_parquet import map_by_rows

# The modules of Dask's expressions that reorder rows (dask 2026.8.0).
REORDERING_MODULES = {f"dask.dataframe.dask_expr.{name}" for name in ("_merge", "_shuffle")}


def graph_of_frames(
    collections: Sequence[Any], piece_bytes: int | None = None, *, method: str | None = None
) -> JointGraph:
    """Return the graph of collections that are frames, or made of frames (see `joint_graph`)."""
    if piece_bytes is not None and (cut := _graph_of_pieces(collections, piece_bytes)):
        return cut
    frames = [x for x in collections if is_frame_collection(x)]
    arrays = [x for x in collections if not is_frame_collection(x)]
    layers = frame_layers(arrays)
    sources = [layer.frame for layer in layers.values()]
    is_of_frames = [not layers.keys().isdisjoint(layers_of(x)) for x in arrays]
    arrays_of_frames = [x for x, is_of in zip(arrays, is_of_frames, strict=True) if is_of]
    arrays = [x for x, is_of in zip(arrays, is_of_frames, strict=True) if not is_of]
    graph: Graph = {}
    keys: list[list[Any]] = []
    if frames or sources:
        expression = optimized_together(
            [*frames, *sources], with_own_keys=True, is_tuned=not sources, method=method
        )
        graph |= expression.__dask_graph__()
        keys = [list(partition_keys) for partition_keys in expression.__dask_keys__()]
    # An optimized graph refers to persisted results by key alone, which would not keep them alive.
    futures = futures_of([*frames, *sources, *arrays])
    for layer, partition_keys in zip(layers.values(), keys[len(frames) :], strict=True):
        is_alike = len(partition_keys) == layer.n_chunks
        graph |= layer.chunks_of(partition_keys) if is_alike else layer
    for x in arrays_of_frames:  # whose layers Dask's optimization would make tasks of
        tasks: Graph = {}
        for name, layer in layers_of(x).items():
            tasks |= {} if name in layers else layer
        futures |= {key: node for key, node in tasks.items() if is_future(node)}
        graph |= graph_of_tasks(tasks, tasks.keys() | graph.keys())
    if arrays:  # `dask.optimize` (2026.8.0) would fuse what two arrays share into each of them
        tasks, new_keys = with_keys_by_content(collections_to_expr(arrays).optimize())
        graph |= tasks
    by_id = dict(zip(map(id, [*frames, *sources]), keys, strict=True))
    by_id |= {id(x): keys_of_partitions(x, {}) for x in arrays_of_frames}
    by_id |= {id(x): keys_of_partitions(x, new_keys) for x in arrays}
    return JointGraph(graph | futures, [by_id[id(x)] for x in collections])


def optimize_frames(
    frames: Sequence[Any], *, is_tuned: bool = True, method: str | None = None
) -> list[Any]:
    """Return frames as they are after Dask's optimization, so that their partitions are final.

    Tuned, several partitions of few columns are read as one. Shared tasks run once, and `method` is
    that of shuffles which name none.
    """
    from skfleet.blocks._dask_take import with_fixed_partitions

    if not frames:
        return []
    optimized = optimized_together(frames, is_tuned=is_tuned, method=method).operands
    return with_fixed_partitions(optimized)


def _graph_of_pieces(collections: Sequence[Any], piece_bytes: int) -> JointGraph | None:
    """Return the graph of collections in pieces of their partitions; None where these are whole."""
    layers = frame_layers([x for x in collections if not is_frame_collection(x)])
    if not all(is_frame_collection(x) or x.name in layers for x in collections):
        return None
    frames = [x if is_frame_collection(x) else layers[x.name].frame for x in collections]
    if not has_large_files(frames, piece_bytes):
        return None
    whole = optimized_together(without_joins(frames), is_tuned=False)
    expression, partitions = in_pieces(whole, piece_bytes)
    if partitions is None:
        return None
    files = " ".join(sorted({reader._name for reader in readers_of_pieces(expression)}))
    taken = [lengths_of_pieces(x) for x in expression.operands]
    has_lengths = [known_lengths(x) is not None for x in collections]
    lengths = [n if known else None for n, known in zip(taken, has_lengths, strict=True)]
    return JointGraph(
        expression.__dask_graph__() | futures_of(frames),
        [list(keys) for keys in expression.__dask_keys__()],
        partitions,
        # rows are taken of whole pieces
        files if taken.count(None) == len(taken) else "",
        lengths,
    )


def optimized_together(
    frames: Sequence[Any],
    *,
    with_own_keys: bool = False,
    is_tuned: bool = True,
    method: str | None = None,
) -> Any:
    """Return one optimized expression of several frames.

    Tuned, it reads several partitions as one where few columns are read. `method` is that of
    shuffles which name none. The keys of its tasks may be `with_own_keys` (see `_with_own_keys`).
    """
    from skfleet.blocks._dask_categorize import with_multi_reader_categorize
    from skfleet.blocks._dask_locks import release_cached_properties

    release_cached_properties()
    frames = [with_multi_reader_categorize(x) for x in frames]
    with nullcontext() if is_tuned else dask_setting("optimization.tune.active", False):
        expression = _with_shuffle_method(collections_to_expr(frames), method)
        optimized = expression.optimize(fuse=False)
        orders = [_reordering(x).keys() for x in optimized.operands]
        if any(order != orders[0] for order in orders):
            for node in _reordering(expression).values():
                expression = expression.substitute(node, WholeFrame(node))
            optimized = expression.optimize(fuse=False)
        return _with_own_keys(optimized) if with_own_keys else optimized


def _optimized_alone(frame: Any, *, method: str | None = None) -> Any:
    """Return the optimized expression of a frame, with one task a partition where it has its own.

    Dask fuses no expressions in sequences, nor all that have sources of their own (2026.8.0).
    """
    together = optimized_together([frame], with_own_keys=True, is_tuned=False, method=method)
    (expression,) = together.operands
    has_own = next(expression.find_operations(OwnSource), None) is not None
    return expression if has_own else expression.fuse()


def _with_own_keys(expression: Any) -> Any:
    """Return an expression whose tasks above the sources have keys that no other one's have.

    A task that stands alone in one graph is fused with others in a second one, under the same key
    (dask 2026.8.0). The scheduler keeps the first for as long as any result of it is needed, though
    the second one has other dependencies, and warns. Equal expressions have equal keys, unless they
    shuffle on disk, for which each graph has files of its own.
    """
    is_on_disk = any(name.startswith("diskshuffle-") for name in _reordering(expression))
    token = uuid.uuid4().hex if is_on_disk else expression._name
    operands = [_on_own_sources(x, token) for x in expression.operands]
    return type(expression)(*operands)


def _on_own_sources(expression: Any, token: str) -> Any:
    """Return an expression on sources of its own, unless each partition has its own tasks."""
    sources, stack, is_blockwise = {}, [expression], True
    while stack:
        node = stack.pop()
        dependencies = [] if isinstance(node, BlockwiseIO) else node.dependencies()
        if not dependencies and node.ndim:
            sources[node._name] = node
        is_blockwise &= isinstance(node, Blockwise) or not dependencies
        stack += dependencies
    for source in () if is_blockwise else sources.values():
        expression = expression.substitute(source, OwnSource(source, token))
    return expression


def _reordering(expression: Any) -> dict[str, Any]:
    """Return the parts of an expression that reorder rows, by name."""
    nodes = (x for x in expression.walk() if type(x).__module__ in REORDERING_MODULES)
    return {node._name: node for node in nodes}


class WholeFrame(Blockwise):
    """Expression of all columns of a frame.

    Dask's optimization (2026.8.0) projects no columns before it. A frame and its column, computed
    together, may else be of two joins, one of which has fewer columns and another order of rows.
    """

    _parameters = ["frame"]
    operation = staticmethod(identity)

    @property
    def _meta(self) -> Any:
        return self.frame._meta


class OwnSource(PartitionsOf):
    """Expression of a source in the graph of one joint expression, by its name."""

    _parameters = ["frame", "token"]


def _with_shuffle_method(expression: Any, method: str | None) -> Any:
    """Return an expression whose shuffles have a method, if it is not the default of Dask.

    A setting of Dask would hold for all threads of the program.
    """
    if method is None or method == get_default_shuffle_method():
        return expression
    before = None
    while expression is not before:
        before = expression
        for node in expression.walk():
            name = "method" if isinstance(node, ShuffleBase) else "shuffle_method"
            if name in node._parameters and node.operand(name) is None:
                expression = expression.substitute(node, node.substitute_parameters({name: method}))
                break
    return expression


# -- arrays of frames ----------------------------------------------------------------------------


def map_to_array(X: Any, func: Any, *args: Any, meta: Any, token: str) -> Any:
    """Return the arrays that ``func(partition, *args)`` gives as one Dask array like `meta`."""
    options = {"align_dataframes": False, "token": token}
    if is_reordered(X) or is_read_by_rows(X):
        frame = map_by_rows(X, func, *args, meta=X._meta.index.to_series()[:0], **options)
        copy_lengths(X, frame)
        name = f"{token}-{uuid.uuid4().hex}"
        layer = FrameLayer(name, frame, len(meta.shape), _optimized_alone)
        graph = HighLevelGraph({name: layer}, {name: set()})
        lengths = known_lengths(X) or (float("nan"),) * layer.n_chunks
        chunks = (lengths, *((n,) for n in meta.shape[1:]))
        return da.Array(graph, name, chunks=chunks, meta=meta, dtype=meta.dtype)
    partitions = X.map_partitions(func, *args, meta=meta, enforce_metadata=False, **options)
    array = _without_aliases(partitions, meta)
    if not is_part(X):
        return array
    chunks = (lengths_of_part(X), *array.chunks[1:])
    return da.Array(array.dask, array.name, chunks=chunks, meta=meta)


def is_reordered(frame: Any) -> bool:
    """Return whether rows of a frame are in an order that a join or a shuffle gives them."""
    return bool(_reordering(frame.expr.lower_completely()))


def _without_aliases(partitions: Any, meta: Any) -> Any:
    """Return an array of a frame's partitions with a graph that has no aliases.

    Of those of ``from_delayed`` the optimization of arrays loses tasks (dask 2026.8.0).
    """
    keys = [*flatten(partitions.__dask_keys__())]
    graph = with_result_keys(dict(partitions.dask), dict(zip(keys, keys, strict=True)))
    if graph is None:
        return da.Array(partitions.dask, partitions.name, chunks=partitions.chunks, meta=meta)
    whole = HighLevelGraph.from_collections(partitions.name, graph, dependencies=())
    return da.Array(whole, partitions.name, chunks=partitions.chunks, meta=meta)
