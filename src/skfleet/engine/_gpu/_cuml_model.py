"""Predictions of models that compute on a GPU, on workers of which some have none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from skfleet._array import is_not_numpy, to_device_of, to_host_if_array
from skfleet._device import device_library, to_device
from skfleet._typing import Rows
from skfleet.engine._gpu._cpu_models import to_cpu_estimator
from skfleet.engine._gpu._estimator_device import accepts_device_arrays, has_cuml, uses_array_api
from skfleet.exceptions import PlacementError

if TYPE_CHECKING:
    from skfleet.engine._dask._serialize import Pickled


class PortableModel:
    """A fitted model with cuML's in it, and its equivalent for the CPU.

    It is sent as the pickled bytes of both. A process loads only the one that it can use:
    unpickling a fitted model of cuML takes a GPU.
    """

    def __init__(
        self,
        gpu_model: object = None,
        pickled: tuple[Pickled | None, Pickled | None] = (None, None),  # for GPU, for CPU
        problem: str = "",  # why there is none for the CPU
    ) -> None:
        self._gpu_model, self._pickled, self._problem = gpu_model, pickled, problem
        self._cpu_model: Any = None
        self._lock = threading.Lock()

    def local(self) -> Any:
        """Return the model for this process."""
        with self._lock:
            if not has_gpu():
                return self._load_cpu_model()
            if self._gpu_model is None and self._pickled[0] is not None:
                self._gpu_model = self._pickled[0].loads()
            return self._gpu_model

    def cpu_model(self) -> Any:
        """Return the model that needs no GPU, or raise PlacementError."""
        with self._lock:
            return self._load_cpu_model()

    def _load_cpu_model(self) -> Any:
        if self._cpu_model is None and self._pickled[1] is not None:
            self._cpu_model = self._pickled[1].loads()
        if self._cpu_model is None and self._gpu_model is not None and not self._problem:
            try:
                self._cpu_model = to_cpu_estimator(self._gpu_model)
            except TypeError as error:
                self._problem = str(error)
        if self._cpu_model is None:
            raise PlacementError(self._problem)
        return self._cpu_model

    def serialize(self) -> PortableModel:
        """Pickle both models, in a process with a GPU; return this object."""
        from skfleet.engine._dask._serialize import Pickled  # which imports Dask's cluster

        with self._lock:
            for_gpu, for_cpu = self._pickled
            if for_gpu is None:
                with suppress(PlacementError):  # raised by the process that needs it
                    for_cpu = Pickled.dumps(self._load_cpu_model())
                self._pickled = Pickled.dumps(self._gpu_model), for_cpu
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return PortableModel, (None, self.serialize()._pickled, self._problem)


def as_portable(model: object) -> object:
    """Return a fitted model in a form that tasks on any worker can use.

    Raise PlacementError where it needs a GPU, and every worker is labelled as one without.
    """
    if not isinstance(model, PortableModel):
        if not has_cuml(model):
            return model
        model = PortableModel(model)
    if _cluster_has_no_gpu():
        model.cpu_model()
    return model


def call_response_method(
    model: object, method: str, rows: Rows, params: Mapping[str, object]
) -> Any:
    """Return a fitted model's response for rows, in their container.

    In a process with a GPU, rows of the host are copied to it for models that compute there, and
    the response is copied back.
    """
    model = model.local() if isinstance(model, PortableModel) else model
    X, output_type = rows, nullcontext()
    if not is_not_numpy(rows) and not hasattr(rows, "to_cupy"):
        # With array API dispatch, the fitted attributes are already on the host.
        if accepts_device_arrays(model) and not uses_array_api(model) and has_gpu():
            X = to_device(rows)
        elif has_cuml(model):
            output_type = sys.modules["cuml"].using_output_type("numpy")
    with output_type:
        response = getattr(model, method)(X, **params)
    return _match_container(response, rows)


def _match_container(response: Any, rows: Rows) -> Any:
    """Move a response, or each of several, to the device of the rows."""
    if type(response) in (list, tuple):
        return type(response)(_match_container(output, rows) for output in response)
    return to_device_of(response, rows) if is_not_numpy(rows) else to_host_if_array(response)


def has_gpu() -> bool:
    """Return whether this process may use a GPU, which a worker labelled as CPU may not."""
    if "distributed" in sys.modules:
        from skfleet._cluster import worker_resources

        resources = worker_resources()
        if resources.get("CPU") and not resources.get("GPU"):
            return False
    return device_library() is not None


def _cluster_has_no_gpu() -> bool:
    """Return whether every worker of the current client is labelled as one without a GPU."""
    if "distributed" not in sys.modules:
        return False
    from skfleet._cluster import current_client, scheduler_workers

    try:
        client = current_client(is_required=False)
    except TypeError:  # an asynchronous one
        return False
    workers = scheduler_workers(client).values() if client else ()
    offers = [worker.get("resources") or {} for worker in workers]
    return bool(offers) and all(offer.get("CPU") and not offer.get("GPU") for offer in offers)
