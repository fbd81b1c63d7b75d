"""The graph of several Dask collections, split into the tasks that each block needs."""

from __future__ import annotations

import hashlib
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

import dask
from dask.core import flatten, get_dependencies, toposort
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.optimization import cull
from dask.task_spec import Alias, DataNode, GraphNode, List, Task, TaskRef
from dask.typing import Key
from dask.utils import get_default_shuffle_method

from skfleet._config import get_config
from skfleet._linalg import hstack
from skfleet._typing import Matrix, Table
from skfleet.blocks._block import Block
from skfleet.blocks._containers import n_rows_of, slice_rows, stack_rows
from skfleet.blocks._dask_futures import check_futures, is_future
from skfleet.blocks._dask_scheduler import scheduler
from skfleet.blocks._sampling import concat_rows

if TYPE_CHECKING:
    from skfleet.blocks._dask_types import PartitionKey

T = TypeVar("T")

Graph = dict[Any, Any]

# Key prefixes of two kinds of Dask tasks (dask and distributed 2026.8.0). The scheduler must see
# the barrier of a P2P shuffle, with the tasks before and after it. A shuffle on disk appends to one
# file per run of the graph, in the order in which threads reach it.
P2P_BARRIER, DISK_SHUFFLE = "shuffle-barrier-", "zpartd-"


def is_frame_collection(x: object) -> TypeGuard[Any]:
    """Return whether x is a Dask DataFrame, Series or Index."""
    # Of the type: a Delayed value claims to have every attribute.
    return dask.is_dask_collection(x) and hasattr(type(x), "to_dask_array")


def is_part(x: object) -> bool:
    """Return whether x is a part of a frame, as `take_row_set` returns it."""
    return is_frame_collection(x) and hasattr(type(x.expr), "is_part_of_split")


def as_reference(key: PartitionKey) -> List | TaskRef:
    return List(*map(TaskRef, key)) if isinstance(key, list) else TaskRef(key)


def count_rows(graph: Graph, columns: Iterable[Sequence[PartitionKey]]) -> list[tuple[int, ...]]:
    """Return the numbers of rows of the partitions of several collections, in one computation."""
    sizes = [len(keys) for keys in columns]
    name = f"count-rows-{uuid.uuid4().hex}"
    firsts = (key[0] if isinstance(key, list) else key for keys in columns for key in keys)
    tasks = {(name, i): Task((name, i), n_rows_of, TaskRef(key)) for i, key in enumerate(firsts)}
    whole = HighLevelGraph.from_collections(name, graph | tasks, dependencies=())
    lazy = [Delayed(key, whole, layer=name) for key in tasks]
    counts = dask.compute(*lazy, scheduler=scheduler())
    ends = list(accumulate(sizes, initial=0))
    return [tuple(map(int, counts[low:high])) for low, high in pairwise(ends)]


def recut(
    graph: Graph,
    keys: Sequence[PartitionKey],
    lengths: Sequence[int],
    new_lengths: Sequence[int],
) -> list[PartitionKey]:
    """Add tasks that repartition rows, and return the keys of the new partitions."""
    name = f"recut-{uuid.uuid4().hex}"
    starts = list(accumulate(lengths, initial=0))
    new_keys: list[PartitionKey] = []
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


def _stack_spans(spans: Sequence[tuple[int, int]], *parts: Table | list[Matrix]) -> Table:
    """Return spans of rows of several partitions, one below the other."""
    whole = (hstack(part) if isinstance(part, list) else part for part in parts)
    cut = (slice_rows(part, low, high) for part, (low, high) in zip(whole, spans, strict=True))
    return stack_rows(list(cut))


def shuffles_on_disk(graph: Graph, keys: Iterable[PartitionKey]) -> set[str]:
    """Return the shuffles on disk before partitions, whose order of rows is not deterministic."""
    return _shuffles(graph, keys, (DISK_SHUFFLE,))


def shuffles(graph: Graph, keys: Iterable[PartitionKey]) -> set[str]:
    """Return the shuffles on disk and over the network before partitions."""
    return _shuffles(graph, keys, (DISK_SHUFFLE, P2P_BARRIER))


def _shuffles(graph: Graph, keys: Iterable[PartitionKey], prefixes: tuple[str, ...]) -> set[str]:
    if not any(_key_name(key).startswith(prefixes) for key in graph):
        return set()
    culled, _ = cull(graph, list(flatten(list(keys))))
    return {name for name in map(_key_name, culled) if name.startswith(prefixes)}


def _key_name(key: Key) -> str:
    return str(key[0] if isinstance(key, tuple) else key)


class Subgraph:
    """Tasks of a Dask graph that are serialized as one value, opaque to schedulers."""

    __slots__ = ("tasks",)

    def __init__(self, tasks: Graph) -> None:
        self.tasks = tasks

    def __reduce__(self) -> tuple[type[Subgraph], tuple[Graph]]:
        return Subgraph, (self.tasks,)


class SharedSubgraph:
    """Tasks that several blocks need (one file in two blocks, say), run once without a cluster."""

    def __init__(self, graph: Graph, outputs: Iterable[Key]) -> None:
        self.graph = graph
        self.outputs = list(outputs)
        self._values: Graph | None = None
        self._lock = threading.Lock()

    def values(self, keys: Sequence[Key]) -> list[object]:
        """Return the values of keys; the first call computes those of all blocks."""
        with self._lock:
            if self._values is None:
                values = dask.threaded.get(self.graph, self.outputs)
                self._values = dict(zip(self.outputs, values, strict=True))
            return [self._values[key] for key in keys]


class DaskBlock(NamedTuple):
    """A lazy block: its own tasks, and inputs that it shares with other blocks.

    `inputs` maps keys to futures (rows in the workers' memory) or, in a task, to their values.
    `shared` lists keys that other blocks need too, and that `source` computes. `is_resident` is
    true if only the parts in memory need to be joined. `partition` is the number of the partition
    that it is a piece of, if that is read in pieces. `files` names the readers of a piece that may
    be read in `n_parts`, of which this is one if `part` is its number. `n_bytes` is about the size
    of numbers that are read from files and not computed.
    """

    graph: Subgraph
    key: Key
    inputs: Graph
    shared: tuple[Key, ...] = ()
    source: SharedSubgraph | None = None
    is_resident: bool = False
    partition: int | None = None
    files: str = ""
    n_parts: int = 1
    part: int | None = None
    n_bytes: float | None = None

    @property
    def n_shared_tasks(self) -> int:
        """Number of tasks of which blocks share results."""
        return 0 if self.source is None else len(self.source.graph)

    def load(self) -> Block:
        """Return the block, computed in this thread; parts one after the other."""
        if self.n_parts == 1:
            return self._load()
        if self.part is None:
            return concat_rows([part.load() for part in self.parts()])
        from skfleet.blocks._row_streams import reading_part

        with reading_part(self.part, self.n_parts):
            return self._load()

    def parts(self) -> list[DaskBlock]:
        """Return the parts of a piece of a file."""
        return [self._replace(part=i) for i in range(self.n_parts)]

    def _load(self) -> Block:
        values = self.inputs
        if self.source is not None:
            values = values | dict(zip(self.shared, self.source.values(self.shared), strict=True))
        nodes = {key: DataNode(key, value) for key, value in values.items()}
        return dask.get(self.graph.tasks | nodes, self.key)

    def with_shared(self, values: Mapping[Key, object]) -> DaskBlock:
        """Return the block with the values, or futures, of the shared keys as inputs."""
        inputs = self.inputs | {key: values[key] for key in self.shared}
        return self._replace(inputs=inputs, shared=(), source=None)

    def future_of(self, key: Key) -> object:
        """Return the future that a key is an alias of."""
        while key in self.graph.tasks:
            key = self.graph.tasks[key].target
        return self.inputs[key]


def blocks_of_graph(graph: Graph, outputs: Sequence[Key]) -> list[DaskBlock]:
    """Return a lazy block for each output of a graph.

    Tasks that only one block needs become the block's own graph: the block is loaded and dropped
    inside one task. Shared tasks remain visible to the scheduler, and so do P2P shuffles, in which
    the scheduler takes part.

    1. Drop tasks that no output needs; set futures apart.
    2. From the outputs backwards, record for each key the one output that needs it, or None.
    3. Collect the tasks of each output, and the shared ones.
    4. Build the blocks, with the futures and the shared keys that their tasks refer to.
    """
    culled, _ = cull(graph, list(outputs))
    futures = {key: node for key, node in culled.items() if is_future(node)}
    check_futures(futures.values())
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
    own_tasks: list[Graph] = [{} for _ in outputs]
    for key, i in owner.items():
        if i is not None and key in tasks:
            own_tasks[i][key] = tasks[key]
    shared_tasks = {key: node for key, node in tasks.items() if owner[key] is None}
    external = [set().union(*(needs[key] for key in own)) - own.keys() for own in own_tasks]
    source = None
    if shared_tasks:
        source = SharedSubgraph(shared_tasks, set().union(*external) & shared_tasks.keys())
    blocks = []
    for key, block_tasks, dependencies in zip(outputs, own_tasks, external, strict=True):
        shared = tuple(k for k in dependencies if k in shared_tasks)
        inputs = {k: futures[k] for k in dependencies if k in futures}
        n_steps = sum(not isinstance(task, Alias) for task in block_tasks.values())
        is_resident = bool(inputs) and not shared and n_steps == 1
        graph_source = source if shared else None
        block = DaskBlock(Subgraph(block_tasks), key, inputs, shared, graph_source, is_resident)
        blocks.append(block)
    return blocks


def futures_of(collections: Sequence[object]) -> dict[Key, object]:
    """Return the futures of persisted collections, by key.

    Of frames they are operands of the expression. distributed looks for them in the graph of the
    expression as it is, which Dask may refuse to make before it has simplified it.
    """
    if "distributed" not in sys.modules:
        return {}
    values: list[Any] = [x for x in collections if not is_frame_collection(x)]
    for x in filter(is_frame_collection, collections):
        operands = (op for node in x.expr.walk() for op in node.operands)
        values += [
            dict(op) if isinstance(op, Mapping) else op for op in operands if not _is_node(op)
        ]
    return {future.key: future for future in sys.modules["distributed"].futures_of(values)}


def _is_node(operand: object) -> bool:
    """Return whether an operand of an expression is an expression."""
    return hasattr(operand, "walk") and hasattr(operand, "operands")


# -- graphs of several collections ----------------------------------------------------------------


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

    def __init__(self, name: str, frame: Any, ndim: int, optimize: Callable[..., Any]) -> None:
        super().__init__()
        self.name, self.frame, self.ndim, self._optimize = name, frame, ndim, optimize
        self.n_chunks = optimize(frame).npartitions

    def __reduce__(self) -> tuple[Any, ...]:
        return MaterializedLayer, (self._tasks,)

    @cached_property
    def _tasks(self) -> Graph:
        method = shuffle_method(is_repeated=False)
        expression = self._optimize(self.frame, method=method)
        keys = expression.__dask_keys__()
        graph = expression.__dask_graph__() | futures_of([self.frame])
        chunk_keys = dict(zip(keys, self._chunk_keys(), strict=True))
        return with_result_keys(graph, chunk_keys) or graph | self.chunks_of(keys)

    def chunks_of(self, partition_keys: Sequence[Any]) -> Graph:
        """Return the tasks of the chunks, after those of the frame's partitions."""
        return {
            key: Task(key, _unchanged, TaskRef(of_partition))
            for key, of_partition in zip(self._chunk_keys(), partition_keys, strict=True)
        }

    def _chunk_keys(self) -> list[Key]:
        ends = (0,) * (self.ndim - 1)
        return [(self.name, i, *ends) for i in range(self.n_chunks)]

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


def _unchanged(partition: T) -> T:
    return partition


def with_result_keys(graph: Graph, new_keys: Mapping[Any, Any]) -> Graph | None:
    """Return a graph without aliases, whose results have new keys; None for Dask's old tasks.

    A result that other tasks need, or that is a future, keeps its key too.
    """
    futures = {key: node for key, node in graph.items() if is_future(node)}
    graph = {key: node for key, node in graph.items() if key not in futures}
    if not all(isinstance(task, GraphNode) for task in graph.values()):
        return None
    targets = {key: task.target for key, task in graph.items() if isinstance(task, Alias)}
    for key, target in targets.items():
        while target in targets:
            target = targets[target]
        targets[key] = target
    # Dask keeps the model of a fused frame under another key than its task has
    tasks = {
        key: task.substitute(targets, key=key) for key, task in graph.items() if key not in targets
    }
    n_needs = Counter(key for task in tasks.values() for key in task.dependencies)
    results = {new_key: targets.get(key, key) for key, new_key in new_keys.items()}
    n_needs.update(results.values())
    for new_key, target in results.items():
        if target not in tasks:
            tasks[new_key] = Alias(new_key, target)
        elif n_needs[target] == 1:
            tasks[new_key] = tasks.pop(target).substitute({}, key=new_key)
        elif new_key != target:
            tasks[new_key] = Task(new_key, _unchanged, TaskRef(target))
    return tasks | futures
