"""The seconds that an adaptive search has left, by a simulation of the rest of its schedule."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from skfleet.model_selection._adaptive._schedules import Schedule, StopOnPlateau, TrainInstruction
from skfleet.model_selection._adaptive._simulation import simulate
from skfleet.model_selection._dispatch._time_left import DurationModel, Params


class PendingInstruction(NamedTuple):
    """An instruction whose score has not come, and the calls that its candidate had before."""

    instruction: TrainInstruction
    n_calls_before: int


class TrainingTimes:
    """Durations of calls of ``partial_fit`` and of scores, by candidate."""

    def __init__(self) -> None:
        self._calls, self._scores = DurationModel(), DurationModel()
        self._score_values: dict[int, list[float]] = {}  # by number of calls

    def record(
        self,
        instruction: TrainInstruction,
        params: Params,
        n_calls: int,
        fit_seconds: float,
        score_seconds: float,
        score: float,
    ) -> None:
        """Record the seconds of an instruction that made some calls, and its score."""
        if n_calls > 0:
            self._calls.record(instruction.candidate, params, fit_seconds / n_calls)
            self._scores.record(instruction.candidate, params, score_seconds)
            self._score_values.setdefault(instruction.n_calls, []).append(score)

    def seconds_left(
        self,
        schedule: Schedule,
        pending: Sequence[PendingInstruction],
        candidates: Mapping[int, Params],
        n_slots: int,
    ) -> float | None:
        """Return the seconds until the schedule ends; None before a duration is known.

        Scores are drawn from those so far, after as many calls where there are any. No candidate is
        taken to be on a plateau. `candidates` are those whose parameters are known.
        """
        if not self._calls:
            return None
        call_seconds = self._calls.expected(candidates)
        score_seconds = self._scores.expected(candidates)
        mean_call = sum(call_seconds.values()) / len(call_seconds)
        mean_score = sum(score_seconds.values()) / len(score_seconds)
        rng = np.random.default_rng(0)

        def seconds(instruction: TrainInstruction, n_calls_before: int) -> float:
            number = instruction.candidate
            n_calls = max(0, instruction.n_calls - n_calls_before)
            call = call_seconds.get(number, mean_call)
            return n_calls * call + score_seconds.get(number, mean_score)

        all_scores = [value for values in self._score_values.values() for value in values]

        def score(instruction: TrainInstruction) -> float:
            values = self._score_values.get(instruction.n_calls, all_scores)
            rise = instruction.n_calls if isinstance(schedule, StopOnPlateau) else 0
            return rise + values[int(rng.integers(len(values)))]

        remaining = copy.deepcopy(schedule)
        return simulate(remaining, max(1, n_slots), seconds, score, pending=pending).makespan
