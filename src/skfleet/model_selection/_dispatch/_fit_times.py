"""The seconds that the fits of a call have left, and those of the iterations that follow."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from skfleet.model_selection._dispatch._scheduler import FitBatch, PlannedFit
from skfleet.model_selection._dispatch._time_left import (
    DurationModel,
    Params,
    RemainingWork,
    makespan,
    seconds_left,
)
from skfleet.model_selection._records._evaluations import LaterIteration


class FitGroup(NamedTuple):
    """Fits that are left, with the seconds of the steps that they share, and for which they run."""

    prefix_seconds: float
    fits: Sequence[PlannedFit]
    elapsed: float = 0.0


def mark_begun(batches: Collection[FitBatch], n_slots: int, now: float) -> None:
    """Mark the first batches in flight as begun: one for each slot that no other has."""
    waiting = [batch for batch in batches if batch.begin is None]
    n_running = sum(batch.begin is not None for batch in batches)
    for batch in waiting[: max(0, n_slots - n_running)]:
        batch.begin = now


def group_in_flight(batch: FitBatch, prefix_seconds: float, now: float) -> FitGroup:
    """Return the fits of a batch in flight, but for those that another batch has."""
    fits = [fit for fit in batch.fits if fit not in batch.stolen]
    return FitGroup(prefix_seconds, fits, 0.0 if batch.begin is None else now - batch.begin)


class FitTimes:
    """Durations of the fits of a call.

    The ``model`` is that of the whole search, whose earlier calls had other ``resources``.
    """

    def __init__(self, model: DurationModel, resources: float = 1.0) -> None:
        self._model, self._resources = model, resources
        self._params: dict[Hashable, Params | None] = {}
        self._has_recorded = False

    def add(self, candidate: Hashable, params: Params | None) -> None:
        """Add a candidate of the call."""
        self._params[candidate] = params

    def record(self, fit: PlannedFit, seconds: float) -> None:
        """Record the seconds of a fit, without the steps that it shares."""
        self._has_recorded = True
        params = self._params.get(fit.candidate)
        self._model.record(fit.candidate, params, seconds, self._resources)

    def seconds_left(
        self,
        groups: Iterable[tuple[int, Iterable[FitGroup]]],
        *,
        n_unread: int = 0,
        later: Sequence[LaterIteration] = (),
        n_splits: int = 1,
        prefix_seconds: float = 0.0,
    ) -> float | None:
        """Return the seconds until all fits are done; None before the first one of the call is.

        `groups` has slots with the groups of fits for them. `n_unread` fits more are like those of
        the call, and so are those of `later` iterations, but for their resources. Shared steps take
        `prefix_seconds` on average.
        """
        if not self._has_recorded:
            return None
        expected = self._model.expected(self._params, self._resources)
        mean = sum(expected.values()) / len(expected)
        works, n_slots = [], 1
        for n, own in groups:
            n_slots = max(n, n_slots)
            seconds = [duration for group in own for duration in _durations(group, expected)]
            works.append(RemainingWork(n, seconds))
        works.append(RemainingWork(n_slots, [mean] * n_unread))
        total = seconds_left(works)
        for iteration in later:
            amount = self._resources * iteration.resources
            durations = self._model.expected(self._params, amount)
            duration = sum(durations.values()) / len(durations)
            fits = [duration] * (iteration.n_candidates * n_splits)
            steps = [prefix_seconds * iteration.resources] * n_splits
            total += makespan(fits + steps, n_slots)
        return total


def _durations(group: FitGroup, expected: Mapping[Hashable, float]) -> list[float]:
    """Return the seconds of a group's steps and fits, less those that have passed."""
    elapsed, durations = group.elapsed, []
    for seconds in (group.prefix_seconds, *(expected[fit.candidate] for fit in group.fits)):
        passed = min(seconds, elapsed)
        elapsed -= passed
        durations.append(seconds - passed)
    return durations
