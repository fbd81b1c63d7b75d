"""One graph for several Dask collections (`joint_graph`): of arrays alone without Dask's frames."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from dask.base import collections_to_expr
from dask.core import flatten, toposort
from dask.highlevelgraph import Layer, MaterializedLayer
from dask.optimization import cull
from dask.task_spec import DataNode, GraphNode, Task, TaskRef
from dask.utils import get_default_shuffle_method

from skfleet._config import get_config
from skfleet.blocks._dask_futures import is_future
from skfleet.blocks._dask_graph import P2P_BARRIER, Graph, futures_of, is_frame_collection

T = TypeVar("T")


class JointGraph(NamedTuple):
    """One graph of several collections, and the keys of each one's partitions.

    `partitions` are the numbers of the partitions that pieces of them are of, where they are read
    in pieces, and `files` names the readers whose pieces may be read in halves. `lengths` are the
    numbers of rows of the pieces of each collection that is a part of a split.
    """

    graph: Graph
    keys: list[list[Any]]
    partitions: list[int] | None = None
    files: str = ""
    lengths: Sequence[tuple[int, ...] | None] = ()


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
    # `dask.optimize` (2026.8.0) would fuse what two arrays share into each of them
    tasks, new_keys = with_keys_by_content(collections_to_expr(arrays).optimize())
    return JointGraph(tasks | futures_of(arrays), [keys_of_partitions(x, new_keys) for x in arrays])


def layers_of(x: Any) -> Mapping[str, Any]:
    return getattr(x.__dask_graph__(), "layers", {})


def frame_layers(arrays: Sequence[Any]) -> dict[str, FrameLayer]:
    """Return the layers of arrays' graphs that are made of frames, by name."""
    layers = (item for x in arrays for item in layers_of(x).items())
    return {name: layer for name, layer in layers if isinstance(layer, FrameLayer)}


def with_keys_by_content(expression: Any) -> tuple[Graph, dict[Any, Any]]:
    """Return an optimized graph whose keys depend on those that a task refers to; the new keys.

    As in `_with_own_keys`, a task that stands alone in one graph is fused with others in a second
    one, under the same key. A P2P shuffle, and what comes before it, keep their keys: by that of
    its barrier the scheduler knows it.
    """
    graph = dict(expression.__dask_graph__())
    futures = {key: node for key, node in graph.items() if is_future(node)}
    tasks = {key: node for key, node in graph.items() if key not in futures}
    if not all(isinstance(node, GraphNode) for node in tasks.values()):
        from skfleet._dask_private import graph_of_tasks  # with all of Dask's frames

        tasks = graph_of_tasks(tasks, set(graph))
    references = {key: task.dependencies & tasks.keys() for key, task in tasks.items()}
    shuffled, _ = cull(tasks, [key for key in tasks if str(key).startswith(P2P_BARRIER)])
    keys: dict[Any, Any] = {}
    for key in toposort(tasks, dependencies=references):
        if isinstance(tasks[key], DataNode) or key in shuffled:
            continue
        content = sorted(str(keys.get(k, k)) for k in tasks[key].dependencies)
        digest = hashlib.sha256(repr(content).encode()).hexdigest()[:32]
        name, *position = key if isinstance(key, tuple) else (key,)
        keys[key] = (f"{name}-{digest}", *position) if position else f"{name}-{digest}"
    renamed = {
        keys.get(key, key): task.substitute(keys, key=keys[key]) if key in keys else task
        for key, task in tasks.items()
    }
    return renamed | futures, keys


def keys_of_partitions(array: Any, new_keys: Mapping[Any, Any]) -> list[Any]:
    """Return the key of each row of chunks of an array, or a list of keys for several columns."""
    chunk_rows = ([new_keys.get(k, k) for k in flatten([keys])] for keys in array.__dask_keys__())
    return [keys[0] if len(keys) == 1 else keys for keys in chunk_rows]


def shuffle_method(*, is_repeated: bool) -> str:
    """Return the method of shuffles that run where collections are computed.

    With `is_repeated` they give the same order in each pass.
    """
    method = get_default_shuffle_method()
    is_local = get_config().engine == "local" or not _has_client()
    if method == "disk" and not is_local:  # the current client need not be the default one
        method = "p2p"
    if method == "p2p" and is_local:
        method = "disk"  # only workers can take part in a shuffle over the network
    return "tasks" if method == "disk" and is_repeated else method


def _has_client() -> bool:
    """Return whether collections are computed on a cluster."""
    with suppress(KeyError, ValueError):
        return sys.modules["distributed"].Client.current() is not None
    return False


class FrameLayer(Layer):
    """Layer of an array's graph: chunks that are the partitions of a frame.

    It keeps the frame, whose rows are joined or shuffled: their order is that of other columns only
    if all of them are optimized together; or read from files, once for all that is made of them, in
    pieces if they are large. Without others it has the tasks of the frame alone.
    """

    def __init__(self, name: str, frame: Any, ndim: int) -> None:
        from skfleet.blocks._dask_optimize import optimized_together

        super().__init__()
        self.name, self.frame, self.ndim = name, frame, ndim
        self.n_chunks = (
            optimized_together([frame], fuse=False, is_tuned=False).operands[0].npartitions
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return MaterializedLayer, (self._tasks,)

    @cached_property
    def _tasks(self) -> Graph:
        from skfleet.blocks._dask_optimize import optimized_together

        method = shuffle_method(is_repeated=False)
        expression = optimized_together([self.frame], fuse=True, is_tuned=False, method=method)
        (keys,) = expression.__dask_keys__()
        return expression.__dask_graph__() | self.chunks_of(keys) | futures_of([self.frame])

    def chunks_of(self, partition_keys: Sequence[Any]) -> Graph:
        """Return the tasks of the chunks, after those of the frame's partitions."""
        ends = (0,) * (self.ndim - 1)
        keys = [(self.name, i, *ends) for i in range(self.n_chunks)]
        return {
            key: Task(key, _identity, TaskRef(of_partition))
            for key, of_partition in zip(keys, partition_keys, strict=True)
        }

    def get_output_keys(self) -> Any:
        """Return the keys of all tasks, by which Dask sees those of the frame too."""
        return self._tasks.keys()

    def is_materialized(self) -> bool:
        """Return whether the layer has made its tasks."""
        return "_tasks" in vars(self)

    def __getitem__(self, key: Any) -> Any:
        return self._tasks[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


def _identity(partition: T) -> T:
    return partition
