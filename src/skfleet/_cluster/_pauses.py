"""Workers that are all paused for lack of memory, and run nothing, while tasks wait for them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from dask.utils import format_bytes
from distributed import Client

from skfleet._cluster._client import current_worker_address, scheduler_workers
from skfleet._cluster._client_state import WorkerInfo, state_of
from skfleet._config import get_config
from skfleet.exceptions import WorkersPausedError

logger = logging.getLogger("skfleet")

HasWorkers = Callable[[dict[str, WorkerInfo]], bool]

# Seconds after which such a pause is logged, and after which it ends the wait. One in which results
# are written to disk is none: what a worker holds in memory changes.
LOGGED_SECONDS, PAUSED_SECONDS = 10.0, 60.0
# Seconds between two looks at the workers.
LOOK_SECONDS = 5.0
_MAX_NAMES = 3

_ADVICE = (
    "Start workers with more memory each (memory_limit=, or --memory-limit of dask worker), or "
    "fewer on the machine; release rows that you persisted; give workers less at a time: fewer "
    "threads for each, smaller partitions"
)


class PauseCheck:
    """A check, while no task completes, that workers for the tasks are not all paused for good.

    A paused worker starts no task before memory is free. Where it runs none, writes nothing to its
    disk, and has no result released, nothing will free it.
    """

    def __init__(self, client: Client, timeout: float = 0.0) -> None:
        self._client, self._timeout = client, timeout
        # A task that waits for others has seceded: it is no work that would free memory.
        is_in_task = bool(current_worker_address())
        self._running_states = ("executing",) if is_in_task else ("executing", "long-running")
        self.reset()

    def reset(self) -> None:
        """Forget what was seen, since a task has completed."""
        self._last_look, self._since = time.monotonic(), math.inf
        self._paused: dict[str, WorkerInfo] = {}

    def look(self, has_workers: HasWorkers = bool) -> None:
        """Check the workers as the scheduler describes them, at intervals."""
        now = time.monotonic()
        if self._client.status == "running" and now - self._last_look >= LOOK_SECONDS:
            self._last_look = now
            self(scheduler_workers(self._client), has_workers)

    def __call__(self, workers: dict[str, WorkerInfo], has_workers: HasWorkers = bool) -> bool:
        """Return whether all workers that may run the tasks are paused.

        Where they have been for long, that is logged, and then a WorkersPausedError is raised.
        """
        eligible = {a: worker for a, worker in workers.items() if has_workers({a: worker})}
        is_paused = bool(eligible) and all(map(_is_paused, eligible.values()))
        if not is_paused or any(map(self._is_running, eligible.values())):
            self.reset()
            return is_paused
        now = time.monotonic()
        if _contents(eligible) != _contents(self._paused):
            self._since, self._paused = now, eligible
        seconds = now - self._since
        if seconds >= LOGGED_SECONDS:
            self._log(eligible)
        is_running = any(map(self._is_running, workers.values()))
        # One that writes a large result to its disk is not heard of until it has.
        is_current = all(
            worker.get("last_seen", 0.0) > self._paused[a].get("last_seen", 0.0)
            for a, worker in eligible.items()
        )
        has_limits = all(worker.get("memory_limit") for worker in eligible.values())
        timeout = max(PAUSED_SECONDS, get_config().wait_for_workers_timeout, self._timeout)
        if seconds >= timeout and is_current and has_limits and not is_running:
            raise _paused_error(eligible, seconds)
        return True

    def _is_running(self, worker: WorkerInfo) -> bool:
        counts = _metrics(worker).get("task_counts", {})
        return any(counts.get(state) for state in self._running_states)

    def _log(self, workers: Mapping[str, WorkerInfo]) -> None:
        """Log a line, once for every worker."""
        state = state_of(self._client)
        if state.logged_pauses.issuperset(workers):
            return
        state.logged_pauses |= frozenset(workers)
        logger.warning(
            "tasks wait for workers that are paused for lack of memory: %s. A paused worker starts "
            "no task until memory is free. %s.",
            _memory_of(workers),
            _ADVICE,
        )


def _metrics(worker: WorkerInfo) -> dict[str, Any]:
    return worker.get("metrics") or {}


def _is_paused(worker: WorkerInfo) -> bool:
    return worker.get("status") == "paused"


def _contents(workers: Mapping[str, WorkerInfo]) -> dict[str, tuple[Any, ...]]:
    """Return what changes as long as workers free memory: their tasks, and their results."""
    names = "task_counts", "managed_bytes", "spilled_bytes"
    return {a: tuple(map(_metrics(worker).get, names)) for a, worker in workers.items()}


def _memory_of(workers: Mapping[str, WorkerInfo]) -> str:
    """Return the memory of workers next to their limits, as text."""
    parts = []
    for address, worker in list(workers.items())[:_MAX_NAMES]:
        used, limit = format_bytes(int(_metrics(worker).get("memory", 0))), worker["memory_limit"]
        parts.append(f"{address} has {used} of {format_bytes(limit)} in use" if limit else address)
    n_more = len(workers) - len(parts)
    return ", ".join(parts) + (f", and {n_more} more" if n_more else "")


def _paused_error(workers: Mapping[str, WorkerInfo], seconds: float) -> WorkersPausedError:
    longer = max(120.0, 2 * seconds)
    return WorkersPausedError(
        "workers must have free memory to start the tasks that wait for them. Got "
        f"{len(workers)} instead that are paused, and have run nothing for {seconds:.0f} seconds "
        f"({_memory_of(workers)}). {_ADVICE}. Wait longer for other work to free memory: "
        f"skfleet.config_context(wait_for_workers_timeout={longer:.0f}).",
    )
