"""Fits of a batch on a worker, which share the rows of a split and equal preprocessing steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import sklearn
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from skfleet._array import is_not_numpy
from skfleet._captured_output import OutputEvent, drain_output
from skfleet._cluster import current_worker_address, is_cancelled
from skfleet._config import config_context
from skfleet._pipeline_steps import last_step
from skfleet.engine import (
    DeviceCachedArray,
    Pickled,
    accepts_device_arrays,
    fit_scope,
    numpy_responses,
    to_cpu_estimator,
)
from skfleet.model_selection._dispatch._array_api_scorer import device_scorer
from skfleet.model_selection._dispatch._memory import process_of
from skfleet.model_selection._dispatch._memory_gate import memory_allowance
from skfleet.model_selection._dispatch._memory_of_steps import drop_memory
from skfleet.model_selection._dispatch._scheduler import should_yield
from skfleet.model_selection._dispatch._split_rows import SplitRows
from skfleet.model_selection._dispatch._step_cache import SplitSteps, StepCache
from skfleet.model_selection._early_stopping._validation_rows import fit_and_score
from skfleet.model_selection._paths._execution import OWN_FIT, FitOrigin, SharedFitRun
from skfleet.model_selection._paths._registry import SharedFitMember, writes_into_rows

# The reason to share nothing where fits go on with arrays of another library than NumPy.
_NOT_NUMPY = "rows must be NumPy's where they are fitted"


class SharedStep(NamedTuple):
    """A preprocessing step that has a shared fit, by its position in the pipeline."""

    depth: int
    member: SharedFitMember


class FitCall(NamedTuple):
    """One fit: numbers of its estimator and of its split, and its own arguments.

    Fits with the same ``prefix_key`` have equal preprocessing steps, but for the parameters that
    the fit of ``shared_step`` covers. Those with a ``member`` are all served by one shared fit.
    """

    estimator: int
    fold: int
    options: Mapping[str, Any]
    prefix_key: tuple[Hashable, ...] = ()
    member: SharedFitMember | None = None
    shared_step: SharedStep | None = None

    def shares_work_with(self, other: FitCall) -> bool:
        """Return whether both have the same split and prefix."""
        is_same = (self.fold, self.prefix_key) == (other.fold, other.prefix_key)
        return bool(self.prefix_key) and is_same


class JobSpec(NamedTuple):
    """Everything that the fits of a search have in common, but rows and splits.

    ``function`` is scikit-learn's. ``estimators`` are pickled, because each fit needs its own copy.
    """

    function: Callable[..., dict[str, Any]]
    estimators: Sequence[Pickled]
    options: Mapping[str, Any]
    shares_rows: bool
    shares_steps: bool


class FitOutcome(NamedTuple):
    """The result of a fit, its seconds, and those of them that were spent for other fits too.

    ``origin`` says whether the result came from a shared fit, ``prefix_origin`` whether a
    preprocessing step did.
    """

    result: dict[str, Any]
    seconds: float
    shared_seconds: float
    origin: FitOrigin = OWN_FIT
    prefix_origin: FitOrigin = OWN_FIT


# For each fit:
# 1. decide whether its estimator takes device arrays;
# 2. build the split, unless it is that of the fit before;
# 3. prepare the shared fits of its last step and of its preprocessing steps;
# 4. fit and score by scikit-learn's function;
# 5. where that failed on rows that are read-only, fit again on a copy;
# 6. yield the result with its durations and origin.
def run_fits(
    job: JobSpec,
    fits: Sequence[FitCall],
    X: Any,
    y: Any,
    folds: Mapping[int, tuple[Any, ...]],
    discard: Callable[[], Any] = lambda: None,
    claim: Callable[[int], bool] = lambda position: True,
    earlier_steps: Callable[[tuple[Any, ...]], SplitSteps] | None = None,
) -> Iterator[FitOutcome | None]:
    """Fit and score one after the other; None for a fit that it may not ``claim``.

    The rows of a split are cut once for several fits, and equal preprocessing steps are fitted
    once. Both count in the ``fit_time`` and ``score_time`` of every fit, as if it were alone.

    Large shared rows are read-only. A fit that fails on them is repeated on a copy, after a call of
    ``discard``; if that helps, the following fits get the copy too.

    Each of ``folds`` has the rows to train on and to test on, and with early stopping those to
    validate on. ``earlier_steps`` returns, for a fold, the steps that earlier batches have fitted.

    Rows that are a `DeviceCachedArray` are for a GPU: estimators that accept device arrays get them
    there. Scores of `DEVICE_SCORES` are computed there too; for all others the predictions are
    copied to the host.
    """
    # All of these are kept while the following fits can use them, and replaced when one cannot.
    new_estimator = _estimator_factory(job.estimators)
    split: SplitRows | None = None
    source, is_on_device = X, False
    shared_fit: SharedFitRun | None = None
    reason: str | None = None
    shared_prefix: _SharedPrefix | None = None
    previous: FitCall | None = None
    for position, fit in enumerate(fits):
        # Another batch has begun this fit, which was sent twice.
        if not claim(position):
            yield None
            continue
        with _driver_config(job, source):
            goes_to_device = isinstance(source, DeviceCachedArray) and accepts_device_arrays(
                new_estimator(fit.estimator), fit.options.get("parameters")
            )
        # The rows of the split. A fit that is alone with them gets them as its own.
        if split is None or (fit.fold, goes_to_device) != (split.number, is_on_device):
            split = shared_prefix = None  # frees the rows before others are loaded
            is_on_device = goes_to_device
            if isinstance(source, DeviceCachedArray):
                X = source.on_device() if goes_to_device else source.on_host()
            n_uses = sum(following.fold == fit.fold for following in fits[position:])
            on_device, earlier = is_not_numpy(X), None
            if earlier_steps is not None and fit.prefix_key and not on_device:
                earlier = earlier_steps(folds[fit.fold])
            is_shared = job.shares_rows and (n_uses > 1 or on_device or earlier is not None)
            copies = source.cache if isinstance(source, DeviceCachedArray) else None
            parts = folds[fit.fold]
            split = SplitRows(
                fit.fold, X, *parts, is_shared=is_shared, copies=copies, earlier=earlier
            )
        # The shared fit needs all values of its group before the first of them is fitted.
        if previous is None or not fit.shares_work_with(previous):
            may_share = job.shares_steps and not split.is_on_device
            shared_fit = _shared_fit(fit, fits[position:]) if may_share else None
            reason = None if may_share or fit.member is None else _NOT_NUMPY
        # A shared step may span fits of several prefixes, so it is compared by itself.
        if fit.shared_step is None or shared_prefix is None or not shared_prefix.covers(fit):
            shared_prefix = _shared_prefix(fit, fits[position:])
        previous = fit
        # An error on read-only rows is kept back: it may be that of a fit that writes into them.
        start = time.perf_counter()
        try:
            with _driver_config(job, source), fit_scope():
                result = _fit_and_score(
                    job, fit, y, split, new_estimator, shared_fit, shared_prefix
                )
            error: Exception | None = None
            has_failed = split.was_read_only and _has_failed(result, job.options["error_score"])
        except Exception as raised:
            if not split.was_read_only:
                raise
            error, has_failed = raised, True
        if has_failed:
            discard()
            # On rows of its own, and without what is shared: this fit is as it would be alone.
            copied = SplitRows(fit.fold, X, *folds[fit.fold], is_shared=False)
            with _driver_config(job, source):
                result = _fit_and_score(job, fit, y, copied, new_estimator)
            # The copy serves the following fits where it was the remedy.
            if error is not None or not _has_failed(result, job.options["error_score"]):
                split = copied
        # The driver may have no GPU to load the estimator on.
        if isinstance(source, DeviceCachedArray) and "estimator" in result:
            result["estimator"] = to_cpu_estimator(result["estimator"])
        # The scheduler plans by these seconds, without those that other fits will not take again.
        outcome = FitOutcome(result, time.perf_counter() - start, split.steps.shared_time)
        if shared_fit is not None and not has_failed:
            if shared_fit.spent:  # it may have saved scoring time of the following fits too
                outcome = outcome._replace(shared_seconds=outcome.seconds)
            outcome = outcome._replace(origin=shared_fit.origin)
        elif reason is not None:
            outcome = outcome._replace(origin=FitOrigin(refused=reason))
        if not has_failed:
            outcome = outcome._replace(prefix_origin=split.steps.origin)
        yield outcome


@contextmanager
def _driver_config(job: JobSpec, rows: Any) -> Iterator[None]:
    """Apply the driver's configuration to fits on a GPU."""
    if not isinstance(rows, DeviceCachedArray):
        yield
        return
    settings = getattr(job.function, "config", {})
    with config_context(device="cuda"), sklearn.config_context(**settings):
        yield


def _shared_fit(fit: FitCall, following: Sequence[FitCall]) -> SharedFitRun | None:
    """Return the run of the fit that serves several following ones, or None."""
    if fit.member is None:
        return None
    group = [call.member for call in following if call.shares_work_with(fit)]
    values = [member.values for member in group if member]
    return SharedFitRun(fit.member.shared_fit, values) if len(values) > 1 else None


class _SharedPrefix(NamedTuple):
    """Equal steps up to one that has a shared fit, with the run of that fit."""

    prefix_key: tuple[Hashable, ...]
    depth: int
    shared_fit: SharedFitRun

    def covers(self, fit: FitCall) -> bool:
        """Return whether the shared step of a fit on the same split is this one."""
        has_depth = fit.shared_step is not None and fit.shared_step.depth == self.depth
        return has_depth and fit.prefix_key[: len(self.prefix_key)] == self.prefix_key


def _shared_prefix(fit: FitCall, following: Sequence[FitCall]) -> _SharedPrefix | None:
    """Return the shared step of a fit, prepared for all following fits with it."""
    if fit.shared_step is None:
        return None
    depth, member = fit.shared_step
    prefix = fit.prefix_key[: depth + 1]
    on_split = [call for call in following if call.fold == fit.fold]
    steps = [call.shared_step for call in on_split if call.prefix_key[: len(prefix)] == prefix]
    values = [step.member.values for step in steps if step]
    return _SharedPrefix(prefix, depth, SharedFitRun(member.shared_fit, values))


def _estimator_factory(estimators: Sequence[Pickled]) -> Callable[[int], Any]:
    """Return a function that returns a new unfitted estimator by its number."""
    loaded: dict[int, Any] = {}

    def new_estimator(number: int) -> Any:
        if b"cloudpickle" not in estimators[number].header:
            return estimators[number].loads()
        # Its class was pickled by value: to unpickle it again would create another class.
        if number not in loaded:
            loaded[number] = estimators[number].loads()
        return clone(loaded[number])

    return new_estimator


def _fit_and_score(
    job: JobSpec,
    fit: FitCall,
    y: Any,
    split: SplitRows,
    new_estimator: Callable[[int], Any],
    shared_fit: SharedFitRun | None = None,
    shared_prefix: _SharedPrefix | None = None,
) -> dict[str, Any]:
    """Fit and score once, on the rows of a split."""
    estimator = new_estimator(fit.estimator)
    parameters = drop_memory(estimator, fit.options.get("parameters"))
    if shared_fit is not None and fit.member is not None:
        shared_fit.begin()
        shared_fit.install(last_step(estimator), fit.member.values)
    params = {**estimator.get_params(), **(fit.options.get("parameters") or {})}
    # steps that work in place may write through the output of others, which is not copied then
    is_written = writes_into_rows(params)
    is_open = split.is_shared and job.shares_steps and not is_written
    split.steps.start_fit(is_open=is_open)
    if fit.shared_step is not None and shared_prefix is not None:
        split.steps.expect_path(
            shared_prefix.depth, shared_prefix.shared_fit, fit.shared_step.member.values
        )
    if split.steps.is_open and has_prefix_steps(estimator):
        estimator.memory = split.steps
    try:
        with numpy_responses(estimator) if split.is_on_device else nullcontext():
            rows = split.rows_for(estimator, is_written=is_written)
            changed = fit.options.get("parameters") or {}
            y = split.targets_for(estimator, changed, y, job.options)
            options = {**split.parts, **job.options, **fit.options}
            options |= {"parameters": parameters} if "parameters" in options else {}
            if split.is_on_device and "scorer" in options:
                options["scorer"] = device_scorer(options["scorer"])
            result = fit_and_score(job.function, estimator, rows, y, split.validation, options)
        if "fit_time" in result:
            result["fit_time"] += split.steps.fit_time_saved
            result["score_time"] += split.steps.score_time_saved
            if shared_fit is not None:
                result["fit_time"] -= shared_fit.correction
        return result
    finally:
        split.steps.end_fit()


def _has_failed(result: Mapping[str, Any], error_score: Any) -> bool:
    """Return whether a fit raised, or a score is the error score or NaN."""
    scores: list[Any] = []
    for name in ("test_scores", "train_scores"):
        values = result.get(name, ())
        scores += values.values() if hasattr(values, "values") else [values]
    return result["fit_error"] is not None or any(
        score == error_score or score != score for score in scores if np.isscalar(score)
    )


def has_prefix_steps(estimator: Any) -> bool:
    """Return whether an estimator is a pipeline with preprocessing steps and without a memory."""
    return type(estimator) is Pipeline and len(estimator.steps) > 1 and estimator.memory is None


class FitReply(NamedTuple):
    """A `FitOutcome` as it is sent to the driver, with the output of the fit."""

    result: dict[str, Any]
    seconds: float
    shared_seconds: float
    origin: FitOrigin
    prefix_origin: FitOrigin
    end: float  # time of day on the worker
    output: list[OutputEvent]


def run_fit_batch(
    pickled_job: Pickled,
    pickled_calls: Pickled,
    X: Any,
    y: Any,
    *parts: Any,
    steps: StepCache | None = None,
) -> tuple[str, list[FitReply | None]]:
    """Run the fits of a batch until its time limit; return the worker, and those that it made.

    A fit that another batch makes has no reply. ``steps`` are those of earlier batches.
    """
    job = pickled_job.loads()
    calls, time_limit, numbers, allowance, claims, step_bytes = pickled_calls.loads()
    n_parts = len(parts) // len(numbers)  # of a fold
    folds = {n: parts[i * n_parts :][:n_parts] for i, n in enumerate(numbers)}
    earlier = None if steps is None else partial(steps.on_split, max_bytes=step_bytes)
    outcomes = run_fits(
        job,
        calls,
        X,
        y,
        folds,
        discard=drain_output,
        claim=claims.claim,
        earlier_steps=earlier,
    )
    with memory_allowance(allowance, process_of(current_worker_address())):
        was_cancelled = allowance is not None and is_cancelled()  # while it waited
        replies = [] if was_cancelled else _run_until(calls, time_limit, outcomes)
    return current_worker_address(), replies


def _run_until(
    calls: Sequence[FitCall], time_limit: float, outcomes: Iterator[FitOutcome | None]
) -> list[FitReply | None]:
    """Run fits until their time limit."""
    replies: list[FitReply | None] = []
    start = group_start = time.perf_counter()
    shared = 0.0  # seconds of prefix steps
    for n in range(len(calls)):
        if n and is_cancelled():
            break
        try:
            outcome = next(outcomes)
        except BaseException:
            # the error replaces the results of all fits; their output is sent with it
            outputs = [reply.output for reply in replies if reply is not None]
            drain_output(put_back=[event for output in outputs for event in output])
            raise
        if outcome is None:
            replies.append(None)
            continue
        replies.append(FitReply(*outcome, time.time(), drain_output()))
        now = time.perf_counter()
        if n == 0 or not calls[n].shares_work_with(calls[n - 1]):
            group_start, shared = now - outcome.seconds, 0.0
        shared += outcome.shared_seconds
        if n + 1 == len(calls):
            break
        is_group = calls[n + 1].shares_work_with(calls[n])
        elapsed = now - group_start if is_group else float("inf")
        if should_yield(now - start, time_limit, group_elapsed=elapsed, prefix_seconds=shared):
            break
    return replies
