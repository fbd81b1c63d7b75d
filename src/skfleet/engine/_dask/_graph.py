"""Dask graphs of calls that are arguments of one another, or whose blocks share a subgraph."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef
from dask.typing import Key
from distributed import Future

from skfleet.blocks import BlockRef
from skfleet.engine._dask._scatter import ScatteredObject
from skfleet.engine._dask._task_events import run_and_publish
from skfleet.engine._protocol import Call

T = TypeVar("T")
Name = TypeVar("Name")


class UniqueTask(Task):
    """A task with a unique key, by which Dask identifies it without hashing its content."""

    __slots__ = ()

    def __dask_tokenize__(self) -> Key:
        return self.key


def to_graph_node(value: object, keys: dict[int, str]) -> object:
    """Return an argument as a node of a graph: calls and futures become references to keys."""
    if id(value) in keys:
        return TaskRef(keys[id(value)])
    if isinstance(value, ScatteredObject):
        return TaskRef(value.task.key)
    if isinstance(value, Future):
        return TaskRef(value.key)
    if not isinstance(value, list | tuple | dict):
        return value
    items = value.values() if isinstance(value, dict) else value
    nodes = [to_graph_node(item, keys) for item in items]
    if all(node is item for node, item in zip(nodes, items, strict=True)):
        return value  # nothing in it is a reference: no task is needed to build it
    if isinstance(value, dict):
        return Task(None, _as_dict, list(value), *nodes)
    if isinstance(value, list):
        return List(*nodes)
    return Task(None, type(value) if hasattr(value, "_fields") else _as_tuple, *nodes)


def _as_tuple(*values: T) -> tuple[T, ...]:
    return values


def _as_dict(names: list[Name], *values: T) -> dict[Name, T]:
    return dict(zip(names, values, strict=True))


def new_key(name: str) -> str:
    """Return a unique task key; the dashboard shows the part before the last hyphen."""
    return f"{name or 'task'}-{uuid.uuid4().hex}"


def func_with_summary(call: Call) -> Callable[..., object]:
    """Return the function of a call, which also publishes the summary if the call has one."""
    if call.summarize is None:
        return call.func
    return partial(run_and_publish, call.func, call.summarize)


def iter_pending(value: object) -> Iterator[ScatteredObject]:
    """Yield the scattered objects among arguments that are not submitted yet."""
    if isinstance(value, ScatteredObject) and not value.is_submitted:
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from iter_pending(item)


def has_shared_subgraph(value: object) -> bool:
    """Return whether arguments contain a block that shares part of its graph with others."""
    if isinstance(value, BlockRef):
        return bool(getattr(value.X, "shared", ()))
    return isinstance(value, list | tuple) and any(map(has_shared_subgraph, value))


def as_delayed(future: Future) -> Delayed:
    return Delayed(future.key, {future.key: future})


def with_shared_subgraph(values: object) -> tuple[int, Any]:
    """Return (number of tasks in shared subgraphs, arguments with Delayed objects for these)."""
    graphs: dict[int, HighLevelGraph] = {}  # by the id of the source that blocks share

    def convert(value: Any) -> Any:
        if isinstance(value, BlockRef) and has_shared_subgraph(value):
            lazy = value.X
            if id(lazy.source) not in graphs:
                # layers of one name, of the rows and of validation rows, would replace one another
                layer = f"shared-{len(graphs)}"
                graph = HighLevelGraph({layer: lazy.source.graph}, {layer: set()})
                graphs[id(lazy.source)] = graph
            graph = graphs[id(lazy.source)]
            (layer,) = graph.layers
            shared = {key: Delayed(key, graph, layer=layer) for key in lazy.shared}
            return value._replace(X=lazy._replace(inputs=convert(lazy.inputs)).with_shared(shared))
        if isinstance(value, Future):
            return as_delayed(value)
        if isinstance(value, dict):
            return {key: convert(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            items = map(convert, value)
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    converted = convert(values)
    n_tasks = sum(len(layer) for graph in graphs.values() for layer in graph.layers.values())
    return n_tasks, converted
