"""How a fit comes to where its estimator's `device` says."""

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

__all__ = ["fit_on_device", "run_on_device"]


def run_on_device(method: Function) -> Function:
    """Make a method that is given rows compute on the device that the estimator asks for.

    "cuda" brings Dask collections to GPU workers block by block. Rows of this process go as a whole
    to one GPU worker, where the method runs from its beginning to its end, or to the GPU of this
    process where no worker has any; what comes of it comes home to the host.
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
            answer = method(self, X, *args, **kwargs)
            attributes_to_host(self)
            return to_host_if_array(answer)

    return cast(Function, on_device)


@contextmanager
def unchanged_on_failure(estimator: Any) -> Iterator[None]:
    """Leave an estimator as it was, fitted or not, when what is done with it fails."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def fit_on_device(estimator: Any, X: Any, y: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Fit an estimator of another library on rows of this process, here or on a GPU worker.

    It goes to a worker when it computes on a GPU and this process has none. Return what is fitted,
    such that it can be used here, and what answers in place of it in tasks, if anything.
    """
    engine = None
    if device_of(estimator) == "cuda" and not is_not_numpy(X) and device_library() is None:
        with config_context(device="cuda"):
            engine = gpu_engine()
    if engine is None:
        return estimator.fit(X, y, **params), None
    return fit_cuml_on_gpu_worker(engine, estimator, X, (y,), params)
