"""In which order, and how many at a time, fits are sent to workers: decisions, and no I/O."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["SLOW", "FitBatch", "FitScheduler", "PlannedFit", "is_over"]

# A bundle that is cut to measure takes two thirds of a slot's share of what is left, but no less
# than this many seconds, because a task costs some milliseconds, and no more, because nobody hears
# of its fits until it ends.
_SHORTEST = 0.04
_LONGEST = 0.25

# Seconds after which a bundle ends whose fits nobody has timed, and how many fits it has: fewer may
# not be worth a task, and are shared out among more slots only when they turn out to be slow.
_FIRST_LOOK = 0.06
_FEWEST_UNTIMED = 8
_MOST_UNTIMED = 100

# Seconds after which fits are slow: those that have not come back are in their bundles' last ones.
SLOW = 0.1

# An idle round trip is noticed where bundles are shorter than this, and Dask moves tasks from one
# worker to another that are longer than that, in seconds.
_NOTICED = 0.1
_MOVED = 2.0

# So many groups of fits are put in order for each bundle.
_MANY = 64

# A block is divided into parts of so many fits at least.
_FEWEST_OF_A_PART = 4

# A bundle with shared first steps goes on for this many times as long as it took to fit them, to be
# worth it.
_STEPS_WORTH = 4


@dataclass(eq=False)
class PlannedFit:
    """A fit as far as the plan is concerned.

    Parameters
    ----------
    job : int
        Fits of different jobs have nothing in common.
    fold : int
        Number of the split.
    candidate : hashable
        What the fit may be expected to take as long as, on another split.
    path : sequence of hashable
        What tells its first steps from others, step by step; empty where nothing can be shared.
    is_contained : bool
        Whether one fit contains it and all others with the same path: as long as nothing is known
        of their durations they stay together.
    is_divisible : bool
        Whether those are worth dividing among slots that would be idle.
    order : int
        Of fits with the same path, those of the same order come together.
    device : {"cpu", "cuda"}
        The kind of worker that is to make it.
    """

    job: int
    fold: int
    candidate: Hashable
    path: Sequence[Hashable] = ()
    is_contained: bool = False
    is_divisible: bool = False
    order: int = 0
    device: str = "cpu"
    place: int = field(default=-1, init=False)  # in the order in which the plan heard of them


@dataclass(eq=False)
class FitBatch:
    """Fits of one job that go together, and the seconds after which no other is begun."""

    fits: list[PlannedFit]
    within: float
    reclaimed: frozenset[PlannedFit] = frozenset()  # those that others make too


@dataclass(eq=False)
class _Block:
    """Fits on one split that have all their first steps in common."""

    key: Hashable
    fits: list[PlannedFit] = field(default_factory=list)
    is_part: bool = False  # of a block that was divided
    rank: tuple[float, int] = (-math.inf, 0)


@dataclass(eq=False)
class _Group:
    """Blocks of one split with the same first step; in order, the longest last."""

    job: int
    blocks: dict[Hashable, _Block] = field(default_factory=dict)
    order: list[_Block] = field(default_factory=list)
    n_timed: int = -1


class FitScheduler:
    """What is left to fit, and what to send next.

    Fits are bundled by split and first steps. As long as nothing is known of their durations every
    slot is offered an equal share, to be left off after a moment; from then on bundles are cut to a
    length, and the longest come first, where a fit is expected to take as long as the same
    candidate did on another split.

    Parameters
    ----------
    n_slots : int
        How many bundles run at once.
    limit : int or None
        How many may be on their way at most.
    queues : bool, default=True
        Whether some bundles may wait behind those that run.
    """

    def __init__(self, n_slots: int, limit: int | None = None, *, queues: bool = True) -> None:
        self.n_slots = n_slots
        self.limit = limit
        self._queues = queues
        self.n_waiting = 0
        self.n_sent = 0
        self._n_heard_of = 0
        self.has_paths = False
        self._may_divide = False
        self._groups: dict[Hashable, _Group] = {}
        self._ranking: list[_Group] = []
        self._has_new, self._n_asked = False, 0
        self._seconds: dict[Hashable, float] = {}
        self._steps_seconds: dict[Hashable, float] = {}
        self._steps_total = 0.0
        self._n_timed = 0
        self._total = 0.0
        self._latest = 0.0
        self._is_whole = self._is_slow = False
        self._begun: set[Hashable] = set()

    def add(self, fits: Iterable[PlannedFit]) -> None:
        """Enter fits that are to be made, anew or again."""
        for fit in fits:
            if fit.place < 0:
                fit.place = self._n_heard_of
                self._n_heard_of += 1
            key = (fit.job, fit.fold, *fit.path[:1])
            if key not in self._groups:
                self._groups[key] = _Group(fit.job)
            group = self._groups[key]
            block = tuple(fit.path) if fit.path else id(fit)
            group.blocks.setdefault(block, _Block(block)).fits.append(fit)
            group.n_timed = -1
            self.has_paths |= bool(fit.path)
            self._may_divide |= fit.is_divisible
            self.n_waiting += 1
            self._has_new = True

    def drop_all(self) -> list[PlannedFit]:
        """Forget what is waiting, and give it back."""
        dropped = [
            fit
            for group in self._groups.values()
            for block in group.blocks.values()
            for fit in block.fits
        ]
        self._groups.clear()
        self._ranking.clear()
        self.n_waiting = 0
        return dropped

    def learn(self, fit: PlannedFit, seconds: float, steps_seconds: float) -> None:
        """Take note of the time of a fit, and of that for first steps it was the first to need."""
        own = max(0.0, seconds - steps_seconds)
        self._n_timed += 1
        self._total += own
        self._seconds[fit.candidate] = own
        if steps_seconds and fit.path:
            self._steps_total += steps_seconds - self._steps_seconds.get(fit.path, 0.0)
            self._steps_seconds[fit.path] = steps_seconds

    def come_back(self, seconds: Sequence[float]) -> None:
        """Take note that a bundle has ended, and of the seconds of the fits that were made."""
        self.n_sent -= 1
        self._latest = sum(seconds)
        self._is_whole = self.has_paths or len(seconds) < 2

    def reclaim(self, bundle: FitBatch) -> None:
        """Share out the fits of a slow bundle among slots that have nothing else to do.

        All but the first, which it is at. It may have begun another one: that is made twice then.
        """
        if self._n_timed or self.n_waiting >= self.n_slots - self.n_sent:
            return
        first, *rest = bundle.fits
        if first.is_contained:
            rest = [fit for fit in rest if (fit.fold, fit.path) != (first.fold, first.path)]
        self._is_slow = True
        bundle.reclaimed = frozenset(rest)
        self.add(rest)

    @property
    def n_enough(self) -> int:
        """How many fits fill the next bundle of every slot."""
        if not self._n_timed:
            return self.n_slots
        mean = max(self._total / self._n_timed, 1e-3)
        return self.n_slots * math.ceil(max(1.0, _LONGEST / mean))

    @property
    def n_wanted(self) -> int:
        """How many bundles should be on their way: one for each slot, and some to follow.

        A slot with nothing to follow is idle for a round trip. But what follows is bound to its
        slot: near the end of a search it might wait there while others are free, unless it was cut
        to be short. (What takes seconds the scheduler moves by itself, and should see: a fleet may
        grow by it.)
        """
        if not self._n_timed:
            follows = not self.has_paths  # first steps are seldom short
        else:
            left = self.n_waiting * self._total / self._n_timed
            is_near_the_end = left < 4 * self.n_slots * self._latest
            would_wait = self._is_whole and _NOTICED < self._latest < _MOVED
            follows = not (is_near_the_end and would_wait)
        wanted = self.n_slots * (1 + (follows and self._queues))
        return wanted if self.limit is None else min(wanted, self.limit)

    def take(self) -> FitBatch | None:
        """Give what to send next, or None when there is nothing left or enough on its way."""
        if not self.n_waiting or self.n_sent >= self.n_wanted:
            return None
        if self._may_divide:
            self._divide()
        fits: list[PlannedFit] = []
        if not self._n_timed:
            idle = self.n_slots - self.n_sent if self.n_sent < self.n_slots else self.n_slots
            fair = max(_FEWEST_UNTIMED, math.ceil(self.n_waiting / idle))
            alone = self._is_slow or not self._queues
            most = 1 if alone else min(_MOST_UNTIMED, fair)
            while len(fits) < most and (group := self._next_group(fits)) is not None:
                self._take_from(group, fits, math.inf, most)
                if fits[0].path:
                    break
            within = _FIRST_LOOK
        else:
            mean = self._total / self._n_timed
            share = self.n_waiting * mean / (1.5 * self.n_slots)
            target = left = min(max(share, _SHORTEST), _LONGEST)
            within = 2 * target
            while left > target / 2 and (group := self._next_group(fits)) is not None:
                left = self._take_from(group, fits, left, len(fits) + self.n_waiting)
        fits.sort(key=lambda fit: fit.fold)  # the rows of one split are held at a time
        self.n_waiting -= len(fits)
        self.n_sent += 1
        return FitBatch(fits, within)

    def _divide(self) -> None:
        """Divide blocks, where there are fewer than slots.

        Each part has fits of the whole range, so that none takes much longer than another.
        """
        n_blocks = sum(len(group.blocks) for group in self._groups.values())
        if not 0 < n_blocks < self.n_slots:
            return
        for group in self._groups.values():
            for block in list(group.blocks.values()):
                n_parts = min(self.n_slots // n_blocks, len(block.fits) // _FEWEST_OF_A_PART)
                if block.is_part or n_parts < 2 or not block.fits[0].is_divisible:
                    continue
                del group.blocks[block.key]
                block.fits.sort(key=lambda fit: fit.place)
                for n in range(n_parts):
                    part = _Block((block.key, n), block.fits[n::n_parts], is_part=True)
                    group.blocks[part.key] = part
                group.n_timed = -1
                self._has_new = True

    def _next_group(self, fits: Sequence[PlannedFit]) -> _Group | None:
        """Give the group that has the longest block, of the job that the bundle is of.

        Many groups are not put in order for each bundle: what was the longest is long still.
        """
        self._n_asked += 1
        n_groups = len(self._ranking)
        if self._has_new or n_groups <= _MANY or self._n_asked > n_groups // 8:
            self._rank_groups()
        for group in reversed(self._ranking):
            if group.blocks and (not fits or group.job == fits[0].job):
                return group
        return None

    def _rank_groups(self) -> None:
        """Put the groups in order, the longest last."""
        self._groups = {key: group for key, group in self._groups.items() if group.blocks}
        for group in self._groups.values():
            self._sort(group)
        self._ranking = sorted(
            self._groups.values(), key=lambda group: group.order[-1].rank, reverse=True
        )
        self._has_new, self._n_asked = False, 0

    def _sort(self, group: _Group) -> None:
        """Put the blocks of a group in order, unless not much was learned since."""
        is_known = group.n_timed >= 0 and self._n_timed < 1.3 * group.n_timed + 1
        if is_known and (self._n_timed or not self.has_paths):
            return
        for block in group.blocks.values():
            # nothing is longer than what nobody has timed, or begun
            known = [self._seconds.get(fit.candidate, math.inf) for fit in block.fits]
            path = block.fits[0].path
            expected = sum(known) + self._expected_steps(path)
            if expected == math.inf and path in self._begun:
                expected = sys.float_info.max
            block.fits.sort(key=lambda fit: (fit.order, fit.place))
            # in the order given where nothing is known
            block.rank = -expected, block.fits[0].place
        group.order = sorted(group.blocks.values(), key=lambda block: block.rank, reverse=True)
        group.n_timed = self._n_timed

    def _expected_steps(self, path: Hashable) -> float:
        """Give the seconds that first steps take: as long as they did, or as others do."""
        if not path or not self._steps_seconds:
            return 0.0
        return self._steps_seconds.get(path, self._steps_total / len(self._steps_seconds))

    def _take_from(self, group: _Group, fits: list[PlannedFit], left: float, most: int) -> float:
        """Move fits from a group into a bundle that has some seconds left; give what is left."""
        mean = self._total / max(1, self._n_timed)
        while group.order and left > 0 and len(fits) < most:
            block = group.order[-1]
            path = block.fits[0].path
            spent = self._expected_steps(path)
            enough = max(left, _STEPS_WORTH * spent)
            n_taken = 0
            for fit in block.fits:
                if spent >= enough or (len(fits) >= most and not fit.is_contained):
                    break
                fits.append(fit)
                n_taken += 1
                spent += self._seconds.get(fit.candidate, mean)
            del block.fits[:n_taken]
            if not block.fits:
                group.order.pop()
                del group.blocks[block.key]
            left -= spent
            if path:
                self._begun.add(path)
                if not self._n_timed:
                    break  # the next block of the group may be worth a slot of its own
        return left


def is_over(elapsed: float, within: float, *, block_elapsed: float, steps_seconds: float) -> bool:
    """Tell whether a bundle should leave the rest to others.

    Parameters
    ----------
    elapsed : float
        Seconds since the bundle began.
    within : float
        Seconds that it was given.
    block_elapsed : float
        Seconds since the first fit began that has the same first steps as the next one; infinite
        where the next one has others.
    steps_seconds : float
        Seconds that the first steps took.
    """
    return elapsed >= within and block_elapsed >= _STEPS_WORTH * steps_seconds
