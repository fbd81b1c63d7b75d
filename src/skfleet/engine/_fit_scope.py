"""Values that the fits of a search share in a process, such as binned rows (`fit_scope`)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# Values that a process keeps, of as many splits; and the seconds without a fit that
# uses them after which they are dropped.
MAX_VALUES, IDLE_SECONDS = 5, 10.0


class FitScope:
    """Values by key, each of which one fit uses at a time; idle and old ones are dropped."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def take(self, key: Hashable) -> Any:
        """Return a value, which other fits do not get until it is put back; None without one."""
        with self._lock:
            return self._values.pop(key, None)

    def put(self, key: Hashable, value: object) -> None:
        """Put a value, or put it back."""
        with self._lock:
            self._values[key] = value
            while len(self._values) > MAX_VALUES:
                self._values.popitem(last=False)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(IDLE_SECONDS, self.clear)
            self._timer.daemon = True
            self._timer.start()

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._values.clear()
            self._timer = None


_scope = FitScope()
_is_open: ContextVar[bool] = ContextVar("skfleet_fit_scope", default=False)


@contextmanager
def fit_scope() -> Iterator[None]:
    """Let fits inside a ``with`` share values with those of the same process shortly before."""
    token = _is_open.set(True)
    try:
        yield
    finally:
        _is_open.reset(token)


def current_fit_scope() -> FitScope | None:
    """Return the scope of the fit that runs; None outside a search."""
    return _scope if _is_open.get() else None
