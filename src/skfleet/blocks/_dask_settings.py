"""Settings of Dask for a block of code, in whatever threads it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask

_lock = threading.Lock()
_held: dict[str, tuple[int, dask.config.set]] = {}


@contextmanager
def held_setting(name: str, value: Any) -> Iterator[None]:
    """Give a setting of Dask a value, always the same one, until the last thread has left.

    Settings belong to the whole process. Of two threads in blocks of ``dask.config.set``, the one
    that began first would put back what the program had, and the other one the value of the first,
    for ever.
    """
    with _lock:
        count, setting = _held.get(name) or (0, dask.config.set({name: value}))
        _held[name] = count + 1, setting
    try:
        yield
    finally:
        with _lock:
            count, setting = _held.pop(name)
            if count > 1:
                _held[name] = count - 1, setting
            else:
                setting.__exit__(None, None, None)
