"""Discovery and selection of this machine's GPUs, and the settings of a worker on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from skfleet._device import DEVICE_MEMORY_VARIABLE
from skfleet.exceptions import PlacementError

# Environment of a process that sees no GPU.
NO_GPU_ENV = {"CUDA_VISIBLE_DEVICES": ""}

# Requirements of a worker on a GPU: modules, and their names for users.
_REQUIREMENTS = {"cupy": "CuPy", "dask_cuda": "dask-cuda"}
_INSTALL = "pip install 'scikit-fleet[gpu]' installs what is needed"

# Of the device's memory: what RMM's pool may keep though nothing uses it. Its Python interface does
# not tell how much that is, so it counts as used.
_MAX_IDLE_FRACTION = 0.1

# Importing CuPy for the first time is slow.
_PROBE_TIMEOUT_SECONDS = 120.0
_PROBE_CODE = "import cupy; cupy.zeros(1).get()"
# Values of CUDA_VISIBLE_DEVICES for which this process has seen that CuPy works. What did not work
# is tried again: it may have been installed, or a device may be free by now.
_usable: set[str | None] = set()


class GpuDiscovery(NamedTuple):
    """GPUs that workers can use, as ``CUDA_VISIBLE_DEVICES`` names them, or a problem.

    `is_surprising` is True where the machine seems to have a GPU that cannot be used.
    """

    devices: tuple[str, ...]
    problem: str = ""
    is_surprising: bool = False


def find_gpus() -> GpuDiscovery:
    """Find GPUs with NVML, which does not initialise them, and check that CuPy can use them.

    CuPy is probed in another process: a process that has initialised CUDA cannot be forked.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else [name.strip() for name in visible.split(",")]
    if names is not None and names[0] in ("", "-1"):
        return GpuDiscovery((), f"CUDA_VISIBLE_DEVICES={visible} hides them")
    missing = [package for module, package in _REQUIREMENTS.items() if find_spec(module) is None]
    n_gpus, problem = _count_gpus()
    if not n_gpus:
        return GpuDiscovery((), problem, is_surprising="CuPy" not in missing)
    not_imported = f"{' and '.join(missing)} cannot be imported; {_INSTALL}"
    if problem := not_imported if missing else _probe_cupy():
        return GpuDiscovery((), f"the driver has {n_gpus}, but {problem}", is_surprising=True)
    return GpuDiscovery(tuple(names or map(str, range(n_gpus))))


def _count_gpus() -> tuple[int, str]:
    """Return the number of GPUs of the driver, and the problem where it has none."""
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


def _probe_cupy() -> str:
    """Use a GPU in another process; return the problem in one line, empty if there is none.

    Once in this process: to import CuPy takes seconds.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in _usable:
        return ""
    try:
        run = subprocess.run(
            [sys.executable, "-c", _PROBE_CODE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = str(error)
    else:
        if run.returncode == 0:
            _usable.add(visible)
            return ""
        message = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
    return f"CuPy cannot use them ({message})"


def select_gpus(gpus: int | str | Sequence[int | str]) -> tuple[str, ...]:
    """Return the GPUs of a fleet; "auto" takes all, and prints the problem where there are none.

    A PlacementError is raised where the machine has fewer GPUs, or not these.
    """
    is_invalid = gpus != "auto" if isinstance(gpus, str) else isinstance(gpus, bool)
    if is_invalid or (isinstance(gpus, int) and gpus < 0):
        raise ValueError(
            f'gpus must be "auto", how many GPUs to use, or a list of them. Got {gpus!r} instead. '
            "Use 0 for none."
        )
    if gpus == 0:
        return ()
    discovery = find_gpus()
    available = discovery.devices
    if gpus == "auto":
        if discovery.is_surprising:
            print(
                f"scikit-fleet: no GPU is used: {discovery.problem}. All workers are CPU workers.",
                file=sys.stderr,
            )
        return available
    selected = available[:gpus] if isinstance(gpus, int) else tuple(map(str, gpus))
    n_requested = gpus if isinstance(gpus, int) else len(selected)
    if len(selected) < n_requested or not set(selected) <= set(available) or not selected:
        names = ", ".join(available) or "none that can be used"
        reason = f" ({discovery.problem})" if discovery.problem else ""
        raise PlacementError(
            f"gpus must be GPUs of this machine. Got {gpus!r} instead, while there are: "
            f"{names}{reason}. Leave gpus out to take those that there are."
        )
    return selected


def gpu_worker(
    devices: Sequence[str],
    n: int,
    *,
    memory_limit: int | None,
    device_memory_limit: float | int | str | None,
) -> dict[str, Any]:
    """Return the options of a nanny whose worker uses the n-th GPU.

    As in dask-cuda: the process sees its own GPU first, and the others to copy from; it is bound to
    the cores next to it, spills from device to host to disk, and allocates device memory from RMM's
    asynchronous pool where RMM is installed.
    """
    from dask_cuda.worker_common import worker_data_function, worker_plugins

    index: Any = int(devices[n]) if devices[n].isnumeric() else devices[n]
    visible = ",".join(dict.fromkeys([*devices[n:], *devices[:n]]))
    data = worker_data_function(device_memory_limit=device_memory_limit, memory_limit=memory_limit)
    has_rmm = find_spec("rmm") is not None
    plugins = worker_plugins(
        device_index=index,
        rmm_initial_pool_size=None,
        rmm_maximum_pool_size=None,
        rmm_managed_memory=False,
        rmm_async_alloc=has_rmm,
        rmm_release_threshold=_MAX_IDLE_FRACTION if has_rmm else None,
        rmm_log_directory=None,
        rmm_track_allocations=False,
        rmm_allocator_external_lib_list=["cupy"] if has_rmm else None,
        pre_import="cupy",
        enable_cudf_spill=False,
        cudf_spill_stats=0,
    )
    env = {"CUDA_VISIBLE_DEVICES": visible, "RAPIDS_NO_INITIALIZE": "True"}
    storage = data(index)
    limit = storage[1]["device_memory_limit"] if type(storage) is tuple else None
    if limit and device_memory_limit != "default":
        env[DEVICE_MEMORY_VARIABLE] = str(limit)
    return {
        "env": env,
        "nthreads": 1,
        "resources": {"GPU": 1},
        "data": storage,
        "plugins": tuple(plugins),
        "preload": ["dask_cuda.initialize"],
        "preload_argv": ["--create-cuda-context"],
    }
