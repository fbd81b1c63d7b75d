"""The scheduler of Dask's that computes what must be known before an engine is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_choose: Callable[[], Any] = lambda: None  # noqa: E731


def set_scheduler(choose: Callable[[], Any]) -> None:
    """Let a function of the room above choose the scheduler: it alone knows clients.

    Parameters
    ----------
    choose : callable
        Returns what ``dask.compute`` takes as its ``scheduler``; None leaves the choice to Dask.
    """
    global _choose
    _choose = choose


def scheduler() -> Any:
    """Return the scheduler for what is computed now."""
    return _choose()
