"""Queues of the fits that a scheduler gets little by little, where the end of the search is open.

They decide only, without I/O or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any, Protocol

from skfleet.model_selection._dispatch._scheduler import FitScheduler, PlannedFit
from skfleet.model_selection._racing._race import Race


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

    def remove(self, is_removed: Callable[[Any], bool]) -> list[Any]:
        """Remove fits, and return them."""
        ...


class CandidateQueue:
    """Fits candidate by candidate, so that few are incomplete when the time is over."""

    def __init__(self) -> None:
        self._fits: dict[str, dict[PlannedFit, None]] = {}  # by device

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._fits.values())

    def __bool__(self) -> bool:
        return any(self._fits.values())

    def add(self, fit: PlannedFit) -> None:
        """Add a fit."""
        self._fits.setdefault(fit.device, {})[fit] = None

    def feed(self, device: str, scheduler: FitScheduler) -> None:
        """Move to a scheduler the next fits, as long as too few are waiting there."""
        fits = self._fits.get(device, {})
        while fits and scheduler.n_waiting < scheduler.n_to_fill_slots:
            fit = next(iter(fits))
            del fits[fit]
            scheduler.add([fit])

    def remove(self, is_removed: Callable[[Any], bool]) -> list[Any]:
        """Remove fits, and return them."""
        removed = [fit for fit in self if is_removed(fit)]
        for fit in removed:
            del self._fits[fit.device][fit]
        return removed


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
        removed = [fit for fit in self if is_removed(fit)]
        for fit in removed:
            self._fits[fit.device][fit.fold].remove(fit)
            if not self._fits[fit.device][fit.fold]:
                del self._fits[fit.device][fit.fold]
        return removed
