"""What a worker does with fits that have their rows, and perhaps their first steps, in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import sklearn
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from skfleet._array import is_not_numpy
from skfleet._config import config_context
from skfleet._sklearn_private import take_rows
from skfleet.blocks import take_rows as take_there
from skfleet.engine._dask._serialize import DeviceCachedArray, Pickled
from skfleet.engine._gpu._estimator_device import (
    accepts_device_arrays,
    numpy_responses,
    to_cpu_estimator,
)
from skfleet.model_selection._dispatch._pipeline_cache import Kept, PipelineCache
from skfleet.model_selection._shared_fits._execution import OWN_FIT, FitOrigin, SharedFitRun
from skfleet.model_selection._shared_fits._registry import SharedFitMember, last_step

__all__ = ["Evaluated", "FirstStep", "FitCall", "Job", "evaluate", "has_first_steps"]


# Why nothing is shared of rows whose fits go on with arrays of another library than NumPy.
_ELSEWHERE = "rows must be NumPy's where they are fitted"


class FirstStep(NamedTuple):
    """A step before the last, by its place, that belongs to a family."""

    depth: int
    member: SharedFitMember


class FitCall(NamedTuple):
    """One fit: numbers of its estimator and of its split, and what else it is called with.

    Fits with the same ``block`` have their first steps in common, all but what ``first`` tells of
    one of them; and all but their ``member`` of a family, where they have one.
    """

    estimator: int
    fold: int
    options: Mapping[str, Any]
    block: Hashable = None
    member: SharedFitMember | None = None
    first: FirstStep | None = None

    def goes_with(self, other: FitCall) -> bool:
        """Tell whether something is made once for both."""
        return bool(self.block) and (self.fold, self.block) == (other.fold, other.block)


class Job(NamedTuple):
    """What the fits of a search have in common, rows and splits apart.

    ``function`` is scikit-learn's; ``estimators`` are packed, because each fit needs its own;
    ``shares_rows`` tells whether splits are cut once, ``shares_steps`` whether equal first steps of
    pipelines are fitted once.
    """

    function: Callable[..., dict[str, Any]]
    estimators: Sequence[Pickled]
    options: Mapping[str, Any]
    shares_rows: bool
    shares_steps: bool


class Evaluated(NamedTuple):
    """The result of a fit, the seconds it took, and those of them that others had a part in.

    ``came`` tells whether it came out of another fit, ``first_came`` whether one of its first steps
    did.
    """

    result: dict[str, Any]
    seconds: float
    shared_seconds: float
    came: FitOrigin = OWN_FIT
    first_came: FitOrigin = OWN_FIT


def evaluate(
    job: Job,
    fits: Sequence[FitCall],
    X: Any,
    y: Any,
    folds: Mapping[int, tuple[Any, Any]],
    discard: Callable[[], Any] = lambda: None,
) -> Iterator[Evaluated]:
    """Fit and score one after the other.

    A split that several fits use is cut once, and what was fitted of equal first steps is used
    again. Both count for the ``fit_time`` and ``score_time`` of every fit, as if it were alone.

    Large rows that fits share are read-only. A fit that fails on them is made again on rows of its
    own, after a call of ``discard``; if that helps, so are those that follow.

    Rows that are `DeviceCachedArray` are wanted on a GPU: estimators that take them get them
    there, where they stay, and their answers come back to the host before they are scored.
    """
    made = _maker(job.estimators)
    fold: _Fold | None = None
    held, goes_up_now = X, False
    contained: SharedFitRun | None = None
    reason: str | None = None
    first: _First | None = None
    for place, fit in enumerate(fits):
        with _asked(job, held):
            goes_up = isinstance(held, DeviceCachedArray) and accepts_device_arrays(
                made(fit.estimator), fit.options.get("parameters")
            )
        if fold is None or (fit.fold, goes_up) != (fold.number, goes_up_now):
            fold = first = None  # its rows go before others come
            goes_up_now = goes_up
            if isinstance(held, DeviceCachedArray):
                X = held.on_device() if goes_up else held.on_host()
            uses = sum(other.fold == fit.fold for other in fits[place:])
            shared = job.shares_rows and (uses > 1 or is_not_numpy(X))
            fold = _Fold(fit.fold, X, *folds[fit.fold], is_shared=shared)
        if place == 0 or not fit.goes_with(fits[place - 1]):
            is_shared = job.shares_steps and not fold.is_on_device
            contained = _contained(fit, fits[place:]) if is_shared else None
            reason = None if is_shared or fit.member is None else _ELSEWHERE
        if fit.first is None or first is None or not first.goes_with(fit):
            first = _first(fit, fits[place:])
        start = time.perf_counter()
        try:
            with _asked(job, held):
                result = _fit_and_score(job, fit, y, fold, made, contained, first)
            error: Exception | None = None
            failed = fold.was_read_only and _has_failed(result, job.options["error_score"])
        except Exception as raised:
            if not fold.was_read_only:
                raise
            error, failed = raised, True
        if failed:
            discard()
            alone = _Fold(fit.fold, X, *folds[fit.fold], is_shared=False)
            with _asked(job, held):
                result = _fit_and_score(job, fit, y, alone, made)
            if error is not None or not _has_failed(result, job.options["error_score"]):
                fold = alone
        if isinstance(held, DeviceCachedArray) and "estimator" in result:
            result["estimator"] = to_cpu_estimator(result["estimator"])
        evaluated = Evaluated(result, time.perf_counter() - start, fold.steps.spent)
        if contained is not None and not failed:
            if contained.spent:  # what others are spared may be in the score too
                evaluated = evaluated._replace(shared_seconds=evaluated.seconds)
            evaluated = evaluated._replace(came=contained.origin)
        elif reason is not None:
            evaluated = evaluated._replace(came=FitOrigin(refused=reason))
        if not failed:
            evaluated = evaluated._replace(first_came=fold.steps.came)
        yield evaluated


@contextmanager
def _asked(job: Job, rows: Any) -> Iterator[None]:
    """Make what was asked in the driver of fits on a GPU hold for them here."""
    if not isinstance(rows, DeviceCachedArray):
        yield
        return
    settings = getattr(job.function, "config", {})
    with config_context(device="cuda"), sklearn.config_context(**settings):
        yield


def _contained(fit: FitCall, following: Sequence[FitCall]) -> SharedFitRun | None:
    """Give what makes all fits of a family by one, if there are several to come."""
    if fit.member is None:
        return None
    members = [other.member.values for other in following if other.member and other.goes_with(fit)]
    return SharedFitRun(fit.member.shared_fit, members) if len(members) > 1 else None


class _First(NamedTuple):
    """First steps that differ in what one fit contains: those they have in common, and the fit."""

    block: Sequence[Hashable]
    depth: int
    contained: SharedFitRun

    def goes_with(self, fit: FitCall) -> bool:
        """Tell whether the step of a fit is one of them, on the same split."""
        same = fit.first is not None and fit.first.depth == self.depth
        return same and _begins_as(fit, self.block)


def _first(fit: FitCall, following: Sequence[FitCall]) -> _First | None:
    """Give what makes a first step of all fits of a family by one."""
    if fit.first is None:
        return None
    depth, member = fit.first
    block: Any = fit.block
    block = block[: depth + 1]
    values = [
        other.first.member.values
        for other in following
        if other.first and other.fold == fit.fold and _begins_as(other, block)
    ]
    return _First(block, depth, SharedFitRun(member.shared_fit, values))


def _begins_as(fit: FitCall, block: Sequence[Hashable]) -> bool:
    """Tell whether a fit has some first steps."""
    own: Any = fit.block
    return own[: len(block)] == block


def _maker(estimators: Sequence[Pickled]) -> Callable[[int], Any]:
    """Make a function that gives unfitted estimators by number, each time another object."""
    opened: dict[int, Any] = {}

    def made(number: int) -> Any:
        if b"cloudpickle" not in estimators[number].header:
            return estimators[number].loads()
        # To open it is to make its class anew, which was pickled by value.
        if number not in opened:
            opened[number] = estimators[number].loads()
        return clone(opened[number])

    return made


def _fit_and_score(
    job: Job,
    fit: FitCall,
    y: Any,
    fold: _Fold,
    made: Callable[[int], Any],
    contained: SharedFitRun | None = None,
    first: _First | None = None,
) -> dict[str, Any]:
    """Fit and score once, on the rows of a split."""
    estimator = made(fit.estimator)
    if contained is not None and fit.member is not None:
        contained.begin()
        contained.install(last_step(estimator), fit.member.values)
    fold.steps.begin(is_open=fold.is_shared and job.shares_steps)
    if fit.first is not None and first is not None:
        fold.steps.expect(first.depth, first.contained, fit.first.member.values)
    if fold.steps.is_open and has_first_steps(estimator):
        estimator.memory = fold.steps
    try:
        with numpy_responses(estimator) if fold.is_on_device else nullcontext():
            result = job.function(
                estimator,
                fold.rows_for(estimator),
                y,
                train=fold.train,
                test=fold.test,
                **job.options,
                **fit.options,
            )
        if "fit_time" in result:
            result["fit_time"] += fold.steps.saved_in_fit
            result["score_time"] += fold.steps.saved_in_score
            if contained is not None:
                result["fit_time"] -= contained.correction
        return result
    finally:
        fold.steps.end()


def _has_failed(result: Mapping[str, Any], error_score: Any) -> bool:
    """Tell whether a fit or a score failed, or came out as if it had."""
    scores: list[Any] = []
    for part in ("test_scores", "train_scores"):
        found = result.get(part, ())
        scores += found.values() if hasattr(found, "values") else [found]
    return result["fit_error"] is not None or any(
        score == error_score or score != score for score in scores if np.isscalar(score)
    )


def has_first_steps(estimator: Any) -> bool:
    """Tell whether an estimator has first steps that are fitted anew for each fit."""
    return type(estimator) is Pipeline and len(estimator.steps) > 1 and estimator.memory is None


class _Fold:
    """One split of the rows, for the fits that use it."""

    def __init__(self, number: int, X: Any, train: Any, test: Any, *, is_shared: bool) -> None:
        self.number = number
        self._X = X
        self.is_on_device = is_not_numpy(X)
        self.train, self.test = train, test
        self.is_shared = is_shared
        self.steps = PipelineCache()
        if is_shared:
            self.train, self.test = np.asarray(train), np.asarray(test)
            self._rows = _Rows(X, {"train": self.train, "test": self.test}, self.steps)

    @property
    def was_read_only(self) -> bool:
        """Whether a fit may have failed because it wanted to write to what others read too."""
        return self.is_shared and (self._rows.is_read_only or self.steps.is_read_only)

    def rows_for(self, estimator: Any) -> Any:
        """Give the rows to a fit, as they are or with both parts cut already."""
        if not self.is_shared:
            return self._X
        # A list of kernels is refused, but only for what it is.
        if not hasattr(self._X, "shape") and get_tags(estimator).input_tags.pairwise:
            return self._X
        return self._rows


class _Rows:
    """Stands for rows of which scikit-learn is going to cut the two parts of a split.

    Each part is cut when it is first asked for. Being taken for an array, this must have a shape
    and no ``iloc``, whatever it stands for.
    """

    def __init__(self, X: Any, parts: Mapping[str, Any], steps: PipelineCache) -> None:
        self._X = X
        self._parts = parts
        self._steps = steps
        self._cut: dict[str, Kept] = {}
        self.shape = getattr(X, "shape", None) or (len(X),)
        self.ndim = len(self.shape)

    @property
    def is_read_only(self) -> bool:
        """Whether a part that was asked for can only be read."""
        return any(kept.is_read_only for kept in self._cut.values())

    def __len__(self) -> int:
        return int(self.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._X, dtype=dtype)

    def __getitem__(self, key: Any) -> Any:
        rows = key[0] if isinstance(key, tuple) and len(key) == 2 and key[1] is ... else key
        for name, part in self._parts.items():
            if rows is part:
                if name not in self._cut:
                    cut = take_there if is_not_numpy(self._X) else take_rows
                    self._cut[name] = Kept(cut(self._X, part))
                given = self._cut[name].give()
                self._steps.recognise(given, name, 0)
                return given
        return self._X[key]
