"""Worker plugins of a fleet. Workers import this file before they are ready, so it is light."""

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

# Topic of the events by which workers report failed tasks.
TOPIC = "skfleet-failed"
# Seconds before the same error of the same kind of task is logged again.
REPEAT_SECONDS = 5.0

# The interpreter's switch interval. With Python's 5 ms, the event loop of a worker that runs Python
# code takes that long to receive its next task and to send a result.
_SWITCH_SECONDS = 0.001

# Delay of loading: the other workers start meanwhile, and a fleet may be closed at once.
_LOAD_DELAY_SECONDS = 0.3

# Fraction of its memory limit from which a worker returns the free memory of its allocators. At 0.8
# distributed pauses it, and it would wait for ever for the memory to be freed.
RELEASE_FRACTION = 0.7
_RELEASE_POLL_SECONDS = 0.5

# Modules that nearly every task needs. Each loads in a fraction of a second, so that a fleet that
# is closed at once need not wait for more.
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
    """Sends the error of a task to the clients, instead of the long message that a worker logs."""

    name = "skfleet-failure-reporter"

    def setup(self, worker: Worker) -> None:
        """Add the filter to the loggers of this process."""
        self._worker = worker
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self.filter)

    def teardown(self, worker: Worker) -> None:
        """Remove the filter."""
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self.filter)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be logged on the worker."""
        message, args = str(record.msg), record.args
        if message.startswith("Compute Failed") and isinstance(args, tuple):
            if args[0] not in self._worker.state.tasks:
                return True  # a task of another worker in this process
            failure = {"task": key_split(args[0]), "error": str(args[3])}
            self._worker.loop.add_callback(self._worker.log_event, TOPIC, failure)
            return False
        # A task that runs when its worker is closed; its client has given it up.
        is_late = message.startswith("Async instruction for") and "CancelledError" in message
        # A fleet's scheduler goes just before its workers, which may be about to report.
        return not (is_late or message.startswith("Failed to communicate with scheduler during"))


class OwnProcess(WorkerPlugin):
    """Configures a process that runs nothing but a worker."""

    name = "skfleet-own-process"

    def setup(self, worker: Worker) -> None:
        """Ignore Ctrl-C, switch threads often, and load modules when the worker is ready.

        A terminal sends Ctrl-C to every process. The process that owns the fleet handles it, and
        workers that lose their scheduler exit by themselves.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.setswitchinterval(_SWITCH_SECONDS)
        worker.loop.add_callback(_load_when_ready, worker)
        milliseconds = 1000 * _RELEASE_POLL_SECONDS
        self._release = PeriodicCallback(lambda: release_memory(worker), milliseconds)
        worker.loop.add_callback(self._release.start)

    def teardown(self, worker: Worker) -> None:
        """Stop releasing memory."""
        self._release.stop()


def release_memory(worker: Worker) -> None:
    """Return the free memory of this process to the system, where the worker is short of it.

    The allocators of Arrow and glibc cache much of what a task has freed; distributed counts it as
    used.
    """
    limit = worker.memory_manager.memory_limit
    if not limit or worker.monitor.get_process_memory() < RELEASE_FRACTION * limit:
        return
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


async def _load_when_ready(worker: Worker) -> None:
    """Load modules in the thread pool for tasks, so that a first task waits for them.

    Two threads that import the same packages at once may each see half of them.
    """
    while worker.status in (Status.init, Status.starting):
        await asyncio.sleep(0.01)
    await asyncio.sleep(_LOAD_DELAY_SECONDS)
    if worker.status == Status.running:
        worker.executors["default"].submit(_load_modules, worker)


def _load_modules(worker: Worker) -> None:
    """Import the modules that tasks need, as long as the worker runs."""
    for name in _MODULES:
        if worker.status != Status.running:
            return
        importlib.import_module(name)


def log_failures(client: Client) -> None:
    """Log a line for each failure that the workers of a client report, but one for equal ones.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    """
    logged: dict[tuple[str, str], float] = {}

    def log(event: tuple[float, dict[str, Any]]) -> None:
        failure = event[1]["task"], event[1]["error"]
        now = time.monotonic()
        if now - logged.get(failure, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            logger.error("task %s failed: %s", *failure)
        logged[failure] = now

    client.subscribe_topic(TOPIC, log)


def stop_log_failures(client: Client) -> None:
    """Undo `log_failures`, before a client closes.

    The scheduler logs a long message for an event that it cannot send to a client that is gone.
    """
    if client.status == "running":
        with suppress(ValueError):  # there is no such subscription
            client.unsubscribe_topic(TOPIC)
