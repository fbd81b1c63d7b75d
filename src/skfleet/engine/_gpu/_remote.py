"""Methods of estimators, and functions of rows, run as one task on a GPU worker."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, TypeVar

import sklearn

from skfleet._array import to_host_if_array
from skfleet._config import config_context
from skfleet._device import to_device
from skfleet._typing import Estimator, Rows
from skfleet._warnings import warn
from skfleet.engine._gpu._cpu_models import (
    arrays_to_host,
    check_has_cpu_equivalent,
    to_cpu_estimator,
)
from skfleet.engine._gpu._cuml_model import PortableModel
from skfleet.engine._gpu._device_cache import DeviceArrayCache
from skfleet.engine._gpu._estimator_device import (
    accepts_device_arrays,
    has_cuml,
    move_targets_to_device,
)
from skfleet.engine._protocol import Engine
from skfleet.engine._task_context import open_scattered, set_learned

T = TypeVar("T")


class _RemoteRowsCache:
    """Rows scattered once for several calls, and the cache of their copies on workers' devices."""

    def __init__(self, X: Rows, device_cache: DeviceArrayCache) -> None:
        self.X, self.device_cache = X, device_cache
        self._scattered: dict[Any, tuple[Engine, Any]] = {}

    def scattered(self, engine: Engine) -> object:
        """Return the scattered rows of an engine's client; they are sent the first time."""
        if engine.client not in self._scattered:
            self._scattered[engine.client] = engine, engine.scatter(self.X)
        scattered = self._scattered[engine.client][1]
        engine.rescatter(scattered)
        return scattered

    def close(self) -> None:
        """Release everything, even if a copy of the context still refers to this object."""
        for engine, scattered in self._scattered.values():
            engine.release(scattered)
        self._scattered.clear()
        del self.X, self.device_cache


_current_cache: ContextVar[_RemoteRowsCache | None] = ContextVar(
    "skfleet_rows_cached_on_workers", default=None
)


@contextmanager
def rows_cached_on_workers(X: Rows, device_cache: DeviceArrayCache) -> Iterator[None]:
    """Scatter rows once for all calls inside a ``with`` that send them to GPU workers.

    Their copies on the devices are kept in `device_cache`, under the id of the rows here.
    """
    cache = _RemoteRowsCache(X, device_cache)
    token = _current_cache.set(cache)
    try:
        yield
    finally:
        _current_cache.reset(token)
        cache.close()


def call_method_on_gpu_worker(
    engine: Engine,
    method: str,
    estimator: Estimator,
    X: Rows,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Any:
    """Call ``estimator.method(X)`` on a GPU worker and copy the resulting attributes back.

    Parameters stay the caller's own objects. A method that fails changes nothing.
    """
    call = (method, estimator, X, args, kwargs)
    attributes, response = _submit_and_wait(engine, _method_task, *call)
    if attributes is None:
        return response
    set_learned(estimator, attributes)
    return estimator


def fit_on_gpu_worker(
    engine: Engine,
    estimator: object,
    X: Rows,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Any:
    """Fit an estimator of any library on a GPU worker; return a fitted one for the CPU."""
    call = ("fit", estimator, X, args, kwargs)
    array_api = sklearn.get_config()["array_api_dispatch"]
    return _submit_and_wait(engine, _fit_task, *call, array_api=array_api)


def fit_cuml_on_gpu_worker(
    engine: Engine,
    estimator: object,
    X: Rows,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> tuple[Any, PortableModel | None]:
    """Fit an estimator of any library on a GPU worker; return (one for the CPU, one for tasks).

    The second is cuML's model, for workers that have a GPU; None for other libraries.
    """
    if not has_cuml(estimator):
        return fit_on_gpu_worker(engine, estimator, X, args, kwargs), None
    check_has_cpu_equivalent(estimator)
    # Without array API dispatch: a model fitted with it responds only where its arrays are.
    model = _submit_and_wait(engine, _fit_cuml_task, "fit", estimator, X, args, kwargs)
    return model.cpu_model(), model


def run_on_gpu_worker(
    engine: Engine, func: Callable[..., T], subject: object, X: Rows, *args: object
) -> T:
    """Call a function of a subject, rows and `args` on a GPU worker, and return its result."""
    task = partial(_function_task, func)
    return _submit_and_wait(engine, task, func.__name__, subject, X, args, {})


def _submit_and_wait(
    engine: Engine,
    func: Callable[..., object],
    method: str,
    estimator: object,
    X: Rows,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    array_api: bool = False,
) -> Any:
    """Scatter rows, run ``func(method, estimator, RemoteRows, args, kwargs)`` on a worker."""
    cache = _current_cache.get()
    if cache is not None and cache.X is not X:
        cache = None
    scattered_X = engine.scatter(X) if cache is None else cache.scattered(engine)
    scattered_args = engine.scatter((args, kwargs))
    try:
        task = engine.submit(
            _run_with_warnings,
            func,
            method,
            estimator,
            scattered_X,
            cache and cache.device_cache,
            id(X),
            scattered_args,
            array_api,
            name=f"{method}-{type(estimator).__name__}",
        )
        ((result, messages),) = engine.gather([task])
    finally:
        engine.release(scattered_args)
        if cache is None:
            engine.release(scattered_X)
    for category, message in messages:
        warn(message, category)
    return result


def _run_with_warnings(
    func: Callable[..., object],
    method: str,
    estimator: object,
    scattered_X: object,
    device_cache: DeviceArrayCache | None,
    key: int,
    scattered_args: object,
    array_api: bool,
) -> tuple[object, list[tuple[type[Warning], str]]]:
    """Call a function inside a task; also return its warnings, to be raised in the caller."""
    args, kwargs = open_scattered(scattered_args)
    if device_cache is not None:
        # The copies live as long as the worker has the rows, and not only during this task.
        device_cache.tie_to(scattered_X)
    with (
        warnings.catch_warnings(record=True) as records,
        config_context(device="cuda", engine="local"),
        sklearn.config_context(array_api_dispatch=array_api),
    ):
        warnings.simplefilter("always")
        rows = _RemoteRows(open_scattered(scattered_X), device_cache, key)
        result = func(method, estimator, rows, args, kwargs)
    return result, [(record.category, str(record.message)) for record in records]


class _RemoteRows(NamedTuple):
    """Rows inside a task on a GPU worker, with the cache of their copies on its device."""

    X: Any
    device_cache: DeviceArrayCache | None
    key: int

    def on_device(self) -> Rows:
        """Return the rows, on the device where they are cached there."""
        return self.X if self.device_cache is None else self.device_cache.get(self.key, self.X)


def _function_task(
    func: Callable[..., T],
    method: str,
    subject: object,
    rows: _RemoteRows,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> T:
    """Call a function of a subject and of rows, which it moves to the device itself."""
    return func(subject, rows.on_device(), *args, **kwargs)


def _method_task(
    method: str,
    estimator: object,
    rows: _RemoteRows,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> tuple[dict[str, object] | None, object]:
    """Call a method of one of our estimators; return its attributes (of ``fit``), or the response.

    The other of the two is None.
    """
    response = getattr(estimator, method)(rows.on_device(), *args, **kwargs)
    if response is estimator:
        return arrays_to_host(vars(estimator)), None
    return None, to_host_if_array(response)


def _fit_task(*call: Any) -> object:
    return to_cpu_estimator(_fit(*call))


def _fit_cuml_task(*call: Any) -> PortableModel:
    return PortableModel(_fit(*call)).serialize()


def _fit(
    method: str,
    estimator: object,
    rows: _RemoteRows,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> object:
    """Fit an estimator, with rows on the GPU where it accepts them there."""
    X = rows.X
    if accepts_device_arrays(estimator):
        X = to_device(rows.on_device())
        args, kwargs = move_targets_to_device(estimator, X, args, kwargs)
    return getattr(estimator, method)(X, *args, **kwargs)
