"""Local cluster: threads, memory, resources and environment of its worker processes."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask.config
from dask.system import CPU_COUNT
from dask.utils import key_split
from distributed import Nanny, Scheduler, SchedulerPlugin, Security, SpecCluster
from distributed.core import Status
from distributed.deploy import Cluster
from distributed.system import MEMORY_LIMIT
from distributed.utils import format_dashboard_link
from distributed.worker_memory import parse_memory_limit

from skfleet._cluster import MEMORY_TOPIC
from skfleet._distributed_private import run_until_closed
from skfleet._optional_dependencies import missing_extra
from skfleet._private_files import scratch_directory
from skfleet._warnings import warn
from skfleet._worker_plugins import TOPIC, FailureReporter, OwnProcess
from skfleet.engine import CORES_VARIABLE
from skfleet.exceptions import FleetError, MissingMainGuardError
from skfleet.fleet._adaptive import GPU_NAME
from skfleet.fleet._credentials import local_security
from skfleet.fleet._gpu_workers import NO_GPU_ENV, gpu_worker, select_gpus
from skfleet.fleet._http_server import FleetScheduler, FleetWorker, with_token
from skfleet.fleet._log_filters import QuietShuffles
from skfleet.fleet._worker_memory import (
    allocator_variables,
    check_memory_limit,
    divide_memory,
    memory_fractions,
)

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS", "PYTHON_CPU_COUNT",  # os.cpu_count, from Python 3.13 on
    CORES_VARIABLE,
)  # fmt: skip

_SPAWN_POLL_SECONDS = 0.002

# Environment variable with the path of a file that a worker process creates where the script lacks
# its main guard.
_MARK_VARIABLE = "SKFLEET_MISSING_GUARD_MARK"


class _WorkerDeaths(SchedulerPlugin):
    """Reports the first death of a worker with a task; fails a task after two for their memory.

    distributed waits for four deaths, as if the next worker might be a larger one, and each new
    worker takes seconds to start.
    """

    name = "skfleet-worker-deaths"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def log_event(self, topic: str, msg: Any) -> None:
        """Take notice of the events of deaths."""
        if topic == MEMORY_TOPIC:
            self._count_memory_death(msg.get("worker"))
        is_death = topic == "all" and msg.get("action") == "remove-worker" and not msg["expected"]
        if is_death and self._scheduler.status == Status.running:
            self._report(msg["processing-tasks"])

    def _count_memory_death(self, worker: str) -> None:
        """Count all but the last allowed death of a worker against the tasks that it processes."""
        if worker not in self._scheduler.workers:
            return
        for task in self._scheduler.workers[worker].processing:
            task.suspicious = max(task.suspicious, self._scheduler.allowed_failures - 1)

    def _report(self, keys: Collection[Any]) -> None:
        """Report the tasks of a worker that has ended, to be logged by the clients."""
        tasks = (self._scheduler.tasks.get(key) for key in keys)
        names = {key_split(task.key) for task in tasks if task and task.suspicious == 1}
        n_deaths = self._scheduler.allowed_failures + 1
        for name in sorted(names):
            text = f"its worker has ended. It runs again, unless that has happened {n_deaths} times"
            self._scheduler.log_event(TOPIC, {"task": name, "error": text})


class _LocalCluster(SpecCluster):
    """A cluster on this machine with a link to its dashboard and with persistent nannies."""

    def _update_worker_status(self, op: str, msg: Any) -> None:
        """Update the state of a worker; one that died is left to its nanny to restart.

        SpecCluster closes the nanny if it has no worker at a fixed time after a death (15 s): one
        that takes longer to start, or has died a second time.
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

        run_until_closed(self, forget_when_closed())

    @property
    def shown_dashboard(self) -> str | None:
        """Address of the dashboard, or None where there is none."""
        options = self.scheduler_spec["options"]
        if not options["dashboard"]:
            return None
        # SpecCluster.dashboard_link has the scheduler's host, where in-process ones do not listen.
        host = options["dashboard_address"].rpartition(":")[0]
        return format_dashboard_link(host, self.scheduler_info["services"]["dashboard"])

    @property
    def dashboard_link_with_token(self) -> str | None:
        """Link that opens the dashboard in a browser, or None where there is none."""
        link, token = self.shown_dashboard, self.scheduler_spec["options"]["dashboard_token"]
        return None if link is None else with_token(link, token)


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
        # Refused before anything starts: every worker process imports the script.
        _check_can_spawn()
        _check_script_is_readable()
    elif env:
        raise ValueError(
            f"env must not be given with processes=False. Got {dict(env)!r} instead. "
            "Set os.environ: the workers are threads of this process."
        )
    per_worker = None if resources is None or isinstance(resources, Mapping) else list(resources)
    security = local_security(security, protocol, processes=processes)
    protocol = _resolve_protocol(protocol, security, processes)
    # GPUs first: CPU workers fill the cores that those leave.
    devices = _resolve_gpus(gpus, cpus, n_workers, resources, processes)
    n_workers = n_workers if cpus is None else cpus
    n_workers, threads = _resolve_worker_counts(
        n_workers, threads_per_worker, processes, per_worker, len(devices)
    )
    # "auto" divides this machine's memory between workers of both kinds.
    gpu_memory_limit = memory_limit
    if memory_limit == "auto":
        memory_limit, gpu_memory_limit = divide_memory(MEMORY_LIMIT, n_workers, len(devices))
        if not processes:  # each measures the whole process, and pauses at its own limit
            memory_limit = MEMORY_LIMIT
    if processes:
        check_memory_limit(memory_limit if n_workers else gpu_memory_limit)
    # Options of the scheduler and of every worker.
    host = {} if protocol == "inproc://" else {"host": _LOOPBACK}
    scratch = scratch_directory(dask.config.get("temporary-directory"))
    common: dict[str, Any] = {
        **host,
        "protocol": protocol,
        "security": security,
        "local_directory": scratch,
    }
    has_dashboard = dashboard_address is not None and find_spec("bokeh") is not None
    if dashboard_address is not None and not has_dashboard:
        warn(missing_extra("dashboard_address", "bokeh", "ui"))
    # A bare port would listen on all interfaces.
    if has_dashboard and ":" not in str(dashboard_address).strip(":"):
        dashboard_address = f"{_LOOPBACK}:{str(dashboard_address).strip(':')}"
    scheduler = {
        **common,
        "port": 0,
        "dashboard": has_dashboard,
        "dashboard_address": dashboard_address,
        "dashboard_token": secrets.token_urlsafe() if has_dashboard else None,
    }
    # Options of a CPU worker; those of a GPU worker are written over them below.
    worker = {
        **common,
        "dashboard": False,
        "nthreads": threads,
        "memory_limit": memory_limit,
        "resources": dict(resources) if isinstance(resources, Mapping) else {"CPU": threads},
        "silence_logs": logging.WARN,
    }
    # CPU workers see no GPU, unless the user says by `resources` alone what they are.
    gpu_env = NO_GPU_ENV if processes and (devices or (gpus == 0 and resources is None)) else {}
    if processes:
        worker["env"] = _environment(threads, memory_limit, {**gpu_env, **(env or {})})
        worker["worker_class"] = FleetWorker
        worker["plugins"] = (FailureReporter(), OwnProcess())
        worker["config"] = memory_fractions()

    def spec(**options: Any) -> dict[str, Any]:
        if not processes:
            options["plugins"] = (FailureReporter(),)  # one for each worker in this process
        return {"cls": _FleetNanny if processes else FleetWorker, "options": {**worker, **options}}

    # A worker that imports a script without a main guard leaves a mark in a folder, by which this
    # process knows the reason. The folder is gone when further workers are added, so only the first
    # ones are told of it.
    with _report_missing_main_guard(processes) as mark:
        initial = {"env": {**worker["env"], **mark}} if processes else {}
        labels = [worker["resources"]] * n_workers if per_worker is None else map(dict, per_worker)
        workers: dict[Any, Any] = {}
        for n, device in enumerate(devices):
            options = gpu_worker(
                devices,
                n,
                memory_limit=parse_memory_limit(gpu_memory_limit, 1, 1, logger=logger),
                device_memory_limit=device_memory_limit,
            )
            options["env"] = {
                **_environment(1, gpu_memory_limit, env or {}),
                **options["env"],
                **mark,
            }
            options["plugins"] = (*worker["plugins"], *options["plugins"])
            options["memory_limit"] = gpu_memory_limit
            # a GPU that is named twice has two workers
            again = f"-{n}" if device in devices[:n] else ""
            workers[f"{GPU_NAME}{device}{again}"] = spec(**options)
        # scaling down closes the last workers first
        workers |= {i: spec(resources=label, **initial) for i, label in enumerate(labels)}
        cluster = _LocalCluster(
            scheduler={"cls": FleetScheduler, "options": scheduler},
            workers=workers,
            worker=spec(),
            security=security,
            silence_logs=logging.WARN,
            name="fleet",
        )
        # Plugins of the scheduler, before a client can submit anything.
        running: Any = cluster.scheduler
        running.add_plugin(_WorkerDeaths(running))
        running.add_plugin(QuietShuffles())
        return cluster


def _resolve_gpus(
    gpus: int | str | Sequence[int | str],
    cpus: int | None,
    n_workers: int | None,
    resources: Any,
    processes: bool,
) -> tuple[str, ...]:
    """Return the GPUs that get a worker each; none where other parameters define the workers."""
    definitions = {
        "n_workers": n_workers is not None,
        "resources": resources is not None,
        "processes=False": not processes,
    }
    name = next((name for name, is_set in definitions.items() if is_set), None)
    if name and cpus is None and gpus in ("auto", 0):
        return ()
    if name:
        raise ValueError(
            f"gpus and cpus must say alone which workers there are. Got {name} with them "
            f"instead. Leave {name} out: each GPU gets a worker process, and cpus are others."
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


def _resolve_protocol(protocol: str | None, security: Security, processes: bool) -> str:
    """Return the prefix of the addresses of scheduler and workers."""
    if protocol not in (None, "tcp", "tls", "ucx"):
        raise ValueError(
            f"protocol must be 'tcp', 'tls' or 'ucx'. Got {protocol!r} instead. "
            "Leave it out for 'tls'."
        )
    is_tls = security.require_encryption
    if protocol is not None and (not processes or is_tls != (protocol == "tls")):
        raise ValueError(
            f"protocol must fit processes and security. Got {protocol!r} instead. "
            "Leave security out, and protocol too with processes=False."
        )
    if protocol == "ucx" and find_spec("distributed_ucxx") is None:
        raise ValueError(
            "protocol must be one that is installed. Got 'ucx' without distributed-ucxx instead. "
            "pip install distributed-ucxx-cu13, or leave protocol out."
        )
    if is_tls:
        return "tls://"
    return f"{protocol or 'tcp'}://" if processes else "inproc://"


def _resolve_worker_counts(
    n_workers: int | None,
    threads: int | None,
    processes: bool,
    per_worker: list[Mapping[str, float]] | None,
    n_gpus: int = 0,
) -> tuple[int, int]:
    """Return the number of workers and of their threads; by default they fill the cores."""
    for name, value in {"n_workers": n_workers, "threads_per_worker": threads}.items():
        minimum = 0 if n_gpus and name == "n_workers" else 1
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (is_whole and value >= minimum):
            raise ValueError(
                f"{name} must be a positive whole number. Got {value!r} instead. "
                "Leave it out to fill the cores."
            )
    if per_worker is not None:
        n_mappings = len(per_worker)
        if n_workers not in (None, n_mappings) or not n_mappings:
            raise ValueError(
                f"resources must have one mapping for each of {n_workers or 'the'} workers. "
                f"Got {n_mappings} instead. Leave n_workers out, or give one mapping for all."
            )
        n_workers = n_mappings
    n_cores = max(1, CPU_COUNT - n_gpus)  # a GPU worker keeps one busy
    if n_workers is None:
        if threads is None:
            threads = 1 if processes else n_cores
        n_workers = max(1, n_cores // threads) if processes else 1
    return n_workers, threads or max(1, n_cores // max(1, n_workers))


def _environment(
    threads: int, memory_limit: int | float | str | None, env: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that a worker needs before it imports NumPy and SciPy."""
    return {
        **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
        **allocator_variables(memory_limit, threads),
        "SCIPY_ARRAY_API": "1",
        **{name: str(value) for name, value in env.items()},
    }


class _FleetNanny(Nanny):
    """A nanny that sets all variables of the worker's environment when it spawns the process.

    distributed sets variables that must be set that early in *this* process, and leaves them there,
    where the program's other children and other workers would inherit them.
    """

    _lock = threading.Lock()

    def __init__(self, address: str, *, env: dict[str, str], **options: Any) -> None:
        super().__init__(address, env=env, **options)
        # This process may change it meanwhile, so it is not restored; the worker sets it itself.
        early = {name: value for name, value in env.items() if name != CORES_VARIABLE}
        self.pre_spawn_env = {**self.pre_spawn_env, **early}

    async def instantiate(self) -> Any:
        """Start the worker process; this runs again whenever the worker has died."""
        while not self._lock.acquire(blocking=False):
            await asyncio.sleep(_SPAWN_POLL_SECONDS)
        before = {name: os.environ.get(name) for name in self.pre_spawn_env}
        starting = asyncio.ensure_future(super().instantiate())
        try:
            while not (self.is_alive() or starting.done()):
                await asyncio.sleep(_SPAWN_POLL_SECONDS)
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
        """Stop the worker process; kill it where that takes long.

        distributed does so with a warning, which has no meaning for the user: a task was running,
        or the machine is busy.
        """
        stopping = asyncio.ensure_future(super().kill(timeout=12 * timeout, reason=reason))
        while not stopping.done():
            await asyncio.wait({stopping}, timeout=0.8 * timeout)
            child = self.process
            if child is not None and child.status == Status.stopping and child.process is not None:
                with suppress(ValueError):  # it has ended meanwhile
                    await child.process.kill()
        await stopping


def _check_script_is_readable() -> None:
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
    # multiprocessing itself uses this attribute of a child that still imports the script.
    if getattr(process, "_inheriting", False):
        mark = os.environ.get(_MARK_VARIABLE)
        if mark is None:
            raise _missing_guard()
        with suppress(OSError):
            Path(mark).touch()
        raise SystemExit(1)  # quietly: the parent process reports the reason
    if process.daemon:
        raise FleetError(
            "Fleet() must be called in a process that may start others. Got a worker process "
            "instead. Use Fleet(processes=False) inside a task."
        )


@contextmanager
def _report_missing_main_guard(processes: bool) -> Iterator[dict[str, str]]:
    """Raise MissingMainGuardError where workers fail since the script has no main guard."""
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
    """Return the error for a script without a main guard."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or "the script"
    return MissingMainGuardError(
        'Fleet() must be called under `if __name__ == "__main__":` in a script. Got a call that '
        f"runs when {script} is imported instead, and every worker process imports it. Put the "
        "script's work under that line."
    )
