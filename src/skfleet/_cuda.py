"""CUDA sources of the package: compiled by CuPy, launched, and tested before they are used."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from skfleet._warnings import warn

# Shared memory of a thread block that needs no permission.
DEFAULT_SHARED_BYTES = 48 * 1024
# In place of an optional array.
NULL_POINTER = np.uint64(0)


class CudaSource(NamedTuple):
    """A .cu file beside the modules of a package, and the compiler's options."""

    package: str
    file: str
    options: tuple[str, ...] = ()


class DeviceLimits(NamedTuple):
    """Multiprocessors, and bytes of shared memory of a thread block and of a multiprocessor."""

    n_processors: int
    shared: int
    shared_by_all: int


@cache
def device_limits(number: int) -> DeviceLimits:
    """Return the limits of a CUDA device."""
    import cupy

    attributes = cupy.cuda.Device(number).attributes
    return DeviceLimits(
        attributes["MultiProcessorCount"],
        attributes["MaxSharedMemoryPerBlockOptin"],
        attributes["MaxSharedMemoryPerMultiprocessor"],
    )


def device_number(x: Any) -> int:
    """Return the number of the CUDA device of an array."""
    return int(x.device.id)


def limits(x: Any) -> DeviceLimits:
    """Return the limits of the CUDA device of an array."""
    return device_limits(device_number(x))


@cache
def _module(source: CudaSource) -> Any:
    """Return the compiled source; CuPy compiles it at its first launch on each device."""
    import cupy

    code = files(source.package).joinpath(source.file).read_text()
    return cupy.RawModule(code=code, options=source.options)


@cache
def _function(source: CudaSource, name: str) -> Any:
    return _module(source).get_function(name)


def launch(
    source: CudaSource,
    name: str,
    grid: tuple[int, int, int],
    n_threads: int,
    args: tuple[Any, ...],
    *,
    shared: int = 0,
) -> None:
    """Launch a kernel on the current device; raise where that is impossible.

    Arrays may be None where the kernel takes none.
    """
    function = _function(source, name)
    # CUDA grants more than the default only to functions that ask for it.
    if shared > DEFAULT_SHARED_BYTES:
        function.max_dynamic_shared_size_bytes = shared
    args = tuple(NULL_POINTER if arg is None else arg for arg in args)
    function(grid, (n_threads, 1, 1), args, shared_mem=shared)


def is_kernel_matrix(X: Any) -> bool:
    """Return whether X is a C-contiguous CuPy matrix of floats on the current device."""
    if not array_api_compat.is_cupy_array(X):
        return False
    import cupy

    kind = X.ndim == 2 and X.size > 0 and X.dtype in (np.float32, np.float64)
    return kind and X.flags.c_contiguous and X.device == cupy.cuda.Device()


def passes_self_test(what: str, test: Callable[[], str]) -> bool:
    """Return whether a kernel passes a test, which returns what is wrong in words.

    A kernel that cannot be compiled or launched, or that is wrong, is not used; a warning says what
    does without it, and why.
    """
    try:
        problem = test()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        warn(f"{what}: {problem}", RuntimeWarning)
    return not problem
