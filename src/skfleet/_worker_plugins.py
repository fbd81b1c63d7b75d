"""What a fleet adds to its workers. They import this file before they are ready: it is light."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import logging
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from dask.utils import key_split
from distributed import Client, Worker, WorkerPlugin
from distributed.core import Status
from tornado.ioloop import PeriodicCallback

__all__ = ["FailureReporter", "OwnProcess", "log_failures", "stop_log_failures"]

logger = logging.getLogger("skfleet")

# The topic under which workers report what failed.
TOPIC = "skfleet-failed"
# The same error of the same kind of task is told again only after so many seconds.
REPEAT_AFTER = 5.0

# Seconds after which a task must let its worker's other threads have the interpreter. With Python's
# 5 ms, a worker that runs Python code takes as long to hear of its next task and to send a result.
_SWITCH_INTERVAL = 0.001

# Seconds to wait with loading: the other workers start meanwhile, and a fleet may end at once.
_LOAD_AFTER = 0.3

# From this share of its memory limit on a worker hands back what its allocators hold for later: at
# 0.8 distributed lets it take no more tasks, and it would wait for ever for the memory to be freed.
RELEASE_FROM = 0.7
# Seconds between two looks at the memory.
_RELEASE_EVERY = 0.5

# What nearly every task needs, in the order in which it is loaded: each a part of a second, so that
# a fleet that is closed at once need not wait for more.
_MODULES = (
    "pandas",
    "scipy.sparse",
    "scipy.linalg",
    "scipy.optimize",
    "scipy.stats",
    "sklearn",
    "sklearn.model_selection",
    "sklearn.linear_model",
    "skfleet.engine",
    "skfleet.engine._dask._engine",
    "skfleet.joblib_backend",
    "skfleet.model_selection._dispatch._worker",
)

_LOGGERS = ("distributed.worker", "distributed.worker.state_machine")


class FailureReporter(WorkerPlugin):
    """Sends the error of a task to the clients, in place of the page that a worker would log."""

    name = "skfleet-failure-reporter"

    def setup(self, worker: Worker) -> None:
        """Look at what this worker logs from now on."""
        self._worker = worker
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self.filter)

    def teardown(self, worker: Worker) -> None:
        """Leave the loggers to others."""
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self.filter)

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is to be logged here."""
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
    """Makes a process that has nothing else to do a good worker."""

    name = "skfleet-own-process"

    def setup(self, worker: Worker) -> None:
        """Leave Ctrl-C, which a terminal sends to every process, to the owner of the fleet.

        (Workers that lose him exit by themselves.) And switch threads soon, and load what the first
        task is going to need as soon as the worker is ready.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.setswitchinterval(_SWITCH_INTERVAL)
        worker.loop.add_callback(_load_when_ready, worker)
        self._release = PeriodicCallback(lambda: release_memory(worker), 1000 * _RELEASE_EVERY)
        worker.loop.add_callback(self._release.start)

    def teardown(self, worker: Worker) -> None:
        """End the looks at the memory."""
        self._release.stop()


def release_memory(worker: Worker) -> None:
    """Hand memory that is free in this process back to the system, where the worker is short of it.

    Arrow's allocator and glibc's keep much of what a task has used; distributed counts it as used.
    """
    limit = worker.memory_manager.memory_limit
    if not limit or worker.monitor.get_process_memory() < RELEASE_FROM * limit:
        return
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


async def _load_when_ready(worker: Worker) -> None:
    """Load modules in a thread for tasks, so that a first task waits and does not import as well.

    Two threads that import the same packages may each see the other's half.
    """
    while worker.status in (Status.init, Status.starting):
        await asyncio.sleep(0.01)
    await asyncio.sleep(_LOAD_AFTER)
    if worker.status == Status.running:
        worker.executors["default"].submit(_load_modules, worker)


def _load_modules(worker: Worker) -> None:
    """Import the modules that tasks need, as long as the worker is there for tasks."""
    for name in _MODULES:
        if worker.status != Status.running:
            return
        importlib.import_module(name)


def log_failures(client: Client) -> None:
    """Log a line for each failure that the workers of a client report, for several equal ones one.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    """
    logged: dict[tuple[str, str], float] = {}

    def log(event: tuple[float, dict[str, Any]]) -> None:
        failed = event[1]["task"], event[1]["error"]
        now = time.monotonic()
        if now - logged.get(failed, -REPEAT_AFTER) >= REPEAT_AFTER:
            logger.error("task %s failed: %s", *failed)
        logged[failed] = now

    client.subscribe_topic(TOPIC, log)


def stop_log_failures(client: Client) -> None:
    """End what `log_failures` began, before a client closes.

    The scheduler prints a page about a report that it cannot send, to a client that is just gone.
    """
    if client.status == "running":
        with suppress(ValueError):  # there is no such subscription
            client.unsubscribe_topic(TOPIC)
