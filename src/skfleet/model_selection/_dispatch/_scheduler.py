"""Order and batches in which fits are sent to workers: decisions only, without I/O or a clock."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

# A batch that is cut to a length takes two thirds of a slot's share of the remaining work. It is
# not shorter, because a task costs some milliseconds, and not longer, because the results of its
# fits arrive when it ends.
_MIN_BATCH_SECONDS = 0.025
_MAX_BATCH_SECONDS = 0.25

# As long as no fit was timed. Fewer fits may not be worth a task; the scheduler divides them among
# more slots only when they turn out to be slow.
_FIRST_BATCH_SECONDS = 0.06
_MIN_UNTIMED_FITS = 8
_MAX_UNTIMED_FITS = 100

# The first batches that have not returned by then are rebalanced.
SLOW_BATCH_SECONDS = 0.1

# Below 0.1 s the round trip to the scheduler dominates; above 2 s Dask's work stealing rebalances
# by itself.
_ROUND_TRIP_SECONDS = 0.1
_STEALABLE_SECONDS = 2.0

# Queues are sorted for each batch up to this number of them, above it now and then.
_RESORT_LIMIT = 64

_MIN_PART_FITS = 4

# A batch goes on for this many times the seconds that its shared preprocessing steps took.
_PREFIX_WORTH = 4


@dataclass(eq=False)
class PlannedFit:
    """A fit, as far as the scheduler is concerned.

    Fits of different jobs have nothing in common. Those of one candidate are expected to take
    equally long on all splits.
    """

    job: int
    fold: int  # number of the split
    candidate: Hashable
    prefix_key: Sequence[Hashable] = ()  # of preprocessing steps; empty if nothing can be shared
    # One fit yields the results of all with the same prefix: they stay together as long as their
    # durations are unknown, but if they are divisible, among slots that would be idle.
    has_shared_fit: bool = False
    is_divisible: bool = False
    group_order: int = 0  # sort key of fits with the same prefix
    device: str = "cpu"  # that the worker must have
    sequence_number: int = field(default=-1, init=False)  # set when the fit is added


@dataclass(eq=False)
class FitBatch:
    """Fits of one job that are sent together; none of them begins after the time limit."""

    fits: list[Any]  # PlannedFit or FitRequest
    time_limit: float
    stolen: frozenset[PlannedFit] = frozenset()  # scheduled a second time, in another batch
    begin: float | None = None  # when a slot was free for it


@dataclass(eq=False)
class _FitGroup:
    """Fits on one split with the same prefix."""

    key: Hashable
    fits: list[PlannedFit] = field(default_factory=list)
    is_part: bool = False  # of a group that was divided
    rank: tuple[float, int] = (-math.inf, 0)


@dataclass(eq=False)
class _GroupQueue:
    """Groups of one split with the same first step; sorted, the longest last."""

    job: int
    groups: dict[Hashable, _FitGroup] = field(default_factory=dict)
    sorted_groups: list[_FitGroup] = field(default_factory=list)
    n_timed: int = -1  # number of timed fits when it was sorted


class FitScheduler:
    """Scheduler of the fits for one kind of worker.

    Fits are batched by split and prefix. Without measured durations every slot is offered an equal
    number of fits and a short time limit. With them, batches are cut to a length, and the longest
    groups come first: a fit is expected to take as long as the same candidate on another split.
    With a deadline groups keep the order in which they were added, so that few candidates are
    incomplete then, and no batch is queued behind another one. In a race none is either, and a
    batch has the fits of one slot on a split, so that none begins long before it is known whether
    it is to be made.
    """

    def __init__(
        self,
        n_slots: int,
        limit: int | None = None,
        *,
        has_deadline: bool = False,
        is_race: bool = False,
    ) -> None:
        self.n_slots, self.limit = n_slots, limit  # of batches: that run at once, and in flight
        self.n_waiting = self.n_in_flight = 0
        self._in_order = has_deadline
        self._is_race = is_race
        self._may_queue = not (has_deadline or is_race)  # behind batches that run
        self.has_prefixes = self._has_divisible = False
        self._n_added = 0
        self._queues: dict[Hashable, _GroupQueue] = {}
        self._sorted_queues: list[_GroupQueue] = []
        self._must_sort, self._n_since_sort = False, 0
        self._fit_seconds: dict[Hashable, float] = {}  # by candidate, without its prefix
        self._prefix_seconds: dict[Hashable, float] = {}
        self._total_fit_seconds = self._total_prefix_seconds = 0.0
        self._n_timed = 0
        self._last_batch_seconds = 0.0
        self._last_was_indivisible = self._is_slow = False
        self._started_prefixes: set[Hashable] = set()

    def add(self, fits: Iterable[PlannedFit]) -> None:
        """Add fits, new ones or those that a batch returned."""
        for fit in fits:
            if fit.sequence_number < 0:
                fit.sequence_number = self._n_added
                self._n_added += 1
            key = (fit.job, fit.fold, *fit.prefix_key[:1])
            if key not in self._queues:
                self._queues[key] = _GroupQueue(fit.job)
            queue = self._queues[key]
            group = tuple(fit.prefix_key) if fit.prefix_key else id(fit)
            queue.groups.setdefault(group, _FitGroup(group)).fits.append(fit)
            queue.n_timed = -1
            self.has_prefixes |= bool(fit.prefix_key)
            self._has_divisible |= fit.is_divisible
            self.n_waiting += 1
            self._must_sort = True

    def prefix_seconds_of(self, batch: FitBatch) -> float:
        """Return the expected seconds of the steps that the first fit of a batch shares."""
        return self.expected_prefix_seconds(batch.fits[0].prefix_key)

    def groups_left(self) -> Iterator[tuple[float, list[PlannedFit]]]:
        """Yield the waiting fits of each group, with the expected seconds of their prefix."""
        for queue in self._queues.values():
            for group in queue.groups.values():
                yield self.expected_prefix_seconds(group.fits[0].prefix_key), group.fits

    @property
    def mean_prefix_seconds(self) -> float:
        """Mean of the measured durations of prefix steps; 0 without any."""
        return self._total_prefix_seconds / max(1, len(self._prefix_seconds))

    def bound(self, n_slots: int) -> None:
        """Use so many slots, and queue no batch behind a running one."""
        self.n_slots, self._may_queue = n_slots, False

    def remove(self, is_removed: Callable[[PlannedFit], bool]) -> list[PlannedFit]:
        """Remove some of the waiting fits, and return them."""
        waiting = [fit for _, group in self.groups_left() for fit in group]
        removed = [fit for fit in waiting if is_removed(fit)]
        if removed:
            self.clear()
            self.add(fit for fit in waiting if not is_removed(fit))
        return removed

    def clear(self) -> list[PlannedFit]:
        """Remove the waiting fits, and return them."""
        groups = [group for queue in self._queues.values() for group in queue.groups.values()]
        self._queues.clear()
        self._sorted_queues.clear()
        self.n_waiting = 0
        return [fit for group in groups for fit in group.fits]

    def record_duration(self, fit: PlannedFit, seconds: float, prefix_seconds: float) -> None:
        """Record the duration of a fit, including the prefix steps that it was the first to fit."""
        own = max(0.0, seconds - prefix_seconds)
        self._n_timed += 1
        self._total_fit_seconds += own
        self._fit_seconds[fit.candidate] = own
        if prefix_seconds and fit.prefix_key:
            previous = self._prefix_seconds.get(fit.prefix_key, 0.0)
            self._total_prefix_seconds += prefix_seconds - previous
            self._prefix_seconds[fit.prefix_key] = prefix_seconds

    def batch_done(self, seconds: Sequence[float]) -> None:
        """Record the end of a batch, with the durations of its finished fits."""
        self.n_in_flight -= 1
        self._last_batch_seconds = sum(seconds)
        self._last_was_indivisible = self.has_prefixes or len(seconds) < 2

    def steal_unstarted(self, batch: FitBatch) -> None:
        """Schedule the fits of a slow batch again, on slots that would be idle.

        The first fit stays, since its worker is at it. A later one that has begun is fitted twice.
        """
        if self._n_timed or self.n_waiting >= self.n_slots - self.n_in_flight:
            return
        first, *following = batch.fits
        if first.has_shared_fit:
            shared = first.fold, first.prefix_key
            following = [fit for fit in following if (fit.fold, fit.prefix_key) != shared]
        self._is_slow = True
        batch.stolen = frozenset(following)
        self.add(following)

    @property
    def n_to_fill_slots(self) -> int:
        """Number of fits in the next batches of all slots."""
        if not self._n_timed:
            return self.n_slots
        mean = max(self._total_fit_seconds / self._n_timed, 1e-3)
        return self.n_slots * math.ceil(max(1.0, _MAX_BATCH_SECONDS / mean))

    @property
    def seconds_waiting(self) -> float:
        """Seconds that the waiting fits are expected to take one after the other."""
        return self.n_waiting * self._total_fit_seconds / max(1, self._n_timed)

    @property
    def n_batches_target(self) -> int:
        """Number of batches that should be in flight: one for each slot, and some queued.

        A slot without a queued batch is idle for a round trip. But a queued batch is bound to its
        slot: near the end of a search it might wait there while other slots are free, unless it
        was cut to be short. (Batches of seconds are moved by Dask's work stealing. They should be
        queued, since Dask's adaptive scaling counts them; that of a `Fleet` counts all that wait.)
        """
        if not self._n_timed:
            queues = not self.has_prefixes  # preprocessing is seldom short
        else:
            last = self._last_batch_seconds
            is_near_end = self.seconds_waiting < 4 * self.n_slots * last
            would_wait = self._last_was_indivisible and last > _ROUND_TRIP_SECONDS
            queues = not (is_near_end and would_wait and last < _STEALABLE_SECONDS)
        target = self.n_slots * (1 + (queues and self._may_queue))
        return target if self.limit is None else min(target, self.limit)

    @property
    def has_free_slot(self) -> bool:
        """True if a further batch would be sent."""
        return self.n_in_flight < self.n_batches_target

    # 1. Return None when nothing waits, or enough batches are in flight.
    # 2. Divide groups that one fit may serve, where there are fewer of them than slots.
    # 3. Without measured durations: take an equal number of fits for each idle slot, and from one
    #    prefix only, under a short time limit.
    # 4. With durations: take fits from the longest group on, until the expected seconds reach the
    #    target length.
    # 5. Sort the batch by split, so that a worker holds the rows of one split at a time.
    def next_batch(self) -> FitBatch | None:
        """Return the next batch to send; None when nothing waits or enough is in flight."""
        if not self.n_waiting or not self.has_free_slot:
            return None
        if self._has_divisible:
            self._divide_groups()
        fits: list[PlannedFit] = []
        if not self._n_timed:
            n_idle = max(0, self.n_slots - self.n_in_flight) or self.n_slots
            n_equal = max(_MIN_UNTIMED_FITS, math.ceil(self.n_waiting / n_idle))
            is_single = self._is_slow or not self._may_queue
            max_fits = 1 if is_single else min(_MAX_UNTIMED_FITS, n_equal)
            while len(fits) < max_fits and (queue := self._next_queue(fits)) is not None:
                self._move_fits(queue, fits, math.inf, max_fits)
                if fits[0].prefix_key:
                    break
            time_limit = _FIRST_BATCH_SECONDS
        else:
            mean = self._total_fit_seconds / self._n_timed
            slot_seconds = self.n_waiting * mean / (1.5 * self.n_slots)
            target = remaining = min(max(slot_seconds, _MIN_BATCH_SECONDS), _MAX_BATCH_SECONDS)
            time_limit = 2 * target
            max_fits = self.n_waiting
            if self._is_race and not self.has_prefixes:
                max_fits = math.ceil(self.n_waiting / self.n_slots)
            while (
                remaining > target / 2
                and len(fits) < max_fits
                and (queue := self._next_queue(fits)) is not None
            ):
                remaining = self._move_fits(queue, fits, remaining, max_fits)
        fits.sort(key=lambda fit: fit.fold)
        self.n_waiting -= len(fits)
        self.n_in_flight += 1
        return FitBatch(fits, time_limit)

    def _divide_groups(self) -> None:
        """Divide groups, where there are fewer than slots.

        Each part has fits of the whole range, so that none takes much longer than another.
        """
        n_groups = sum(len(queue.groups) for queue in self._queues.values())
        if not 0 < n_groups < self.n_slots:
            return
        for queue in self._queues.values():
            for group in list(queue.groups.values()):
                n_parts = min(self.n_slots // n_groups, len(group.fits) // _MIN_PART_FITS)
                if group.is_part or n_parts < 2 or not group.fits[0].is_divisible:
                    continue
                del queue.groups[group.key]
                group.fits.sort(key=lambda fit: fit.sequence_number)
                for n in range(n_parts):
                    part = _FitGroup((group.key, n), group.fits[n::n_parts], is_part=True)
                    queue.groups[part.key] = part
                queue.n_timed = -1
                self._must_sort = True

    def _next_queue(self, fits: Sequence[PlannedFit]) -> _GroupQueue | None:
        """Return the queue with the longest group, of the same job as the fits of a batch."""
        self._n_since_sort += 1
        n_queues = len(self._sorted_queues)
        # a stale order is good enough: the longest group is still a long one
        if self._must_sort or n_queues <= _RESORT_LIMIT or self._n_since_sort > n_queues // 8:
            self._sort_queues()
        for queue in reversed(self._sorted_queues):
            if queue.groups and (not fits or queue.job == fits[0].job):
                return queue
        return None

    def _sort_queues(self) -> None:
        """Sort the queues, the one with the longest group last."""
        self._queues = {key: queue for key, queue in self._queues.items() if queue.groups}
        queues = self._queues.values()
        for queue in queues:
            self._sort_groups(queue)
        self._sorted_queues = sorted(queues, key=lambda q: q.sorted_groups[-1].rank, reverse=True)
        self._must_sort, self._n_since_sort = False, 0

    def _sort_groups(self, queue: _GroupQueue) -> None:
        """Sort the groups of a queue, unless few fits were timed since."""
        is_sorted = queue.n_timed >= 0 and self._n_timed < 1.3 * queue.n_timed + 1
        if is_sorted and (self._n_timed or not self.has_prefixes):
            return
        for group in queue.groups.values():
            # untimed fits count as the longest, then groups with a prefix that has been started
            durations = [self._fit_seconds.get(fit.candidate, math.inf) for fit in group.fits]
            prefix = group.fits[0].prefix_key
            expected = sum(durations) + self.expected_prefix_seconds(prefix)
            if expected == math.inf and prefix in self._started_prefixes:
                expected = sys.float_info.max
            group.fits.sort(key=lambda fit: (fit.group_order, fit.sequence_number))
            # ties stay in the order in which the fits were added
            group.rank = 0.0 if self._in_order else -expected, group.fits[0].sequence_number
        queue.sorted_groups = sorted(queue.groups.values(), key=attrgetter("rank"), reverse=True)
        queue.n_timed = self._n_timed

    def expected_prefix_seconds(self, prefix: Hashable) -> float:
        """Return the measured duration of prefix steps, or the mean of all that were measured."""
        if not prefix or not self._prefix_seconds:
            return 0.0
        return self._prefix_seconds.get(prefix, self.mean_prefix_seconds)

    def _move_fits(
        self, queue: _GroupQueue, fits: list[PlannedFit], remaining: float, max_fits: int
    ) -> float:
        """Move fits from a queue into a batch; return its remaining seconds."""
        mean = self._total_fit_seconds / max(1, self._n_timed)
        while queue.sorted_groups and remaining > 0 and len(fits) < max_fits:
            group = queue.sorted_groups[-1]
            prefix = group.fits[0].prefix_key
            seconds = self.expected_prefix_seconds(prefix)
            max_seconds = max(remaining, _PREFIX_WORTH * seconds)
            n_moved = 0
            for fit in group.fits:
                if seconds >= max_seconds or (len(fits) >= max_fits and not fit.has_shared_fit):
                    break
                fits.append(fit)
                n_moved += 1
                seconds += self._fit_seconds.get(fit.candidate, mean)
            del group.fits[:n_moved]
            if not group.fits:
                queue.sorted_groups.pop()
                del queue.groups[group.key]
            remaining -= seconds
            if prefix:
                self._started_prefixes.add(prefix)
                if not self._n_timed:
                    break  # the next group of the queue may be worth a slot of its own
            if self._in_order:
                break  # the next group may be one of another split
        return remaining


class DeviceSchedulers:
    """One scheduler for each device, built when the first fit for it is added."""

    def __init__(self, new_scheduler: Callable[[str], FitScheduler]) -> None:
        self._new_scheduler = new_scheduler
        self._schedulers: dict[str, FitScheduler] = {}

    def __iter__(self) -> Iterator[tuple[str, FitScheduler]]:
        return iter(list(self._schedulers.items()))

    def of(self, fit: PlannedFit) -> FitScheduler:
        """Return the scheduler for the device of a fit."""
        if fit.device not in self._schedulers:
            self._schedulers[fit.device] = self._new_scheduler(fit.device)
        return self._schedulers[fit.device]

    def of_batch(self, batch: FitBatch) -> FitScheduler:
        """Return the scheduler that a batch came from."""
        return self.of(batch.fits[0])

    def add(self, fits: Iterable[PlannedFit]) -> None:
        """Add fits, new ones or those that a batch returned."""
        for fit in fits:
            self.of(fit).add([fit])

    def clear(self) -> list[Any]:  # PlannedFit or FitRequest
        """Remove the waiting fits of all devices, and return them."""
        return [fit for scheduler in self._schedulers.values() for fit in scheduler.clear()]

    def next_batch(self) -> FitBatch | None:
        """Return the next batch to send for any device, or None."""
        batches = (scheduler.next_batch() for scheduler in self._schedulers.values())
        return next((batch for batch in batches if batch is not None), None)

    @property
    def has_prefixes(self) -> bool:
        """True if any fits have preprocessing steps that can be shared."""
        return any(scheduler.has_prefixes for scheduler in self._schedulers.values())

    def remove(self, is_removed: Callable[[Any], bool]) -> list[Any]:  # PlannedFit or FitRequest
        """Remove some of the waiting fits, and return them."""
        return [fit for own in self._schedulers.values() for fit in own.remove(is_removed)]


def should_yield(
    elapsed: float, time_limit: float, *, group_elapsed: float, prefix_seconds: float
) -> bool:
    """Return whether a batch should end early and return its remaining fits.

    ``group_elapsed`` are the seconds since the first fit with the prefix of the next one began,
    infinite where the next one has another prefix; ``prefix_seconds`` those that its steps took.
    """
    return elapsed >= time_limit and group_elapsed >= _PREFIX_WORTH * prefix_seconds
