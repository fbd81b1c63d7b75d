"""Rows that several fits are given, and first steps of pipelines that they have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from skfleet._array import is_not_numpy
from skfleet.engine._dask._serialize import MMAP_THRESHOLD, Pickled
from skfleet.model_selection._shared_fits._execution import OWN_FIT, FitOrigin, SharedFitRun

__all__ = ["Kept", "PipelineCache"]


class Kept:
    """Rows kept for several fits, each of which is given an object of its own.

    Up to a size that is a copy; from there on it reads the memory that all read.
    """

    def __init__(self, rows: Any) -> None:
        # the items of a list may be shared, as in any list that is cut from another
        self._list = rows if type(rows) is list else None
        # what is on a device stays there, for all to read
        self._there = rows if is_not_numpy(rows) else None
        is_packed = self._list is None and self._there is None
        self._parcel = Pickled.dumps(rows if is_packed else None)
        self.is_read_only = self._parcel.nbytes >= MMAP_THRESHOLD

    def give(self) -> Any:
        """Give an object with these rows."""
        if self._list is not None:
            return list(self._list)
        if self._there is not None:
            return self._there
        return self._parcel.loads(view=self.is_read_only)


def _keep(rows: Any) -> Kept | None:
    """Keep what a step made of rows; None for what cannot be given out twice."""
    try:
        return Kept(rows)
    except Exception:
        return None


@dataclass(eq=False)
class _Step:
    """A fitted step: by what it is known, what it made of the rows, and the seconds it took."""

    key: bytes
    fitted: Any
    output: Kept
    seconds: float
    transformed: dict[str, tuple[Kept, float]] = field(default_factory=dict)


class _Known(NamedTuple):
    """Rows of this fit: which part of the split they are, after how many steps."""

    rows: Any
    part: str
    depth: int


class PipelineCache:
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
        self._expected: tuple[int, SharedFitRun, Mapping[str, Any]] | None = None
        self.came = OWN_FIT
        self.saved_in_fit = self.saved_in_score = self.spent = 0.0

    def expect(self, depth: int, contained: SharedFitRun, values: Mapping[str, Any]) -> None:
        """Take a step from a family, with the values of this fit."""
        self._expected = depth, contained, values

    def end(self) -> None:
        """Let go of what belongs to a single fit."""
        self.is_open = False
        self._known: dict[int, _Known] = {}

    @property
    def is_read_only(self) -> bool:
        """Whether a fit was given rows by a step that can only be read."""
        return any(step.output.is_read_only for step in self._steps)

    def __repr__(self) -> str:
        # Its pipeline, in an error of scikit-learn, is that of the user, who gave it no memory.
        return repr(None)

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
        key = Pickled.dumps((transformer, relevant)).digest()
        expected = self._expected if self._expected and self._expected[0] == depth else None
        if depth < len(self._steps) and self._steps[depth].key == key:
            if expected is not None:
                refused = expected[1].refused
                self.came = FitOrigin(refused is None, refused)
            step = self._steps[depth]
            self.saved_in_fit += step.seconds
            rows = step.output.give()
            _tell_callbacks(X, rows, *args, **kwargs)
        else:
            del self._steps[depth:]
            start = time.perf_counter()
            if expected is not None:
                _, contained, values = expected
                contained.begin()
                if contained.n_candidates > 1:
                    contained.install(transformer, values, "fit_transform")
            rows, fitted = func(transformer, X, *args, **kwargs)
            seconds = time.perf_counter() - start
            self.spent += seconds
            if expected is not None:
                self.came = contained.origin
                if contained.was_saved:
                    seconds += contained.saved
                    self.saved_in_fit += contained.saved
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

    def __init__(self, steps: PipelineCache, depth: int, plain: Callable[..., Any]) -> None:
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
