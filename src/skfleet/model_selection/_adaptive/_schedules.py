"""Which candidate is trained next, and for how long: decisions that see nothing but scores."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = [
    "AsynchronousHalving",
    "Hyperband",
    "RoundRobin",
    "Rung",
    "Schedule",
    "StopOnPlateau",
    "SuccessiveHalving",
    "Train",
    "asynchronous_levels",
    "calls_of",
    "halving_rungs",
    "hyperband_rungs",
    "inverse_decay_rungs",
]


class Rung(NamedTuple):
    """How many candidates are trained until they have had how many calls."""

    n_candidates: int
    n_calls: int


class Train(NamedTuple):
    """The order to train a candidate until it has had `n_calls` calls, and to score it."""

    candidate: int
    n_calls: int
    bracket: int = 0
    rung: int = 0


class Schedule(Protocol):
    """Decides what is trained. It knows candidates by number, from 0, and no clock."""

    n_candidates: int

    def next(self) -> Train | None:
        """Give an order that can be carried out now; None where a score must come first."""
        ...

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Take the score of a candidate that was trained as ordered, NaN if that failed.

        Returns the candidates that will not be trained any more.
        """
        ...


def _power_floor(value: float) -> int:
    """Return the floor of a number that a power of a float may have missed by rounding."""
    return math.floor(value * (1 + 1e-12) + 1e-9)


def halving_rungs(n: int, n_calls: int, max_calls: int | None, eta: float) -> list[Rung]:
    """Return the rungs of successive halving that begins with n candidates of n_calls each.

    Of every rung the best ``1 / eta`` go on to `eta` times as many calls, until one is left or has
    had `max_calls` (Li et al., *Hyperband*, JMLR 18, 2018, algorithm 1, lines 4 to 9).
    """
    rungs: list[Rung] = []
    while True:
        i = len(rungs)
        left = _power_floor(n * eta**-i)
        if left < 1:
            return rungs
        calls = max(1, _power_floor(n_calls * eta**i))
        calls = calls if max_calls is None else min(calls, max_calls)
        if rungs and calls == rungs[-1].n_calls:
            return rungs
        rungs.append(Rung(left, calls))
        if left == 1:
            return rungs


def hyperband_rungs(max_calls: int, eta: float) -> list[list[Rung]]:
    """Return the rungs of every bracket of Hyperband, the one with most candidates first.

    These are those of Li et al. (2018), algorithm 1: with R = `max_calls`, s from the largest s
    with ``eta**s <= R`` down to 0, ``n = ceil((s_max + 1) * eta**s / (s + 1))`` candidates begin
    with ``R * eta**-s`` calls, and there are s + 1 rungs.
    """
    s_max = 0
    while eta ** (s_max + 1) <= max_calls * (1 + 1e-12):
        s_max += 1
    brackets = []
    for s in range(s_max, -1, -1):
        n = -_power_floor(-(s_max + 1) * eta**s / (s + 1) + 2e-9)
        rungs = [
            Rung(_power_floor(n * eta**-i), max(1, _power_floor(max_calls * eta ** (i - s))))
            for i in range(s + 1)
        ]
        brackets.append(rungs)
    return brackets


def asynchronous_levels(n_calls: int, max_calls: int, eta: float) -> list[int]:
    """Return the calls after each rung of asynchronous halving, from n_calls to max_calls."""
    levels = [n_calls]
    while levels[-1] < max_calls:
        levels.append(
            min(max_calls, max(levels[-1] + 1, _power_floor(n_calls * eta ** len(levels))))
        )
    return levels


def inverse_decay_rungs(n: int, max_calls: int, decay_rate: float) -> list[Rung]:
    """Return the rungs that leave ``ceil(n / (1 + t)**decay_rate)`` candidates after t calls."""
    rungs: list[Rung] = []
    left = n
    for t in range(1, max_calls + 1):
        # those that are left for the call after this one
        then = max(1, math.ceil(n / (1 + t) ** decay_rate - 1e-9))
        if then < left or t == max_calls:
            rungs.append(Rung(left, t))
            left = then
    return rungs


def calls_of(rungs: Sequence[Rung]) -> int:
    """Return how many calls the rungs take, of candidates that go on where they stood."""
    before, total = 0, 0
    for rung in rungs:
        total += rung.n_candidates * (rung.n_calls - before)
        before = rung.n_calls
    return total


class SuccessiveHalving:
    """Rungs of candidates, the best of each of which go on.

    Who is sure to be among the best of his rung, whatever the others will score, goes on before
    these have been scored: the same candidates go on, and fewer workers wait. Ties go to the lower
    number. What failed is never promoted; then fewer go on.
    """

    def __init__(self, rungs: Sequence[Rung], *, first: int = 0, bracket: int = 0) -> None:
        self.rungs = list(rungs)
        self.n_candidates = self.rungs[0].n_candidates
        self._bracket = bracket
        everybody = range(first, first + self.n_candidates)
        self._queue = deque(everybody)
        self._at = dict.fromkeys(everybody, 0)  # the rung that a candidate is at or on its way to
        self._scores: list[dict[int, float]] = [{} for _ in rungs]
        # how many candidates each rung has, as far as the ones before it are complete
        self._sizes = [self.n_candidates]

    def next(self) -> Train | None:
        """Give the next order."""
        if not self._queue:
            return None
        candidate = self._queue.popleft()
        rung = self._at[candidate]
        return Train(candidate, self.rungs[rung].n_calls, self._bracket, rung)

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Take a score, and promote whoever is sure to go on."""
        rung = self._at[candidate]
        self._scores[rung][candidate] = score
        gone: list[int] = []
        while rung < len(self.rungs):
            scores = self._scores[rung]
            is_last = rung == len(self.rungs) - 1
            n_next = 0 if is_last else self.rungs[rung + 1].n_candidates
            is_known = rung < len(self._sizes)
            size = self._sizes[rung] if is_known else self.rungs[rung].n_candidates
            n_awaited = size - len(scores)
            sure = _ranked(scores)[: max(0, n_next - n_awaited)]
            for one in sure:
                if self._at[one] == rung:
                    self._at[one] = rung + 1
                    self._queue.append(one)
            if n_awaited or not is_known:
                return gone
            # The rung is complete; perhaps with it the next one is.
            gone += [one for one in scores if one not in sure]
            if not is_last:
                self._sizes.append(len(sure))
            rung += 1
        return gone


class Hyperband:
    """Several brackets of successive halving at once."""

    def __init__(self, brackets: Sequence[Sequence[Rung]]) -> None:
        self.brackets: list[SuccessiveHalving] = []
        for number, rungs in enumerate(brackets):
            first = sum(bracket.n_candidates for bracket in self.brackets)
            # Brackets are called s in the paper: how often their candidates are divided.
            name = len(brackets) - 1 - number
            self.brackets.append(SuccessiveHalving(rungs, first=first, bracket=name))
        self.n_candidates = sum(bracket.n_candidates for bracket in self.brackets)
        self._of = {
            candidate: bracket
            for bracket, low in zip(self.brackets, self._lows(), strict=True)
            for candidate in range(low, low + bracket.n_candidates)
        }

    def _lows(self) -> list[int]:
        """Return the number of each bracket's first candidate."""
        sizes = [bracket.n_candidates for bracket in self.brackets]
        return [sum(sizes[:i]) for i in range(len(sizes))]

    def next(self) -> Train | None:
        """Give an order of the first bracket that has one."""
        for bracket in self.brackets:
            order = bracket.next()
            if order is not None:
                return order
        return None

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Take a score in the bracket of the candidate."""
        return self._of[candidate].on_score(candidate, score)


class AsynchronousHalving:
    """Candidates go on as soon as they are among the best ``1 / eta`` of their rung so far.

    (Li et al., *A System for Massively Parallel Hyperparameter Tuning*, MLSys 2020, algorithm 2.)
    A candidate that is not promoted is only paused.
    """

    def __init__(self, n: int, levels: Sequence[int], eta: float) -> None:
        self.n_candidates = n
        self._levels = list(levels)
        self._eta = eta
        self._n_begun = 0
        self._at: dict[int, int] = {}  # the rung that a candidate is at or on its way to
        # of every rung, (failed, -score, number) in order, and who was promoted from it
        self._scored: list[list[tuple[bool, float, int]]] = [[] for _ in self._levels]
        self._promoted: list[set[int]] = [set() for _ in self._levels]

    def next(self) -> Train | None:
        """Promote from the highest rung that can; else begin with another candidate."""
        for rung in range(len(self._levels) - 2, -1, -1):
            scored, promoted = self._scored[rung], self._promoted[rung]
            # With a score for each of the top, nobody below can pass.
            for _, _, candidate in scored[: _power_floor(len(scored) / self._eta)]:
                if candidate not in promoted:
                    promoted.add(candidate)
                    return self._order(candidate, rung + 1)
        if self._n_begun == self.n_candidates:
            return None
        self._n_begun += 1
        return self._order(self._n_begun - 1, 0)

    def _order(self, candidate: int, rung: int) -> Train:
        self._at[candidate] = rung
        return Train(candidate, self._levels[rung], 0, rung)

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Take a score; what failed, or has come to the top, is trained no more."""
        rung = self._at[candidate]
        if math.isnan(score):
            # It counts among those of its rung, as the last one.
            insort(self._scored[rung], (True, 0.0, candidate))
            self._promoted[rung].add(candidate)
            return [candidate]
        insort(self._scored[rung], (False, -score, candidate))
        return [candidate] if rung == len(self._levels) - 1 else []


class RoundRobin:
    """All candidates are trained to the end, a few calls at a time and in turns."""

    def __init__(self, n: int, max_calls: int, step: int = 1) -> None:
        self.n_candidates = n
        self._max_calls, self._step = max_calls, step
        self._had = dict.fromkeys(range(n), 0)
        self._queue = deque(range(n))

    def next(self) -> Train | None:
        """Give the next order, of the candidate that has waited longest."""
        if not self._queue:
            return None
        candidate = self._queue.popleft()
        self._had[candidate] = min(self._had[candidate] + self._step, self._max_calls)
        return Train(candidate, self._had[candidate])

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Take a score; what failed, or is through, is trained no more."""
        if math.isnan(score) or self._had[candidate] >= self._max_calls:
            return [candidate]
        self._queue.append(candidate)
        return []


class StopOnPlateau:
    """Another schedule whose candidates stop where they gain nothing any more.

    A candidate whose score has not risen by more than `tol` for `patience` calls keeps the score
    that it has: the other schedule is told of it whenever it orders more. To see that, long orders
    are divided, and the candidate is scored every `step` calls.
    """

    def __init__(self, inner: Schedule, patience: int, tol: float, step: int) -> None:
        self.n_candidates = inner.n_candidates
        self._inner, self._patience, self._tol, self._step = inner, patience, tol, step
        self._had: dict[int, int] = {}
        self._orders: dict[int, Train] = {}
        self._best: dict[int, tuple[float, int]] = {}  # score, and after how many calls
        self._settled: dict[int, float] = {}
        self._continued: deque[int] = deque()
        self._gone: list[int] = []

    def next(self) -> Train | None:
        """Go on with a divided order, or pass on another one."""
        if self._continued:
            return self._part(self._continued.popleft())
        while True:
            order = self._inner.next()
            if order is None:
                return None
            if order.candidate in self._settled:
                self._gone += self._inner.on_score(order.candidate, self._settled[order.candidate])
                continue
            self._orders[order.candidate] = order
            return self._part(order.candidate)

    def _part(self, candidate: int) -> Train:
        """Give the next part of a candidate's order."""
        order = self._orders[candidate]
        upto = min(self._had.get(candidate, 0) + self._step, order.n_calls)
        return order._replace(n_calls=upto)

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Take a score; hand it on where the order is carried out or nothing is to be gained."""
        order = self._orders[candidate]
        had = min(self._had.get(candidate, 0) + self._step, order.n_calls)
        self._had[candidate] = had
        best, at = self._best.get(candidate, (-math.inf, 0))
        if score > best + self._tol:
            self._best[candidate] = score, had
        elif had - at >= self._patience:
            self._settled[candidate] = score
        gone, self._gone = self._gone, []
        done = had >= order.n_calls or candidate in self._settled or math.isnan(score)
        if not done:
            self._continued.append(candidate)
            return gone
        return gone + self._inner.on_score(candidate, score)


def _ranked(scores: dict[int, float]) -> list[int]:
    """Return the candidates that have a score, the best first."""
    scored = [candidate for candidate, score in scores.items() if not math.isnan(score)]
    return sorted(scored, key=lambda candidate: (-scores[candidate], candidate))
