"""Tasks of an adaptive search that fit a candidate, or train it on several splits, and score it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from skfleet._pipeline_steps import last_step
from skfleet.blocks import Block, BlockRef, concat_rows, copy_block_rows, take_block_rows
from skfleet.engine import attributes_to_host, check_picklable, check_sent
from skfleet.model_selection._adaptive._budgets import Stage
from skfleet.model_selection._adaptive._data import open_rows
from skfleet.model_selection._adaptive._training_tasks import (
    Record,
    TrainedModel,
    TrainingContext,
    build_candidate,
    run_training,
    score,
    score_rows,
    with_context,
)
from skfleet.model_selection._paths._registry import writes_into_rows


@with_context
def fit_first_steps(
    context: TrainingContext,
    params: Mapping[str, Any],
    level: int,
    numbers: Sequence[int],
    rows_ref: BlockRef,
) -> dict[int, Any]:
    """Fit the steps of a pipeline before the last, on the training rows of some splits."""
    fitted = {}
    for number in numbers:
        rows = context.budget.rows_at(_training_rows(context, open_rows(rows_ref), number), level)
        fitted[number] = _fit_first_steps(context, params, level, rows)
    check_picklable(fitted)
    return fitted


def _fit_first_steps(
    context: TrainingContext, params: Mapping[str, Any], level: int, rows: Block
) -> Any:
    model = build_candidate(context, context.budget.params_at(params, level), None)
    if writes_into_rows(model.get_params()):
        rows = copy_block_rows(rows)
    return model[:-1].fit(rows.X, rows.y)


def _training_rows(context: TrainingContext, rows: Block, number: int) -> Block:
    """Return the rows that a split trains on; without splits they are all rows."""
    return take_block_rows(rows, context.splits[number].train) if context.splits else rows


@with_context
def fit_candidate(
    context: TrainingContext,
    candidate: str,
    params: Mapping[str, Any],
    state: TrainedModel | None,
    preprocessing: Mapping[int, Any] | None,
    levels: Sequence[int],
    rows_ref: BlockRef,
    test: BlockRef | None,
) -> TrainedModel:
    """Train a candidate through some levels up to the last, and score it.

    With splits it is scored on the test rows of each; else on `test`, unless that is None. `state`
    has the models so far, and `preprocessing` the fitted first steps by split.
    """

    def train_on(state: TrainedModel | None) -> TrainedModel:
        state = state or TrainedModel(None)
        if state.n_calls < levels[-1]:
            state = _train_on_splits(context, params, state, preprocessing, levels, rows_ref)
        return state if test is None else score(context, state, test)

    is_scored = bool(context.splits) or test is not None
    last = range(levels[-1], levels[-1] + 1)
    return run_training(context, candidate, state, last, train_on, is_scored=is_scored)


def _train_on_splits(
    context: TrainingContext,
    params: Mapping[str, Any],
    state: TrainedModel,
    preprocessing: Mapping[int, Any] | None,
    levels: Sequence[int],
    rows_ref: BlockRef,
) -> TrainedModel:
    """Train the model of each split on, and score it if there are several."""
    check_sent(state.model)
    budget, rows, low = context.budget, open_rows(rows_ref), state.n_calls
    levels = [level for level in levels if level > low]
    numbers = budget.splits_at(len(context.splits) or 1, low, levels[-1])
    before: Sequence[Any] = state.model if isinstance(state.model, tuple) else [state.model]
    models, scores, seconds, n_samples = [], [], [0.0, 0.0], state.n_samples
    for i, number in enumerate(numbers):
        start = time.perf_counter()
        previous = before[i] if budget.has_models and state.model is not None else None
        build = partial(_build, context, params, preprocessing and preprocessing[number])
        train_rows = _training_rows(context, rows, number)
        model, n_rows = budget.train(Stage(context, train_rows, previous, build, low, levels))
        attributes_to_host(last_step(model))
        scored = time.perf_counter()
        if context.splits:
            test = take_block_rows(rows, context.splits[number].test)
            scores.append(score_rows(context, model, test))
        seconds[0] += scored - start
        seconds[1] += time.perf_counter() - scored
        n_samples += n_rows
        models.append(model)
    if not low:  # once for each candidate, since it costs a pickle of the model
        check_picklable(models)
    if not context.splits:
        return TrainedModel(models[0], levels[-1], n_samples, state.fit_time + seconds[0])
    # The first folds were scored before, at a lower level; other splits are scored anew.
    earlier = {} if budget.has_models else state.record.split_scores
    by_split = {name: [*earlier.get(name, []), *(s[name] for s in scores)] for name in scores[0]}
    means = {name: float(np.mean(values)) for name, values in by_split.items()}
    fit_time, score_time = seconds
    record = Record(levels[-1], means, fit_time, score_time, n_samples, split_scores=by_split)
    model = tuple(models) if budget.has_models else None
    return TrainedModel(model, levels[-1], n_samples, record=record)


def _build(context: TrainingContext, params: Mapping[str, Any], steps: Any, level: int) -> Any:
    """Return an untrained candidate with the parameters of a level."""
    return build_candidate(context, context.budget.params_at(params, level), steps)


@with_context
def refit_candidate(
    context: TrainingContext,
    params: Mapping[str, Any],
    levels: Sequence[int],
    rows_refs: Sequence[BlockRef],
) -> TrainedModel:
    """Train a candidate anew through some levels, its first steps too, on all rows."""
    rows = concat_rows([open_rows(ref) for ref in rows_refs])
    if writes_into_rows(build_candidate(context, params, None).get_params()):
        rows = copy_block_rows(rows)
    levels = context.budget.refit_levels(levels)
    has_steps = len(getattr(context.estimator, "steps", ())) > 1
    steps = _fit_first_steps(context, params, levels[-1], rows) if has_steps else None
    build = partial(_build, context, params, steps)
    model, n_rows = context.budget.train(Stage(context, rows, None, build, 0, levels))
    attributes_to_host(last_step(model))
    return TrainedModel(model, levels[-1], n_rows)
