"""The GPU of this process: its array library, its free memory and copies to it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import psutil

from skfleet._array import is_uploadable
from skfleet._staging_buffers import MAX_PINNED_BYTES, staged_copy
from skfleet._warnings import warn
from skfleet.exceptions import PlacementError

# Names another library and device than CuPy's first one, for trials without a GPU: what
# "array_api_strict:device1" computes refuses hidden copies to the host, as CuPy does.
DEVICE_VARIABLE = "SKFLEET_DEVICE"
# Bytes that rows may take on the device, in place of what is free there.
DEVICE_MEMORY_VARIABLE = "SKFLEET_DEVICE_MEMORY"

# cudaMemPoolAttribute: bytes that a pool has taken from the driver, and those in use.
_RESERVED_NOW, _USED_NOW = 5, 7


class TransferCounter:
    """Numbers of arrays and bytes that this process has copied from the host to a device."""

    def __init__(self) -> None:
        self.n_arrays = self.n_bytes = 0
        self._lock = threading.Lock()

    def add(self, n_bytes: int) -> None:
        with self._lock:
            self.n_arrays += 1
            self.n_bytes += n_bytes


host_to_device_transfers = TransferCounter()


class DeviceLibrary(NamedTuple):
    """The library whose arrays are on a device, and that device in the library's own terms."""

    xp: Any
    device: Any

    @property
    def is_cupy(self) -> bool:  # which has CUDA streams and memory pools
        return bool(self.xp.__name__.endswith("cupy"))


def device_library() -> DeviceLibrary | None:
    """Return the library for computations on this process's GPU; None without one."""
    return _device_library(os.environ.get(DEVICE_VARIABLE))


@lru_cache
def _device_library(variable: str | None) -> DeviceLibrary | None:
    """Return the library and device of the environment variable, or CuPy and its first device."""
    if variable:
        library, _, name = variable.partition(":")
        xp = import_module(library)
        return DeviceLibrary(xp, xp.Device(name) if name else None)
    if find_spec("cupy") is None:
        return None
    import cupy

    try:
        n_devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        return None
    return DeviceLibrary(import_module("array_api_compat.cupy"), None) if n_devices else None


def device_memory_available(n_cached_bytes: int = 0) -> int:
    """Return the bytes that rows may take on this process's device, cached ones included."""
    if limit := os.environ.get(DEVICE_MEMORY_VARIABLE):
        return int(limit)
    library = device_library()
    if library is None or not library.is_cupy:
        return n_cached_bytes + int(psutil.virtual_memory().available)
    import cupy

    _check_allocator(cupy)
    free, _ = cupy.cuda.runtime.memGetInfo()
    return int(n_cached_bytes + free + _idle_bytes(cupy))


def _idle_bytes(cupy: Any) -> int:
    """Return the bytes that CuPy's allocator has taken from the driver and that nothing uses.

    Those of a pool of RMM count only if it has a handle; otherwise they are not known.
    """
    allocator, pool = cupy.cuda.get_allocator(), cupy.get_default_memory_pool()
    if allocator != pool.malloc:  # cupy.cuda.MemoryAsyncPool's, or of another library
        pool = getattr(allocator, "__self__", None)
    if hasattr(pool, "free_bytes"):
        return int(pool.free_bytes())
    resource = _rmm_resource(cupy)
    while hasattr(resource, "get_upstream"):
        resource = resource.get_upstream()
    if not hasattr(resource, "pool_handle"):
        return 0
    handle, get = int(resource.pool_handle()), cupy.cuda.runtime.memPoolGetAttribute
    return int(get(handle, _RESERVED_NOW)) - int(get(handle, _USED_NOW))


def _rmm_resource(cupy: Any) -> Any:
    """Return RMM's resource for this device if CuPy allocates from it; None otherwise."""
    # None for the methods of CuPy's own pools
    module = getattr(cupy.cuda.get_allocator(), "__module__", None) or ""
    is_rmm = module.startswith("rmm.")
    return sys.modules["rmm"].mr.get_current_device_resource() if is_rmm else None


def _check_allocator(cupy: Any) -> None:
    """Warn if each of CuPy's arrays is a call of the driver.

    Importing cuML makes CuPy allocate from RMM, whose default has no pool.
    """
    if type(_rmm_resource(cupy)).__name__ == "CudaMemoryResource":
        _warn_of_slow_allocator()


@lru_cache  # once in a process
def _warn_of_slow_allocator() -> None:
    warn(
        "CuPy's allocator must be a pool to be fast. Got RMM's default instead, which cuML sets "
        "when it is imported and which asks the driver for every array. After the import, call "
        "rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource()).",
        RuntimeWarning,
    )


class CopyStream:
    """A CUDA stream for copies and kernels beside the stream that computes; none without CUDA.

    A stream may use memory again that it freed itself, though another one still reads from it. So
    what runs on this stream waits for an event, recorded when all readers had been queued.
    """

    def __init__(self) -> None:
        library = device_library()
        self._cupy = None
        if library is not None and library.is_cupy:
            self._cupy = import_module("cupy")
            self._device = self._cupy.cuda.Device()
            self._stream = _copy_stream(self._device.id)

    def record_event(self) -> Any:
        """Return an event after all that the calling thread has queued until now."""
        if self._cupy is None:
            return None
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record()
        return event

    def run_after(self, event: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Return func(*args), run on this stream after an event; wait until it is done."""
        if self._cupy is None:
            return func(*args)
        # the current device is a thread's own, and the caller's may be another one than this one's
        with self._device, self._stream:
            self._stream.wait_event(event)
            value = func(*args)
        self._stream.synchronize()
        return value


@lru_cache
def _copy_stream(device_id: int) -> Any:
    """Return the stream for copies to the current device, by its number: one in a process.

    CuPy keeps the memory that a stream freed for that stream, also when the stream is no more.
    """
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def free_page_locked() -> None:
    """Free page-locked memory that no copy uses; CuPy keeps what it once took.

    It copies spilled arrays by as much memory as they have.
    """
    library = device_library()
    if library is not None and library.is_cupy:
        import_module("cupy").get_default_pinned_memory_pool().free_all_blocks()


def to_device(x: Any) -> Any:
    """Return numbers on the host as an array on this process's device; others are not changed."""
    if not is_uploadable(x):
        return x
    library = device_library()
    if library is None:
        raise PlacementError(
            "device='cuda' must have a GPU and CuPy in the process that computes. Got a process "
            "without instead. pip install 'scikit-fleet[gpu]' on a machine with a GPU, or leave "
            "device out."
        )
    host_to_device_transfers.add(x.nbytes)
    if library.is_cupy and x.nbytes > MAX_PINNED_BYTES:
        _check_allocator(import_module("cupy"))
        return staged_copy(x)
    # a writable copy: an array that is read-only here is not meant to be written to there
    return library.xp.asarray(x, device=library.device, copy=True)
