"""The Dask scheduler for values that are needed before an engine is selected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_get_scheduler: Callable[[], Any] = lambda: None  # noqa: E731


def set_scheduler(get_scheduler: Callable[[], Any]) -> None:
    """Set the function that returns the scheduler; `engine`, which knows clients, has one."""
    global _get_scheduler
    _get_scheduler = get_scheduler


def scheduler() -> Any:
    """Return the ``scheduler`` argument for ``dask.compute``; None leaves the choice to Dask."""
    return _get_scheduler()
