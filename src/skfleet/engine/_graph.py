"""Calls that refer to one another, as one graph of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dask.task_spec import List, Task, TaskRef
from distributed import Future

from skfleet.engine._base import Call
from skfleet.engine._share import Share
from skfleet.engine._watch import telling

__all__ = ["OwnTask", "as_node", "told_func", "unsent"]


class OwnTask(Task):
    """A task whose key no other task has: Dask need not tell it from others by its content."""

    __slots__ = ()

    def __dask_tokenize__(self) -> Any:
        return self.key


def as_node(value: Any, keys: dict[int, str]) -> Any:
    """Return what stands in a graph for an argument: calls by their keys, and futures by theirs."""
    if id(value) in keys:
        return TaskRef(keys[id(value)])
    if isinstance(value, Share):
        return TaskRef(value.task.key)
    if isinstance(value, Future):
        return TaskRef(value.key)
    if not isinstance(value, list | tuple | dict):
        return value
    inside = value.values() if isinstance(value, dict) else value
    nodes = [as_node(part, keys) for part in inside]
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


def told_func(call: Call) -> Callable[..., Any]:
    """Return the function of a call, with what sends home what it tells."""
    return call.func if call.tells is None else partial(telling, call.func, call.tells)


def unsent(value: Any) -> Iterator[Share]:
    """Give what is kept among arguments, and not on its way yet."""
    if isinstance(value, Share) and not value.is_sent:
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from unsent(part)
