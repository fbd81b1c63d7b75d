"""What a worker does with a batch of joblib calls, and how calls and outcomes are packed."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dask.utils import funcname
from joblib import parallel_config

from skfleet._captured_output import Note, noted
from skfleet.engine import (
    DeviceArrayCache,
    DeviceCachedArray,
    Pickled,
    limit_threadpools,
    open_scattered,
)

__all__ = [
    "ForDevice",
    "HeldSlot",
    "Outcome",
    "RetriableError",
    "Slot",
    "function_name",
    "run_batch",
    "task_name",
]

Call = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]


@dataclass(frozen=True)
class Slot:
    """The place of something shared in a call."""

    index: int


class ForDevice(NamedTuple):
    """An argument that is shared whatever its size, and held for a worker to bring to its GPU."""

    value: Any
    copies: DeviceArrayCache


class HeldSlot(NamedTuple):
    """The places of what is held for a worker's GPU, and of the copies there; its key in these."""

    value: Slot
    copies: Slot
    key: int


class Outcome(NamedTuple):
    """What became of a batch: the results of its calls, or the first error, and its notes.

    Results that only stand for calls that were not made are none that count.
    """

    ok: bool
    value: Any
    trace: str = ""
    notes: Sequence[Note] = ()
    is_known: bool = False  # from a checkpoint
    is_made: bool = True

    def result(self) -> list[Any]:
        """Give the results, or raise the error with the traceback it had on the worker."""
        if self.ok:
            return self.value
        if self.trace:
            self.value.__cause__ = _RemoteTracebackError(self.trace)
        raise self.value


class _RemoteTracebackError(Exception):
    """Shows, as the cause of an error, the traceback it had on its worker."""

    def __init__(self, trace: str) -> None:
        super().__init__(trace)
        self.trace = trace

    def __str__(self) -> str:
        return f'\n"""\n{self.trace}"""'


class RetriableError(Exception):
    """Carries a failed outcome past Dask, which retries only a task that raises."""

    def __init__(self, parcel: Pickled) -> None:
        super().__init__(parcel)
        self.parcel = parcel


def function_name(function: Callable[..., Any]) -> str:
    """Name a function, or what else is called."""
    return funcname(function).strip("_<>") or "call"


def task_name(calls: Sequence[Call]) -> str:
    """Name a batch after its function and, if there is one, the estimator it is called with."""
    function, args, kwargs = calls[0]
    name = function_name(function)
    for first in [*args[:1], *list(kwargs.values())[: not args]]:
        if hasattr(type(first), "get_params"):
            name += f"-{type(first).__name__}"
    if len(calls) == 1:
        return name
    # The scheduler learns durations by name: a batch must not pass for a single call.
    return f"batch_of_{name}_{len(calls)}_calls"


def run_batch(
    payload: Pickled,
    shared: Sequence[Pickled],
    *,
    name: str,
    origin: str,
    n_threads: int,
    retriable: bool,
) -> Pickled:
    """Run the calls of a batch one after the other, and pack what became of them."""
    with noted(origin) as notes:
        try:
            # Opened first: this imports what the calls need, and with it their libraries.
            calls, nested = payload.loads()
            with limit_threadpools(n_threads):
                outcome = Outcome(True, _run_calls(calls, nested, shared))
        except BaseException as error:
            # The frames of this file say nothing to the caller.
            trace = traceback.format_exception(type(error), error, error.__traceback__)
            outcome = Outcome(False, error, "".join(trace))
    parcel = _pack_outcome(outcome._replace(notes=tuple(notes)), name)
    if retriable and not outcome.ok:
        raise RetriableError(parcel)
    return parcel


def _run_calls(
    calls: Sequence[Call], nested: tuple[Any, int], shared: Sequence[Pickled]
) -> list[Any]:
    """Put the shared arguments into their slots and call, nested calls on the nested backend."""

    def fill(value: Any) -> Any:
        if isinstance(value, HeldSlot):
            copies = open_scattered(shared[value.copies.index])
            return DeviceCachedArray(shared[value.value.index], copies, value.key)
        return shared[value.index].loads_shared() if isinstance(value, Slot) else value

    backend, n_jobs = nested
    with parallel_config(backend=backend, n_jobs=n_jobs):
        return [
            fill(function)(*map(fill, args), **{key: fill(arg) for key, arg in kwargs.items()})
            for function, args, kwargs in calls
        ]


def _pack_outcome(outcome: Outcome, name: str) -> Pickled:
    """Pack an outcome; where that fails, pack an error which says so."""
    try:
        parcel = Pickled.dumps(outcome)
        if not outcome.ok:
            parcel.loads()  # many exceptions pickle and cannot be rebuilt
        return parcel
    except Exception as error:
        if outcome.ok:
            problem: Exception = pickle.PicklingError(
                f"result of {name} must be picklable, to come back from its worker. Got "
                f"{type(error).__name__}: {error} instead. Return arrays or plain objects."
            )
        else:
            problem = RuntimeError(
                f"{name} raised {type(outcome.value).__name__}: {outcome.value} "
                "(the exception itself cannot be pickled)"
            )
        notes = tuple(note for note in outcome.notes if isinstance(note.content, str))
        return Pickled.dumps(Outcome(False, problem, outcome.trace, notes))
