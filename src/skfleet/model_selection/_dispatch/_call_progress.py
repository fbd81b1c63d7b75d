"""Progress of a call: what its bar shows of the results so far, and of the time left."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from numbers import Real
from typing import Any

from skfleet._display import count
from skfleet._progress_bar import TIME_LEFT_SECONDS, ProgressBar, UpdateTimer
from skfleet.model_selection._dispatch._fit_times import FitGroup, FitTimes
from skfleet.model_selection._dispatch._requests import FitRequest
from skfleet.model_selection._dispatch._search_context import SearchContext
from skfleet.model_selection._records._evaluations import CandidateResults, LaterIteration


class CallProgress:
    """Updates the bar of a call, where there is one."""

    def __init__(
        self,
        bar: ProgressBar | None,
        context: SearchContext,
        evaluation: CandidateResults | None,
    ) -> None:
        self._bar, self._context, self._evaluation = bar, context, evaluation
        self._scores = SearchProgress()
        if evaluation is not None and evaluation.is_batch:  # one search in several calls
            context.progress = self._scores = context.progress or self._scores
        resources = 1.0 if evaluation is None else evaluation.resources
        self._times = FitTimes(context.durations, resources)
        self._timer = UpdateTimer(TIME_LEFT_SECONDS)
        if bar is not None:
            bar.set_seconds_left(None)

    def add(self, fit: FitRequest) -> None:
        """Add a fit that is to be made."""
        if self._bar is not None:
            self._times.add(fit.candidate, fit.call.options.get("parameters"))

    def record(self, fit: FitRequest, seconds: float) -> None:
        """Record the seconds of a fit, without the steps that it shares."""
        if self._bar is not None:
            self._times.record(fit, seconds)

    def show_fit(
        self, fit: FitRequest, result: dict[str, Any], n_splits: int, *, is_reused: bool
    ) -> None:
        """Update the text beside the bar."""
        if self._bar is not None and not fit.is_done:
            scores = result["test_scores"]
            self._scores.add(fit.candidate, scores, n_splits, was_reused=is_reused)
            self._bar.set_status(str(self._scores))

    def show_dropped(self, n_candidates: int) -> None:
        """Show beside the bar how many candidates a race has dropped."""
        self._scores.n_dropped = n_candidates

    def show_time_left(
        self,
        work_left: Callable[[], Collection[tuple[int, list[FitGroup]]]],
        n_read: int,
        prefix_seconds: float,
    ) -> None:
        """Update the seconds left, at intervals.

        ``work_left`` returns the slots of each kind with their fits; shared steps take
        ``prefix_seconds`` on average.
        """
        if self._bar is None:
            return
        with self._timer.update_if_due() as is_due:
            if is_due:
                seconds = self._seconds_left(work_left(), n_read, prefix_seconds)
                self._bar.set_seconds_left(seconds)

    def _seconds_left(
        self, groups: Collection[tuple[int, list[FitGroup]]], n_read: int, prefix_seconds: float
    ) -> float | None:
        """Return the seconds until all fits are done; None before the first one is."""
        n_unread, n_splits = 0, 1
        later: Sequence[LaterIteration] = ()
        if (evaluation := self._evaluation) is not None:
            n_splits, later = evaluation.n_splits, evaluation.later
            n_unread = len(evaluation.candidates) * n_splits - n_read
        seconds = self._times.seconds_left(
            groups,
            n_unread=n_unread,
            later=later,
            n_splits=n_splits,
            prefix_seconds=prefix_seconds,
        )
        budget = self._context.seconds_left
        return seconds if seconds is None or budget is None else min(seconds, budget)


class SearchProgress:
    """Text on the state of a search: number of reused fits, and best mean score so far."""

    def __init__(self) -> None:
        self.n_reused = self.n_dropped = 0
        self._scores: dict[Hashable, list[float]] = {}
        self._best: float | None = None

    def add(self, candidate: Hashable, score: Any, n_splits: int, *, was_reused: bool) -> None:
        """Add a fit; the best is among the candidates that are scored on all splits."""
        self.n_reused += was_reused
        scores = self._scores.setdefault(candidate, [])
        scores.append(float(score) if isinstance(score, Real) else math.nan)
        mean = sum(scores) / n_splits
        is_complete = len(scores) == n_splits and not math.isnan(mean)
        if is_complete and (self._best is None or mean > self._best):
            self._best = mean

    def __str__(self) -> str:
        reused = [f"{self.n_reused} saved"] if self.n_reused else []
        dropped = [f"{count(self.n_dropped, 'candidate')} dropped"] if self.n_dropped else []
        return ", ".join(
            reused + dropped + ([f"best {self._best:.4g}"] if self._best is not None else [])
        )
