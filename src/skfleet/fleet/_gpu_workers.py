"""The GPUs of this machine: which of them workers can use, and what a worker on one is made of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from skfleet._device import DEVICE_MEMORY_VARIABLE
from skfleet.exceptions import PlacementError

__all__ = ["NO_GPU_ENV", "GpuDiscovery", "find_gpus", "gpu_worker", "select_gpus"]

# What a process must find in its environment to see no GPU.
NO_GPU_ENV = {"CUDA_VISIBLE_DEVICES": ""}

# What a worker on a GPU needs, by the names of modules and of packages.
_NEEDED = {"cupy": "CuPy", "dask_cuda": "dask-cuda"}
_INSTALL = "pip install 'scikit-fleet[gpu]' installs what is needed"

# Seconds that CuPy may take to be imported and to find its device.
_PATIENCE = 120.0
_TRIAL = "import cupy; cupy.zeros(1).get()"


class GpuDiscovery(NamedTuple):
    """GPUs that workers can use, as ``CUDA_VISIBLE_DEVICES`` names them, or why there are none.

    `is_surprising` tells that something on this machine points to a GPU.
    """

    devices: tuple[str, ...]
    problem: str = ""
    is_surprising: bool = False


def find_gpus() -> GpuDiscovery:
    """Look for GPUs with NVML, which leaves them untouched, and whether CuPy can use them.

    CuPy is tried in another process: a process that has seen a GPU cannot be forked any more.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = None if visible is None else [name.strip() for name in visible.split(",")]
    if named is not None and named[0] in ("", "-1"):
        return GpuDiscovery((), f"CUDA_VISIBLE_DEVICES={visible} hides them")
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    n_gpus, problem = _ask_driver()
    if not n_gpus:
        return GpuDiscovery((), problem, is_surprising="CuPy" not in missing)
    if missing:
        problem = f"{' and '.join(missing)} cannot be imported; {_INSTALL}"
    else:
        problem = _try_cupy()
    if problem:
        return GpuDiscovery((), f"the driver has {n_gpus}, but {problem}", is_surprising=True)
    return GpuDiscovery(tuple(named or map(str, range(n_gpus))))


def _ask_driver() -> tuple[int, str]:
    """Return how many GPUs the driver has, and what is wrong where it has none."""
    try:
        import pynvml
    except ImportError:
        return 0, f"nvidia-ml-py cannot be imported, which tells of GPUs; {_INSTALL}"
    try:
        pynvml.nvmlInit()
        try:
            n_gpus = int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return 0, f"no NVIDIA driver answers ({error})"
    return n_gpus, "" if n_gpus else "the NVIDIA driver has no GPU"


def _try_cupy() -> str:
    """Use a GPU in another process; return what went wrong, in a line."""
    try:
        run = subprocess.run(
            [sys.executable, "-c", _TRIAL], capture_output=True, text=True, timeout=_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        told = str(error)
    else:
        if run.returncode == 0:
            return ""
        told = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
    return f"CuPy cannot use them ({told})"


def select_gpus(gpus: int | str | Sequence[int | str]) -> tuple[str, ...]:
    """Return the GPUs that a fleet is to have: "auto" takes all, and says why where it has none.

    Raises
    ------
    PlacementError
        When there are not as many as were asked for, or not these.
    """
    if isinstance(gpus, str) and gpus != "auto":
        raise _not_gpus(gpus)
    if isinstance(gpus, int) and (isinstance(gpus, bool) or gpus < 0):
        raise _not_gpus(gpus)
    if gpus == 0:
        return ()
    found = find_gpus()
    if gpus == "auto":
        if found.is_surprising:
            print(
                f"scikit-fleet: no GPU is used: {found.problem}. All workers are CPU workers.",
                file=sys.stderr,
            )
        return found.devices
    wanted = found.devices[:gpus] if isinstance(gpus, int) else tuple(map(str, gpus))
    n_wanted = gpus if isinstance(gpus, int) else len(wanted)
    if len(wanted) < n_wanted or not set(wanted) <= set(found.devices) or not wanted:
        there = ", ".join(found.devices) or "none that can be used"
        why = f" ({found.problem})" if found.problem else ""
        raise PlacementError(
            f"gpus must be GPUs of this machine. Got {gpus!r} instead, while there are: "
            f"{there}{why}. Leave gpus out to take those that there are."
        )
    return wanted


def _not_gpus(gpus: object) -> ValueError:
    """Make the error for what says nothing of GPUs."""
    return ValueError(
        f'gpus must be "auto", how many GPUs to use, or a list of them. Got {gpus!r} instead. '
        "Use 0 for none."
    )


def gpu_worker(
    devices: Sequence[str],
    n: int,
    *,
    memory_limit: int | None,
    device_memory_limit: float | int | str | None,
) -> dict[str, Any]:
    """Return what makes a worker process that of the n-th GPU, as the options of a nanny.

    As dask-cuda does it: the process sees its GPU first, for it may copy from the others, stays on
    the cores next to it, moves what does not fit from device to host to disk, and takes device
    memory from RMM's asynchronous pool where RMM is installed.
    """
    from dask_cuda.worker_common import worker_data_function, worker_plugins

    index: Any = int(devices[n]) if devices[n].isnumeric() else devices[n]
    visible = ",".join([*devices[n:], *devices[:n]])
    data = worker_data_function(device_memory_limit=device_memory_limit, memory_limit=memory_limit)
    has_rmm = find_spec("rmm") is not None
    plugins = worker_plugins(
        device_index=index,
        rmm_initial_pool_size=None,
        rmm_maximum_pool_size=None,
        rmm_managed_memory=False,
        rmm_async_alloc=has_rmm,
        rmm_release_threshold=None,
        rmm_log_directory=None,
        rmm_track_allocations=False,
        rmm_allocator_external_lib_list=["cupy"] if has_rmm else None,
        pre_import="cupy",
        enable_cudf_spill=False,
        cudf_spill_stats=0,
    )
    env = {"CUDA_VISIBLE_DEVICES": visible, "RAPIDS_NO_INITIALIZE": "True"}
    held = data(index)
    limit = held[1]["device_memory_limit"] if type(held) is tuple else None
    if limit and device_memory_limit != "default":
        env[DEVICE_MEMORY_VARIABLE] = str(limit)
    return {
        "env": env,
        "nthreads": 1,
        "resources": {"GPU": 1},
        "data": held,
        "plugins": tuple(plugins),
        "preload": ["dask_cuda.initialize"],
        "preload_argv": ["--create-cuda-context"],
    }
