"""What a local cluster is made of: its workers' threads, memory, labels and environment."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask.config
from dask.system import CPU_COUNT
from distributed import (
    Nanny,
    Scheduler,
    SchedulerPlugin,
    Security,
    SpecCluster,
    Worker,
)
from distributed.core import Status
from distributed.deploy import Adaptive, Cluster
from distributed.system import MEMORY_LIMIT
from distributed.utils import format_dashboard_link
from distributed.worker_memory import parse_memory_limit

from skfleet._optional_dependencies import missing_extra
from skfleet._warnings import warn
from skfleet._worker_plugins import FailureReporter, OwnProcess
from skfleet.engine import CORES_VARIABLE, MEMORY_TOPIC
from skfleet.exceptions import FleetError, MissingMainGuardError
from skfleet.fleet._gpu_workers import NO_GPU_ENV, gpu_worker, select_gpus

__all__ = ["DASHBOARD", "CpuOnlyAdaptive", "start_local_cluster"]

# Where a dashboard listens that nobody asked for; it is absent without Bokeh.
DASHBOARD = "127.0.0.1:0"

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_GPU_NAME = "gpu-"
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "PYTHON_CPU_COUNT",  # os.cpu_count, from Python 3.13 on
    CORES_VARIABLE,
)
# From so many bytes on glibc hands memory back to the system at once. distributed trims at 64 kB,
# so that every array that a kernel makes in passing is paged in anew.
_MALLOC_VARIABLES = {
    "MALLOC_MMAP_THRESHOLD_": str(16 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(32 * 2**20),
}

# Seconds between two looks at whether a worker process is there.
_SPAWN_POLL = 0.002

# Names the file by which a worker process tells that the script lacks its guard.
_MARK_VARIABLE = "SKFLEET_MISSING_GUARD_MARK"


class CpuOnlyAdaptive(Adaptive):
    """Adaptive scaling that keeps workers on GPUs, which it could not start again."""

    async def workers_to_close(self, target: int) -> list[str]:
        """Return the names of workers that may go."""
        names = await super().workers_to_close(target)
        return [name for name in names if not str(name).startswith(_GPU_NAME)]


class _MemoryDeaths(SchedulerPlugin):
    """Gives a task up that has twice been on a worker which was ended for its memory.

    distributed takes four deaths to do so, as if the next worker might be a larger one.
    """

    name = "skfleet-memory-deaths"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def log_event(self, topic: str, msg: Any) -> None:
        """Count what a worker has been given as if it had seen all deaths but the last two."""
        if topic != MEMORY_TOPIC or msg.get("worker") not in self._scheduler.workers:
            return
        for task in self._scheduler.workers[msg["worker"]].processing:
            task.suspicious = max(task.suspicious, self._scheduler.allowed_failures - 1)


class _QuietShuffles(SchedulerPlugin):
    """Leaves out what distributed warns of at the begin and end of every healthy shuffle."""

    name = "skfleet-quiet-shuffles"
    _logger = logging.getLogger("distributed.shuffle._scheduler_plugin")

    def __init__(self) -> None:
        self._logger.addFilter(self.filter)

    async def close(self) -> None:
        """Leave the logger to others."""
        self._logger.removeFilter(self.filter)

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is of something else."""
        return not str(record.msg).startswith(("Shuffle %s initialized", "Shuffle %s deactivated"))


class _LocalCluster(SpecCluster):
    """A cluster on this machine whose dashboard can be shown, and whose nannies stay at work."""

    def _update_worker_status(self, op: str, msg: Any) -> None:
        """Note that a worker came or went; one that died is its nanny's to start again.

        SpecCluster closes the nanny if a fixed time after a death (15 s) it has no worker just
        then: one that takes longer to start, or has died a second time.
        """
        name = self.scheduler_info["workers"][msg]["name"] if op == "remove" else None
        nanny = self.workers.get(name)
        if not isinstance(nanny, Nanny):
            super()._update_worker_status(op, msg)
            return
        Cluster._update_worker_status(self, op, msg)

        async def forget_when_closed() -> None:
            await nanny.finished()
            if self.workers.get(name) is nanny:
                del self.workers[name]

        self._futures.add(asyncio.ensure_future(forget_when_closed()))

    @property
    def shown_dashboard(self) -> str | None:
        """Address of the dashboard, or None where it was not asked for or Bokeh is absent."""
        options = self.scheduler_spec["options"]
        if not options["dashboard"]:
            return None
        # SpecCluster.dashboard_link has the scheduler's host, where in-process ones do not listen.
        host = options["dashboard_address"].rpartition(":")[0]
        return format_dashboard_link(host, self.scheduler_info["services"]["dashboard"])


def start_local_cluster(
    *,
    n_workers: int | None = None,
    threads_per_worker: int | None = None,
    processes: bool = True,
    memory_limit: int | float | str | None = "auto",
    resources: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
    gpus: int | str | Sequence[int | str] = 0,
    cpus: int | None = None,
    device_memory_limit: float | int | str | None = "default",
    protocol: str | None = None,
    env: Mapping[str, str] | None = None,
    dashboard_address: str | None = None,
    security: Security | bool | None = None,
) -> _LocalCluster:
    """Start a scheduler and workers on the loopback interface; see `Fleet` for the parameters."""
    if processes:
        _check_can_spawn()
        _refuse_unreadable_script()
    elif env:
        raise ValueError(
            f"env must not be given with processes=False. Got {dict(env)!r} instead. "
            "Set os.environ: the workers are threads of this process."
        )
    each = None if resources is None or isinstance(resources, Mapping) else list(resources)
    if isinstance(security, bool) or security is None:
        security = Security.temporary() if security else Security()
    protocol = _protocol(protocol, security, processes)
    devices = _devices(gpus, cpus, n_workers, resources, processes)
    n_workers, threads = _sizes(
        n_workers if cpus is None else cpus, threads_per_worker, processes, each, len(devices)
    )
    if memory_limit == "auto":
        # Workers on threads each measure the whole process, and stop at their own limit.
        memory_limit = MEMORY_LIMIT // (n_workers + len(devices)) if processes else MEMORY_LIMIT
    host = {} if protocol == "inproc://" else {"host": _LOOPBACK}
    common: dict[str, Any] = {**host, "protocol": protocol, "security": security}
    # The HTTP server starts in any case; unless told where, it listens beyond the loopback.
    quiet = {"dashboard": False, "dashboard_address": f"{_LOOPBACK}:0"}
    has_dashboard = dashboard_address is not None and find_spec("bokeh") is not None
    if dashboard_address not in (None, DASHBOARD) and not has_dashboard:
        warn(missing_extra("dashboard_address", "bokeh", "ui"))
    if has_dashboard and ":" not in str(dashboard_address).strip(":"):
        dashboard_address = f"{_LOOPBACK}:{str(dashboard_address).strip(':')}"
    shown = {"dashboard": True, "dashboard_address": dashboard_address}
    scheduler = {**common, "port": 0, **(shown if has_dashboard else quiet)}
    worker = {
        **common,
        **quiet,
        "nthreads": threads,
        "memory_limit": memory_limit,
        "resources": dict(resources) if isinstance(resources, Mapping) else {"CPU": threads},
        "silence_logs": logging.WARN,
    }
    hidden = NO_GPU_ENV if processes and (devices or (gpus == 0 and resources is None)) else {}
    if processes:
        worker["env"] = _environment(threads, {**hidden, **(env or {})})
        worker["plugins"] = (FailureReporter(), OwnProcess())

    def spec(**options: Any) -> dict[str, Any]:
        """One worker, as SpecCluster takes it."""
        if not processes:
            options["plugins"] = (FailureReporter(),)  # of which each worker here has its own
        return {"cls": _FleetNanny if processes else Worker, "options": {**worker, **options}}

    with _report_missing_main_guard(processes) as mark:
        first = {"env": {**worker["env"], **mark}} if processes else {}
        labels = [worker["resources"]] * n_workers if each is None else map(dict, each)
        workers: dict[Any, Any] = {}
        for n, device in enumerate(devices):
            own = gpu_worker(
                devices,
                n,
                memory_limit=parse_memory_limit(memory_limit, 1, 1, logger=logger),
                device_memory_limit=device_memory_limit,
            )
            own["env"] = {**_environment(1, env or {}), **own["env"], **mark}
            own["plugins"] = (*worker["plugins"], *own["plugins"])
            workers[f"{_GPU_NAME}{device}"] = spec(**own)
        # what scaling takes away first comes last
        workers |= {i: spec(resources=label, **first) for i, label in enumerate(labels)}
        cluster = _LocalCluster(
            scheduler={"cls": Scheduler, "options": scheduler},
            workers=workers,
            worker=spec(),
            security=security,
            silence_logs=logging.WARN,
            name="fleet",
        )
        started: Any = cluster.scheduler
        started.add_plugin(_MemoryDeaths(started))
        started.add_plugin(_QuietShuffles())
        return cluster


def _devices(
    gpus: int | str | Sequence[int | str],
    cpus: int | None,
    n_workers: int | None,
    resources: Any,
    processes: bool,
) -> tuple[str, ...]:
    """Return the GPUs that get a worker each; none are looked for where all workers are told."""
    ways = {
        "n_workers": n_workers is not None,
        "resources": resources is not None,
        "processes=False": not processes,
    }
    told = [name for name, is_told in ways.items() if is_told]
    if told and cpus is None and gpus in ("auto", 0):
        return ()
    if told:
        raise ValueError(
            f"gpus and cpus must say alone which workers there are. Got {told[0]} with them "
            f"instead. Leave {told[0]} out: each GPU gets a worker process, and cpus are others."
        )
    if cpus is not None and (not isinstance(cpus, int) or isinstance(cpus, bool) or cpus < 0):
        raise ValueError(
            f"cpus must be a whole number of CPU workers. Got {cpus!r} instead. "
            "Leave it out to fill the cores."
        )
    devices = select_gpus(gpus)
    if cpus == 0 and not devices:
        raise ValueError(
            "cpus must be at least 1 in a fleet without a GPU. Got 0 instead. Leave it out to fill "
            "the cores."
        )
    return devices


def _protocol(wanted: str | None, security: Security, processes: bool) -> str:
    """Return how scheduler and workers talk to one another."""
    if wanted not in (None, "tcp", "tls", "ucx"):
        raise ValueError(
            f"protocol must be 'tcp', 'tls' or 'ucx'. Got {wanted!r} instead. "
            "Leave it out for 'tcp'."
        )
    if wanted is not None and (not processes or security.require_encryption != (wanted == "tls")):
        raise ValueError(
            f"protocol must fit processes and security. Got {wanted!r} instead. "
            "Give security=True for 'tls' alone, and leave protocol out with processes=False."
        )
    if wanted == "ucx" and find_spec("distributed_ucxx") is None:
        raise ValueError(
            "protocol must be one that is installed. Got 'ucx' without distributed-ucxx instead. "
            "pip install distributed-ucxx-cu13, or leave protocol out."
        )
    if security.require_encryption:
        return "tls://"
    return f"{wanted or 'tcp'}://" if processes else "inproc://"


def _sizes(
    n_workers: int | None,
    threads: int | None,
    processes: bool,
    each: list[Mapping[str, float]] | None,
    n_gpus: int = 0,
) -> tuple[int, int]:
    """Complete the number of workers and of their threads, so that they fill the cores."""
    for name, value in {"n_workers": n_workers, "threads_per_worker": threads}.items():
        fewest = 0 if n_gpus and name == "n_workers" else 1
        if value is not None and (not isinstance(value, int) or value < fewest):
            raise ValueError(
                f"{name} must be a positive whole number. Got {value!r} instead. "
                "Leave it out to fill the cores."
            )
    if each is not None:
        if n_workers not in (None, len(each)) or not each:
            raise ValueError(
                f"resources must have one mapping for each of {n_workers or 'the'} workers. "
                f"Got {len(each)} instead. Leave n_workers out, or give one mapping for all."
            )
        n_workers = len(each)
    n_cores = max(1, CPU_COUNT - n_gpus)  # a worker on a GPU keeps one busy
    if n_workers is None:
        if threads is None:
            threads = 1 if processes else n_cores
        n_workers = max(1, n_cores // threads) if processes else 1
    return n_workers, threads or max(1, n_cores // max(1, n_workers))


def _environment(threads: int, more: Mapping[str, str]) -> dict[str, str]:
    """What must be in a worker's environment before it imports NumPy and SciPy."""
    return {
        **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
        **_MALLOC_VARIABLES,
        "SCIPY_ARRAY_API": "1",
        **{name: str(value) for name, value in more.items()},
    }


class _FleetNanny(Nanny):
    """A nanny whose worker's environment is complete from the start, and stays the worker's.

    distributed sets the variables that a process must find at its start in *this* process, and
    leaves them there, where they would reach the program's other children, and other workers.
    """

    _lock = threading.Lock()

    def __init__(self, address: str, *, env: dict[str, str], **options: Any) -> None:
        super().__init__(address, env=env, **options)
        # What may change here meanwhile must not be put back: the worker sets it as it starts.
        early = {name: value for name, value in env.items() if name != CORES_VARIABLE}
        self.pre_spawn_env = {**self.pre_spawn_env, **early}

    async def instantiate(self) -> Any:
        """Start the worker process; this runs again whenever the worker has died."""
        while not self._lock.acquire(blocking=False):
            await asyncio.sleep(_SPAWN_POLL)
        before = {name: os.environ.get(name) for name in self.pre_spawn_env}
        starting = asyncio.ensure_future(super().instantiate())
        try:
            while not (self.is_alive() or starting.done()):
                await asyncio.sleep(_SPAWN_POLL)
        except asyncio.CancelledError:
            starting.cancel()
            raise
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            self._lock.release()
        return await starting

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        """Stop the worker process; one that takes long to end is ended, as it is needed no more.

        distributed does so with a warning, which says nothing to the owner of a fleet: a task was
        running, or the machine is busy.
        """
        stopping = asyncio.ensure_future(super().kill(timeout=12 * timeout, reason=reason))
        while not stopping.done():
            await asyncio.wait({stopping}, timeout=0.8 * timeout)
            child = self.process
            if child is not None and child.status == Status.stopping and child.process is not None:
                with suppress(ValueError):  # it has ended meanwhile
                    await child.process.kill()
        await stopping


def _refuse_unreadable_script() -> None:
    """Raise for a script from standard input, which worker processes cannot import."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None or getattr(main, "__spec__", None) is not None or Path(path).exists():
        return
    if dask.config.get("distributed.worker.multiprocessing-method") == "spawn":
        raise FleetError(
            f"script must be a file that worker processes can import. Got {path} instead. "
            "Save the script, or use Fleet(processes=False)."
        )


def _check_can_spawn() -> None:
    """Raise in a process that cannot, or must not, start worker processes."""
    process = multiprocessing.current_process()
    # The attribute by which multiprocessing itself knows a child that still imports the script.
    if getattr(process, "_inheriting", False):
        mark = os.environ.get(_MARK_VARIABLE)
        if mark is None:
            raise _missing_guard()
        with suppress(OSError):
            Path(mark).touch()
        raise SystemExit(1)  # quietly: the process that started this one says why
    if process.daemon:
        raise FleetError(
            "Fleet() must be called in a process that may start others. Got a worker process "
            "instead. Use Fleet(processes=False) inside a task."
        )


@contextmanager
def _report_missing_main_guard(processes: bool) -> Iterator[dict[str, str]]:
    """Turn the failure of workers that met an unguarded script into one line that says so."""
    if not processes:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="skfleet-") as folder:
        mark = Path(folder, "missing-guard")
        try:
            yield {_MARK_VARIABLE: str(mark)}
        except Exception:
            if mark.exists():
                raise _missing_guard() from None
            raise


def _missing_guard() -> MissingMainGuardError:
    """Make the error for a script without its guard."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or "the script"
    return MissingMainGuardError(
        'Fleet() must be called under `if __name__ == "__main__":` in a script. Got a call that '
        f"runs when {script} is imported instead, and every worker process imports it. Put the "
        "script's work under that line."
    )
