"""Queue of completed tasks with their summaries, which workers publish as events.

A summary arrives as a worker event, ahead of the message that the task is done. That takes a third
of the time of another task that picks it out of the value.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from distributed import Client, Future, KilledWorker, get_worker

from skfleet._cluster import (
    HasWorkers,
    PauseCheck,
    all_workers_on_this_host,
    death_error,
    seceded,
    state_of,
)
from skfleet.engine._protocol import TaskResult

T = TypeVar("T")

# The scheduler drops old events of a topic by itself.
_TOPIC = "skfleet-summaries"
# Events kept until they are fetched; the oldest are dropped first.
_MAX_EVENTS = 10_000


class SummaryEvents:
    """The summaries that a client has received, by the keys of their tasks."""

    def __init__(self, client: Client) -> None:
        self._values: OrderedDict[str, bytes] = OrderedDict()
        client.subscribe_topic(_TOPIC, self._store)

    def _store(self, event: tuple[float, tuple[str, bytes]]) -> None:
        """Store a summary, in the thread of the client's event loop."""
        key, value = event[1]
        self._values[key] = value
        while len(self._values) > _MAX_EVENTS:
            self._values.popitem(last=False)

    def pop(self, key: str) -> bytes | None:
        return self._values.pop(key, None)


def run_and_publish(func: Callable[..., T], summarize: Callable[[T], object], *args: object) -> T:
    """Run a task and publish ``summarize(value)`` to the client as a worker event."""
    value = func(*args)
    worker = get_worker()
    worker.log_event(_TOPIC, [worker.get_current_task(), pickle.dumps(summarize(value))])
    return value


class DaskCompletionQueue:
    """Submitted futures, to be fetched with their values or summaries as they complete.

    `has_workers` says whether any of some workers may run them. Where all of those are paused for
    good, :meth:`next` raises a WorkersPausedError.
    """

    def __init__(self, client: Client, has_workers: HasWorkers = bool) -> None:
        self._client, self._has_workers = client, has_workers
        self._pauses = PauseCheck(client)
        self._start_time = time.time()
        self._done: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._summarize: dict[Future, Callable[[Any], Any]] = {}
        state = state_of(client)
        self._events = state.summary_events = state.summary_events or SummaryEvents(client)

    def add(self, task: Future, summarize: Callable[[Any], object] | None = None) -> None:
        """Add a future, whose value or summary is fetched once it is done."""
        if summarize is not None:
            self._summarize[task] = summarize
        task.add_done_callback(self._done.put)

    def next(self, timeout: float | None = None) -> list[TaskResult]:
        """Return the futures that are done, after waiting for at least one, or for `timeout`."""
        with seceded():
            try:
                done = [self._done.get(timeout=timeout)]
            except queue.Empty:
                self._pauses.look(self._has_workers)
                return []
            self._pauses.reset()
            with contextlib.suppress(queue.Empty):
                while True:
                    done.append(self._done.get_nowait())
            return self._fetch(done)

    def _fetch(self, done: Sequence[Future]) -> list[TaskResult]:
        """Return results: published ones, then all other values in one gather, or one by one."""
        values: dict[Future, Any] = {}
        missing: dict[Future, Future] = {}
        for future in done:
            summarize = self._summarize.pop(future, None)
            if future.status != "finished":
                continue
            summary = None if summarize is None else self._events.pop(str(future.key))
            if summary is not None:
                values[future] = pickle.loads(summary)
            elif summarize is None:
                missing[future] = future
            else:  # the event was dropped, or never published
                missing[future] = self._client.submit(summarize, future, pure=False)
        if missing:
            direct = all_workers_on_this_host(self._client) or None
            with contextlib.suppress(Exception, CancelledError):
                fetched = self._client.gather(list(missing.values()), direct=direct)
                values |= dict(zip(missing, fetched, strict=True))
        return [
            TaskResult(future, values[future]) if future in values else self._result_of(future)
            for future in done
        ]

    def _result_of(self, future: Future) -> TaskResult:
        """Return the result of one future, or its error, explained where workers died."""
        try:
            return TaskResult(future, future.result())
        except (CancelledError, KilledWorker) as error:
            explained = death_error(self._client, error, since=self._start_time)
            # Data that were lost with a worker explain nothing, unless that was for its memory.
            killed = isinstance(error, KilledWorker) or explained is not None
            return TaskResult(
                future, error=explained or error, was_lost=not killed, killed_workers=killed
            )
        except Exception as error:
            return TaskResult(future, error=error)
