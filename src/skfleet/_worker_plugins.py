"""Worker plugins of a fleet. Workers import this module before they are ready, so it is light."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import logging
import signal
import sys
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from dask.utils import key_split
from distributed import Client, Worker, WorkerPlugin
from distributed.core import Status
from tornado.ioloop import PeriodicCallback

logger = logging.getLogger("skfleet")

# Worker events with failed tasks.
TOPIC = "skfleet-failed"
# Interval after which the same error of the same kind of task is logged again.
REPEAT_SECONDS = 5.0

# With Python's default of 5 ms, a worker that runs Python code reacts to the scheduler that late.
_SWITCH_INTERVAL_SECONDS = 0.001

# The other workers start meanwhile, and a fleet may be closed at once.
_PRELOAD_DELAY_SECONDS = 0.3

# Fraction of its memory limit from which a worker returns unused memory of allocators to the
# system: at 0.8 distributed pauses it, and it would wait for ever for the memory to be freed.
RELEASE_FRACTION = 0.7
_RELEASE_INTERVAL_SECONDS = 0.5

# Modules for nearly every task. Each takes a fraction of a second, after which a closing worker can
# stop.
_PRELOADED_MODULES = (
    "pandas", "scipy.sparse", "scipy.linalg", "scipy.optimize", "scipy.stats", "sklearn",
    "sklearn.model_selection", "sklearn.linear_model", "skfleet.engine",
    "skfleet.engine._dask._engine", "skfleet.joblib_backend",
    "skfleet.model_selection._dispatch._fit_tasks", "skfleet.estimators.linear_model",
    "skfleet.metrics", "skfleet.blocks._dask_collections",
)  # fmt: skip

_LOGGERS = ("distributed.worker", "distributed.worker.state_machine")


class FailureReporter(WorkerPlugin):
    """Plugin that sends errors of tasks to the clients, instead of logging them on the worker."""

    name = "skfleet-failure-reporter"

    def setup(self, worker: Worker) -> None:
        self._worker = worker
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self.filter)

    def teardown(self, worker: Worker) -> None:
        if worker.nanny is not None:
            return  # its process ends with it, and a late heartbeat fails after this
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self.filter)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be logged on the worker."""
        message, args = str(record.msg), record.args
        if message.startswith("Compute Failed") and isinstance(args, tuple):
            if args[0] not in self._worker.state.tasks:
                return True  # of another worker in this process
            failed = {"task": key_split(args[0]), "error": str(args[3])}
            self._worker.loop.add_callback(self._worker.log_event, TOPIC, failed)
            return False
        # A task that runs when its worker is closed; its client has given it up.
        is_late = message.startswith("Async instruction for") and "CancelledError" in message
        # A fleet's scheduler goes just before its workers, which may be about to report.
        return not (is_late or message.startswith("Failed to communicate with scheduler during"))


class OwnProcess(WorkerPlugin):
    """Plugin for worker processes that a fleet has started: signals, threads and preloading."""

    name = "skfleet-own-process"
    imports: Future | None = None

    def setup(self, worker: Worker) -> None:
        """Ignore SIGINT, switch threads faster, preload modules and release memory.

        A terminal sends Ctrl-C to every process; workers exit when they lose the fleet's owner.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        logging.getLogger("distributed.worker.memory").addFilter(is_about_results)
        worker.loop.add_callback(self._load_when_ready, worker)
        self._release = PeriodicCallback(
            lambda: release_memory(worker), 1000 * _RELEASE_INTERVAL_SECONDS
        )
        worker.loop.add_callback(self._release.start)

    def teardown(self, worker: Worker) -> None:
        self._release.stop()

    async def _load_when_ready(self, worker: Worker) -> None:
        """Import modules once the worker runs, while the threads for tasks wait.

        In this thread, which unpickles tasks: two threads that import the same packages may each
        see a partially initialized one.
        """
        while worker.status in (Status.init, Status.starting):
            await asyncio.sleep(0.01)
        await asyncio.sleep(_PRELOAD_DELAY_SECONDS)
        if worker.status not in (Status.running, Status.paused):  # by a limit that is too low
            return
        self.imports = Future()
        for _ in range(worker.state.nthreads):
            worker.executors["default"].submit(self.imports.result)
        try:
            await _load_modules(worker)
        finally:
            self.imports.set_result(None)


def is_about_results(record: logging.LogRecord) -> bool:
    """Return whether a record is to be logged on a worker process of a fleet.

    One is not: that a worker has no results to spill. A pass has as much of its memory in use.
    """
    return not str(record.msg).startswith("Unmanaged memory use is high")


def release_memory(worker: Worker) -> None:
    """Return unused memory of allocators to the system, if the worker is near its limit.

    The allocators of Arrow and glibc keep freed memory, which distributed counts as used.
    """
    limit = worker.memory_manager.memory_limit
    if not limit or worker.monitor.get_process_memory() < RELEASE_FRACTION * limit:
        return
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


async def memory_of_imports(dask_worker: Worker) -> int:
    """Return the memory of a worker process of a fleet, once it has imported modules for tasks."""
    plugin = dask_worker.plugins[OwnProcess.name]
    while plugin.imports is None:
        await asyncio.sleep(0.01)
    await asyncio.wrap_future(plugin.imports)
    return dask_worker.monitor.get_process_memory()


async def _load_modules(worker: Worker) -> None:
    """Import the modules for tasks, until the worker closes."""
    for name in _PRELOADED_MODULES:
        if worker.status != Status.running:
            return
        importlib.import_module(name)
        await asyncio.sleep(0)


def log_failures(client: Client) -> None:
    """Log a line for each failure that the workers of a client report; equal ones once."""
    logged: dict[tuple[str, str], float] = {}

    def log(event: tuple[float, dict[str, Any]]) -> None:
        failed = event[1]["task"], event[1]["error"]
        now = time.monotonic()
        if now - logged.get(failed, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            logger.error("task %s failed: %s", *failed)
        # Also where it is not logged: an error that keeps coming is one line.
        logged[failed] = now

    client.subscribe_topic(TOPIC, log)


def stop_log_failures(client: Client) -> None:
    """Unsubscribe from the reports, before a client closes.

    Otherwise the scheduler logs an error for a report to a client that has just closed.
    """
    if client.status == "running":
        with suppress(ValueError):  # there is no such subscription
            client.unsubscribe_topic(TOPIC)
