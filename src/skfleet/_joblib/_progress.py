"""How a call says that it is to show its progress, and what a search tells besides."""

from __future__ import annotations

import math
from collections.abc import Hashable
from numbers import Real
from typing import Any

from skfleet._progress import check_rich

__all__ = ["Tally", "check_progress"]


def check_progress(progress: Any) -> bool:
    """Check a ``progress`` parameter, and that there is what it takes to draw a bar."""
    if not isinstance(progress, bool):
        raise TypeError(
            f"progress must be True or False. Got {progress!r} instead. "
            'Write parallel_config("skfleet", progress=True).'
        )
    if progress:
        check_rich("progress")
    return progress


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
