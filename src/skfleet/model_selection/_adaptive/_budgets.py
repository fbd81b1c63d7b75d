"""Budgets of an adaptive search: what candidates get more of, and how that trains a model on."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.pipeline import Pipeline

from skfleet._partial_fit import copy_learner
from skfleet._pipeline_steps import last_step
from skfleet._warnings import IgnoredWarnings, without_convergence_warnings
from skfleet.blocks import Block, copy_block_rows, take_block_rows
from skfleet.model_selection._adaptive._data import DEFAULT_BATCH_ROWS, BatchOrder, rows_of_batch
from skfleet.model_selection._adaptive._training_tasks import (
    TrainingContext,
    fit_rows,
    partial_fit_rows,
)
from skfleet.model_selection._paths._registry import writes_into_rows

# Parameters whose number of iterations a warm start counts from the last fit, not from the first.
_FURTHER_ITERATIONS = frozenset(["epochs", "max_epochs", "max_iter"])
_HIST_BOOSTING = (HistGradientBoostingClassifier, HistGradientBoostingRegressor)
# Forests warn of weights of classes that might be of other rows.
_WEIGHT_WARNINGS = IgnoredWarnings(UserWarning, "class_weight presets")


class Stage(NamedTuple):
    """A model, None before the first stage, and the levels through which it is trained on rows."""

    context: TrainingContext
    rows: Block
    model: Any  # of the level `low`, which does not change
    build: Callable[[int], Any]  # an untrained candidate for a level
    low: int
    levels: Sequence[int]

    @property
    def level(self) -> int:
        return self.levels[-1]


@dataclass(frozen=True)
class Budget(ABC):
    """A resource of which the candidates that go on get more; a level is an amount of it."""

    resource: str
    max_level: int
    name: ClassVar[str] = ""  # of the resource in progress, log and plots, where that is another
    column: ClassVar[str] = "n_resources"  # in the tables of results
    method: ClassVar[str] = "fit"  # of the estimator, which gets the parameters of the search's fit
    goes_on: ClassVar[bool] = True  # training goes on from the model, or the scores, of a level
    has_models: ClassVar[bool] = True  # between levels
    is_fraction: ClassVar[bool] = False  # a level is a fraction of the highest one

    @property
    def unit(self) -> str:
        """The resource in progress, log and plots."""
        return self.name or self.resource

    def params_at(self, params: Mapping[str, Any], level: int) -> Mapping[str, Any]:
        """Return the parameters of a candidate at a level."""
        return params

    def rows_at(self, rows: Block, level: int) -> Block:
        """Return the training rows of a level."""
        return rows

    def splits_at(self, n_splits: int, low: int, level: int) -> Sequence[int]:
        """Return the splits on which a candidate is trained from one level to another."""
        return range(n_splits)

    def refit_levels(self, levels: Sequence[int]) -> Sequence[int]:
        """Return the levels of a model of all rows, for those up to the best score."""
        return levels

    @abstractmethod
    def train(self, stage: Stage) -> tuple[Any, int]:
        """Return the model of the last level of a stage, and the number of rows that it learned."""


class CallBudget(Budget):
    """Calls of ``partial_fit``."""

    name = "calls of partial_fit"
    column = "partial_fit_calls"
    method = "partial_fit"

    def train(self, stage: Stage) -> tuple[Any, int]:
        rows, context = stage.rows, stage.context
        model = stage.build(stage.level) if stage.model is None else copy_learner(stage.model)
        n_batches = -(-rows.n_rows // (context.batch_size or DEFAULT_BATCH_ROWS))
        batches, n_rows = BatchOrder(context.seed, (n_batches,)), 0
        for call in range(stage.low, stage.level):
            batch = rows_of_batch(rows, batches[call], context.seed, None)
            partial_fit_rows(model, batch, context)
            n_rows += batch.n_rows
        return model, n_rows


class RowBudget(Budget):
    """Training rows: at a level of the highest one, the first of them in a fixed order."""

    name = "shares of the rows"
    goes_on = False
    is_fraction = True

    def rows_at(self, rows: Block, level: int) -> Block:
        n_rows = min(rows.n_rows, -(-rows.n_rows * level // self.max_level))
        return take_block_rows(rows, np.arange(n_rows))

    def refit_levels(self, levels: Sequence[int]) -> Sequence[int]:
        return [self.max_level]

    def train(self, stage: Stage) -> tuple[Any, int]:
        model, rows = stage.build(stage.level), self.rows_at(stage.rows, stage.level)
        fit_rows(model, rows, stage.context)
        return model, rows.n_rows


class FoldBudget(Budget):
    """Folds of one split of the rows, on each of which a candidate is fitted and scored."""

    has_models = False

    def splits_at(self, n_splits: int, low: int, level: int) -> Sequence[int]:
        return range(low, level)

    def train(self, stage: Stage) -> tuple[Any, int]:
        model = stage.build(stage.level)
        fit_rows(model, stage.rows, stage.context)
        return model, stage.rows.n_rows


class ParameterBudget(Budget):
    """A parameter of the estimator, such as its number of trees, rounds or iterations."""

    def params_at(self, params: Mapping[str, Any], level: int) -> Mapping[str, Any]:
        return {**params, self.resource: level}

    def train(self, stage: Stage) -> tuple[Any, int]:
        example = stage.build(stage.level)
        step, _, parameter = self.resource.rpartition("__")
        is_last_step = step == (example.steps[-1][0] if isinstance(example, Pipeline) else "")
        warm_start = warm_start_of(last_step(example), parameter) if is_last_step else None
        if writes_into_rows(example.get_params()):
            stage = stage._replace(rows=copy_block_rows(stage.rows))
        if warm_start is None:
            stage = stage._replace(model=None, levels=[stage.level])
        for level in stage.levels:
            part = stage._replace(levels=[level])
            with _warnings_below(level < self.max_level), _WEIGHT_WARNINGS:
                if warm_start is None:
                    model = stage.build(level)
                    fit_rows(model, stage.rows, stage.context)
                else:
                    model = warm_start(part, parameter)
            stage = stage._replace(model=model, low=level)
        return stage.model, stage.rows.n_rows


def _warnings_below(is_below: bool) -> Any:
    """Suppress, below the highest level, that a solver has not converged: it goes on."""
    return without_convergence_warnings() if is_below else nullcontext()


WarmStart = Callable[[Stage, str], Any]


def warm_start_of(learner: Any, parameter: str) -> WarmStart | None:
    """Return the function that trains an estimator on to more of a parameter; None without one."""
    for library, kind, warm_start in _LIBRARIES:
        booster = getattr(sys.modules.get(library), kind, None)
        if booster is not None and isinstance(learner, booster):
            return warm_start if parameter == "n_estimators" else None
    params = learner.get_params(deep=False)
    is_counted = parameter == "n_estimators" or parameter in _FURTHER_ITERATIONS
    if not is_counted or "warm_start" not in params:
        return None
    # one solver ignores warm starts, and scores out of bag are of a single fit
    has_oob_score = isinstance(learner, (BaggingClassifier, BaggingRegressor)) and learner.oob_score
    return None if params.get("solver") == "liblinear" or has_oob_score else _warm_start


def _warm_start(stage: Stage, parameter: str) -> Any:
    """Train on by ``warm_start=True``, which is only set meanwhile."""
    is_new = stage.model is None
    model = stage.build(stage.level) if is_new else copy_learner(stage.model)
    learner = last_step(model)
    is_further = parameter in _FURTHER_ITERATIONS and not isinstance(learner, _HIST_BOOSTING)
    n_iterations = stage.level - stage.low if is_further and not is_new else stage.level
    before = learner.warm_start
    learner.set_params(**{parameter: n_iterations, "warm_start": True})
    fit_rows(model, stage.rows, stage.context)
    learner.set_params(**{parameter: stage.level, "warm_start": before})
    return model


def _boost_on(argument: str) -> WarmStart:
    """Return the function that boosts further rounds, after those of an earlier model."""

    def warm_start(stage: Stage, parameter: str) -> Any:
        model = stage.build(stage.level)
        if stage.model is None:
            fit_rows(model, stage.rows, stage.context)
            return model
        learner = last_step(model).set_params(**{parameter: stage.level - stage.low})
        fit_rows(model, stage.rows, stage.context, **{argument: last_step(stage.model)})
        learner.set_params(**{parameter: stage.level})
        return model

    return warm_start


_LIBRARIES = (
    ("xgboost", "XGBModel", _boost_on("xgb_model")),
    ("lightgbm", "LGBMModel", _boost_on("init_model")),
)


def budget_of(resource: str, max_level: int) -> Budget:
    """Return the budget that `resource` names; `max_level` is its highest level."""
    budgets: dict[str, type[Budget]] = {
        "calls": CallBudget, "n_samples": RowBudget, "folds": FoldBudget
    }  # fmt: skip
    return budgets.get(resource, ParameterBudget)(resource, max_level)
