"""A plan for each kind of worker: fits that want a GPU keep GPU workers busy, others the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from skfleet.model_selection._dispatch._scheduler import FitBatch, FitScheduler, PlannedFit

__all__ = ["DeviceSchedulers"]

AnyFit = TypeVar("AnyFit", bound=PlannedFit)


class DeviceSchedulers:
    """The plans of a call, made when a fit of their kind first comes.

    Parameters
    ----------
    make : callable
        Makes the plan for workers of a kind.
    """

    def __init__(self, make: Callable[[str], FitScheduler]) -> None:
        self._make = make
        self._plans: dict[str, FitScheduler] = {}

    def __iter__(self) -> Iterator[tuple[str, FitScheduler]]:
        return iter(list(self._plans.items()))

    def of(self, fit: PlannedFit) -> FitScheduler:
        """Give the plan that a fit belongs to."""
        if fit.device not in self._plans:
            self._plans[fit.device] = self._make(fit.device)
        return self._plans[fit.device]

    def add(self, fits: Iterable[PlannedFit]) -> None:
        """Enter fits that are to be made, anew or again."""
        for fit in fits:
            self.of(fit).add([fit])

    def drop_all(self) -> list[PlannedFit]:
        """Forget what is waiting, and give it back."""
        return [fit for plan in self._plans.values() for fit in plan.drop_all()]

    def take(self) -> FitBatch | None:
        """Give what to send next, of any kind, or None."""
        for plan in self._plans.values():
            bundle = plan.take()
            if bundle is not None:
                return bundle
        return None

    def come_back(self, bundle: FitBatch, seconds: Sequence[float]) -> None:
        """Take note that a bundle has ended, and of the seconds of the fits that were made."""
        self.of(bundle.fits[0]).come_back(seconds)

    def reclaim(self, bundle: FitBatch) -> None:
        """Share out the fits of a slow bundle among slots that have nothing else to do."""
        self.of(bundle.fits[0]).reclaim(bundle)

    def learn(self, fit: PlannedFit, seconds: float, steps_seconds: float) -> None:
        """Take note of the time of a fit."""
        self.of(fit).learn(fit, seconds, steps_seconds)

    @property
    def has_paths(self) -> bool:
        """Whether any fits have first steps that others may share."""
        return any(plan.has_paths for plan in self._plans.values())

    def first_wanted(self, fits: Iterable[AnyFit]) -> AnyFit | None:
        """Give the first of some fits that workers of its kind could begin soon, or None."""
        enough = {device for device, plan in self if plan.n_waiting >= plan.n_enough}
        return next((fit for fit in fits if fit.device not in enough), None)
