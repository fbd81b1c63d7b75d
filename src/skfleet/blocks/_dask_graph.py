"""One graph for several Dask collections, and which part of it each block of rows needs."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import dask
from dask.base import collections_to_expr
from dask.core import flatten, get_dependencies, toposort
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.optimization import cull
from dask.task_spec import Alias, DataNode, List, Task, TaskRef

from skfleet._linalg import hstack
from skfleet.blocks._block import Block
from skfleet.blocks._containers import n_rows_of, slice_rows, stack_rows
from skfleet.blocks._dask_scheduler import scheduler

Graph = dict[Any, Any]

# Dask's names for two kinds of tasks (dask and distributed 2026.8.0). The scheduler must see the
# barrier of a shuffle over the network, with what leads to it and what it leads to. A shuffle on
# disk appends to one file per run of the graph, in the order in which its threads get there.
P2P_BARRIER, DISK_SHUFFLE = "shuffle-barrier-", "zpartd-"


def is_frame_collection(x: Any) -> bool:
    """Say whether x is a Dask DataFrame, Series or Index."""
    # Of the type: a Delayed value claims to have every attribute.
    return dask.is_dask_collection(x) and hasattr(type(x), "to_dask_array")


def joint_graph(collections: Sequence[Any]) -> tuple[Graph, list[list[Any]]]:
    """Return one optimized graph of all collections, and the keys of each one's partitions.

    Frames are optimized together, as `dask.compute` does, and so are arrays. What several of them
    need is then made once. That is more than a saving: a shuffle that is made twice may give its
    rows in two orders. Of frames and arrays together `dask.compute` (2026.8.0) makes no graph with
    keys in the order of the collections.

    The key of a partition is a list of keys where an array is cut along columns too.
    """
    frames = [x for x in collections if is_frame_collection(x)]
    arrays = [x for x in collections if not is_frame_collection(x)]
    graph: Graph = {}
    frame_keys: Iterator[Any] = iter(())
    if frames:
        from skfleet.blocks._dask_categorize import with_multi_reader_categorize
        from skfleet.blocks._dask_locks import release_cached_properties

        release_cached_properties()
        frames = [with_multi_reader_categorize(x) for x in frames]
        expression = collections_to_expr(frames).optimize(fuse=True)
        graph |= expression.__dask_graph__()
        frame_keys = iter(expression.__dask_keys__())
    if arrays:
        arrays = list(dask.optimize(*arrays))
        graph |= arrays[0].__dask_graph__()
    array_keys = (_partition_keys(x) for x in arrays)
    keys = [list(next(frame_keys if is_frame_collection(x) else array_keys)) for x in collections]
    # An optimized graph refers to what is on a cluster by key alone: whoever wraps it loses it.
    return graph | futures_of(collections), keys


def _partition_keys(array: Any) -> list[Any]:
    """Return the key of each run of rows of an array, or the keys of its columns' parts."""
    runs = (list(flatten([run])) for run in array.__dask_keys__())
    return [run[0] if len(run) == 1 else run for run in runs]


def as_reference(key: Any) -> Any:
    """Return what stands for a partition among the arguments of a task."""
    return List(*map(TaskRef, key)) if isinstance(key, list) else TaskRef(key)


def count_rows(graph: Graph, columns: Iterable[Sequence[Any]]) -> list[tuple[int, ...]]:
    """Count the rows of the partitions of several collections in one computation."""
    sizes = [len(keys) for keys in columns]
    name = f"count-rows-{uuid.uuid4().hex}"
    firsts = (key[0] if isinstance(key, list) else key for keys in columns for key in keys)
    tasks = {(name, i): Task((name, i), n_rows_of, TaskRef(key)) for i, key in enumerate(firsts)}
    whole = HighLevelGraph.from_collections(name, graph | tasks, dependencies=())
    counts = dask.compute(
        *(Delayed(key, whole, layer=name) for key in tasks), scheduler=scheduler()
    )
    ends = list(accumulate(sizes, initial=0))
    return [tuple(map(int, counts[low:high])) for low, high in pairwise(ends)]


def recut(
    graph: Graph, keys: Sequence[Any], lengths: Sequence[int], new_lengths: Sequence[int]
) -> list[Any]:
    """Add tasks that cut rows anew, and return the keys of the new runs."""
    name = f"recut-{uuid.uuid4().hex}"
    starts = list(accumulate(lengths, initial=0))
    new_keys = []
    for i, (low, high) in enumerate(pairwise(accumulate(new_lengths, initial=0))):
        pieces = [
            (key, max(low, start) - start, min(high, end) - start)
            for key, (start, end) in zip(keys, pairwise(starts), strict=True)
            if max(low, start) < min(high, end)
        ] or [(keys[0], 0, 0)]  # no rows, of the right kind
        spans = [span for _, *span in pieces]
        refs = [as_reference(key) for key, *_ in pieces]
        graph[name, i] = Task((name, i), _stack_spans, spans, *refs)
        new_keys.append((name, i))
    return new_keys


def _stack_spans(spans: Sequence[tuple[int, int]], *parts: Any) -> Any:
    """Put spans of rows of several parts one below the other."""
    whole = (hstack(part) if isinstance(part, list) else part for part in parts)
    cut = (slice_rows(part, low, high) for part, (low, high) in zip(whole, spans, strict=True))
    return stack_rows(list(cut))


def unordered_shuffles(graph: Graph, keys: Iterable[Any]) -> set[str]:
    """Return the shuffles on disk that partitions come from: the order of their rows is chance."""
    if not any(_key_name(key).startswith(DISK_SHUFFLE) for key in graph):
        return set()
    culled, _ = cull(graph, list(flatten(list(keys))))
    return {name for name in map(_key_name, culled) if name.startswith(DISK_SHUFFLE)}


def _key_name(key: Any) -> str:
    """Return the name of a task's key."""
    return str(key[0] if isinstance(key, tuple) else key)


class Subgraph:
    """Tasks of a Dask graph that travel as one value: no scheduler looks inside."""

    __slots__ = ("tasks",)

    def __init__(self, tasks: Graph) -> None:
        self.tasks = tasks

    def __reduce__(self) -> tuple[Any, ...]:
        return Subgraph, (self.tasks,)


class Source:
    """What several blocks need (one file cut in two, say), made once where there is no cluster."""

    def __init__(self, graph: Graph, outputs: Iterable[Any]) -> None:
        self.graph = graph
        self.outputs = list(outputs)
        self._values: Graph | None = None
        self._lock = threading.Lock()

    def values(self, keys: Sequence[Any]) -> list[Any]:
        """Return the values of the given keys, computing what blocks need on first use."""
        with self._lock:
            if self._values is None:
                values = dask.threaded.get(self.graph, self.outputs)
                self._values = dict(zip(self.outputs, values, strict=True))
            return [self._values[key] for key in keys]


class DaskBlock(NamedTuple):
    """A block that a graph of its own makes from inputs that others use too.

    `inputs` maps keys to futures (rows in the workers' memory) or, in a task, to their values.
    `shared` lists keys that other blocks need as well; `source` can make them. `is_resident` says
    that all that is left to do is to put parts in memory together.
    """

    graph: Subgraph
    key: Any
    inputs: Graph
    shared: tuple[Any, ...] = ()
    source: Source | None = None
    is_resident: bool = False

    def load(self) -> Block:
        """Run the graph here."""
        tasks = dict(self.graph.tasks)
        values = dict(self.inputs)
        if self.source is not None:
            values |= dict(zip(self.shared, self.source.values(self.shared), strict=True))
        tasks |= {key: DataNode(key, value) for key, value in values.items()}
        return dask.get(tasks, self.key)

    def with_shared(self, values: Mapping[Any, Any]) -> DaskBlock:
        """Return the block with values, or futures of them, for what other blocks need as well."""
        inputs = self.inputs | {key: values[key] for key in self.shared}
        return self._replace(inputs=inputs, shared=(), source=None)

    def future_of(self, key: Any) -> Any:
        """Return the future behind a key of which nothing is left to do but to follow its names."""
        while key in self.graph.tasks:
            key = self.graph.tasks[key].target
        return self.inputs[key]


def split_graph(graph: Graph, outputs: Sequence[Any]) -> list[DaskBlock]:
    """Split a graph into what only one of its outputs needs and what several need.

    What only one block needs becomes that block's own graph: the block is loaded inside one task
    and dropped there. What several need stays in the scheduler's sight, and so do shuffles over
    the network, which the scheduler has a part in.
    """
    culled, _ = cull(graph, list(outputs))
    futures = {key: node for key, node in culled.items() if is_future(node)}
    tasks = {key: node for key, node in culled.items() if key not in futures}
    needs = {key: get_dependencies(culled, task=node) for key, node in tasks.items()}
    barriers = {key for key in tasks if _key_name(key).startswith(P2P_BARRIER)}
    owner: Graph = {key: i for i, key in enumerate(outputs)}
    order = toposort(tasks, dependencies={k: v & tasks.keys() for k, v in needs.items()})
    for key in reversed(order):
        if key in barriers or needs[key] & barriers:
            owner[key] = None
        for need in needs[key]:
            owner[need] = owner[key] if owner.get(need, owner[key]) == owner[key] else None
    own: list[Graph] = [{} for _ in outputs]
    for key, i in owner.items():
        if i is not None and key in tasks:
            own[i][key] = tasks[key]
    common = {key: node for key, node in tasks.items() if owner[key] is None}
    outside = [
        set().union(*(needs[key] for key in block_tasks)) - block_tasks.keys()
        for block_tasks in own
    ]
    source = Source(common, set().union(*outside) & common.keys()) if common else None
    blocks = []
    for key, block_tasks, needed in zip(outputs, own, outside, strict=True):
        shared = tuple(k for k in needed if k in common)
        inputs = {k: futures[k] for k in needed if k in futures}
        n_steps = sum(not isinstance(task, Alias) for task in block_tasks.values())
        blocks.append(
            DaskBlock(
                Subgraph(block_tasks),
                key,
                inputs,
                shared,
                source if shared else None,
                is_resident=bool(inputs) and not shared and n_steps == 1,
            )
        )
    return blocks


def is_future(value: Any) -> bool:
    """Say whether a value is a future of distributed's, without importing it."""
    distributed = sys.modules.get("distributed")
    return distributed is not None and isinstance(value, distributed.Future)


def futures_of(collections: Sequence[Any]) -> dict[Any, Any]:
    """Return what collections hold on a cluster already, by key."""
    if "distributed" not in sys.modules:
        return {}
    return {future.key: future for future in sys.modules["distributed"].futures_of(collections)}
