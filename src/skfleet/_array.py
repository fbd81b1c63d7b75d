"""Array libraries: whose array is this, where does it live, how do values get there and back."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
import psutil

from skfleet.exceptions import PlacementError

# Names another library and device than CuPy's first one, for trials without a GPU: what
# "array_api_strict:device1" computes refuses hidden copies to the host, as CuPy does.
DEVICE_VARIABLE = "SKFLEET_DEVICE"
# How many bytes rows may take on the device, in place of what is free there.
DEVICE_MEMORY_VARIABLE = "SKFLEET_DEVICE_MEMORY"

FLOAT64 = np.dtype(np.float64)

# CuPy brings arrays up through page-locked memory as large as they are, which it keeps, a piece for
# each size. Larger ones than this are copied by the driver instead, in parts.
_MOST_PAGE_LOCKED = 2**20
_PART_BYTES = 64 * 2**20


class TransferCounter:
    """How often, and how many bytes, this process has brought from the host to a device."""

    def __init__(self) -> None:
        self.n_arrays = self.n_bytes = 0
        self._lock = threading.Lock()

    def add(self, n_bytes: int) -> None:
        """Count an array."""
        with self._lock:
            self.n_arrays += 1
            self.n_bytes += n_bytes


uploads = TransferCounter()


class DeviceLibrary(NamedTuple):
    """The library whose arrays lie on a device, and that device as the library knows it."""

    xp: Any
    device: Any

    @property
    def is_cupy(self) -> bool:
        """Whether there are CUDA streams and pools of memory."""
        return bool(self.xp.__name__.endswith("cupy"))


def is_array(x: Any) -> bool:
    """Say whether x is an array of an array library (NumPy, CuPy, ...); Dask arrays are not."""
    return array_api_compat.is_array_api_obj(x) and not array_api_compat.is_dask_array(x)


def is_not_numpy(x: Any) -> bool:
    """Say whether x is an array of another library than NumPy."""
    return is_array(x) and not isinstance(x, np.ndarray | np.generic)


def is_host(x: Any) -> bool:
    """Say whether the values of x lie in this process's main memory."""
    if isinstance(x, np.ndarray) or not is_array(x):
        return True
    return str(array_api_compat.device(x)).lower() in ("cpu", "cpu_device")


def namespace(*arrays: Any) -> Any:
    """Return the array API namespace that the given arrays share; NumPy's for anything else."""
    known = [a for a in arrays if a is not None and is_array(a)]
    if not known or all(isinstance(a, np.ndarray) for a in known):
        return array_api_compat.array_namespace(np.empty(0))
    return array_api_compat.array_namespace(*known)


def device(x: Any) -> Any:
    """Return the device that holds x."""
    return array_api_compat.device(x)


def device_library() -> DeviceLibrary | None:
    """Return what this process computes with when it is asked for a GPU; None without one."""
    return _device_library(os.environ.get(DEVICE_VARIABLE))


@lru_cache
def _device_library(named: str | None) -> DeviceLibrary | None:
    """Look for the device that is named, or for CuPy's."""
    if named:
        library, _, name = named.partition(":")
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


def device_memory_available(held: int = 0) -> int:
    """Return how many bytes rows may take on this process's device, with those that are held."""
    if limit := os.environ.get(DEVICE_MEMORY_VARIABLE):
        return int(limit)
    library = device_library()
    if library is None or not library.is_cupy:
        return held + int(psutil.virtual_memory().available)
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    pool = cupy.get_default_memory_pool()
    # another allocator, RMM's say, does not tell how much of what it took is free
    is_pool = cupy.cuda.get_allocator() == pool.malloc
    return int(held + free + pool.free_bytes() if is_pool else total)


class CopyStream:
    """A queue of copies and kernels on the device beside the one that computes, where it has any.

    Memory that one queue frees it may use again at once, though another may not be done with it.
    So what runs here waits for a `mark`, set when all that reads what was freed had been queued.
    """

    def __init__(self) -> None:
        library = device_library()
        self._cupy = None
        if library is not None and library.is_cupy:
            self._cupy = import_module("cupy")
            self._stream = self._cupy.cuda.Stream(non_blocking=True)

    def mark(self) -> Any:
        """Mark what the calling thread has queued until now."""
        if self._cupy is None:
            return None
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record()
        return event

    def run(self, mark: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Call a function with all that it queues in here, after a mark; wait until it is done."""
        if self._cupy is None:
            return func(*args)
        with self._stream:
            self._stream.wait_event(mark)
            value = func(*args)
        self._stream.synchronize()
        return value


def is_uploadable(x: Any) -> bool:
    """Say whether x is numbers on the host, which a device takes."""
    return isinstance(x, np.ndarray) and x.dtype.kind in "biuf"


def to_device(x: Any) -> Any:
    """Bring numbers on the host to this process's device; all else stays where and what it is."""
    if not is_uploadable(x):
        return x
    library = device_library()
    if library is None:
        raise PlacementError(
            "device='cuda' must have a GPU and CuPy in the process that computes. Got a process "
            "without instead. pip install 'scikit-fleet[gpu]' on a machine with a GPU, or leave "
            "device out."
        )
    uploads.add(x.nbytes)
    if library.is_cupy and x.nbytes > _MOST_PAGE_LOCKED:
        return _copy_in_pieces(x)
    # a writable copy: what is read-only here was never meant to be written to there
    return library.xp.asarray(x, device=library.device, copy=True)


def _copy_in_pieces(x: np.ndarray) -> Any:
    """Bring a large array to the current CUDA device, row by row, as kernels like them."""
    cupy = import_module("cupy")
    there = cupy.empty(x.shape, dtype=x.dtype.newbyteorder("="))
    step = max(1, _PART_BYTES * len(x) // x.nbytes)
    for low in range(0, len(x), step):
        part = there[low : low + step]
        part.set(np.ascontiguousarray(x[low : low + step], dtype=there.dtype))
        cupy.cuda.get_current_stream().synchronize()  # what was copied to be contiguous goes now
    return there


def dtype_of(x: Any) -> np.dtype:
    """Return the NumPy dtype of the name that the elements of x have, in any library."""
    dtype = x.dtype
    return dtype if isinstance(dtype, np.dtype) else np.dtype(str(dtype).rsplit(".", 1)[-1])


def is_floating(x: Any) -> bool:
    """Say whether the elements of x are real floating point numbers."""
    dtype = getattr(x, "dtype", None)
    if isinstance(dtype, np.dtype):
        return dtype.kind == "f"
    return is_array(x) and namespace(x).isdtype(dtype, "real floating")


def asarray_like(value: Any, block: Any, *, dtype: Any = None) -> Any:
    """Bring a host value to where a block is: its library, its device, for reals its precision.

    The driver holds NumPy and a block holds whatever the caller gave; this is where they meet.
    """
    value = np.asarray(value)
    if dtype is None and value.dtype.kind == "f" and is_floating(block):
        dtype = block.dtype
    if isinstance(block, np.ndarray) or not is_array(block):
        return np.asarray(value, dtype=dtype)
    xp = namespace(block)
    return xp.asarray(value, dtype=dtype, device=device(block))


def to_device_of(values: Any, X: Any) -> Any:
    """Bring numbers on the host to the device of X; labels that no device holds stay there."""
    if not is_uploadable(values) or not is_not_numpy(X):
        return values
    return namespace(X).asarray(values, device=device(X))


def to_host(x: Any) -> np.ndarray:
    """Return the values of x as a NumPy array, copying from a device where needed."""
    if isinstance(x, np.ndarray):
        return x
    if array_api_compat.is_cupy_array(x):
        return x.get()
    if array_api_compat.is_torch_array(x):
        return x.detach().cpu().numpy()
    strict = sys.modules.get("array_api_strict")
    if strict is not None and isinstance(x, strict._array_object.Array):
        return np.asarray(x.to_device(strict.Device("CPU_DEVICE")))
    return np.asarray(x)


def to_host_if_array(x: Any) -> Any:
    """Return an array of another library as NumPy's, and anything else as it is."""
    return to_host(x) if is_not_numpy(x) else x


def tree_to_host(value: Any) -> Any:
    """Bring the arrays in tuples, lists, dicts and dataclasses to the host; single numbers too."""
    if is_not_numpy(value):
        return to_host(value)[()]
    kind = type(value)
    if kind in (tuple, list) or hasattr(value, "_fields"):
        parts = [tree_to_host(part) for part in value]
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)
    if kind is dict:
        return {key: tree_to_host(part) for key, part in value.items()}
    if is_dataclass(kind):
        return replace(
            value, **{f.name: tree_to_host(getattr(value, f.name)) for f in fields(kind)}
        )
    return value


def astype(x: Any, dtype: np.dtype) -> Any:
    """Convert x to a NumPy dtype given by name, in the library of x, copying only when needed."""
    if isinstance(x, np.ndarray) or not is_array(x):
        return x.astype(dtype, copy=False)
    xp = namespace(x)
    wanted = getattr(xp, np.dtype(dtype).name)
    return x if x.dtype == wanted else xp.astype(x, wanted)
