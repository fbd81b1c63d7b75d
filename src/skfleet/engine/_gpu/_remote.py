"""A method of an estimator, or a function, run from beginning to end on one GPU worker."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import sklearn

from skfleet._array import to_host_if_array
from skfleet._config import config_context
from skfleet._device import to_device
from skfleet._warnings import warn
from skfleet.engine._gpu._cuml_model import PortableModel
from skfleet.engine._gpu._device_cache import DeviceArrayCache
from skfleet.engine._gpu._estimator_device import (
    accepts_device_arrays,
    at_home,
    check_has_cpu_equivalent,
    has_cuml,
    move_targets_to_device,
    to_cpu_estimator,
)
from skfleet.engine._protocol import Engine
from skfleet.engine._task_context import open_scattered

__all__ = [
    "call_method_on_gpu_worker",
    "fit_cuml_on_gpu_worker",
    "fit_on_gpu_worker",
    "rows_cached_on_workers",
    "run_on_gpu_worker",
]


class _RemoteRowsCache:
    """Rows that stay on workers for several calls, and copies of them on the devices there."""

    def __init__(self, X: Any, copies: DeviceArrayCache) -> None:
        self.X = X
        self.copies = copies
        self._kept: dict[Any, tuple[Engine, Any]] = {}

    def kept(self, engine: Engine) -> Any:
        """Give what stands for the rows in a task; they are sent the first time."""
        if engine.client not in self._kept:
            self._kept[engine.client] = engine, engine.scatter(self.X)
        kept = self._kept[engine.client][1]
        engine.rescatter(kept)
        return kept

    def end(self) -> None:
        """Let go of all, whoever still holds a context in which this was."""
        for engine, kept in self._kept.values():
            engine.release(kept)
        self._kept.clear()
        del self.X, self.copies


_stay: ContextVar[_RemoteRowsCache | None] = ContextVar("skfleet_rows_that_stay", default=None)


@contextmanager
def rows_cached_on_workers(X: Any, copies: DeviceArrayCache) -> Iterator[None]:
    """Keep rows, once a call inside a ``with`` sends them to GPU workers, there until it ends.

    On devices they stay among `copies`, by the id of the rows here.
    """
    stay = _RemoteRowsCache(X, copies)
    token = _stay.set(stay)
    try:
        yield
    finally:
        _stay.reset(token)
        stay.end()


def call_method_on_gpu_worker(
    engine: Engine, method: str, estimator: Any, X: Any, args: Sequence[Any], kwargs: Mapping
) -> Any:
    """Run a method on a worker, with the rows on its GPU; take over what it left in the estimator.

    Parameters stay the caller's own objects. A method that fails changes nothing.
    """
    left, answer = _sent(engine, _run_here, method, estimator, X, args, kwargs)
    if left is None:
        return answer
    own = estimator.get_params(deep=False)
    for gone in set(vars(estimator)) - set(left):
        delattr(estimator, gone)
    vars(estimator).update({name: value for name, value in left.items() if name not in own})
    return estimator


def fit_on_gpu_worker(
    engine: Engine, estimator: Any, X: Any, args: Sequence[Any], kwargs: Mapping
) -> Any:
    """Fit any estimator on a GPU worker, and return a fitted one that needs no GPU."""
    dispatches = sklearn.get_config()["array_api_dispatch"]
    return _sent(engine, _fit_here, "fit", estimator, X, args, kwargs, dispatches=dispatches)


def fit_cuml_on_gpu_worker(
    engine: Engine, estimator: Any, X: Any, args: Sequence[Any], kwargs: Mapping
) -> tuple[Any, Any]:
    """Fit any estimator on a GPU worker; also return what answers in place of it in tasks, if any.

    That is cuML's model, for workers that have a GPU.
    """
    if not has_cuml(estimator):
        return fit_on_gpu_worker(engine, estimator, X, args, kwargs), None
    check_has_cpu_equivalent(estimator)
    # without dispatch, of which nobody knows where it answers
    found = _sent(engine, _fit_cuml_here, "fit", estimator, X, args, kwargs)
    return found.equivalent(), found


def run_on_gpu_worker(
    engine: Engine, func: Callable[..., Any], subject: Any, X: Any, *args: Any
) -> Any:
    """Call func(subject, X, *args) on a GPU worker, and return the answer."""
    return _sent(engine, partial(_call_here, func), func.__name__, subject, X, args, {})


def _sent(
    engine: Engine,
    func: Any,
    method: str,
    estimator: Any,
    X: Any,
    args: Sequence[Any],
    kwargs: Mapping,
    *,
    dispatches: bool = False,
) -> Any:
    """Send rows and an estimator to a worker; give what the function made of them there."""
    stay = _stay.get()
    if stay is not None and stay.X is not X:
        stay = None
    kept = engine.scatter(X) if stay is None else stay.kept(engine)
    rest = engine.scatter((args, kwargs))
    try:
        rows = kept, stay and stay.copies, id(X)
        name = f"{method}-{type(estimator).__name__}"
        sent = func, method, estimator, *rows, rest, dispatches
        ((found, told),) = engine.gather([engine.submit(_with_warnings, *sent, name=name)])
    finally:
        engine.release(rest)
        if stay is None:
            engine.release(kept)
    for category, message in told:
        warn(message, category)
    return found


def _with_warnings(
    func: Any,
    method: str,
    estimator: Any,
    kept: Any,
    copies: DeviceArrayCache | None,
    key: int,
    rest: Any,
    dispatches: bool,
) -> tuple[Any, list[Any]]:
    """Call a function on a worker's GPU; also return the warnings, which nobody sees there."""
    args, kwargs = open_scattered(rest)
    if copies is not None:
        copies.tie_to(kept)
    with (
        warnings.catch_warnings(record=True) as told,
        config_context(device="cuda", engine="local"),
        sklearn.config_context(array_api_dispatch=dispatches),
    ):
        warnings.simplefilter("always")
        found = func(method, estimator, _Rows(open_scattered(kept), copies, key), args, kwargs)
    return found, [(warning.category, str(warning.message)) for warning in told]


class _Rows(NamedTuple):
    """Rows on a worker, and the copies on its device among which they have a place, if any."""

    X: Any
    copies: DeviceArrayCache | None
    key: int

    def there(self) -> Any:
        """Give the rows: those on the device if they stay there, else for others to bring up."""
        return self.X if self.copies is None else self.copies.give(self.key, self.X)


def _call_here(
    func: Callable[..., Any],
    method: str,
    subject: Any,
    rows: _Rows,
    args: Sequence[Any],
    kwargs: Mapping,
) -> Any:
    """Call a function of something and of rows, which it brings to the device itself."""
    return func(subject, rows.there(), *args, **kwargs)


def _run_here(
    method: str, estimator: Any, rows: _Rows, args: Sequence[Any], kwargs: Mapping
) -> tuple[Any, Any]:
    """Run a method of one of our estimators; return what it left behind, or its answer."""
    answer = getattr(estimator, method)(rows.there(), *args, **kwargs)
    return (
        (at_home(vars(estimator)), None)
        if answer is estimator
        else (None, to_host_if_array(answer))
    )


def _fit_here(
    method: str, estimator: Any, rows: _Rows, args: Sequence[Any], kwargs: Mapping
) -> Any:
    """Fit an estimator of any library, and return what can leave this worker."""
    return to_cpu_estimator(_fitted(method, estimator, rows, args, kwargs))


def _fit_cuml_here(
    method: str, estimator: Any, rows: _Rows, args: Sequence[Any], kwargs: Mapping
) -> PortableModel:
    """Fit an estimator with cuML's in it, and return it such that any process can open it."""
    return PortableModel(_fitted(method, estimator, rows, args, kwargs)).pack()


def _fitted(method: str, estimator: Any, rows: _Rows, args: Sequence[Any], kwargs: Mapping) -> Any:
    """Fit an estimator with the rows on the GPU, where it takes them."""
    X = rows.X
    if accepts_device_arrays(estimator):
        X = to_device(rows.there())
        args, kwargs = move_targets_to_device(estimator, X, args, kwargs)
    return getattr(estimator, method)(X, *args, **kwargs)
