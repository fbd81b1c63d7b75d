"""What a worker does with fits that have their rows, and perhaps their first steps, in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from skfleet._sklearn_private import take_rows
from skfleet.engine._originals import Original
from skfleet.engine._parcel import Parcel

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
) -> Iterator[Evaluated]:
    """Fit and score one after the other.

    A split that several fits use is cut once, and what was fitted of equal first steps is used
    again. Both count for the ``fit_time`` and ``score_time`` of every fit, as if it were alone.
    """
    shared: dict[int, _Fold] = {}
    for place, fit in enumerate(fits):
        if fit.fold not in shared:
            shared.clear()
            uses = sum(other.fold == fit.fold for other in fits[place:])
            shared[fit.fold] = _Fold(X, *folds[fit.fold], is_shared=job.shares_rows and uses > 1)
        fold = shared[fit.fold]
        start = time.perf_counter()
        estimator = job.estimators[fit.estimator].open()
        steps = fold.steps if job.shares_steps and fold.is_shared else None
        if steps is not None and has_first_steps(estimator):
            steps.begin()
            estimator.memory = steps
        result = job.function(
            estimator,
            fold.rows_for(estimator),
            y,
            train=fold.train,
            test=fold.test,
            **job.options,
            **fit.options,
        )
        spent = 0.0
        if steps is not None:
            spent = steps.spent
            result["fit_time"] += steps.saved_in_fit
            result["score_time"] += steps.saved_in_score
            steps.end()
        yield Evaluated(result, time.perf_counter() - start, spent)


def has_first_steps(estimator: Any) -> bool:
    """Tell whether an estimator has first steps that are fitted anew for each fit."""
    return type(estimator) is Pipeline and len(estimator.steps) > 1 and estimator.memory is None


class _Fold:
    """One split of the rows, for the fits that use it."""

    def __init__(self, X: Any, train: Any, test: Any, *, is_shared: bool) -> None:
        self._X = X
        self.train, self.test = train, test
        self.is_shared = is_shared
        self.steps = SharedSteps()
        if self.is_shared:
            self.train, self.test = np.asarray(train), np.asarray(test)
            self._rows = _Rows(X, {"train": self.train, "test": self.test}, self.steps)

    def rows_for(self, estimator: Any) -> Any:
        """Give the rows to a fit, as they are or with both parts cut already."""
        if not self.is_shared or get_tags(estimator).input_tags.pairwise:
            return self._X
        return self._rows


class _Rows:
    """Stands for rows of which scikit-learn is going to cut the two parts of a split.

    Each part is cut when it is first asked for. Every fit is given a copy, which it may change.
    Being taken for an array, it must have a shape and no ``iloc``, whatever it stands for.
    """

    def __init__(self, X: Any, parts: Mapping[str, Any], steps: SharedSteps) -> None:
        self._X = X
        self._parts = parts
        self._steps = steps
        self._cut: dict[str, Original] = {}
        self.shape = getattr(X, "shape", None) or (len(X),)
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._X, dtype=dtype)

    def __getitem__(self, key: Any) -> Any:
        rows = key[0] if isinstance(key, tuple) and len(key) == 2 and key[1] is ... else key
        for name, part in self._parts.items():
            if rows is part:
                return self._give(name, part)
        return self._X[key]

    def _give(self, name: str, rows: Any) -> Any:
        """Give a copy of one of the parts."""
        if name not in self._cut:
            self._cut[name] = Original.of_rows(self._X, rows) or Original(take_rows(self._X, rows))
        part = self._cut[name].copy()
        self._steps.recognise(part, name, 0)
        return part


@dataclass(eq=False)
class _Step:
    """A fitted step: by what it is known, what it made of the rows, and the seconds it took."""

    key: bytes
    fitted: Any
    output: Original
    seconds: float
    transformed: dict[str, tuple[Original, float]] = field(default_factory=dict)


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
        self.end()

    def begin(self) -> None:
        """Expect the pipeline of the next fit."""
        self.end()
        self._is_open = True

    def end(self) -> None:
        """Forget what belongs to a single fit."""
        self._is_open = False
        self._depth = 0
        self._known: dict[int, _Known] = {}
        self.saved_in_fit = self.saved_in_score = self.spent = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        # A pipeline that is copied or sent away is fitted on other rows, and has no memory.
        return type(None), ()

    def recognise(self, rows: Any, part: str, depth: int) -> None:
        """Take note of rows that a fit was given, to know them again."""
        if self._is_open or depth:
            self._known[id(rows)] = _Known(rows, part, depth)

    def cache(
        self, func: Callable[..., Any], ignore: Sequence[str] | None = None, **_: Any
    ) -> Callable[..., Any]:
        """Give a function that fits and transforms as ``func`` does, but equal steps only once."""
        if not self._is_open or self._depth:
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
            rows = step.output.copy()
            _tell_callbacks(X, rows, *args, **kwargs)
        else:
            del self._steps[depth:]
            start = time.perf_counter()
            rows, fitted = func(transformer, X, *args, **kwargs)
            seconds = time.perf_counter() - start
            self.spent += seconds
            step = _Step(key, fitted, Original(rows), seconds)
            rows = step.output.copy()
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
            original, seconds = done[known.part]
            if known.part == "test":  # scores of training rows are not timed
                self.saved_in_score += seconds
        else:
            start = time.perf_counter()
            rows = plain(X)
            seconds = time.perf_counter() - start
            self.spent += seconds
            original = Original(rows)
            done[known.part] = original, seconds
        rows = original.copy()
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
