"""Waiting for tasks of a cluster whose workers may die, with errors that explain why."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any

from dask.utils import format_bytes, key_split
from distributed import Client, Future, KilledWorker, futures_of

from skfleet._cluster._client import address_of, check_running, scheduler_workers, seceded
from skfleet._cluster._interrupts import next_result
from skfleet._cluster._pauses import HasWorkers, PauseCheck
from skfleet._config import get_config
from skfleet.exceptions import FleetError, NoWorkersError, WorkerMemoryError

# Seconds between two checks of the workers while no task completes, and for which there may be no
# worker: one that died is started again in less.
CHECK_SECONDS, NO_WORKERS_SECONDS = 5.0, 30.0
# The topic of distributed's nannies for workers that they restarted for their memory.
MEMORY_TOPIC = "worker-restart-memory"
# Reasons with which distributed cancels tasks whose data were lost with their workers.
_LOST_REASONS = ("lost dependencies", "already forgotten", "scheduler-connection-lost")


class _WorkerCheck:
    """A check that a cluster has workers for its tasks, and has not been without for too long.

    Nor may all of them be paused, while a task is `pending`.
    """

    def __init__(self, client: Client, has_workers: HasWorkers) -> None:
        self._client, self._has_workers = client, has_workers
        self._without_since: float | None = None
        self.pauses = PauseCheck(client)

    def __call__(self, *, pending: bool) -> None:
        """Raise what is due; a client that lost its scheduler cancels tasks by itself."""
        if self._client.status != "running":
            return
        workers = scheduler_workers(self._client)
        if self._has_workers(workers):
            self._without_since = None
            if pending:
                self.pauses(workers, self._has_workers)
            return
        now = time.monotonic()
        self._without_since = self._without_since or now
        seconds = now - self._without_since
        if seconds > max(NO_WORKERS_SECONDS, get_config().wait_for_workers_timeout):
            check_running(self._client)
            raise NoWorkersError(
                f"scheduler {address_of(self._client)} must have a worker for the tasks that "
                f"wait there. Got none for {seconds:.0f} seconds instead. Start workers, and look "
                "in the logs of those that died."
            )


def gather(
    client: Client,
    tasks: Sequence[Future],
    has_workers: HasWorkers = bool,
    *,
    since: float | None = None,
) -> list[Any]:
    """Return the results of tasks, or raise their first error, explained where workers died.

    A NoWorkersError is raised where none of the scheduler's workers may run them (`has_workers`)
    for too long, and a WorkersPausedError where all of those are paused. The work began at `since`,
    in seconds since the epoch; by default now.
    """
    check = _WorkerCheck(client, has_workers)
    with explained_deaths(client, since):
        _wait_for(client, tasks, has_workers)
        loop: Any = client.loop
        coroutine = client.gather(list(tasks), asynchronous=True)
        results = asyncio.run_coroutine_threadsafe(coroutine, loop.asyncio_loop)
        try:
            while True:
                try:
                    return list(results.result(timeout=CHECK_SECONDS))
                except TimeoutError:
                    if results.done():
                        raise
                    check(pending=any(task.status == "pending" for task in tasks))
        finally:
            results.cancel()


@contextmanager
def explained_deaths(client: Client, since: float | None = None) -> Iterator[None]:
    """Explain the deaths of workers inside a ``with``, whose work began at `since`, or now."""
    since = time.time() if since is None else since
    try:
        yield
    except (KilledWorker, CancelledError) as error:
        explained = death_error(client, error, since=since)
        if explained is None:
            raise
        raise explained from error


def _wait_for(
    client: Client,
    tasks: Sequence[Future],
    has_workers: HasWorkers = bool,
    *,
    are_own: bool = False,
) -> None:
    """Wait until tasks are done, or the first of them has failed.

    Dask's gather waits in tasks of its own, each of which logs an error after an interruption.
    """
    for task in completed(client, tasks, has_workers, are_own=are_own):
        if task.status != "finished":
            break


def compute_graph(client: Client, graph: object, keys: object, **options: object) -> Any:
    """Return the values of keys: a scheduler for ``dask.compute``."""
    with seceded(), explained_deaths(client):
        tasks = client.get(graph, keys, sync=False, **options)
        _wait_for(client, futures_of(tasks), are_own=True)
        return client.gather(tasks)


def completed(
    client: Client,
    tasks: Sequence[Future],
    has_workers: HasWorkers = bool,
    *,
    are_own: bool = False,
) -> Iterator[Future]:
    """Yield tasks as they complete; raise NoWorkersError and WorkersPausedError as `gather` does.

    Tasks that are the caller's own are cancelled then. An interruption of `interruptible_waits`
    ends it.
    """
    check = _WorkerCheck(client, has_workers)
    done: queue.SimpleQueue[Future] = queue.SimpleQueue()
    for task in tasks:
        task.add_done_callback(done.put)
    for _ in tasks:
        while True:
            try:
                task = next_result(done, CHECK_SECONDS)
                break
            except queue.Empty:
                try:
                    check(pending=True)
                except FleetError:
                    # The same key may be in rows that the user has persisted.
                    own = [t for t in tasks if are_own and client.refcount.get(t.key) == 1]
                    client.cancel(own, force=True)
                    raise
        check.pauses.reset()
        yield task


def death_error(
    client: Client, error: BaseException, *, since: float, name: str | None = None
) -> FleetError | None:
    """Return the error for a task whose workers died, or whose data were lost; None for others.

    It names the task, and a lack of memory where a nanny restarted a worker for it `since` the
    start of the work.
    """
    if not isinstance(error, KilledWorker) and getattr(error, "reason", None) not in _LOST_REASONS:
        return None
    key = getattr(error, "task", None) or getattr(error, "key", None)
    name = name or (key_split(key) if key else "a task")
    events = _memory_events(client)
    kills = [event for timestamp, event in events if timestamp >= since]
    if isinstance(error, KilledWorker):
        own = [event for _, event in events if event["worker"] == error.last_worker.address]
        # The scheduler's clock may differ from this one.
        kills = own and (kills or own)
    if kills:
        limits = [worker["memory_limit"] for worker in scheduler_workers(client).values()]
        if isinstance(error, KilledWorker):  # the only worker may not be back yet
            limits.append(error.last_worker.memory_limit)
        lowest = min(filter(None, limits), default=None)
        limit = f" of the {format_bytes(lowest)} that a worker may have" if lowest else ""
        max_rss = max(kill["rss"] for kill in kills)
        return WorkerMemoryError(
            f"{name} must fit into the memory of a worker. Got {format_bytes(max_rss)}{limit} "
            f"instead, for which {len(kills)} of them were ended",
            "Start fewer workers with more memory each (n_workers=, memory_limit=) or on a machine "
            "with more, and give them less at a time: smaller partitions or chunks of rows (of "
            "Parquet files, config_context(block_bytes=)), fewer threads_per_worker, a smaller "
            "n_jobs.",
        )
    if isinstance(error, KilledWorker):
        return FleetError(
            f"{name} must leave its worker alive. Got {type(error).__name__} instead: its workers "
            "died again and again while they ran it. The system may have ended them for lack of "
            f"memory, or native code may have crashed: look in their logs. {error}"
        )
    return None


def _memory_events(client: Client) -> Sequence[tuple[float, dict[str, Any]]]:
    """Return the (timestamp, event) of workers that nannies restarted for their memory."""
    with suppress(OSError):
        if client.status == "running":
            return client.get_events(MEMORY_TOPIC)
    return ()
