"""What a worker does in an adaptive search: train a candidate for some calls, and score it."""

from __future__ import annotations

import copy
import pickle
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

from skfleet._array import is_not_numpy, to_host_if_array
from skfleet._captured_output import Note, home, noted
from skfleet._config import config_context, get_config
from skfleet._partial_fit import copy_learner, learner_of, partial_fit
from skfleet.blocks import Block, concat_rows
from skfleet.engine import Holdout, attributes_to_host, check_picklable, open_scattered
from skfleet.engine._gpu._device_cache import DeviceArrayCache
from skfleet.engine._gpu._estimator_device import accepts_device_arrays, at_home, numpy_responses
from skfleet.metrics import ResponseScorer, host_values
from skfleet.model_selection._adaptive._data import Batch, Lessons, learn_from, opened_rows

__all__ = [
    "Failure",
    "Record",
    "Setting",
    "Trained",
    "answer",
    "failure_of",
    "fit_head",
    "learn_more",
    "news_of",
    "score_answers",
    "train",
]


class Failure(NamedTuple):
    """What went wrong with a candidate."""

    error: BaseException
    trace: str


class Record(NamedTuple):
    """What is known of a candidate after an order."""

    n_calls: int
    scores: Mapping[str, float]
    fit_time: float = 0.0  # seconds in partial_fit, for this order
    score_time: float = 0.0
    n_samples: int = 0  # rows learned so far, counted once per epoch
    ended: float = 0.0  # seconds of the day's clock
    failure: Failure | None = None


@dataclass(frozen=True)
class Setting:
    """What all candidates have in common."""

    estimator: Any
    scorer: Callable[..., Any]
    told: Mapping[str, Any]  # what partial_fit is told besides values per row
    learn_told: Sequence[str]  # which values per row it is told
    score_told: Sequence[str]  # which values per row the scorer is told
    seed: int
    aside: Holdout | None
    answered: Mapping[str, ResponseScorer]  # the metrics, where answers are scored and not models
    models: Any = None  # where models are recorded
    home: str = field(default_factory=home)  # the process of the search
    # of the rows, where candidates are trained on a GPU
    copies: DeviceArrayCache = field(default_factory=DeviceArrayCache)
    device: str = field(default_factory=lambda: get_config().device)  # for those that leave it open


@dataclass(frozen=True)
class Trained:
    """A model and how it came about. It is never changed: to train it on makes another one."""

    model: Any
    n_calls: int = 0
    n_samples: int = 0
    fit_time: float = 0.0
    record: Record = field(default_factory=lambda: Record(0, {}))
    notes: tuple[Note, ...] = ()  # what was printed and warned of since the record before


def make(setting: Setting, params: Mapping[str, Any], head: Any) -> Any:
    """Return an untrained candidate, its steps before the last fitted already."""
    own = {name: clone(value, safe=False) for name, value in params.items()}
    model = clone(setting.estimator).set_params(**own)
    return model if head is None else Pipeline([*head.steps, model.steps[-1]])


def _as_asked(task: Callable[..., Any]) -> Callable[..., Any]:
    """Make a task open its setting, and heed the device that was asked for in the driver."""

    @wraps(task)
    def asked(setting: Any, *args: Any) -> Any:
        setting = open_scattered(setting)
        with config_context(device=setting.device):
            return task(setting, *args)

    return asked


@_as_asked
def fit_head(setting: Setting, params: Mapping[str, Any], handles: Sequence[Block]) -> Any:
    """Fit the steps before the last of a pipeline on rows that are learned."""
    model = make(setting, params, None)
    blocks = [opened_rows(handle) for handle in handles]
    whole = Batch(0, 0, 0.0, 1.0)
    rows = concat_rows(
        [
            learn_from(b, whole._replace(block=i), setting.seed, setting.aside)
            for i, b in enumerate(blocks)
        ]
    )
    return model[:-1].fit(rows.X, rows.y)


@_as_asked
def train(
    setting: Setting,
    candidate: int,
    before: Trained | Mapping[str, Any],
    head: Any,
    calls: range,
    lessons: Lessons,
    handles: Sequence[Block],
    test: Block | None = None,
) -> Trained:
    """Train a candidate, given as it was or by its parameters, for some calls.

    `handles` are of the blocks that the calls learn, in the order of their numbers. With `test`,
    the rows for that, the candidate is scored. What was recorded before is not done again.
    """
    if isinstance(before, Trained) and before.record.failure is not None:
        return before
    wanted = calls.stop
    known = before.n_calls if isinstance(before, Trained) else 0
    if setting.models is not None and known < wanted:
        found = setting.models.find(candidate, wanted)
        before = found if found is not None and found.n_calls > known else before
    is_done = isinstance(before, Trained) and before.n_calls >= wanted
    if isinstance(before, Trained) and is_done and (test is None or before.record.scores):
        return before
    with noted(setting.home) as notes:
        try:
            trained = _learn(setting, before, head, calls, lessons, handles)
            if test is not None:
                trained = _score(setting, trained, test)
        except Exception as error:
            trained = _failed(wanted, failure_of(error))
    if setting.models is not None and trained.record.failure is None:
        setting.models.put(candidate, trained)
    earlier = before.notes if isinstance(before, Trained) and not before.record.scores else ()
    trained = replace(trained, notes=(*earlier, *notes))
    setting.copies.tie_to(trained)  # Dask may send for the setting again
    return trained


def _learn(
    setting: Setting,
    before: Trained | Mapping[str, Any],
    head: Any,
    calls: range,
    lessons: Lessons,
    handles: Sequence[Block],
) -> Trained:
    """Make those of the calls that the model has not had, on a copy of it."""
    if not isinstance(before, Trained):
        before = Trained(make(setting, before, head))
    numbers = lessons.blocks_of(calls)
    calls = calls[max(0, before.n_calls - calls.start) :]
    if not calls:
        return before
    blocks = {n: opened_rows(handle) for n, handle in zip(numbers, handles, strict=True)}
    model, n_samples = copy_learner(before.model), before.n_samples
    goes_up = accepts_device_arrays(model)
    began = time.perf_counter()
    for call in calls:
        batch = lessons[call]
        block = blocks[batch.block]
        if goes_up:
            block = block._replace(X=setting.copies.give(("learned", batch.block), block.X))
        rows = learn_from(block, batch, setting.seed, setting.aside)
        learn(model, rows, setting)
        n_samples += rows.n_rows
    attributes_to_host(learner_of(model))
    if not before.n_calls:
        check_picklable(model)
    seconds = before.fit_time + time.perf_counter() - began
    return Trained(model, calls.stop, n_samples, seconds)


def _test_rows(setting: Setting, model: Any, handle: Block) -> Block:
    """Open rows to score on, X on the device where the model takes it there."""
    rows = opened_rows(handle)
    if not accepts_device_arrays(model):
        return rows
    return rows._replace(X=setting.copies.give(("scored", handle.number), rows.X))


def learn(model: Any, rows: Block, setting: Setting) -> None:
    """Let a model, or the last step of a pipeline, learn some rows."""
    told = {**setting.told, **_per_row(rows, setting.learn_told)}
    partial_fit(model, rows.X, rows.y, **told)


def _per_row(rows: Block, names: Sequence[str]) -> dict[str, Any]:
    """Return the values per row of some names."""
    return {
        name: rows.sample_weight if name == "sample_weight" else (rows.more or {})[name]
        for name in names
    }


def _score(setting: Setting, trained: Trained, test: Block) -> Trained:
    """Score a candidate on the rows for that, which are all in one place."""
    began = time.perf_counter()
    rows = _test_rows(setting, trained.model, test)
    told = at_home(_per_row(rows, setting.score_told))
    with _answering(trained.model, rows) as model:
        scores = named(setting.scorer(model, rows.X, to_host_if_array(rows.y), **told))
    return _scored(trained, scores, time.perf_counter() - began)


@contextmanager
def _answering(model: Any, rows: Block) -> Iterator[Any]:
    """Give a model whose answers for rows on a device come home."""
    if not is_not_numpy(rows.X):
        yield model
        return
    model = copy.copy(model)  # others may ask the model itself meanwhile
    with numpy_responses(model):
        yield model


@_as_asked
def answer(setting: Setting, trained: Trained, part: Block) -> tuple[Any, ...] | None:
    """Return what a candidate answers for some of the rows to score on, with what is true there."""
    if trained.record.failure is not None or trained.record.scores:
        return None
    try:
        rows = _test_rows(setting, trained.model, part)
        with _answering(trained.model, rows) as model:
            given = {name: one.response(model, rows.X) for name, one in setting.answered.items()}
    except Exception as error:
        return (failure_of(error),)
    weight = rows.sample_weight if "sample_weight" in setting.score_told else None
    return host_values(rows.y), weight if weight is None else host_values(weight), given


@_as_asked
def score_answers(
    setting: Setting, candidate: int, trained: Trained, *parts: tuple[Any, ...] | None
) -> Trained:
    """Score a candidate by its answers for all rows to score on."""
    if trained.record.failure is not None or trained.record.scores:
        return trained
    for part in parts:
        if part is not None and len(part) == 1:
            return _failed(trained.n_calls, part[0])
    began = time.perf_counter()
    try:
        known = [part for part in parts if part is not None]
        y = np.concatenate([part[0] for part in known])
        weight = None if known[0][1] is None else np.concatenate([part[1] for part in known])
        scores = {
            name: one.score(trained.model, y, np.concatenate([p[2][name] for p in known]), weight)
            for name, one in setting.answered.items()
        }
    except Exception as error:
        return _failed(trained.n_calls, failure_of(error))
    trained = _scored(trained, scores, time.perf_counter() - began)
    if setting.models is not None:
        setting.models.put(candidate, trained)
    return trained


def _failed(n_calls: int, failure: Failure) -> Trained:
    """Return what stands for a candidate that failed."""
    return Trained(None, n_calls, record=Record(n_calls, {}, failure=failure))


def _scored(trained: Trained, scores: Mapping[str, float], seconds: float) -> Trained:
    """Note the scores of a candidate, and begin to count seconds anew."""
    record = Record(
        trained.n_calls, scores, trained.fit_time, seconds, trained.n_samples, time.time()
    )
    return replace(trained, fit_time=0.0, record=record)


def named(scores: Any) -> dict[str, float]:
    """Return scores by name; one alone is called "score"."""
    several = scores if isinstance(scores, dict) else {"score": scores}
    for name, value in several.items():
        if np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.number):
            raise ValueError(
                f"scoring must return a number. Got {value!r} ({type(value).__name__}) for "
                f"{name} instead."
            )
    return {name: float(value) for name, value in several.items()}


@_as_asked
def learn_more(
    setting: Setting, trained: Trained, handles: Sequence[Block], epochs: int
) -> Trained:
    """Let a model learn the rows that it was scored on, as often as it has learned the others."""
    model = copy_learner(trained.model)
    for _ in range(epochs):
        for handle in handles:
            learn(model, _test_rows(setting, model, handle), setting)
    attributes_to_host(learner_of(model))
    return replace(trained, model=model)


def news_of(trained: Trained) -> tuple[Record, tuple[Note, ...]]:
    """Give what the driver wants to know; the model stays."""
    return trained.record, trained.notes


def failure_of(error: BaseException) -> Failure:
    """Pack an error such that it travels, and holds on to nothing: its traceback becomes text."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return Failure(error.with_traceback(None), trace)
