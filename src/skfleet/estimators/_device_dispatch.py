"""How a fit comes to where its estimator's `device` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

from skfleet._array import device_library, is_foreign, off_device
from skfleet._config import config_context, get_config
from skfleet._typing import Function
from skfleet._validation import check_common_parameters
from skfleet.blocks import is_lazy
from skfleet.engine import (
    check_device,
    fit_both_there,
    gpu_engine,
    leave_device,
    placement,
    run_there,
)

__all__ = ["fit_placed", "placed"]


def placed(method: Function) -> Function:
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
            if device != "cuda" or is_lazy(X) or is_foreign(X):
                return method(self, X, *args, **kwargs)
            engine = gpu_engine()
            if engine is not None:
                return run_there(engine, method.__name__, self, X, args, kwargs)
            answer = method(self, X, *args, **kwargs)
            leave_device(self)
            return off_device(answer)

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


def fit_placed(estimator: Any, X: Any, y: Any, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Fit an estimator of another library on rows of this process, here or on a GPU worker.

    It goes to a worker when it computes on a GPU and this process has none. Return what is fitted,
    such that it can be used here, and what answers in place of it in tasks, if anything.
    """
    engine = None
    if placement(estimator) == "cuda" and not is_foreign(X) and device_library() is None:
        with config_context(device="cuda"):
            engine = gpu_engine()
    if engine is None:
        return estimator.fit(X, y, **params), None
    return fit_both_there(engine, estimator, X, (y,), params)
