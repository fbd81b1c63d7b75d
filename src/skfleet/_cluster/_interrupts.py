"""Ctrl-C in the main thread, which ends the waits for tasks of other threads too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_INTERRUPT: Any = object()


class WaitInterrupter:
    """Raises KeyboardInterrupt in all threads that wait for tasks, or will."""

    def __init__(self) -> None:
        self._lock, self._is_interrupted = threading.Lock(), False
        self._waited_for: list[SimpleQueue[Any]] = []

    def interrupt(self) -> None:
        with self._lock:
            self._is_interrupted = True
            for results in self._waited_for:
                results.put(_INTERRUPT)

    def get(self, results: SimpleQueue[T], timeout: float) -> T:
        """Return the next of some results; raise queue.Empty after `timeout`."""
        with self._lock:
            if self._is_interrupted:
                raise KeyboardInterrupt
            self._waited_for.append(results)
        try:
            result = results.get(timeout=timeout)
        finally:
            with self._lock:
                self._waited_for.remove(results)
        if result is _INTERRUPT:
            raise KeyboardInterrupt
        return result


_interrupter: ContextVar[WaitInterrupter | None] = ContextVar(
    "skfleet_wait_interrupter", default=None
)


@contextmanager
def interruptible_waits() -> Iterator[WaitInterrupter]:
    """Yield what interrupts the waits for tasks of this context, which threads may have copied."""
    interrupter = WaitInterrupter()
    token = _interrupter.set(interrupter)
    try:
        yield interrupter
    finally:
        _interrupter.reset(token)


def next_result(results: SimpleQueue[T], timeout: float) -> T:
    """Return the next of some results; raise queue.Empty after `timeout`, or KeyboardInterrupt."""
    interrupter = _interrupter.get()
    if interrupter is None:
        return results.get(timeout=timeout)
    return interrupter.get(results, timeout)
