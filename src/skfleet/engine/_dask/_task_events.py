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

from skfleet.engine._dask._client import has_one_machine, slot_released
from skfleet.engine._dask._wait import death_error
from skfleet.engine._protocol import Ended

__all__ = ["DaskWatch", "telling"]

# The topic of the events; the scheduler forgets old ones by itself.
_TOPIC = "skfleet-told"
# How many events are kept for which nobody has asked yet.
_MOST_EVENTS = 10_000

_told: WeakKeyDictionary[Client, _Told] = WeakKeyDictionary()


class _Told:
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


def telling(func: Callable[..., Any], tells: Callable[[Any], Any], *args: Any) -> Any:
    """Run a task, and send home what it has to tell of its value."""
    value = func(*args)
    worker = get_worker()
    worker.log_event(_TOPIC, [worker.get_current_task(), pickle.dumps(tells(value))])
    return value


class DaskWatch:
    """Futures under way, and what they have to tell as they arrive."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._begin = time.time()
        self._arrivals: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._tells: dict[Future, Callable[[Any], Any]] = {}
        if client not in _told:
            _told[client] = _Told(client)

    def add(self, task: Future, tells: Callable[[Any], Any] | None = None) -> None:
        """Wait for one more future, for its value or for what it has to tell of it."""
        if tells is not None:
            self._tells[task] = tells
        task.add_done_callback(self._arrivals.put)

    def next(self, timeout: float | None = None) -> list[Ended]:
        """Wait until some futures are done, or for so many seconds; give those that are."""
        with slot_released():
            try:
                arrived = [self._arrivals.get(timeout=timeout)]
            except queue.Empty:
                return []
            with contextlib.suppress(queue.Empty):
                while True:
                    arrived.append(self._arrivals.get_nowait())
            return self._fetch(arrived)

    def _fetch(self, arrived: Sequence[Future]) -> list[Ended]:
        """Give what was told, and fetch the rest: together, and one by one where that fails."""
        found: dict[Future, Any] = {}
        missing: dict[Future, Future] = {}
        for future in arrived:
            tells = self._tells.pop(future, None)
            if future.status != "finished":
                continue
            told = None if tells is None else _told[self._client].pop(str(future.key))
            if told is not None:
                found[future] = pickle.loads(told)
            elif tells is None:
                missing[future] = future
            else:  # the event was lost with a scheduler's memory, or never sent
                missing[future] = self._client.submit(tells, future, pure=False)
        if missing:
            direct = has_one_machine(self._client) or None
            with contextlib.suppress(Exception, CancelledError):
                values = self._client.gather(list(missing.values()), direct=direct)
                found |= dict(zip(missing, values, strict=True))
        return [
            Ended(future, found[future]) if future in found else self._ended(future)
            for future in arrived
        ]

    def _ended(self, future: Future) -> Ended:
        """Tell what became of one future."""
        try:
            return Ended(future, future.result())
        except (CancelledError, KilledWorker) as error:
            deadly = isinstance(error, KilledWorker)
            explained = death_error(self._client, error, since=self._begin) or error
            return Ended(future, error=explained, was_lost=not deadly, was_deadly=deadly)
        except Exception as error:
            return Ended(future, error=error)
