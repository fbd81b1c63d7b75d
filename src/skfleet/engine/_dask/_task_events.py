"""Waiting for tasks of a cluster while others are still being submitted.

What a task has to tell besides its value comes home as an event, ahead of the news that it has
ended: that is a third of the time that another task, which picks it out of the value, would take.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client, Future, KilledWorker, get_worker

from skfleet.engine._dask._client import all_workers_on_this_host, seceded
from skfleet.engine._dask._wait import death_error
from skfleet.engine._protocol import TaskResult

__all__ = ["DaskCompletionQueue", "run_and_publish"]

# The topic of the events; the scheduler forgets old ones by itself.
_TOPIC = "skfleet-told"
# How many events are kept for which nobody has asked yet.
_MOST_EVENTS = 10_000

_told: WeakKeyDictionary[Client, _SummaryEvents] = WeakKeyDictionary()


class _SummaryEvents:
    """What tasks have told a client, by their keys."""

    def __init__(self, client: Client) -> None:
        self._values: OrderedDict[str, bytes] = OrderedDict()
        client.subscribe_topic(_TOPIC, self._take)

    def _take(self, event: tuple[float, tuple[str, bytes]]) -> None:
        """Take an event, in the thread of the client's loop."""
        key, value = event[1]
        self._values[key] = value
        while len(self._values) > _MOST_EVENTS:
            self._values.popitem(last=False)

    def pop(self, key: str) -> bytes | None:
        """Give what a task has told, once."""
        return self._values.pop(key, None)


def run_and_publish(func: Callable[..., Any], summarize: Callable[[Any], Any], *args: Any) -> Any:
    """Run a task, and send home what it has to tell of its value."""
    value = func(*args)
    worker = get_worker()
    worker.log_event(_TOPIC, [worker.get_current_task(), pickle.dumps(summarize(value))])
    return value


class DaskCompletionQueue:
    """Futures under way, and what they have to tell as they arrive."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._begin = time.time()
        self._arrivals: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._tells: dict[Future, Callable[[Any], Any]] = {}
        if client not in _told:
            _told[client] = _SummaryEvents(client)

    def add(self, task: Future, summarize: Callable[[Any], Any] | None = None) -> None:
        """Wait for one more future, for its value or for what it has to tell of it."""
        if summarize is not None:
            self._tells[task] = summarize
        task.add_done_callback(self._arrivals.put)

    def next(self, timeout: float | None = None) -> list[TaskResult]:
        """Wait until some futures are done, or for so many seconds; give those that are."""
        with seceded():
            try:
                arrived = [self._arrivals.get(timeout=timeout)]
            except queue.Empty:
                return []
            with contextlib.suppress(queue.Empty):
                while True:
                    arrived.append(self._arrivals.get_nowait())
            return self._fetch(arrived)

    def _fetch(self, arrived: Sequence[Future]) -> list[TaskResult]:
        """Give what was told, and fetch the rest: together, and one by one where that fails."""
        found: dict[Future, Any] = {}
        missing: dict[Future, Future] = {}
        for future in arrived:
            summarize = self._tells.pop(future, None)
            if future.status != "finished":
                continue
            told = None if summarize is None else _told[self._client].pop(str(future.key))
            if told is not None:
                found[future] = pickle.loads(told)
            elif summarize is None:
                missing[future] = future
            else:  # the event was lost with a scheduler's memory, or never sent
                missing[future] = self._client.submit(summarize, future, pure=False)
        if missing:
            direct = all_workers_on_this_host(self._client) or None
            with contextlib.suppress(Exception, CancelledError):
                values = self._client.gather(list(missing.values()), direct=direct)
                found |= dict(zip(missing, values, strict=True))
        return [
            TaskResult(future, found[future]) if future in found else self._ended(future)
            for future in arrived
        ]

    def _ended(self, future: Future) -> TaskResult:
        """Tell what became of one future."""
        try:
            return TaskResult(future, future.result())
        except (CancelledError, KilledWorker) as error:
            deadly = isinstance(error, KilledWorker)
            explained = death_error(self._client, error, since=self._begin) or error
            return TaskResult(future, error=explained, was_lost=not deadly, killed_workers=deadly)
        except Exception as error:
            return TaskResult(future, error=error)
