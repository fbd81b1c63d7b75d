"""Dispatch of estimator methods to the device that the parameter `device` names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

from skfleet._array import is_not_numpy, to_host_if_array
from skfleet._config import config_context, get_config
from skfleet._device import device_library
from skfleet._typing import Function
from skfleet._validation import check_common_parameters
from skfleet.blocks import is_lazy
from skfleet.engine import (
    attributes_to_host,
    call_method_on_gpu_worker,
    check_device,
    device_of,
    fit_cuml_on_gpu_worker,
    gpu_engine,
)


def run_on_device(method: Function) -> Function:
    """Decorate a method to compute on the device of the estimator's `device` parameter.

    With "cuda", Dask collections are processed block by block on GPU workers. Rows of this process
    are sent as a whole to one GPU worker, or to the GPU of this process where no worker has one;
    results are copied back to the host.
    """

    @wraps(method)
    def on_device(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        check_device(self.device)
        check_common_parameters(self)
        device = get_config().device if self.device == "auto" else self.device
        with config_context(device=device), unchanged_on_failure(self):
            if device != "cuda" or is_lazy(X) or is_not_numpy(X):
                return method(self, X, *args, **kwargs)
            engine = gpu_engine()
            if engine is not None:
                return call_method_on_gpu_worker(engine, method.__name__, self, X, args, kwargs)
            result = method(self, X, *args, **kwargs)
            attributes_to_host(self)
            return to_host_if_array(result)

    return cast(Function, on_device)


@contextmanager
def unchanged_on_failure(estimator: Any) -> Iterator[None]:
    """Restore the attributes of an estimator when the body of the context raises."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def fit_on_device(estimator: Any, X: Any, y: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Fit an estimator of another library on rows of this process, locally or on a GPU worker.

    A worker fits it when it computes on a GPU and this process has none. Return the fitted
    estimator for this process, and the model that predicts in tasks if that is another one.
    """
    engine = None
    if device_of(estimator) == "cuda" and not is_not_numpy(X) and device_library() is None:
        with config_context(device="cuda"):
            engine = gpu_engine()
    if engine is None:
        return estimator.fit(X, y, **params), None
    return fit_cuml_on_gpu_worker(engine, estimator, X, (y,), params)
