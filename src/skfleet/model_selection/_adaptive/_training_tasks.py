"""Tasks of an adaptive search on a worker: train a candidate for some calls, and score it."""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from skfleet._array import is_not_numpy
from skfleet._captured_output import OutputEvent, capture_output, process_token
from skfleet._config import config_context, get_config
from skfleet._exception_pickle import PicklableException
from skfleet._partial_fit import copy_learner, partial_fit
from skfleet._pipeline_steps import last_step
from skfleet._sklearn_private import scorers_of
from skfleet.blocks import Block, BlockRef, concat_rows, copy_block_rows
from skfleet.engine import (
    DeviceArrayCache,
    Holdout,
    PicklableModel,
    accepts_device_arrays,
    attributes_to_host,
    check_picklable,
    check_sent,
    numpy_responses,
    open_scattered,
)
from skfleet.metrics import ResponseScorer, host_values
from skfleet.model_selection._adaptive._data import BatchOrder, BatchSpec, open_rows, rows_of_batch
from skfleet.model_selection._dispatch._array_api_scorer import device_scorer
from skfleet.model_selection._paths._registry import writes_into_rows
from skfleet.model_selection._scorer_names import may_write


class Failure(NamedTuple):
    """Error of a candidate, and its traceback as text."""

    error: BaseException
    trace: str

    def __reduce__(self) -> tuple[Any, ...]:
        return Failure, (PicklableException(self.error), self.trace)


class Record(NamedTuple):
    """Scores and times of a candidate after one instruction."""

    n_calls: int
    scores: Mapping[str, float]
    fit_time: float = 0.0  # seconds in partial_fit, for this instruction
    score_time: float = 0.0
    n_samples: int = 0  # rows learned so far, counted once per epoch
    failure: Failure | None = None
    split_scores: Mapping[str, Sequence[float]] = {}


class RowSplit(NamedTuple):
    """Positions of the rows that a split trains on and of those that it is scored on."""

    train: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class TrainingContext:
    """Inputs that all candidates share; scattered to the workers once."""

    estimator: Any
    scorer: Callable[..., Any]
    fit_params: Mapping[str, Any]  # of fit or partial_fit, the same for every batch
    per_sample_fit_params: Sequence[str]  # names of those that are sliced with the rows
    per_sample_score_params: Sequence[str]
    seed: int
    holdout: Holdout | None
    response_scorers: Mapping[str, ResponseScorer]  # empty where the test rows are in one block
    models: Any = None  # ModelStore of the checkpoint
    budget: Any = None  # Budget
    splits: Sequence[RowSplit] = ()  # empty where one holdout is for all
    batch_size: int | None = None
    driver: str = field(default_factory=process_token)  # process that output is replayed to
    device_cache: DeviceArrayCache = field(default_factory=DeviceArrayCache)
    device: str = field(default_factory=lambda: get_config().device)  # as configured in the driver


@dataclass(frozen=True)
class TrainedModel:
    """Model with its training history. Immutable: training goes on with a copy of the model.

    With several splits the model is a tuple of one for each.
    """

    model: Any
    n_calls: int = 0
    n_samples: int = 0
    fit_time: float = 0.0
    record: Record = field(default_factory=lambda: Record(0, {}))
    output: tuple[OutputEvent, ...] = ()  # printed and warned since the record before
    run: str = ""  # of the search, if it was stored

    def __reduce__(self) -> tuple[Any, ...]:
        history = self.n_calls, self.n_samples, self.fit_time, self.record, self.output, self.run
        return TrainedModel, (PicklableModel(self.model), *history)


def build_candidate(context: TrainingContext, params: Mapping[str, Any], preprocessing: Any) -> Any:
    """Build an untrained candidate; its steps before the last are fitted already."""
    values = {name: clone(value, safe=False) for name, value in params.items()}
    model = clone(context.estimator).set_params(**values)
    return model if preprocessing is None else Pipeline([*preprocessing.steps, model.steps[-1]])


def with_context(task: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a task to open its scattered context, and to use the device of the driver."""

    @wraps(task)
    def wrapper(context: Any, *args: Any) -> Any:
        context = open_scattered(context)
        with config_context(device=context.device):
            return task(context, *args)

    return wrapper


@with_context
def fit_preprocessing(
    context: TrainingContext, params: Mapping[str, Any], block_refs: Sequence[BlockRef]
) -> Any:
    """Fit the steps of a pipeline before the last on the training rows of blocks."""
    model = build_candidate(context, params, None)
    whole = [(open_rows(ref), BatchSpec(i, 0, 0.0, 1.0)) for i, ref in enumerate(block_refs)]
    rows = concat_rows([rows_of_batch(*batch, context.seed, context.holdout) for batch in whole])
    fitted = model[:-1].fit(rows.X, rows.y)
    check_picklable(fitted)
    return fitted


@with_context
def train(
    context: TrainingContext,
    candidate: str,
    state: TrainedModel | Mapping[str, Any],
    preprocessing: Any,
    calls: range,
    last_call: int,
    batches: BatchOrder,
    block_refs: Sequence[BlockRef],
    test: BlockRef | None = None,
) -> TrainedModel:
    """Train a candidate for a range of calls, and score it on `test` unless that is None.

    `state` is the model so far, or the parameters of a new candidate. `block_refs` are of blocks
    that the calls need, by number. A model in the checkpoint is loaded instead of trained again.
    """

    def train_on(state: TrainedModel | Mapping[str, Any]) -> TrainedModel:
        trained = _train_batches(context, state, preprocessing, calls, batches, block_refs)
        return trained if test is None else score(context, trained, test)

    levels = range(calls.stop, last_call + 1)
    return run_training(context, candidate, state, levels, train_on, is_scored=test is not None)


def run_training(
    context: TrainingContext,
    candidate: str,
    state: Any,
    levels: range,
    train_on: Callable[[Any], TrainedModel],
    *,
    is_scored: bool,
) -> TrainedModel:
    """Train a candidate on from its state, or from its model in the checkpoint, and store it.

    The first of the `levels` is to be reached; the last is that of the instruction. A model that is
    further is returned as it is.
    """
    # Tasks after a failure hand it on to the one that reports to the driver.
    if isinstance(state, TrainedModel) and state.record.failure is not None:
        return state
    n_calls = levels.start
    n_calls_before = state.n_calls if isinstance(state, TrainedModel) else 0
    if context.models is not None and n_calls_before < n_calls:
        stored = context.models.find(candidate, levels, goes_on=context.budget.goes_on)
        state = stored if stored is not None and stored.n_calls > n_calls_before else state
    is_done = isinstance(state, TrainedModel) and state.n_calls >= n_calls
    needs_scores = is_scored and not (is_done and state.n_calls > levels[-1])
    if isinstance(state, TrainedModel) and is_done and (not needs_scores or state.record.scores):
        return state
    with capture_output(context.driver) as output:
        try:
            trained = train_on(state)
        except Exception as error:
            trained = _failed(n_calls, failure_of(error))
    # A failure is not stored, so that a resumed search tries again.
    if context.models is not None and trained.record.failure is None:
        context.models.put(candidate, trained)
    # Output since the last scores, which several instructions may have made.
    earlier = state.output if isinstance(state, TrainedModel) and not state.record.scores else ()
    trained = replace(trained, output=(*earlier, *output))
    # The cache lives as long as the model: Dask may drop the context and fetch it again.
    context.device_cache.tie_to(trained)
    return trained


def _train_batches(
    context: TrainingContext,
    state: TrainedModel | Mapping[str, Any],
    preprocessing: Any,
    calls: range,
    batches: BatchOrder,
    block_refs: Sequence[BlockRef],
) -> TrainedModel:
    """Make those of the calls that the model has not had yet, on a copy of it."""
    if not isinstance(state, TrainedModel):
        state = TrainedModel(build_candidate(context, state, preprocessing))
    check_sent(state.model)
    numbers = batches.blocks_of(calls)
    calls = calls[max(0, state.n_calls - calls.start) :]
    if not calls:
        return state
    blocks = {n: open_rows(ref) for n, ref in zip(numbers, block_refs, strict=True)}
    # Dask may run this task again from the state, which must be as it was.
    model, n_samples = copy_learner(state.model), state.n_samples
    on_device = accepts_device_arrays(model)
    start = time.perf_counter()
    for call in calls:
        batch = batches[call]
        block = blocks[batch.block]
        if on_device:
            block = block._replace(X=context.device_cache.get(("learned", batch.block), block.X))
        rows = rows_of_batch(block, batch, context.seed, context.holdout)
        partial_fit_rows(model, rows, context)
        n_samples += rows.n_rows
    attributes_to_host(last_step(model))
    # Once for each candidate, since it costs a pickle of the model.
    if not state.n_calls:
        check_picklable(model)
    seconds = state.fit_time + time.perf_counter() - start
    return TrainedModel(model, calls.stop, n_samples, seconds)


def _test_rows(
    context: TrainingContext, model: Any, block_ref: BlockRef, scorer: Any = "score"
) -> Block:
    """Open test rows, with X on the device if the model accepts device arrays.

    They are a copy where the model or a scorer may write into them: other candidates and later
    rounds are scored on them too.
    """
    rows = open_rows(block_ref)
    if accepts_device_arrays(model):
        rows = rows._replace(X=context.device_cache.get(("scored", block_ref.number), rows.X))
    is_written = writes_into_rows(model.get_params()) or any(
        map(may_write, scorers_of(scorer).values())
    )
    return copy_block_rows(rows) if is_written else rows


def partial_fit_rows(model: Any, rows: Block, context: TrainingContext) -> None:
    """Call ``partial_fit`` of a model, or of the last step of a pipeline, on a block of rows."""
    per_sample = _per_sample_params(rows, context.per_sample_fit_params)
    partial_fit(model, rows.X, rows.y, **context.fit_params, **per_sample)


def fit_rows(model: Any, rows: Block, context: TrainingContext, **params: Any) -> None:
    """Fit a model, or the last step of a pipeline whose other steps are fitted, on rows."""
    per_sample = _per_sample_params(rows, context.per_sample_fit_params)
    X = rows.X
    if isinstance(model, Pipeline) and len(model.steps) > 1:
        X = model[:-1].transform(X)
    last_step(model).fit(X, rows.y, **context.fit_params, **per_sample, **params)


def _per_sample_params(rows: Block, names: Sequence[str]) -> dict[str, Any]:
    """Return the per-sample parameters of a block by name."""
    return {
        name: rows.sample_weight if name == "sample_weight" else (rows.per_sample or {})[name]
        for name in names
    }


def score(context: TrainingContext, trained: TrainedModel, test: BlockRef) -> TrainedModel:
    """Score a candidate on the test rows, which are one block."""
    start = time.perf_counter()
    rows = _test_rows(context, trained.model, test, context.scorer)
    scores = score_rows(context, trained.model, rows)
    return _with_record(trained, scores, time.perf_counter() - start)


def score_rows(context: TrainingContext, model: Any, rows: Block) -> dict[str, float]:
    """Return the scores of a model on rows by name."""
    params = _per_sample_params(rows, context.per_sample_score_params)
    scorer = device_scorer(context.scorer) if is_not_numpy(rows.X) else context.scorer
    with _returning_numpy(model, rows) as scored:
        return scores_by_name(scorer(scored, rows.X, rows.y, **params))


@contextmanager
def _returning_numpy(model: Any, rows: Block) -> Iterator[Any]:
    """Yield a model that returns NumPy arrays, also for rows on a device."""
    if not is_not_numpy(rows.X):
        yield model
        return
    model = copy.copy(model)  # another task may use the model itself at the same time
    with numpy_responses(model):
        yield model


@with_context
def compute_responses(
    context: TrainingContext, trained: TrainedModel, part: BlockRef
) -> tuple[Any, ...] | None:
    """Return y_true, sample_weight and the responses per metric of a block of test rows.

    A failure is returned as a tuple of one; None stands for a model that has scores already.
    """
    if trained.record.failure is not None or trained.record.scores:
        return None
    scorers = context.response_scorers
    try:
        check_sent(trained.model)
        rows = _test_rows(context, trained.model, part)
        with _returning_numpy(trained.model, rows) as model:
            responses = {name: scorer.response(model, rows.X) for name, scorer in scorers.items()}
    except Exception as error:
        return (failure_of(error),)
    weight = rows.sample_weight if "sample_weight" in context.per_sample_score_params else None
    return host_values(rows.y), weight if weight is None else host_values(weight), responses


@with_context
def score_responses(
    context: TrainingContext, candidate: str, trained: TrainedModel, *parts: tuple[Any, ...] | None
) -> TrainedModel:
    """Score a candidate from its responses for all blocks of test rows."""
    if trained.record.failure is not None or trained.record.scores:
        return trained
    for part in parts:
        if part is not None and len(part) == 1:
            return _failed(trained.n_calls, part[0])
    start = time.perf_counter()
    try:
        check_sent(trained.model)
        ys, weights, responses = zip(*[part for part in parts if part is not None], strict=True)
        y = np.concatenate(ys)
        weight = None if weights[0] is None else np.concatenate(weights)
        scores = {}
        for name, scorer in context.response_scorers.items():
            response = np.concatenate([by_name[name] for by_name in responses])
            scores[name] = scorer.score(trained.model, y, response, weight)
    except Exception as error:
        return _failed(trained.n_calls, failure_of(error))
    trained = _with_record(trained, scores, time.perf_counter() - start)
    if context.models is not None:
        context.models.put(candidate, trained)
    return trained


def _failed(n_calls: int, failure: Failure) -> TrainedModel:
    return TrainedModel(None, n_calls, record=Record(n_calls, {}, failure=failure))


def _with_record(
    trained: TrainedModel, scores: Mapping[str, float], seconds: float
) -> TrainedModel:
    """Return a model with its scores on record, and its fit time reset to zero."""
    record = Record(trained.n_calls, scores, trained.fit_time, seconds, trained.n_samples)
    return replace(trained, fit_time=0.0, record=record)


def scores_by_name(scores: Any) -> dict[str, float]:
    """Return scores by metric name; the score of a single metric is named "score"."""
    by_name = scores if isinstance(scores, dict) else {"score": scores}
    for name, value in by_name.items():
        if np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.number):
            raise ValueError(
                f"scoring must return a number. Got {value!r} ({type(value).__name__}) for "
                f"{name} instead."
            )
    return {name: float(value) for name, value in by_name.items()}


@with_context
def train_on_test_rows(
    context: TrainingContext, trained: TrainedModel, block_refs: Sequence[BlockRef], epochs: int
) -> TrainedModel:
    """Train a model on the test rows for a number of epochs."""
    check_sent(trained.model)
    model = copy_learner(trained.model)
    for _ in range(epochs):
        for block_ref in block_refs:
            partial_fit_rows(model, copy_block_rows(_test_rows(context, model, block_ref)), context)
    attributes_to_host(last_step(model))
    return replace(trained, model=model)


def model_in(trained: TrainedModel) -> Any:
    """Return the model that has come from a worker, or raise what it failed with."""
    if trained.record.failure is not None:
        raise trained.record.failure.error
    check_sent(trained.model)
    return trained.model


def summary_of(trained: TrainedModel) -> tuple[Record, tuple[OutputEvent, ...]]:
    """Return what is published to the driver; the model stays on its worker."""
    return trained.record, trained.output


def failure_of(error: BaseException) -> Failure:
    """Return an error, with its traceback as text so that no frame stays alive."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Failure(error.with_traceback(None), trace)
