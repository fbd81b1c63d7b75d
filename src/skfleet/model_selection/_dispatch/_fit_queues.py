"""Queues of the fits that a scheduler gets little by little, where the end of the search is open.

They decide only, without I/O or a clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Container, Hashable, Iterator
from itertools import chain
from typing import Any, Protocol

from skfleet.model_selection._dispatch._scheduler import FitScheduler, PlannedFit
from skfleet.model_selection._dispatch._time_left import DurationModel, Params
from skfleet.model_selection._racing._race import Race

_MIN_SECONDS = 1e-5


class FitQueue(Protocol):
    """Fits for any device, of `PlannedFit` or a subclass, in the order in which they begin."""

    def __iter__(self) -> Iterator[Any]: ...

    def __bool__(self) -> bool: ...

    def add(self, fit: PlannedFit) -> None:
        """Add a fit."""
        ...

    def feed(self, device: str, scheduler: FitScheduler) -> None:
        """Move to the scheduler for a device the fits that it needs now."""
        ...

    def record(self, fit: PlannedFit, seconds: float) -> None:
        """Record the duration of a fit, without the steps that it shares."""
        ...

    def remove(self, is_removed: Callable[[Any], bool]) -> list[Any]:
        """Remove fits, and return them."""
        ...


class CandidateQueue:
    """Fits candidate by candidate, so that few are incomplete when the time is over.

    Of the candidates that have not begun the next is the one whose fits are expected to take least,
    so that many are complete then: by the durations of others with such parameters, which
    ``params_of`` returns for a fit, and without the first steps that it has in common with the
    candidate before. Of those that are expected to take about as long, it is the first one added.
    """

    def __init__(self, params_of: Callable[[Any], Params | None]) -> None:
        self._params_of, self._durations = params_of, DurationModel()
        self._fits: dict[str, dict[Hashable, dict[PlannedFit, None]]] = {}  # by device, candidate
        self._current: dict[str, tuple[Hashable, Hashable]] = {}  # candidate, and its prefix
        self._orders: dict[str, _CandidateOrder] = {}
        self._n_timed, self._n_learned = 0, 0
        self._quickest, self._slowest = math.inf, 0.0  # seconds of the fits made so far

    def __iter__(self) -> Iterator[Any]:
        candidates = chain.from_iterable(own.values() for own in self._fits.values())
        return chain.from_iterable(candidates)

    def __bool__(self) -> bool:
        return any(self._fits.values())

    def add(self, fit: PlannedFit) -> None:
        """Add a fit."""
        candidates = self._fits.setdefault(fit.device, {})
        if fit.candidate not in candidates:
            order = self._orders.setdefault(fit.device, _CandidateOrder())
            order.add(fit.candidate, _prefix_of(fit), 0.0, 0.0)
        candidates.setdefault(fit.candidate, {})[fit] = None

    def record(self, fit: PlannedFit, seconds: float) -> None:
        """Record the duration of a fit, without the steps that it shares."""
        self._durations.record(fit.candidate, self._params_of(fit), seconds)
        self._n_timed += 1
        self._quickest = min(self._quickest, seconds)
        self._slowest = max(self._slowest, seconds)

    def feed(self, device: str, scheduler: FitScheduler) -> None:
        """Move to a scheduler the next fits, as long as too few are waiting there."""
        fits = self._fits.get(device, {})
        while fits and scheduler.n_waiting < scheduler.n_to_fill_slots:
            candidate, prefix = self._current.get(device, (None, None))
            if candidate not in fits:
                if self._n_timed > 1.3 * self._n_learned:
                    self._learn(device, scheduler)
                candidate = self._orders[device].next(prefix, fits)
            fit = next(iter(fits[candidate]))
            self._current[device] = candidate, _prefix_of(fit)
            self._drop(fit)
            scheduler.add([fit])

    def _learn(self, device: str, scheduler: FitScheduler) -> None:
        """Order the candidates for a device by the seconds that are expected now."""
        self._n_learned = self._n_timed
        candidates, costs = self._fits[device], []
        first_fits = {candidate: next(iter(fits)) for candidate, fits in candidates.items()}
        params = {candidate: self._params_of(fit) for candidate, fit in first_fits.items()}
        for candidate, seconds in self._durations.expected(params).items():
            fit, n_fits = first_fits[candidate], len(candidates[candidate])
            # what a few durations foresee for distant parameters may be noise
            seconds = min(max(seconds, self._quickest), self._slowest)
            steps = scheduler.expected_prefix_seconds(fit.prefix_key)
            costs.append((candidate, _prefix_of(fit), n_fits * seconds, n_fits * steps))
        least = min(own for _, _, own, _ in costs)
        order = self._orders[device] = _CandidateOrder(least)
        for cost in sorted(costs, key=lambda cost: order.magnitude(cost[2])):
            order.add(*cost)

    def remove(self, is_removed: Callable[[Any], bool]) -> list[Any]:
        """Remove fits, and return them."""
        removed = [fit for fit in self if is_removed(fit)]
        for fit in removed:
            self._drop(fit)
        return removed

    def _drop(self, fit: PlannedFit) -> None:
        candidates = self._fits[fit.device]
        del candidates[fit.candidate][fit]
        if not candidates[fit.candidate]:
            del candidates[fit.candidate]


class _CandidateOrder:
    """Candidates by their expected seconds, in which they are added, for each kind of first steps.

    Those that are gone are passed over. ``least`` are the seconds of the quickest one.
    """

    def __init__(self, least: float = 1.0) -> None:
        self._least = least
        self._by_prefix: dict[Hashable, deque[tuple[float, float, int, Hashable]]] = {}
        self._n_added = 0

    def add(self, candidate: Hashable, prefix: Hashable, own: float, steps: float) -> None:
        """Add a candidate, with the seconds of its fits and those of their first steps."""
        self._n_added += 1
        entry = own, steps, self._n_added, candidate
        self._by_prefix.setdefault(prefix, deque()).append(entry)

    def magnitude(self, seconds: float) -> int:
        """Return the power of two nearest to the ratio of seconds to the least."""
        return round(math.log2(max(seconds / max(self._least, _MIN_SECONDS), 1.0)))

    def next(self, last_prefix: Hashable, waiting: Container[Hashable]) -> Hashable:
        """Return the first of the candidates that wait; the last one has had its first steps."""
        heads = []
        for prefix, entries in list(self._by_prefix.items()):
            while entries and entries[0][3] not in waiting:
                entries.popleft()
            if not entries:
                del self._by_prefix[prefix]
                continue
            own, steps, number, candidate = entries[0]
            seconds = own + steps * (prefix != last_prefix)
            heads.append((self.magnitude(seconds), number, candidate))
        _, _, candidate = min(heads, key=lambda head: head[:2])
        return candidate


def _prefix_of(fit: PlannedFit) -> Hashable:
    return tuple(fit.prefix_key)


class SplitQueue:
    """Fits of a race, split by split.

    Fits of candidates that are in doubt wait for the decision of the race, unless a shared fit that
    is made for another candidate has their results. ``candidate_of`` returns the number of the
    candidate of a fit in the race.
    """

    def __init__(self, race: Race, candidate_of: Callable[[Any], int]) -> None:
        self._race, self._candidate_of = race, candidate_of
        self._fits: dict[str, dict[int, list[PlannedFit]]] = {}  # by device and split

    def __iter__(self) -> Iterator[Any]:
        for splits in self._fits.values():
            yield from chain.from_iterable(splits.values())

    def __bool__(self) -> bool:
        return any(splits for splits in self._fits.values())

    def add(self, fit: PlannedFit) -> None:
        """Add a fit."""
        self._fits.setdefault(fit.device, {}).setdefault(fit.fold, []).append(fit)

    def record(self, fit: PlannedFit, seconds: float) -> None:
        """Do nothing: the scheduler begins with the longest fits of a split."""

    def feed(self, device: str, scheduler: FitScheduler) -> None:
        """Move to an idle scheduler the fits of the first split that has any to make."""
        splits = self._fits.get(device, {})
        if scheduler.n_waiting or not scheduler.has_free_slot or not splits:
            return
        doubtful = self._race.doubtful()
        for split in sorted(splits):
            fits = self._without(doubtful, splits[split])
            if fits:
                moved = set(fits)
                splits[split] = [fit for fit in splits[split] if fit not in moved]
                if not splits[split]:
                    del splits[split]
                scheduler.add(fits)
                return

    def _without(
        self, candidates: Collection[int], fits: Collection[PlannedFit]
    ) -> list[PlannedFit]:
        """Return the fits but for those of some candidates that no shared fit makes anyway."""
        certain = {fit for fit in fits if self._candidate_of(fit) not in candidates}
        shared = {(fit.job, *fit.prefix_key) for fit in certain if fit.has_shared_fit}
        return [
            fit
            for fit in fits
            if fit in certain or (fit.has_shared_fit and (fit.job, *fit.prefix_key) in shared)
        ]

    def remove(self, is_removed: Callable[[Any], bool]) -> list[Any]:
        """Remove fits, and return them."""
        removed: list[Any] = []
        for splits in self._fits.values():
            for split, fits in list(splits.items()):
                removed += filter(is_removed, fits)
                splits[split] = [fit for fit in fits if not is_removed(fit)]
                if not splits[split]:
                    del splits[split]
        return removed
