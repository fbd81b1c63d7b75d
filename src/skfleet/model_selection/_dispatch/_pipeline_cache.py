"""Cache of fitted preprocessing steps, which scikit-learn uses as the memory of a pipeline."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from skfleet._fall_back import fall_back
from skfleet._method_override import override_method
from skfleet.engine import Pickled
from skfleet.model_selection._dispatch._step_cache import CachedRows, CachedStep, SplitSteps
from skfleet.model_selection._paths._execution import OWN_FIT, FitOrigin, SharedFitRun


def _try_cache(rows: Any) -> CachedRows | None:
    """Return the output of a step as cached rows; None where it cannot be copied."""
    with fall_back("the output of a step that cannot be copied is not cached"):
        return CachedRows(rows)
    return None


class _KnownRows(NamedTuple):
    """An object with rows of a part of the split, after a number of steps."""

    rows: Any
    part: str
    depth: int
    content: CachedRows


class PipelineCache:
    """Cache of the steps of pipelines that are fitted on the same rows.

    It is passed as the `memory` of a pipeline. It holds the steps of the latest fit and their
    outputs for both parts of the split. A fit whose first k steps have equal parameters, types
    included, does not fit them again. Neither does one whose steps are among the `earlier`.
    """

    def __init__(self, earlier: SplitSteps | None = None) -> None:
        self._steps: list[CachedStep] = []
        self._earlier = earlier
        self.start_fit(is_open=False)

    def start_fit(self, *, is_open: bool) -> None:
        """Reset the state of a single fit; only an open cache is used by its pipeline."""
        self.end_fit()
        self.is_open = is_open
        self._depth = 0
        self._path: tuple[int, SharedFitRun, Mapping[str, Any]] | None = None
        self.origin = OWN_FIT
        self.fit_time_saved = self.score_time_saved = self.shared_time = 0.0

    def expect_path(self, depth: int, shared_fit: SharedFitRun, values: Mapping[str, Any]) -> None:
        """Take the step at a depth from a shared fit, with the parameter values of this fit."""
        self._path = depth, shared_fit, values

    def end_fit(self) -> None:
        """Release the rows of a single fit."""
        self.is_open = False
        self._known_rows: dict[int, _KnownRows] = {}

    @property
    def is_read_only(self) -> bool:
        """True if the output of a step is read-only."""
        return any(step.output.is_read_only for step in self._steps)

    def __repr__(self) -> str:
        # scikit-learn's errors show the pipeline as the user wrote it, without a memory.
        return repr(None)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pipeline that is copied or sent elsewhere is fitted on other rows.
        return type(None), ()

    def register(self, rows: Any, part: str, depth: int, content: CachedRows) -> None:
        """Register rows that a fit was given, to recognise them by identity and content."""
        if self.is_open or depth:
            self._known_rows[id(rows)] = _KnownRows(rows, part, depth, content)

    def _recognise(self, rows: Any, depth: int) -> _KnownRows | None:
        """Return what rows are at a depth; None for other rows, and for those written into."""
        known = self._known_rows.get(id(rows))
        if known is None or known.rows is not rows or known.depth != depth:
            return None
        return known if known.content.is_content_of(rows) else None

    def cache(
        self, func: Callable[..., Any], ignore: Sequence[str] | None = None, **_: Any
    ) -> Callable[..., Any]:
        """Return a function that fits and transforms as ``func`` does, but equal steps once."""
        if not self.is_open or self._depth:
            return func  # a second fit of the pipeline, as in a scorer
        return partial(self._fit_transform, func, frozenset(ignore or ()))

    # 1. Rows that are not the training rows at this depth: fit without the cache.
    # 2. An equal step in the cache, or among the earlier: return its copy and output, and count the
    #    time saved.
    # 3. Another step: drop the cached ones from this depth on, fit it (from a shared fit where one
    #    is expected), and cache it unless it wrote into its rows or its output cannot be copied.
    def _fit_transform(
        self, func: Any, ignore: frozenset[str], transformer: Any, X: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # A step is known by the rows that it gets: a scorer may fit the pipeline on others.
        depth, known = self._depth, self._recognise(X, self._depth)
        if known is None or known.part != "train":
            return func(transformer, X, *args, **kwargs)
        self._depth += 1
        # The same key means the same fit, since the rows and all steps before are the same.
        relevant = {name: value for name, value in kwargs.items() if name not in ignore}
        key = Pickled.dumps((transformer, relevant)).digest()
        path = self._path if self._path and self._path[0] == depth else None
        # Other fits do not get what depends on a shared fit, which is equal within a tolerance.
        is_own = self._path is None or depth < self._path[0]
        step = self._cached_step(depth, key, may_be_earlier=is_own)
        # Seconds saved are added to the fit's own later, as if it were alone.
        if step is not None:
            if path is not None:
                refused = path[1].refused
                self.origin = FitOrigin(refused is None, refused)
            self.fit_time_saved += step.seconds
            rows = step.output.copy()
            _notify_callbacks(X, rows, *args, **kwargs)
        else:
            start = time.perf_counter()
            if path is not None:
                _, shared_fit, values = path
                shared_fit.begin()
                if shared_fit.n_candidates > 1:
                    shared_fit.install(transformer, values, "fit_transform")
            rows, fitted = func(transformer, X, *args, **kwargs)
            seconds = time.perf_counter() - start
            self.shared_time += seconds
            if path is not None:
                self.origin = shared_fit.origin
                if shared_fit.was_saved:
                    seconds += shared_fit.saved
                    self.fit_time_saved += shared_fit.saved
            # A step that has changed its input would change it for the following fits too.
            cached = _try_cache(rows) if known.content.is_content_of(X) else None
            if cached is None:
                return rows, fitted
            step = CachedStep(key, fitted, cached, seconds)
            rows = cached.copy()
            if self._earlier is not None and is_own:
                self._earlier.add(self._keys_up_to(key), step)
            self._append(step)
        # By which the next step recognises its rows.
        self.register(rows, "train", depth + 1, step.output)
        return rows, step.fitted

    def _cached_step(self, depth: int, key: bytes, *, may_be_earlier: bool) -> CachedStep | None:
        """Return a step of the latest fit or an earlier batch; for None drop those from a depth."""
        if depth < len(self._steps) and self._steps[depth].key == key:
            return self._steps[depth]
        # Later steps were fitted on the output of the step that is replaced.
        del self._steps[depth:]
        if self._earlier is None or not may_be_earlier:
            return None
        step = self._earlier.get(self._keys_up_to(key))
        if step is not None:
            self._append(step)
        return step

    def _keys_up_to(self, key: bytes) -> tuple[bytes, ...]:
        """Return the keys of the steps, and that of the next one."""
        return *(step.key for step in self._steps), key

    def _append(self, step: CachedStep) -> None:
        """Add a step, which itself knows its outputs for the other rows from now on."""
        depth, fitted = len(self._steps), step.fitted
        if callable(getattr(fitted, "transform", None)) and hasattr(fitted, "__dict__"):
            cached_transform = _CachedTransform(self, depth, fitted.transform)
            override_method(fitted, "transform", cached_transform)
        self._steps.append(step)

    def transform(self, depth: int, uncached: Callable[..., Any], X: Any) -> Any:
        """Return the cached transform of these rows; compute it on first use."""
        known = self._recognise(X, depth)
        if known is None:
            return uncached(X)
        transformed = self._steps[depth].transformed
        if known.part in transformed:
            cached, seconds = transformed[known.part]
            if known.part == "test":  # scores of training rows are not timed
                self.score_time_saved += seconds
            elif known.part == "validation":
                self.fit_time_saved += seconds
        else:
            start = time.perf_counter()
            rows = uncached(X)
            seconds = time.perf_counter() - start
            self.shared_time += seconds
            output = _try_cache(rows) if known.content.is_content_of(X) else None
            if output is None:
                return rows
            cached = output
            transformed[known.part] = cached, seconds
            if self._earlier is not None:
                self._earlier.trim()
        rows = cached.copy()
        self.register(rows, known.part, depth + 1, cached)
        return rows


class _CachedTransform:
    """The ``transform`` method of a fitted step in the cache."""

    def __init__(self, steps: PipelineCache, depth: int, uncached: Callable[..., Any]) -> None:
        # A weak reference: in a cycle the rows in the cache would wait for the garbage collector.
        self._steps, self._depth, self._uncached = weakref.ref(steps), depth, uncached

    def __call__(self, X: Any, *args: Any, **kwargs: Any) -> Any:
        steps = self._steps()
        if args or kwargs or steps is None:
            return self._uncached(X, *args, **kwargs)
        return steps.transform(self._depth, self._uncached, X)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the step transforms without the cache.
        return getattr, (self._uncached.__self__, "transform")  # type: ignore[attr-defined]


def _notify_callbacks(X: Any, rows: Any, y: Any = None, **kwargs: Any) -> None:
    """Notify a pipeline's callbacks of a step that is not fitted again."""
    context = kwargs.get("callback_ctx")
    if context is not None:
        caller = kwargs.get("caller")
        context.call_on_fit_task_begin(estimator=caller, X=X, y=y)
        context.call_on_fit_task_end(estimator=caller, X=rows, y=y)
