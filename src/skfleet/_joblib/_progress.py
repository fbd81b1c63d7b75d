"""The bar that shows how many calls are done."""

from __future__ import annotations

import math
from collections.abc import Hashable
from numbers import Real
from typing import Any

__all__ = ["CallProgress", "Tally", "check_progress"]


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
        """Set the number of calls, which may grow."""
        self._bar.update(self._task, total=total)

    def advance(self, n_calls: int) -> None:
        """Count calls that are done."""
        self._bar.advance(self._task, n_calls)

    def close(self) -> None:
        """Draw the bar for the last time."""
        self._bar.stop()


class Tally:
    """How a search is going: fits that others spared it, and the best candidate so far."""

    def __init__(self) -> None:
        self.n_saved = 0
        self._scores: dict[Hashable, list[float]] = {}
        self._best: float | None = None

    def add(self, candidate: Hashable, score: Any, n_splits: int, *, was_saved: bool) -> None:
        """Count a fit; the best is among the candidates whose splits have all been scored."""
        self.n_saved += was_saved
        scores = self._scores.setdefault(candidate, [])
        scores.append(float(score) if isinstance(score, Real) else math.nan)
        mean = sum(scores) / n_splits
        is_known = len(scores) == n_splits and not math.isnan(mean)
        if is_known and (self._best is None or mean > self._best):
            self._best = mean

    def __str__(self) -> str:
        saved = [f"{self.n_saved} saved"] if self.n_saved else []
        return ", ".join(saved + ([f"best {self._best:.4g}"] if self._best is not None else []))
