"""The tasks that train a candidate, by calls of ``partial_fit`` or by fits, and score it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from skfleet.engine import Call, Task, TaskPool
from skfleet.model_selection._adaptive._data import PlacedData
from skfleet.model_selection._adaptive._fit_training_tasks import (
    fit_candidate,
    fit_first_steps,
    refit_candidate,
)
from skfleet.model_selection._adaptive._training_tasks import (
    TrainingContext,
    compute_responses,
    fit_preprocessing,
    score_responses,
    train,
    train_on_test_rows,
)
from skfleet.model_selection._adaptive._trial import Candidate

# Bounds the work that a lost worker costs, and the delay after which time_budget is noticed.
MAX_TASK_SECONDS = 2.0


@dataclass
class Training(ABC):
    """Chains of tasks that train candidates, each on from its last model."""

    engine: TaskPool
    context: TrainingContext
    shared: Any  # the context, scattered
    data: PlacedData
    preprocessing_key: Callable[[Mapping[str, Any]], Hashable] | None
    name: str
    seconds: dict[int, float] = field(default_factory=dict)  # per call, by candidate
    _preprocessing: dict[Any, Task] = field(default_factory=dict)

    @property
    def has_single_model(self) -> bool:
        """True if the model that is scored may be the one of the search."""
        return not self.context.splits

    @abstractmethod
    def chain(self, candidate: Candidate, n_calls: int, *, is_scored: bool = False) -> list[Call]:
        """Return the tasks that train a candidate up to `n_calls` calls, and score it.

        Where the budget is another resource, `n_calls` is its level.
        """

    @abstractmethod
    def refit(
        self, candidate: Candidate, n_calls: int, trained: Any, *, on_test: bool
    ) -> Call | None:
        """Return the task that makes the model of the search; None if the trained one is that."""

    def clear(self) -> None:
        """Drop the fitted steps: they are fitted again when a chain needs them."""
        self._preprocessing.clear()

    def _scoring(self, candidate: Candidate, state: Any) -> list[Call]:
        """Return the tasks that score a model on several blocks of test rows."""
        responses = [
            Call(compute_responses, (self.shared, state, part), f"answer-{self.name}")
            for part in self.data.test
        ]
        args = (self.shared, candidate.key, state, *responses)
        return [*responses, Call(score_responses, args, f"score-{self.name}")]

    def _fitted_steps(
        self, key: Hashable, candidate: Candidate, func: Callable[..., Any], *args: Any
    ) -> Task:
        """Return the fitted steps before the last, shared by all candidates that have the same."""
        if key not in self._preprocessing:
            self._preprocessing[key] = self.engine.submit(
                func,
                *(self.shared, *args),
                name=f"fit-steps-of-{self.name}",
                priority=1,
                resources=candidate.resources,
            )
        return self._preprocessing[key]


class CallTraining(Training):
    """Training by calls of ``partial_fit`` on batches, scored on one holdout."""

    def chain(self, candidate: Candidate, n_calls: int, *, is_scored: bool = False) -> list[Call]:
        low = candidate.n_calls if candidate.model is not None else 0
        state: Any = candidate.model if candidate.model is not None else candidate.params
        preprocessing = self._preprocessing_of(candidate) if candidate.model is None else None
        chain: list[Call] = []
        while low < n_calls:
            calls = range(low, min(n_calls, low + self._calls_per_task(candidate)))
            scores_model = is_scored and calls.stop == n_calls and len(self.data.test) == 1
            blocks = [self.data.blocks[n] for n in self.data.batches.blocks_of(calls)]
            test = self.data.test[0] if scores_model else None
            args = (state, preprocessing, calls, n_calls, self.data.batches, blocks, test)
            state = Call(train, (self.shared, candidate.key, *args), f"train-{self.name}")
            chain.append(state)
            low, preprocessing = calls.stop, None
        if is_scored and len(self.data.test) > 1:
            chain += self._scoring(candidate, state)
        return chain

    def refit(
        self, candidate: Candidate, n_calls: int, trained: Any, *, on_test: bool
    ) -> Call | None:
        if not on_test:
            return None
        epochs = max(1, round(n_calls / len(self.data.batches)))
        args = (self.shared, trained, list(self.data.test), epochs)
        return Call(train_on_test_rows, args, f"train-{self.name}")

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
        if self.preprocessing_key is None:
            return None
        key = self.preprocessing_key(candidate.params)
        blocks = list(self.data.blocks if self.data.is_replicated else self.data.blocks[:1])
        return self._fitted_steps(key, candidate, fit_preprocessing, candidate.params, blocks)


class FitTraining(Training):
    """Training by one task from level to level, on rows that each worker has as a whole."""

    def chain(self, candidate: Candidate, n_calls: int, *, is_scored: bool = False) -> list[Call]:
        budget = self.context.budget
        goes_on = budget.goes_on and candidate.model is not None
        state = candidate.model if goes_on else None
        # after a loss the model is made as before, from level to level
        levels = [*(n for n in candidate.levels if n < n_calls), n_calls]
        steps = self._steps_of(candidate, candidate.n_calls if goes_on else 0, n_calls)
        test = self.data.test[0] if is_scored and len(self.data.test) == 1 else None
        args = (candidate.params, state, steps, levels, self.data.blocks[0], test)
        call = Call(fit_candidate, (self.shared, candidate.key, *args), f"fit-{self.name}")
        has_parts = is_scored and len(self.data.test) > 1
        return [call, *(self._scoring(candidate, call) if has_parts else ())]

    def refit(
        self, candidate: Candidate, n_calls: int, trained: Any, *, on_test: bool
    ) -> Call | None:
        if self.has_single_model and not on_test:
            return None
        levels = [*(n for n in candidate.levels if n < n_calls), n_calls]
        refs = [*self.data.blocks, *self.data.test]
        args = (self.shared, candidate.params, levels, refs)
        return Call(refit_candidate, args, f"refit-{self.name}")

    def _steps_of(self, candidate: Candidate, low: int, level: int) -> Task | None:
        if self.preprocessing_key is None:
            return None
        budget, n_splits = self.context.budget, len(self.context.splits) or 1
        numbers = budget.splits_at(n_splits, low, level)
        rows_level = level if budget.is_fraction else 0
        key = (
            self.preprocessing_key(budget.params_at(candidate.params, level)), numbers, rows_level
        )  # fmt: skip
        args = (candidate.params, level, numbers, self.data.blocks[0])
        return self._fitted_steps(key, candidate, fit_first_steps, *args)


def training_for(
    engine: TaskPool,
    context: TrainingContext,
    shared: Any,
    data: PlacedData,
    preprocessing_key: Callable[[Mapping[str, Any]], Hashable] | None,
    name: str,
) -> Training:
    """Return the chains of tasks of a search; `shared` is its context, scattered."""
    by_calls = context.budget.method == "partial_fit" and not context.splits
    kind = CallTraining if by_calls else FitTraining
    return kind(engine, context, shared, data, preprocessing_key, name)
