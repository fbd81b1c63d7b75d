"""The bar that shows how many calls are done."""

from __future__ import annotations

from typing import Any

__all__ = ["CallProgress", "check_progress"]


def check_progress(progress: Any) -> bool:
    """Check a ``progress`` parameter, and that there is what it takes to draw a bar."""
    if not isinstance(progress, bool):
        raise TypeError(
            f"progress must be True or False. Got {progress!r} instead. "
            'Write parallel_config("skfleet", progress=True).'
        )
    if progress:
        try:
            import rich.progress  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "progress must have the library rich, to draw a bar. Got no such library instead. "
                "Install it: pip install rich."
            ) from error
    return progress


class CallProgress:
    """A bar on the screen while a ``Parallel`` call runs.

    It has an end as soon as the number of calls is known.
    """

    def __init__(self, total: int | None = None) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("", total=total)
        self._bar.start()

    def name(self, name: str) -> None:
        """Say what is running."""
        self._bar.update(self._task, description=name)

    def expect(self, total: int) -> None:
        """Set the number of calls, which may grow."""
        self._bar.update(self._task, total=total)

    def advance(self, n_calls: int) -> None:
        """Count calls that are done."""
        self._bar.advance(self._task, n_calls)

    def close(self) -> None:
        """Draw the bar for the last time."""
        self._bar.stop()
