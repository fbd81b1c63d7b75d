"""What a worker does with fits that have their rows, and perhaps their first steps, in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from skfleet._sklearn_private import take_rows
from skfleet.engine._parcel import READ_ONLY_FROM, Parcel

__all__ = ["Evaluated", "FitCall", "Job", "evaluate", "has_first_steps"]


class FitCall(NamedTuple):
    """One fit: numbers of its estimator and of its split, and what else it is called with."""

    estimator: int
    fold: int
    options: Mapping[str, Any]


class Job(NamedTuple):
    """What the fits of a search have in common, rows and splits apart.

    ``function`` is scikit-learn's; ``estimators`` are packed, because each fit needs its own;
    ``shares_rows`` tells whether splits are cut once, ``shares_steps`` whether equal first steps of
    pipelines are fitted once.
    """

    function: Callable[..., dict[str, Any]]
    estimators: Sequence[Parcel]
    options: Mapping[str, Any]
    shares_rows: bool
    shares_steps: bool


class Evaluated(NamedTuple):
    """The result of a fit, the seconds it took, and those of them that went into shared steps."""

    result: dict[str, Any]
    seconds: float
    shared_seconds: float


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
    """
    made = _maker(job.estimators)
    fold: _Fold | None = None
    for place, fit in enumerate(fits):
        if fold is None or fit.fold != fold.number:
            fold = None  # its rows go before others come
            uses = sum(other.fold == fit.fold for other in fits[place:])
            fold = _Fold(fit.fold, X, *folds[fit.fold], is_shared=job.shares_rows and uses > 1)
        start = time.perf_counter()
        try:
            result = _fit_and_score(job, fit, y, fold, made)
            error: Exception | None = None
            failed = fold.was_read_only and _has_failed(result, job.options["error_score"])
        except Exception as raised:
            if not fold.was_read_only:
                raise
            error, failed = raised, True
        if failed:
            discard()
            alone = _Fold(fit.fold, X, *folds[fit.fold], is_shared=False)
            result = _fit_and_score(job, fit, y, alone, made)
            if error is not None or not _has_failed(result, job.options["error_score"]):
                fold = alone
        yield Evaluated(result, time.perf_counter() - start, fold.steps.spent)


def _maker(estimators: Sequence[Parcel]) -> Callable[[int], Any]:
    """Make a function that gives unfitted estimators by number, each time another object."""
    opened: dict[int, Any] = {}

    def made(number: int) -> Any:
        if b"cloudpickle" not in estimators[number].header:
            return estimators[number].open()
        # To open it is to make its class anew, which was pickled by value.
        if number not in opened:
            opened[number] = estimators[number].open()
        return clone(opened[number])

    return made


def _fit_and_score(
    job: Job, fit: FitCall, y: Any, fold: _Fold, made: Callable[[int], Any]
) -> dict[str, Any]:
    """Fit and score once, on the rows of a split."""
    estimator = made(fit.estimator)
    fold.steps.begin(is_open=fold.is_shared and job.shares_steps)
    if fold.steps.is_open and has_first_steps(estimator):
        estimator.memory = fold.steps
    try:
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


class _Kept:
    """Rows kept for several fits, each of which is given an object of its own.

    Up to a size that is a copy; from there on it reads the memory that all read.
    """

    def __init__(self, rows: Any) -> None:
        # the items of a list may be shared, as in any list that is cut from another
        self._list = rows if type(rows) is list else None
        self._parcel = Parcel.pack(rows if self._list is None else None)
        self.is_read_only = self._parcel.nbytes >= READ_ONLY_FROM

    def give(self) -> Any:
        """Give an object with these rows."""
        if self._list is not None:
            return list(self._list)
        return self._parcel.open(view=self.is_read_only)


def _keep(rows: Any) -> _Kept | None:
    """Keep what a step made of rows; None for what cannot be given out twice."""
    try:
        return _Kept(rows)
    except Exception:
        return None


class _Fold:
    """One split of the rows, for the fits that use it."""

    def __init__(self, number: int, X: Any, train: Any, test: Any, *, is_shared: bool) -> None:
        self.number = number
        self._X = X
        self.train, self.test = train, test
        self.is_shared = is_shared
        self.steps = SharedSteps()
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

    def __init__(self, X: Any, parts: Mapping[str, Any], steps: SharedSteps) -> None:
        self._X = X
        self._parts = parts
        self._steps = steps
        self._cut: dict[str, _Kept] = {}
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
                    self._cut[name] = _Kept(take_rows(self._X, part))
                given = self._cut[name].give()
                self._steps.recognise(given, name, 0)
                return given
        return self._X[key]


@dataclass(eq=False)
class _Step:
    """A fitted step: by what it is known, what it made of the rows, and the seconds it took."""

    key: bytes
    fitted: Any
    output: _Kept
    seconds: float
    transformed: dict[str, tuple[_Kept, float]] = field(default_factory=dict)


class _Known(NamedTuple):
    """Rows of this fit: which part of the split they are, after how many steps."""

    rows: Any
    part: str
    depth: int


class SharedSteps:
    """The first steps of pipelines that are fitted on the same rows, each fitted once.

    This is what scikit-learn takes for the `memory` of a pipeline. It remembers the steps of the
    latest fit and how they transformed the rows of both parts; a fit whose first k steps are the
    same, parameters and their types included, does not fit them again.
    """

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self.begin(is_open=False)

    def begin(self, *, is_open: bool) -> None:
        """Expect the next fit; its pipeline, if this is open."""
        self.end()
        self.is_open = is_open
        self._depth = 0
        self.saved_in_fit = self.saved_in_score = self.spent = 0.0

    def end(self) -> None:
        """Let go of what belongs to a single fit."""
        self.is_open = False
        self._known: dict[int, _Known] = {}

    @property
    def is_read_only(self) -> bool:
        """Whether a fit was given rows by a step that can only be read."""
        return any(step.output.is_read_only for step in self._steps)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pipeline that is copied or sent away is fitted on other rows, and has no memory.
        return type(None), ()

    def recognise(self, rows: Any, part: str, depth: int) -> None:
        """Take note of rows that a fit was given, to know them again."""
        if self.is_open or depth:
            self._known[id(rows)] = _Known(rows, part, depth)

    def cache(
        self, func: Callable[..., Any], ignore: Sequence[str] | None = None, **_: Any
    ) -> Callable[..., Any]:
        """Give a function that fits and transforms as ``func`` does, but equal steps only once."""
        if not self.is_open or self._depth:
            return func  # fitted again, by a scorer perhaps
        return partial(self._fit_transform, func, frozenset(ignore or ()))

    def _fit_transform(
        self,
        func: Callable[..., Any],
        ignore: frozenset[str],
        transformer: Any,
        X: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        depth, known = self._depth, self._known.get(id(X))
        if known is None or known.rows is not X or (known.part, known.depth) != ("train", depth):
            return func(transformer, X, *args, **kwargs)
        self._depth += 1
        relevant = {name: value for name, value in kwargs.items() if name not in ignore}
        key = Parcel.pack((transformer, relevant)).digest()
        if depth < len(self._steps) and self._steps[depth].key == key:
            step = self._steps[depth]
            self.saved_in_fit += step.seconds
            rows = step.output.give()
            _tell_callbacks(X, rows, *args, **kwargs)
        else:
            del self._steps[depth:]
            start = time.perf_counter()
            rows, fitted = func(transformer, X, *args, **kwargs)
            seconds = time.perf_counter() - start
            self.spent += seconds
            kept = _keep(rows)
            if kept is None:
                return rows, fitted
            step = _Step(key, fitted, kept, seconds)
            rows = kept.give()
            if callable(getattr(fitted, "transform", None)) and hasattr(fitted, "__dict__"):
                vars(fitted)["transform"] = _Transform(self, depth, fitted.transform)
            self._steps.append(step)
        self.recognise(rows, "train", depth + 1)
        return rows, step.fitted

    def transform(self, depth: int, plain: Callable[..., Any], X: Any) -> Any:
        """Transform rows with a step, or say what became of them when they were transformed."""
        known = self._known.get(id(X))
        if known is None or known.rows is not X or known.depth != depth:
            return plain(X)
        done = self._steps[depth].transformed
        if known.part in done:
            kept, seconds = done[known.part]
            if known.part == "test":  # scores of training rows are not timed
                self.saved_in_score += seconds
        else:
            start = time.perf_counter()
            rows = plain(X)
            seconds = time.perf_counter() - start
            self.spent += seconds
            made = _keep(rows)
            if made is None:
                return rows
            kept = made
            done[known.part] = kept, seconds
        rows = kept.give()
        self.recognise(rows, known.part, depth + 1)
        return rows


class _Transform:
    """The ``transform`` of a fitted step that is shared."""

    def __init__(self, steps: SharedSteps, depth: int, plain: Callable[..., Any]) -> None:
        self._steps = steps
        self._depth = depth
        self._plain = plain

    def __call__(self, X: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return self._plain(X, *args, **kwargs)
        return self._steps.transform(self._depth, self._plain, X)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the step, elsewhere or here, transforms for itself.
        return getattr, (self._plain.__self__, "transform")  # type: ignore[attr-defined]


def _tell_callbacks(X: Any, rows: Any, y: Any = None, **kwargs: Any) -> None:
    """Tell a pipeline's callbacks of a step that need not be fitted again."""
    context = kwargs.get("callback_ctx")
    if context is not None:
        caller = kwargs.get("caller")
        context.call_on_fit_task_begin(estimator=caller, X=X, y=y)
        context.call_on_fit_task_end(estimator=caller, X=rows, y=y)
