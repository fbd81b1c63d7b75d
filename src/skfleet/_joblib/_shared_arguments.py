"""Large arguments of joblib's calls, scattered once and shared by all calls with equal content."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from dask.sizeof import sizeof
from distributed import Client

from skfleet._joblib._batch_task import (
    ArgumentRef,
    CallItem,
    DeviceArgument,
    DeviceArgumentRef,
    ProcessArgument,
    ProcessArgumentRef,
)
from skfleet.engine import Pickled, ScatteredObject, keep_while_alive, scatter_content

# Below this an argument costs less within its task than a transfer of its own.
MIN_SCATTER_BYTES = 64 * 1024

# Objects without weak references (lists, dicts) are recognised while a call lasts. Their number is
# bounded, because they are kept alive.
_MAX_STRONG_REFS = 16


class SharedArguments:
    """The large arguments of one Parallel call.

    Equal content is scattered once per fleet. It stays as long as any object of the driver with
    that content lives; or for the call, where an object has no weak references, or where the
    workers are in this process. `broadcast` are objects that every worker was sent beforehand.

    Within a call an object is recognised by its identity, so it must not be changed meanwhile.
    Between calls its content is hashed again.
    """

    def __init__(
        self, client: Client, broadcast: Mapping[int, tuple[Any, ScatteredObject]] | None = None
    ) -> None:
        self._client = client
        # Workers in this process hold the very memory of an object, and would keep it alive for as
        # long as it keeps its scattered copy. To scatter it again costs no transfer.
        self._in_process = client.scheduler.address.startswith("inproc://")
        self._weak: dict[int, tuple[weakref.ref, ScatteredObject]] = {}
        self._strong: OrderedDict[int, tuple[Any, ScatteredObject]] = OrderedDict()
        self._broadcast = broadcast or {}

    @staticmethod
    def broadcast(client: Client, objects: Sequence[Any]) -> dict[int, tuple[Any, ScatteredObject]]:
        """Send objects to every worker, whatever their size."""
        return {
            id(o): (o, ScatteredObject(client, Pickled.dumps(o), broadcast=True)) for o in objects
        }

    def release(self) -> None:
        """Release what is scattered for this call alone, also where a cycle keeps the call."""
        self._weak.clear()
        self._strong.clear()

    def extract_large(
        self, calls: Sequence[CallItem], *, functions: bool = False
    ) -> tuple[list[CallItem], list[tuple[Any, ScatteredObject]]]:
        """Replace the large arguments of calls by references; return both.

        With ``functions``, the functions too: one that is pickled by value may contain large
        objects, which cannot be seen from outside.
        """
        scattered: list[tuple[Any, ScatteredObject]] = []
        refs: dict[int, ArgumentRef] = {}

        def ref(value: Any, is_function: bool = False, at_any_size: bool = False) -> Any:
            if id(value) not in refs:
                copy = self._scatter(value, is_function=is_function, at_any_size=at_any_size)
                if copy is None:
                    return value
                refs[id(value)] = ArgumentRef(len(scattered))
                scattered.append((value, copy))
            return refs[id(value)]

        def argument_ref(arg: Any) -> Any:
            if isinstance(arg, ProcessArgument):
                return ProcessArgumentRef(ref(arg.value, at_any_size=True))
            if not isinstance(arg, DeviceArgument):
                return ref(arg)
            parts = [ref(part, at_any_size=True) for part in arg]
            return DeviceArgumentRef(*parts, key=id(arg.value))

        replaced = [
            (
                ref(function, True) if functions else function,
                [argument_ref(arg) for arg in args],
                {key: argument_ref(arg) for key, arg in kwargs.items()},
            )
            for function, args, kwargs in calls
        ]
        return replaced, scattered

    def _scatter(
        self, value: Any, *, is_function: bool = False, at_any_size: bool = False
    ) -> ScatteredObject | None:
        """Return the scattered copy of a value; None for a small one, sent within its task."""
        if id(value) in self._broadcast:
            return self._broadcast[id(value)][1]
        if id(value) in self._strong:
            return self._strong[id(value)][1]
        entry = self._weak.get(id(value))
        if entry is not None and entry[0]() is value:
            return entry[1]
        is_small = isinstance(value, type) or sizeof(value) < MIN_SCATTER_BYTES
        if not is_function and not at_any_size and is_small:
            return None
        pickled = Pickled.dumps(value)
        if is_function and pickled.nbytes < MIN_SCATTER_BYTES:
            return None
        copy = scatter_content(self._client, pickled, is_function=is_function)
        weak, key = self._weak, id(value)
        try:
            weak[key] = weakref.ref(value, lambda _: weak.pop(key, None)), copy
        except TypeError:
            self._strong[key] = value, copy
            if len(self._strong) > _MAX_STRONG_REFS:
                self._strong.popitem(last=False)
        else:
            if not self._in_process:
                keep_while_alive(value, copy)
        return copy
