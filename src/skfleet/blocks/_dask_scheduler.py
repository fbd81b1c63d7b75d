"""The Dask scheduler for values that are needed before an engine is selected, and its workers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_get_scheduler: Callable[[], Any] = lambda: None  # noqa: E731
_get_thread_memory: Callable[[], float] = lambda: math.inf  # noqa: E731


def set_scheduler(get_scheduler: Callable[[], Any], get_thread_memory: Callable[[], float]) -> None:
    """Set functions that return the scheduler and the memory of a thread of its workers.

    `engine`, which knows clients, has them.
    """
    global _get_scheduler, _get_thread_memory
    _get_scheduler, _get_thread_memory = get_scheduler, get_thread_memory


def scheduler() -> Any:
    """Return the ``scheduler`` argument for ``dask.compute``; None leaves the choice to Dask."""
    return _get_scheduler()


def thread_memory() -> float:
    """Return the bytes that each thread of the workers may have, infinity where nothing says so."""
    return _get_thread_memory()
