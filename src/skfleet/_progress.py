"""The bar on the screen that shows how far something is."""

from __future__ import annotations

__all__ = ["ProgressBar", "check_rich"]


def check_rich(name: str) -> None:
    """Raise unless there is what it takes to draw the bar that a parameter asks for."""
    try:
        import rich.progress  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{name} must have the library rich, to draw a bar. Got no such library instead. "
            "Install it: pip install rich."
        ) from error


class ProgressBar:
    """A bar that has an end as soon as the number of steps is known."""

    def __init__(self, total: int | None = None) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        self._bar = Progress(
            TextColumn(
                "{task.description}",
                table_column=Column(no_wrap=True, overflow="ellipsis", max_width=24),
            ),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._task = self._bar.add_task("", total=total, note="")
        self._bar.start()

    def name(self, name: str) -> None:
        """Say what is running."""
        self._bar.update(self._task, description=name)

    def note(self, note: str) -> None:
        """Say how it is going."""
        self._bar.update(self._task, note=note)

    def expect(self, total: int) -> None:
        """Set the number of steps, which may grow."""
        self._bar.update(self._task, total=total)

    def advance(self, n_steps: int) -> None:
        """Count steps that are done."""
        self._bar.advance(self._task, n_steps)

    def close(self) -> None:
        """Draw the bar for the last time."""
        self._bar.stop()
