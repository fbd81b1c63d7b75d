"""Reductions of rows as parts of a lazy graph, for arguments that are lazy themselves."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef
from dask.typing import Key
from distributed import Future

from skfleet.blocks import BlockRef, RowBlocks
from skfleet.engine._dask._graph import has_shared_subgraph, to_graph_node
from skfleet.engine._dask._worker_functions import limit_threads
from skfleet.engine._protocol import Engine
from skfleet.engine._reduce import FAN_IN, Reduction, combine_all, reduce_group
from skfleet.engine._resources import ANY_WORKER


# 1. A task opens the argument of a batch, which goes to each worker once.
# 2. One task for the blocks of a worker, or for each block that is loaded, and batch.
# 3. Their results are combined in a tree.
# 4. A task for each result of each block of the batch.
def delay_reductions(
    engine: Engine,
    reduction: Reduction,
    rows: RowBlocks,
    batches: Sequence[Sequence[BlockRef]],
    opened: Callable[[Sequence[BlockRef]], object],
    results: Sequence[Callable[[Any, Any, int], object]],
) -> list[list[Delayed]]:
    """Return Delayed results of a reduction, whose argument is each batch of blocks in turn.

    The argument is ``opened(batch)``. For each of `results` there is a list with a Delayed of
    ``result(argument, reduced, i)`` for every block, the i-th one of its batch. They hold the rows
    that are in the workers' memory.
    """
    graph = _Graph()
    groups = [graph.node(group) for group in engine.group_by_worker(rows.blocks)]
    reduce = partial(reduce_group, reduction, rows.dtype, not rows.checked)
    combine = partial(combine_all, reduction.combine)
    keys: list[list[Key]] = [[] for _ in results]
    for batch in batches:
        argument = graph.add("open-rows", opened, graph.node(list(batch)))
        tasks = [graph.add(reduction.name, reduce, group, argument) for group in groups]
        while len(tasks) > 1:
            parts = [List(*tasks[low : low + FAN_IN]) for low in range(0, len(tasks), FAN_IN)]
            tasks = [graph.add(f"{reduction.name}-combine", combine, part) for part in parts]
        for result, of_result in zip(results, keys, strict=True):
            refs = (graph.add("result", result, argument, *tasks, i) for i in range(len(batch)))
            of_result += [ref.key for ref in refs]
    return graph.delayed(keys)


class _Graph:
    """Tasks of one layer, with futures of their own for what is in the workers' memory."""

    def __init__(self) -> None:
        self._tasks: dict[Any, Any] = {}
        self._shared: dict[int, Any] = {}  # keys by the id of an object that stands for each
        self._sources: dict[int, tuple[Any, dict[Any, Any]]] = {}  # with these objects by key

    def add(self, name: str, func: Callable[..., object], *args: object) -> TaskRef:
        """Add a task of one library thread, and return the reference to its result."""
        key = f"{name}-{uuid.uuid4().hex}"
        self._tasks[key] = Task(key, limit_threads(func, ANY_WORKER), *args)
        return TaskRef(key)

    def node(self, blocks: Sequence[BlockRef]) -> object:
        """Return blocks as an argument, with the tasks that they share and their futures added."""
        blocks = list(map(self._with_shared, blocks))
        for future in _iter_futures(blocks):
            self._tasks[future.key] = Future(future.key, future.client)
        return to_graph_node(blocks, self._shared)

    def _with_shared(self, block: BlockRef) -> BlockRef:
        if not has_shared_subgraph(block):
            return block
        lazy: Any = block.X
        source = lazy.source
        if id(source) not in self._sources:
            self._tasks |= source.graph
            placeholders = {key: object() for key in source.outputs}
            self._shared |= {id(value): key for key, value in placeholders.items()}
            self._sources[id(source)] = source, placeholders
        return block._replace(X=lazy.with_shared(self._sources[id(source)][1]))

    def delayed(self, keys: list[list[Key]]) -> list[list[Delayed]]:
        """Return Delayed results of tasks."""
        layer = f"reduce-{uuid.uuid4().hex}"
        graph = HighLevelGraph({layer: self._tasks}, {layer: set()})
        return [[Delayed(key, graph, layer=layer) for key in part] for part in keys]


def _iter_futures(value: object) -> Iterator[Future]:
    """Yield the futures in blocks."""
    if isinstance(value, Future):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _iter_futures(item)
