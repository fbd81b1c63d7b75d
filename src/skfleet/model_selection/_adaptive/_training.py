"""The tasks that train a candidate by calls of ``partial_fit``, and score it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from skfleet.engine import Call, Task, TaskPool
from skfleet.model_selection._adaptive._data import PlacedData
from skfleet.model_selection._adaptive._training_tasks import (
    compute_responses,
    fit_preprocessing,
    score_responses,
    train,
)
from skfleet.model_selection._adaptive._trial import Candidate

# Bounds the work that a lost worker costs, and the delay after which time_budget is noticed.
MAX_TASK_SECONDS = 2.0


@dataclass
class Training:
    """Chains of tasks that train candidates, each on from its last model."""

    engine: TaskPool
    context: Any  # scattered
    data: PlacedData
    preprocessing_key: Callable[[Mapping[str, Any]], Any] | None
    name: str
    seconds: dict[int, float] = field(default_factory=dict)  # per call, by candidate
    _preprocessing: dict[Any, Task] = field(default_factory=dict)

    def chain(self, candidate: Candidate, n_calls: int, *, is_scored: bool = False) -> list[Call]:
        """Return the tasks that train a candidate up to `n_calls` calls, and score it."""
        low = candidate.n_calls if candidate.model is not None else 0
        state: Any = candidate.model if candidate.model is not None else candidate.params
        preprocessing = self._preprocessing_of(candidate) if candidate.model is None else None
        chain: list[Call] = []
        while low < n_calls:
            calls = range(low, min(n_calls, low + self._calls_per_task(candidate)))
            scores_model = is_scored and calls.stop == n_calls and len(self.data.test) == 1
            blocks = [self.data.blocks[n] for n in self.data.batches.blocks_of(calls)]
            test = self.data.test[0] if scores_model else None
            args = (state, preprocessing, calls, self.data.batches, blocks, test)
            state = Call(train, (self.context, candidate.number, *args), f"train-{self.name}")
            chain.append(state)
            low, preprocessing = calls.stop, None
        if is_scored and len(self.data.test) > 1:
            responses = [
                Call(compute_responses, (self.context, state, part), f"answer-{self.name}")
                for part in self.data.test
            ]
            args = (self.context, candidate.number, state, *responses)
            chain += [*responses, Call(score_responses, args, f"score-{self.name}")]
        return chain

    def clear(self) -> None:
        """Drop the fitted steps: they are fitted again when a chain needs them."""
        self._preprocessing.clear()

    def _calls_per_task(self, candidate: Candidate) -> int:
        """Return how many calls of ``partial_fit`` one task makes."""
        if not self.data.is_replicated:
            return 1  # the model moves to the worker that has the next batch
        seconds = self.seconds.get(candidate.number, math.nan)
        if math.isnan(seconds):
            if not self.seconds:
                return 1
            seconds = sorted(self.seconds.values())[len(self.seconds) // 2]
        return max(1, int(MAX_TASK_SECONDS / max(seconds, 1e-9)))

    def _preprocessing_of(self, candidate: Candidate) -> Task | None:
        """Return the fitted steps before the last, shared by all candidates that have the same."""
        if self.preprocessing_key is None:
            return None
        key = self.preprocessing_key(candidate.params)
        if key not in self._preprocessing:
            blocks = list(self.data.blocks if self.data.is_replicated else self.data.blocks[:1])
            args, name = (self.context, candidate.params, blocks), f"fit-steps-of-{self.name}"
            self._preprocessing[key] = self.engine.submit(
                fit_preprocessing, *args, name=name, priority=1, resources=candidate.resources
            )
        return self._preprocessing[key]
