"""How a fit comes to where its estimator's `device` says."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from skfleet._array import is_foreign, off_device
from skfleet._config import config_context, get_config
from skfleet.blocks import is_lazy
from skfleet.engine import check_device, gpu_engine, leave_device, run_there

__all__ = ["placed"]


def placed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method that is given rows compute on the device that the estimator asks for.

    "cuda" brings Dask collections to GPU workers block by block. Rows of this process go as a whole
    to one GPU worker, where the method runs from its beginning to its end, or to the GPU of this
    process where no worker has any; what comes of it comes home to the host.
    """

    @wraps(method)
    def on_device(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        check_device(self.device)
        device = get_config().device if self.device == "auto" else self.device
        with config_context(device=device):
            if device != "cuda" or is_lazy(X) or is_foreign(X):
                return method(self, X, *args, **kwargs)
            engine = gpu_engine()
            if engine is not None:
                return run_there(engine, method.__name__, self, X, args, kwargs)
            answer = method(self, X, *args, **kwargs)
            leave_device(self)
            return off_device(answer)

    return on_device
