"""Differences between array libraries: namespace, dtype, copies from and to the host."""

from __future__ import annotations

import importlib
import sys
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import array_api_compat
import numpy as np
from array_api_compat import device

from skfleet._staging_buffers import MAX_PINNED_BYTES, staged_copy

FLOAT64, INT64 = np.dtype(np.float64), np.dtype(np.int64)


def is_array(x: Any) -> bool:
    """Return whether x is an array of an array library (NumPy, CuPy, ...); Dask arrays are not."""
    return isinstance(x, np.ndarray | np.generic) or is_not_numpy(x)


def is_not_numpy(x: Any) -> bool:
    """Return whether x is an array of another library than NumPy."""
    if isinstance(x, np.ndarray | np.generic):
        return False
    try:
        return array_api_compat.is_array_api_obj(x) and not array_api_compat.is_dask_array(x)
    except AttributeError:
        # array-api-compat (1.16) looks into a library that another thread is importing, on a worker
        # that has just started say. To import it here waits for that thread.
        for library in {"cupy", "dask.array"} & sys.modules.keys():
            importlib.import_module(library)
        return array_api_compat.is_array_api_obj(x) and not array_api_compat.is_dask_array(x)


def is_host(x: Any) -> bool:
    """Return whether the values of x are in the main memory of this process."""
    if isinstance(x, np.ndarray) or not is_array(x):
        return True
    return str(device(x)).lower() in ("cpu", "cpu_device")


def namespace(*arrays: Any) -> Any:
    """Return the array API namespace that arrays share; NumPy's for anything else."""
    if len(arrays) == 1 and type(arrays[0]) is np.ndarray:  # asked for in each step of a descent
        return _numpy_namespace()
    arrays = tuple(a for a in arrays if a is not None and is_array(a))
    if all(isinstance(a, np.ndarray) for a in arrays):
        return _numpy_namespace()
    return array_api_compat.array_namespace(*arrays)


@cache
def _numpy_namespace() -> Any:
    return array_api_compat.array_namespace(np.empty(0))


def is_uploadable(x: Any) -> bool:
    """Return whether x is a NumPy array of real numbers, which a device can hold."""
    return isinstance(x, np.ndarray) and x.dtype.kind in "biuf"


def dtype_of(x: Any) -> np.dtype:
    """Return the dtype of x, of any library, as the NumPy dtype of that name."""
    dtype = x.dtype
    return dtype if isinstance(dtype, np.dtype) else np.dtype(str(dtype).rsplit(".", 1)[-1])


def is_floating(x: Any) -> bool:
    """Return whether the elements of x are real floating point numbers."""
    dtype = getattr(x, "dtype", None)
    if isinstance(dtype, np.dtype):
        return dtype.kind == "f"
    return is_array(x) and namespace(x).isdtype(dtype, "real floating")


def asarray_like(value: Any, ref: Any, *, dtype: Any = None) -> Any:
    """Return a host value as an array of ref's library, device and, for reals, precision.

    The driver computes with NumPy, and a block has the library of the caller's rows.
    """
    value = np.asarray(value)
    if dtype is None and value.dtype.kind == "f" and is_floating(ref):
        dtype = ref.dtype
    if isinstance(ref, np.ndarray) or not is_array(ref):
        return np.asarray(value, dtype=dtype)
    return _upload(value, ref, dtype)


def to_device_of(values: Any, ref: Any) -> Any:
    """Return numbers on the host as an array on ref's device; labels remain on the host."""
    if not is_uploadable(values) or not is_not_numpy(ref):
        return values
    return _upload(values, ref)


def _upload(values: np.ndarray, ref: Any, dtype: Any = None) -> Any:
    """Return a host array as one of ref's library, on its device."""
    xp, on_device = namespace(ref), device(ref)
    is_large = values.nbytes > MAX_PINNED_BYTES and is_uploadable(values)
    if is_large and array_api_compat.is_cupy_array(ref):
        with on_device:
            return xp.asarray(staged_copy(values), dtype=dtype)
    return xp.asarray(values, dtype=dtype, device=on_device)


def to_host(x: Any) -> np.ndarray:
    """Return the values of x as a NumPy array, copying from a device where needed."""
    if isinstance(x, np.ndarray):
        return x
    if array_api_compat.is_cupy_array(x):
        return x.get()
    if array_api_compat.is_torch_array(x):
        return x.detach().cpu().numpy()
    strict = sys.modules.get("array_api_strict")
    if strict is not None and isinstance(x, type(strict.zeros(()))):
        return np.asarray(x.to_device(strict.Device("CPU_DEVICE")))
    return np.asarray(x)


def to_host_if_array(x: Any) -> Any:
    """Return an array of another library as NumPy's; anything else is not changed."""
    return to_host(x) if is_not_numpy(x) else x


def copy_of(x: Any) -> Any:
    """Return a copy of an array, on its device."""
    return namespace(x).asarray(x, copy=True)


def in_row_order(x: Any, host_bytes: int = 0) -> Any:
    """Return a matrix with its rows one after the other, copied only when needed.

    Slices of rows in column order are contiguous in neither way, and CuPy copies them in each
    product. Matrices of other libraries than CuPy are not changed, but for NumPy's of at most
    `host_bytes`.
    """
    if isinstance(x, np.ndarray) and x.ndim == 2 and x.nbytes <= host_bytes:
        return np.ascontiguousarray(x)
    if not array_api_compat.is_cupy_array(x) or x.ndim != 2 or x.flags.c_contiguous:
        return x
    import cupy

    return cupy.ascontiguousarray(x)


def is_equal(x: Any, y: Any) -> bool:
    """Return whether two arrays of a library are equal, with NaN in the same places."""
    xp = namespace(x, y)
    equal = x == y
    return bool(xp.all(equal | ((x != x) & (y != y))))


def tree_to_host(value: Any) -> Any:
    """Return a tree of tuples, lists, dicts and dataclasses with its arrays as NumPy's."""
    if is_not_numpy(value):
        return to_host(value)[()]
    kind = type(value)
    if kind in (tuple, list) or hasattr(value, "_fields"):
        parts = [tree_to_host(part) for part in value]
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)
    if kind is dict:
        return {key: tree_to_host(part) for key, part in value.items()}
    if is_dataclass(kind):
        parts = {f.name: tree_to_host(getattr(value, f.name)) for f in fields(kind)}
        return replace(value, **parts)
    return value


def astype(x: Any, dtype: np.dtype) -> Any:
    """Return x in a dtype, given as NumPy's, in the library of x; copied only when needed."""
    if isinstance(x, np.ndarray) or not is_array(x):
        return x.astype(dtype, copy=False)
    xp = namespace(x)
    target = getattr(xp, np.dtype(dtype).name)
    return x if x.dtype == target else xp.astype(x, target)
