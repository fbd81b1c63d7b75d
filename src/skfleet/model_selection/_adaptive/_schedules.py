"""Schedules: successive halving, Hyperband, ASHA, round robin, and stopping on a plateau."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Rung(NamedTuple):
    """A rung of a bracket: `n_candidates` are trained up to `n_calls` calls each."""

    n_candidates: int
    n_calls: int


class TrainInstruction(NamedTuple):
    """Instruction to train a candidate up to `n_calls` calls in all, and to score it."""

    candidate: int
    n_calls: int
    bracket: int = 0
    rung: int = 0


class Schedule(Protocol):
    """Protocol of schedules: they choose the next instruction by the scores so far.

    Candidates are numbered from 0. A schedule knows neither parameters nor durations.
    """

    n_candidates: int

    def next(self) -> TrainInstruction | None:
        """Return the next instruction, or None until a further score has come."""

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Record the score of an instruction, NaN for a failure; return the candidates to stop."""


def _power_floor(value: float) -> int:
    """Return the floor of a number that a power of a float may have missed by rounding."""
    return math.floor(value * (1 + 1e-12) + 1e-9)


def halving_rungs(n: int, n_calls: int, max_calls: int | None, eta: float) -> list[Rung]:
    """Return the rungs of successive halving that begins with n candidates of n_calls each.

    Of every rung the best ``1 / eta`` go on to `eta` times as many calls, until one candidate
    remains or has had `max_calls` (Li et al., *Hyperband*, JMLR 18, 2018, algorithm 1, lines 4 to
    9).
    """
    rungs: list[Rung] = []
    while True:
        i = len(rungs)
        n_remaining = _power_floor(n * eta**-i)
        if n_remaining < 1:
            return rungs
        calls = max(1, _power_floor(n_calls * eta**i))
        calls = calls if max_calls is None else min(calls, max_calls)
        if rungs and calls == rungs[-1].n_calls:
            return rungs
        rungs.append(Rung(n_remaining, calls))
        if n_remaining == 1:
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
        n = _bracket_size(s_max, s, eta)
        rungs = [
            Rung(_power_floor(n * eta**-i), max(1, _power_floor(max_calls * eta ** (i - s))))
            for i in range(s + 1)
        ]
        brackets.append(rungs)
    return brackets


def _bracket_size(s_max: int, s: int, eta: float) -> int:
    """Return the number of candidates that a bracket of Hyperband begins with."""
    # ceil(x) = -floor(-x), of a number that rounding may have put above x.
    return -_power_floor(-(s_max + 1) * eta**s / (s + 1) + 2e-9)


def hyperband_candidates(s_max: int, eta: float) -> list[list[int]]:
    """Return the numbers of the candidates of every bracket, the one with most candidates first.

    They are numbered by iterative deepening (Brandt, Wever, Bengs and Hüllermeier, *Iterative
    Deepening Hyperband*, arXiv 2302.00511, 2023, section 4): first those of a search with one
    bracket, then those that a search with `eta` times as many calls adds to that bracket and those
    of its second one, and so on. So the bracket that begins with some number of calls has the
    candidates that it has in a search with fewer calls, and further ones.
    """
    brackets: list[list[int]] = []
    n_numbered = 0
    for highest in range(s_max + 1):
        brackets.append([])
        for i, numbers in enumerate(brackets):
            n_new = max(0, _bracket_size(highest, highest - i, eta) - len(numbers))
            numbers += range(n_numbered, n_numbered + n_new)
            n_numbered += n_new
    # with an eta below 2 a bracket may have had more candidates in a search with fewer calls
    return [numbers[: _bracket_size(s_max, s_max - i, eta)] for i, numbers in enumerate(brackets)]


def asynchronous_levels(n_calls: int, max_calls: int, eta: float) -> list[int]:
    """Return the calls after each rung of asynchronous halving, from n_calls to max_calls."""
    levels = [n_calls]
    while levels[-1] < max_calls:
        n_calls_next = max(levels[-1] + 1, _power_floor(n_calls * eta ** len(levels)))
        levels.append(min(max_calls, n_calls_next))
    return levels


def inverse_decay_rungs(n: int, max_calls: int, decay_rate: float) -> list[Rung]:
    """Return the rungs that leave ``ceil(n / (1 + t)**decay_rate)`` candidates after t calls."""
    rungs: list[Rung] = []
    n_remaining = n
    for t in range(1, max_calls + 1):
        # Less a margin, as rounding may have put a whole number above itself.
        n_next = max(1, math.ceil(n / (1 + t) ** decay_rate - 1e-9))
        if n_next < n_remaining or t == max_calls:
            rungs.append(Rung(n_remaining, t))
            n_remaining = n_next
    return rungs


def calls_of(rungs: Sequence[Rung]) -> int:
    """Return the total number of calls of a bracket's candidates, which train on warm."""
    previous, total = 0, 0
    for rung in rungs:
        total += rung.n_candidates * (rung.n_calls - previous)
        previous = rung.n_calls
    return total


class SuccessiveHalving:
    """Successive halving: the best candidates of each rung are promoted to the next.

    A candidate is promoted as soon as its place among the best of its rung is certain, whatever the
    pending scores will be: the same candidates are promoted, and fewer workers are idle. Ties go to
    the lower number. A failed candidate is never promoted; then fewer are.
    """

    def __init__(
        self, rungs: Sequence[Rung], candidates: Sequence[int] | None = None, *, bracket: int = 0
    ) -> None:
        self.rungs = list(rungs)
        self.n_candidates = self.rungs[0].n_candidates
        self._bracket = bracket
        candidates = range(self.n_candidates) if candidates is None else candidates
        self._queue = deque(candidates)
        self._rung_of = dict.fromkeys(candidates, 0)  # the rung in which it is or will be scored
        self._scores: list[dict[int, float]] = [{} for _ in rungs]
        # actual sizes of the rungs, as far as the ones before them are complete
        self._sizes = [self.n_candidates]

    def next(self) -> TrainInstruction | None:
        """Return the next instruction."""
        if not self._queue:
            return None
        candidate = self._queue.popleft()
        rung = self._rung_of[candidate]
        return TrainInstruction(candidate, self.rungs[rung].n_calls, self._bracket, rung)

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Record a score, and promote the candidates whose promotion is certain."""
        rung = self._rung_of[candidate]
        self._scores[rung][candidate] = score
        stopped: list[int] = []
        while rung < len(self.rungs):
            scores = self._scores[rung]
            is_last = rung == len(self.rungs) - 1
            n_next = 0 if is_last else self.rungs[rung + 1].n_candidates
            has_final_size = rung < len(self._sizes)
            size = self._sizes[rung] if has_final_size else self.rungs[rung].n_candidates
            n_pending = size - len(scores)
            # each pending score may push one candidate out of the best n_next
            promoted = _ranked(scores)[: max(0, n_next - n_pending)]
            for number in promoted:
                if self._rung_of[number] == rung:
                    self._rung_of[number] = rung + 1
                    self._queue.append(number)
            if n_pending or not has_final_size:
                return stopped
            # This rung is complete, and that may complete the next one.
            stopped += [number for number in scores if number not in promoted]
            if not is_last:
                self._sizes.append(len(promoted))
            rung += 1
        return stopped


class Hyperband:
    """Several brackets of successive halving at once.

    The candidates of each bracket are those of :func:`hyperband_candidates`.
    """

    def __init__(self, brackets: Sequence[Sequence[Rung]], eta: float) -> None:
        self._brackets: list[SuccessiveHalving] = []
        self._bracket_of: dict[int, SuccessiveHalving] = {}
        candidates = hyperband_candidates(len(brackets) - 1, eta)
        for number, rungs in enumerate(brackets):
            # the paper's s: the number of times that its candidates are divided
            s = len(brackets) - 1 - number
            bracket = SuccessiveHalving(rungs, candidates[number], bracket=s)
            self._brackets.append(bracket)
            self._bracket_of |= dict.fromkeys(candidates[number], bracket)
        self.n_candidates = 1 + max(self._bracket_of)

    def next(self) -> TrainInstruction | None:
        """Return an instruction of the first bracket that has one."""
        instructions = (bracket.next() for bracket in self._brackets)
        return next((one for one in instructions if one is not None), None)

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Pass a score to the bracket of its candidate."""
        return self._bracket_of[candidate].on_score(candidate, score)


class AsynchronousHalving:
    """ASHA: a candidate is promoted while it is among the best ``1 / eta`` of its rung so far.

    (Li et al., *A System for Massively Parallel Hyperparameter Tuning*, MLSys 2020, algorithm 2.)
    A candidate that is not promoted is only paused.
    """

    def __init__(self, n: int, levels: Sequence[int], eta: float) -> None:
        self.n_candidates = n
        self._levels = list(levels)
        self._eta = eta
        self._n_started = 0
        self._rung_of: dict[int, int] = {}  # the rung in which it is or will be scored
        # per rung: sorted (failed, -score, candidate), and the candidates that were promoted
        self._scored: list[list[tuple[bool, float, int]]] = [[] for _ in self._levels]
        self._promoted: list[set[int]] = [set() for _ in self._levels]

    def next(self) -> TrainInstruction | None:
        """Promote a candidate of the highest rung that has one to promote; else start a new one."""
        for rung in range(len(self._levels) - 2, -1, -1):
            scored, promoted = self._scored[rung], self._promoted[rung]
            for _, _, candidate in scored[: _power_floor(len(scored) / self._eta)]:
                if candidate not in promoted:
                    promoted.add(candidate)
                    return self._instruct(candidate, rung + 1)
        if self._n_started == self.n_candidates:
            return None
        self._n_started += 1
        return self._instruct(self._n_started - 1, 0)

    def _instruct(self, candidate: int, rung: int) -> TrainInstruction:
        self._rung_of[candidate] = rung
        return TrainInstruction(candidate, self._levels[rung], 0, rung)

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Record a score; a candidate that failed, or is in the top rung, is stopped."""
        rung = self._rung_of[candidate]
        if math.isnan(score):
            # A failure counts for the size of its rung, in last place.
            insort(self._scored[rung], (True, 0.0, candidate))
            self._promoted[rung].add(candidate)
            return [candidate]
        insort(self._scored[rung], (False, -score, candidate))
        return [candidate] if rung == len(self._levels) - 1 else []


class RoundRobin:
    """Round robin: all candidates are trained to the end, `step` calls at a time and in turns."""

    def __init__(self, n: int, max_calls: int, step: int = 1) -> None:
        self.n_candidates = n
        self._max_calls, self._step = max_calls, step
        self._n_calls_instructed = dict.fromkeys(range(n), 0)
        self._queue = deque(range(n))

    def next(self) -> TrainInstruction | None:
        """Return an instruction for the candidate at the head of the queue."""
        if not self._queue:
            return None
        candidate = self._queue.popleft()
        n_calls = min(self._n_calls_instructed[candidate] + self._step, self._max_calls)
        self._n_calls_instructed[candidate] = n_calls
        return TrainInstruction(candidate, n_calls)

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Record a score; a candidate that failed, or has had all calls, is stopped."""
        if math.isnan(score) or self._n_calls_instructed[candidate] >= self._max_calls:
            return [candidate]
        self._queue.append(candidate)
        return []


class StopOnPlateau:
    """Early stopping on a plateau, around another schedule.

    A candidate whose score has not risen by more than `tol` for `patience` calls is not trained
    any more: each further instruction of the inner schedule gets its last score at once. Long
    instructions are divided, so that the candidate is scored every `step` calls.
    """

    def __init__(self, inner: Schedule, patience: int, tol: float, step: int) -> None:
        self.n_candidates = inner.n_candidates
        self._inner, self._patience, self._tol, self._step = inner, patience, tol, step
        self._n_calls_scored: dict[int, int] = {}
        self._instructions: dict[int, TrainInstruction] = {}
        self._best: dict[int, tuple[float, int]] = {}  # score, and its number of calls
        self._plateau_scores: dict[int, float] = {}
        self._to_continue: deque[int] = deque()
        self._stopped: list[int] = []

    def next(self) -> TrainInstruction | None:
        """Return the next part of a divided instruction, or of a new one of the inner schedule."""
        if self._to_continue:
            return self._next_part(self._to_continue.popleft())
        while True:
            instruction = self._inner.next()
            if instruction is None:
                return None
            candidate = instruction.candidate
            if candidate in self._plateau_scores:
                self._stopped += self._inner.on_score(candidate, self._plateau_scores[candidate])
                continue
            self._instructions[candidate] = instruction
            return self._next_part(candidate)

    def _next_part(self, candidate: int) -> TrainInstruction:
        """Return the next part of a candidate's instruction."""
        return self._instructions[candidate]._replace(n_calls=self._next_n_calls(candidate))

    def _next_n_calls(self, candidate: int) -> int:
        n_calls = self._n_calls_scored.get(candidate, 0) + self._step
        return min(n_calls, self._instructions[candidate].n_calls)

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Record a score; pass it on when the instruction is complete or a plateau is reached."""
        n_calls = self._n_calls_scored[candidate] = self._next_n_calls(candidate)
        best, best_n_calls = self._best.get(candidate, (-math.inf, 0))
        if score > best + self._tol:
            self._best[candidate] = score, n_calls
        elif n_calls - best_n_calls >= self._patience:
            self._plateau_scores[candidate] = score
        stopped, self._stopped = self._stopped, []
        is_complete = n_calls >= self._instructions[candidate].n_calls
        if not (is_complete or candidate in self._plateau_scores or math.isnan(score)):
            self._to_continue.append(candidate)
            return stopped
        return stopped + self._inner.on_score(candidate, score)


def _ranked(scores: dict[int, float]) -> list[int]:
    """Return the candidates with a score that is not NaN, the best first."""
    scored = [candidate for candidate, score in scores.items() if not math.isnan(score)]
    return sorted(scored, key=lambda candidate: (-scores[candidate], candidate))
