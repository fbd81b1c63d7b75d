"""Answers of models that compute on a GPU, from workers of which some have none."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from skfleet._array import is_not_numpy, to_device_of, to_host
from skfleet._device import device_library, to_device
from skfleet.engine._gpu._estimator_device import (
    accepts_device_arrays,
    has_cuml,
    to_cpu_estimator,
    uses_array_api,
)
from skfleet.exceptions import PlacementError

if TYPE_CHECKING:
    from skfleet.engine._dask._serialize import Pickled

__all__ = ["PortableModel", "as_portable", "call_response_method", "has_gpu"]


class PortableModel:
    """A fitted model with cuML's in it, and an equivalent for where there is no GPU.

    It travels as bytes of both. A process opens only what it can use: to unpickle a fitted model of
    cuML takes a GPU.
    """

    def __init__(self, on_gpu: Any = None) -> None:
        self._on_gpu = on_gpu
        self._at_home: Any = None
        self._packed: tuple[Pickled | None, Pickled | None] = (None, None)
        self._problem = ""
        self._lock = threading.Lock()

    def here(self) -> Any:
        """Give the model that answers in this process."""
        with self._lock:
            if not has_gpu():
                return self._equivalent()
            if self._on_gpu is None and self._packed[0] is not None:
                self._on_gpu = self._packed[0].loads()
            return self._on_gpu

    def equivalent(self) -> Any:
        """Give the model that needs no GPU, or raise."""
        with self._lock:
            return self._equivalent()

    def _equivalent(self) -> Any:
        if self._at_home is None and self._packed[1] is not None:
            self._at_home = self._packed[1].loads()
        if self._at_home is None and self._on_gpu is not None and not self._problem:
            try:
                self._at_home = to_cpu_estimator(self._on_gpu)
            except TypeError as error:
                self._problem = str(error)
        if self._at_home is None:
            raise PlacementError(self._problem)
        return self._at_home

    def pack(self) -> PortableModel:
        """Make the bytes that travel, where the model can be used."""
        from skfleet.engine._dask._serialize import Pickled  # which imports Dask's cluster

        with self._lock:
            on_gpu, at_home = self._packed
            if on_gpu is None:
                with suppress(PlacementError):  # raised where it is wanted
                    at_home = Pickled.dumps(self._equivalent())
                self._packed = Pickled.dumps(self._on_gpu), at_home
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (*self.pack()._packed, self._problem)


def _rebuilt(on_gpu: Pickled, at_home: Pickled | None, problem: str) -> PortableModel:
    """Make a model of the bytes of both."""
    model = PortableModel()
    model._packed, model._problem = (on_gpu, at_home), problem
    return model


def as_portable(model: Any) -> Any:
    """Return what stands for a fitted model in tasks that any worker may be given.

    Raises
    ------
    PlacementError
        When it needs a GPU, and every worker is labelled as one without.
    """
    if not isinstance(model, PortableModel):
        if not has_cuml(model):
            return model
        model = PortableModel(model)
    if _cluster_has_no_gpu():
        model.equivalent()
    return model


def call_response_method(model: Any, method: str, rows: Any, params: dict[str, Any]) -> Any:
    """Answer with a method of a fitted model for some rows, in their kind.

    In a process with a GPU, rows of the host are brought up for models that compute there, and
    their answers come back.
    """
    model = model.here() if isinstance(model, PortableModel) else model
    given, output = rows, nullcontext()
    if not is_not_numpy(rows) and not hasattr(rows, "to_cupy"):
        # not where scikit-learn dispatches: what that learned is at home
        if accepts_device_arrays(model) and not uses_array_api(model) and has_gpu():
            given = to_device(rows)
        elif has_cuml(model):
            output = sys.modules["cuml"].using_output_type("numpy")
    with output:
        answer = getattr(model, method)(given, **params)
    return _in_kind(answer, rows)


def _in_kind(answer: Any, rows: Any) -> Any:
    """Bring an answer, or several, to where the rows are."""
    if type(answer) in (list, tuple):
        return type(answer)(_in_kind(one, rows) for one in answer)
    if is_not_numpy(rows):
        return to_device_of(answer, rows)
    return to_host(answer) if is_not_numpy(answer) else answer


def has_gpu() -> bool:
    """Tell whether models may compute on a GPU in this process: not where its label says CPU."""
    if "distributed" in sys.modules:
        from skfleet.engine._dask._client import worker_resources

        offered = worker_resources()
        if offered.get("CPU") and not offered.get("GPU"):
            return False
    return device_library() is not None


def _cluster_has_no_gpu() -> bool:
    """Tell whether every worker of the current client is labelled as one without a GPU."""
    if "distributed" not in sys.modules:
        return False
    from skfleet.engine._dask._client import current_client, scheduler_workers

    try:
        client = current_client(is_required=False)
    except TypeError:  # an asynchronous one
        return False
    offers = (
        [w.get("resources") or {} for w in scheduler_workers(client).values()] if client else []
    )
    return bool(offers) and all(one.get("CPU") and not one.get("GPU") for one in offers)
