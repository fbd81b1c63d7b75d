"""Task that runs a batch of joblib's calls on a worker, and the format of calls and results."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dask.utils import funcname
from joblib import parallel_config

from skfleet._captured_output import OutputEvent, capture_output
from skfleet._exception_pickle import PicklableException
from skfleet.engine import (
    DeviceArrayCache,
    DeviceCachedArray,
    Pickled,
    limit_threadpools,
    open_scattered,
)

CallItem = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]


@dataclass(frozen=True)
class ArgumentRef:
    """Reference in a call to a scattered argument."""

    index: int


class DeviceArgument(NamedTuple):
    """An array that is scattered whatever its size, for workers to load on their GPU."""

    value: Any
    cache: DeviceArrayCache


class DeviceArgumentRef(NamedTuple):
    """Reference to a scattered array and to the device cache, with the array's key in it."""

    value: ArgumentRef
    cache: ArgumentRef
    key: int


class ProcessArgument(NamedTuple):
    """An object that each worker process opens once, and that lives there as long as here."""

    value: Any


class ProcessArgumentRef(NamedTuple):
    """Reference to a scattered object that each process opens once."""

    value: ArgumentRef


class BatchResult(NamedTuple):
    """The results of the calls of a batch, or the first error, and their output."""

    ok: bool
    value: Any
    trace: str = ""
    output: Sequence[OutputEvent] = ()
    from_checkpoint: bool = False
    has_run: bool = True  # False for a placeholder, which does not count as progress
    is_withdrawn: bool = False  # for a placeholder of what need not run, and does not count at all

    def result(self) -> list[Any]:
        """Return the results, or raise the error with the traceback of the worker."""
        if self.ok:
            return self.value
        if self.trace:
            self.value.__cause__ = _RemoteTracebackError(self.trace)
        raise self.value


class _RemoteTracebackError(Exception):
    """Shows, as the cause of an error, the traceback it had on its worker."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class RetriableError(Exception):
    """Carries a failed result to Dask, which retries only a task that raises."""

    def __init__(self, pickled_result: Pickled) -> None:
        super().__init__(pickled_result)
        self.pickled_result = pickled_result


def function_name(function: Callable[..., Any]) -> str:
    return funcname(function).strip("_<>") or "call"


def task_name(calls: Sequence[CallItem]) -> str:
    """Return the name of a batch: its function and, if there is one, the estimator it is for."""
    function, args, kwargs = calls[0]
    name = function_name(function)
    first = next(iter(args or kwargs.values()), None)
    if hasattr(type(first), "get_params"):
        name += f"-{type(first).__name__}"
    if len(calls) == 1:
        return name
    # The scheduler averages durations by name, so a batch must not have that of a single call.
    return f"batch_of_{name}_{len(calls)}_calls"


def run_batch(
    payload: Pickled,
    scattered: Sequence[Pickled],
    *,
    name: str,
    caller_token: str,
    n_threads: int,
    retriable: bool,
) -> Pickled:
    """Run the calls of a batch one after the other, and return their pickled result."""
    with capture_output(caller_token) as output:
        try:
            # Loaded first: this imports what the calls need, and with it their libraries.
            calls, nested = payload.loads()
            with limit_threadpools(n_threads):
                result = BatchResult(True, _run_calls(calls, nested, scattered))
        except BaseException as error:
            trace = traceback.format_exception(type(error), error, error.__traceback__)
            result = BatchResult(False, error, "".join(trace))
    pickled = _pickle_result(result._replace(output=tuple(output)), name)
    if retriable and not result.ok:
        raise RetriableError(pickled)
    return pickled


def _run_calls(
    calls: Sequence[CallItem], nested: tuple[Any, int], scattered: Sequence[Pickled]
) -> list[Any]:
    """Resolve the references to scattered arguments and call, with the backend for nested calls."""

    def resolve(value: Any) -> Any:
        if isinstance(value, DeviceArgumentRef):
            cache = open_scattered(scattered[value.cache.index])
            return DeviceCachedArray(scattered[value.value.index], cache, value.key)
        if isinstance(value, ProcessArgumentRef):
            return open_scattered(scattered[value.value.index])
        return scattered[value.index].loads_shared() if isinstance(value, ArgumentRef) else value

    backend, n_jobs = nested
    with parallel_config(backend=backend, n_jobs=n_jobs):
        return [
            resolve(function)(
                *map(resolve, args), **{key: resolve(arg) for key, arg in kwargs.items()}
            )
            for function, args, kwargs in calls
        ]


def _pickle_result(result: BatchResult, name: str) -> Pickled:
    """Pickle a result; where that fails, pickle an error that says so."""
    if not result.ok:
        return Pickled.dumps(result._replace(value=PicklableException(result.value)))
    try:
        return Pickled.dumps(result)
    except Exception as error:
        problem = pickle.PicklingError(
            f"result of {name} must be picklable, to come back from its worker. Got "
            f"{type(error).__name__}: {error} instead. Return arrays or plain objects."
        )
        return Pickled.dumps(BatchResult(False, problem, result.trace, result.output))
