"""Waiting for tasks of a cluster whose workers may die or go, and what is said of that."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

from dask.utils import format_bytes, key_split
from distributed import Client, Future, KilledWorker

from skfleet._config import get_config
from skfleet.engine._dask._client import address_of, check_running, scheduler_workers
from skfleet.exceptions import FleetError, NoWorkersError

__all__ = ["completed", "death_error", "gather"]

# How often, in seconds, the fleet is looked at while nothing arrives, and for how long it may have
# no worker: one that died is started again in less.
CHECK_EVERY, PATIENCE = 5.0, 30.0
# The topic under which distributed's nannies report that they ended a worker for its memory.
MEMORY_TOPIC = "worker-restart-memory"
# What distributed says of a task whose data went with their workers.
_LOST = ("lost dependencies", "already forgotten", "scheduler-connection-lost")

HasWorkers = Callable[[dict[str, Any]], bool]


class _Lookout:
    """Raises when a cluster has had no worker for a task for too long."""

    def __init__(self, client: Client, has_workers: HasWorkers) -> None:
        self._client = client
        self._has_workers = has_workers
        self._alone_since: float | None = None

    def look(self) -> None:
        """Look at the workers; a scheduler that is gone cancels the tasks by itself."""
        if self._client.status != "running":
            return
        now = time.monotonic()
        if self._has_workers(scheduler_workers(self._client)):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > max(PATIENCE, get_config().wait_for_workers_timeout):
            check_running(self._client)
            raise NoWorkersError(
                f"scheduler {address_of(self._client)} must have a worker for the tasks that "
                f"wait there. Got none for {now - self._alone_since:.0f} seconds instead. Start "
                "workers, and look in the logs of those that died."
            )


def gather(
    client: Client,
    tasks: Sequence[Future],
    has_workers: HasWorkers = bool,
    *,
    since: float | None = None,
) -> list[Any]:
    """Return the results of tasks, or raise the first error of one, as it was or explained.

    Parameters
    ----------
    client : distributed.Client
    tasks : sequence of distributed.Future
    has_workers : callable, optional
        Tells whether any of the workers that the scheduler knows may run the tasks.
    since : float, optional
        When the work began, in seconds since the epoch; by default now.

    Returns
    -------
    list
        In the order of the tasks.

    Raises
    ------
    NoWorkersError
        When no worker for them has been there for long.
    FleetError
        When one killed its workers.
    """
    lookout = _Lookout(client, has_workers)
    since = time.time() if since is None else since
    loop: Any = client.loop
    results = asyncio.run_coroutine_threadsafe(
        client.gather(list(tasks), asynchronous=True), loop.asyncio_loop
    )
    try:
        while True:
            try:
                return list(results.result(timeout=CHECK_EVERY))
            except TimeoutError:
                if results.done():
                    raise
                lookout.look()
    except (KilledWorker, CancelledError) as error:
        explained = death_error(client, error, since=since)
        if explained is None:
            raise
        raise explained from error
    finally:
        results.cancel()


def completed(
    client: Client, tasks: Sequence[Future], has_workers: HasWorkers = bool
) -> Iterator[Future]:
    """Yield tasks as they end, and raise NoWorkersError as `gather` does."""
    lookout = _Lookout(client, has_workers)
    arrivals: queue.SimpleQueue[Future] = queue.SimpleQueue()
    for task in tasks:
        task.add_done_callback(arrivals.put)
    for _ in tasks:
        while True:
            try:
                task = arrivals.get(timeout=CHECK_EVERY)
                break
            except queue.Empty:
                lookout.look()
        yield task


def death_error(
    client: Client, error: BaseException, *, since: float, name: str | None = None
) -> FleetError | None:
    """Make the error for a task whose workers died, or whose data went with them; None for others.

    Parameters
    ----------
    client : distributed.Client
    error : BaseException
        What distributed raised.
    since : float
        When the work began, in seconds since the epoch.
    name : str, optional
        What the task is called to the user.

    Returns
    -------
    FleetError or None
        It names a lack of memory where a nanny ended a worker for it.
    """
    if not isinstance(error, KilledWorker) and getattr(error, "reason", None) not in _LOST:
        return None
    key = getattr(error, "task", None) or getattr(error, "key", None)
    name = name or (key_split(key) if key else "a task")
    events = _memory_events(client)
    kills = [event for told, event in events if told >= since]
    if isinstance(error, KilledWorker):
        own = [event for _, event in events if event["worker"] == error.last_worker.address]
        kills = own and (kills or own)  # the scheduler's clock may be another one
    if kills:
        limits = {
            w["memory_limit"] for w in scheduler_workers(client).values() if w["memory_limit"]
        }
        room = f" of the {format_bytes(min(limits))} that a worker may have" if limits else ""
        most = max(kill["rss"] for kill in kills)
        return FleetError(
            f"{name} must fit into the memory of a worker. Got {format_bytes(most)}{room} instead, "
            f"for which {len(kills)} of them were ended. Start fewer workers with more memory each "
            "(n_workers=, memory_limit=) or on a machine with more, and give them less at a time: "
            "smaller blocks of rows, fewer threads_per_worker, a smaller n_jobs."
        )
    if isinstance(error, KilledWorker):
        return FleetError(
            f"{name} must leave its worker alive. Got {type(error).__name__} instead: its workers "
            "died again and again while they ran it. The system may have ended them for lack of "
            f"memory, or native code may have crashed: look in their logs. {error}"
        )
    return None


def _memory_events(client: Client) -> Sequence[tuple[float, dict[str, Any]]]:
    """Return when nannies ended which workers for their memory."""
    if client.status != "running":
        return ()
    try:
        return client.get_events(MEMORY_TOPIC)
    except OSError:
        return ()
