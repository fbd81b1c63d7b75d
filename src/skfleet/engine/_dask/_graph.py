"""Calls that refer to one another, or to what blocks share, as one graph of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef
from distributed import Future

from skfleet.blocks import Block
from skfleet.engine._dask._scatter import ScatteredObject
from skfleet.engine._dask._task_events import run_and_publish
from skfleet.engine._protocol import Call

__all__ = [
    "UniqueTask",
    "as_delayed",
    "func_with_summary",
    "iter_pending",
    "needs_graph",
    "to_graph_node",
    "with_sources",
]


class UniqueTask(Task):
    """A task whose key no other task has: Dask need not tell it from others by its content."""

    __slots__ = ()

    def __dask_tokenize__(self) -> Any:
        return self.key


def to_graph_node(value: Any, keys: dict[int, str]) -> Any:
    """Return what stands in a graph for an argument: calls by their keys, and futures by theirs."""
    if id(value) in keys:
        return TaskRef(keys[id(value)])
    if isinstance(value, ScatteredObject):
        return TaskRef(value.task.key)
    if isinstance(value, Future):
        return TaskRef(value.key)
    if not isinstance(value, list | tuple | dict):
        return value
    inside = value.values() if isinstance(value, dict) else value
    nodes = [to_graph_node(part, keys) for part in inside]
    if all(node is part for node, part in zip(nodes, inside, strict=True)):
        return value
    if isinstance(value, dict):
        return Task(None, _as_dict, list(value), *nodes)
    if isinstance(value, list):
        return List(*nodes)
    return (
        Task(None, type(value), *nodes)
        if hasattr(value, "_fields")
        else Task(None, _as_tuple, *nodes)
    )


def _as_tuple(*values: Any) -> tuple[Any, ...]:
    """Put a tuple together in a task."""
    return values


def _as_dict(names: list[Any], *values: Any) -> dict[Any, Any]:
    """Put a dict together in a task."""
    return dict(zip(names, values, strict=True))


def func_with_summary(call: Call) -> Callable[..., Any]:
    """Return the function of a call, with what sends home what it tells."""
    return (
        call.func if call.summarize is None else partial(run_and_publish, call.func, call.summarize)
    )


def iter_pending(value: Any) -> Iterator[ScatteredObject]:
    """Give what is kept among arguments, and not on its way yet."""
    if isinstance(value, ScatteredObject) and not value.is_submitted:
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from iter_pending(part)


def needs_graph(value: Any) -> bool:
    """Say whether arguments hold a block whose making is shared with others."""
    if isinstance(value, Block):
        return bool(getattr(value.X, "shared", ()))
    return isinstance(value, list | tuple) and any(map(needs_graph, value))


def as_delayed(future: Future) -> Delayed:
    """Return what stands for a future in a graph."""
    return Delayed(future.key, {future.key: future})


def with_sources(values: Any) -> tuple[int, Any]:
    """Turn what blocks share into parts of a graph; also return how many tasks make them."""
    layers: dict[int, HighLevelGraph] = {}

    def turn(value: Any) -> Any:
        if isinstance(value, Block) and needs_graph(value):
            lazy = value.X
            graph = layers.setdefault(
                id(lazy.source),
                HighLevelGraph({"shared": lazy.source.graph}, {"shared": set()}),
            )
            shared = {key: Delayed(key, graph, layer="shared") for key in lazy.shared}
            return value._replace(X=lazy._replace(inputs=turn(lazy.inputs)).with_shared(shared))
        if isinstance(value, Future):
            return as_delayed(value)
        if isinstance(value, dict):
            return {key: turn(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            parts = map(turn, value)
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    turned = turn(values)
    n_tasks = sum(len(graph.layers["shared"]) for graph in layers.values())
    return n_tasks, turned
