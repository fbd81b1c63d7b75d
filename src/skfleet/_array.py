"""Array libraries: whose array is this, where does it live, how do values get there and back."""

from __future__ import annotations

import sys
from typing import Any

import array_api_compat
import numpy as np


def is_array(x: Any) -> bool:
    """Say whether x is an array of an array library (NumPy, CuPy, ...); Dask arrays are not."""
    return array_api_compat.is_array_api_obj(x) and not array_api_compat.is_dask_array(x)


def is_foreign(x: Any) -> bool:
    """Say whether x is an array of another library than NumPy."""
    return is_array(x) and not isinstance(x, np.ndarray)


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


def like(value: Any, block: Any, *, dtype: Any = None) -> Any:
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


def astype(x: Any, dtype: np.dtype) -> Any:
    """Convert x to a NumPy dtype given by name, in the library of x, copying only when needed."""
    if isinstance(x, np.ndarray) or not is_array(x):
        return x.astype(dtype, copy=False)
    xp = namespace(x)
    wanted = getattr(xp, np.dtype(dtype).name)
    return x if x.dtype == wanted else xp.astype(x, wanted)
