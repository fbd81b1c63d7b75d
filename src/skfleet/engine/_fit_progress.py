"""Progress of a fit: its passes, blocks and rows, on the bar of the outermost estimator."""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial, wraps
from inspect import isfunction
from typing import Any, Concatenate, ParamSpec, TypeVar

from joblib.parallel import get_active_backend
from sklearn.pipeline import Pipeline

from skfleet._config import get_config
from skfleet._progress_bar import (
    ProgressBar,
    ProgressHint,
    ProgressState,
    calling_estimators,
    is_interactive,
    open_bar,
)
from skfleet.blocks import Block, BlockRef, RowBlocks, block_bytes
from skfleet.engine._protocol import Engine, Task

T = TypeVar("T")
P = ParamSpec("P")
Fitted = TypeVar("Fitted")

logger = logging.getLogger("skfleet")

FITS = ("fit", "fit_transform", "fit_predict")


class PassState(ProgressState):
    """Passes, and the blocks of the current one, of a fit."""

    def __init__(self, name: str, unit: str = "blocks", total: int | None = None) -> None:
        super().__init__(name, unit, total)
        self.n_passes = self.n_blocks = self.n_bytes = 0
        self.is_pass = False
        # Of the passes before, and of the current one; None where they are not known.
        self._rows_before, self._seconds_before = 0, 0.0
        self._rows: int | None = 0
        self._pass_begin = self.begin
        self.n_expected: int | None = None
        self.step, self.stage = "", ""
        self.is_complete = False

    @property
    def counts(self) -> str:
        if self.is_complete:
            passes, blocks = "es" * (self.n_passes != 1), "s" * (self.n_blocks != 1)
            return f"{self.n_passes} pass{passes} over {self.n_blocks} block{blocks}"
        of = f" of {self.n_expected}" if self.n_expected and self.is_pass else ""
        blocks = f"{self.n_done}/{self.total} {self.unit}"
        stopped = "stopped in " if self.is_over else ""
        return ", ".join(filter(None, [self.step, f"{stopped}{self.stage}{of}", blocks]))

    @property
    def details(self) -> str:
        n_rows, seconds = self._rows_and_seconds()
        knows_rate = n_rows and seconds and self._rows is not None
        rate = f"{_short(n_rows / seconds)} rows/s" if knows_rate else ""
        size = f"{_short(self.n_bytes, ' ')}B" if self.n_bytes else ""
        return ", ".join(filter(None, [rate, size]))

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end, where the number of passes is known."""
        if self.is_over or not self.n_expected or not self.total or not self.is_pass:
            return None
        done = (self.n_passes - 1) * self.total + self.n_done
        return self.seconds * max(0, self.n_expected * self.total - done) / done if done else None

    def begin_stage(self, stage: str, total: int, unit: str, *, is_pass: bool = False) -> None:
        """Begin to count from 0."""
        self._rows_before, self._seconds_before = self._rows_and_seconds()
        self._rows, self._pass_begin = 0, time.monotonic()
        self.stage, self.total, self.unit, self.n_done = stage, total, unit, 0
        self.is_pass = is_pass
        if is_pass:
            self.n_passes, self.n_blocks = self.n_passes + 1, total

    def add_rows(self, n_rows: int | None) -> None:
        """Add rows of the current pass; None where they are not known."""
        self._rows = None if n_rows is None or self._rows is None else self._rows + n_rows

    def _rows_and_seconds(self) -> tuple[int, float]:
        if not self._rows:
            return self._rows_before, self._seconds_before
        seconds = time.monotonic() - self._pass_begin
        return self._rows_before + self._rows, self._seconds_before + seconds


def _short(number: float, space: str = "") -> str:
    """Return a number with three digits at most, and a letter for thousands or millions."""
    n_thousands = 0
    while number >= 999.5 and n_thousands < 3:
        number, n_thousands = number / 1000, n_thousands + 1
    digits = 1 if number < 9.95 and n_thousands else 0
    return f"{number:.{digits}f}{space}{('', 'k', 'M', 'G')[n_thousands]}"


class FitProgress:
    """The progress of one fit, and of those inside it; its bar opens with the first pass."""

    def __init__(self, name: str) -> None:
        self.state = PassState(name)
        self._depth = 0
        self._bar: ProgressBar | None = None
        self._lock = threading.Lock()
        self._stage_number = 0
        self._loaded_bytes = 0

    def begin_stage(
        self, stage: str, total: int, unit: str = "blocks", *, is_pass: bool = False
    ) -> None:
        """Begin a pass, or other tasks that are counted."""
        state = self.state
        with self._lock:
            self._stage_number += 1
            self._loaded_bytes = 0
            state.begin_stage(stage, total, unit, is_pass=is_pass)
        if self._bar is None:
            self._bar = open_bar(state.name, state.unit, state=state)
        self._show()

    def begin_pass(self, n_blocks: int, rows: RowBlocks | None = None) -> None:
        """Begin a pass over blocks."""
        if rows is not None and rows.n_bytes:
            self.state.n_bytes = rows.n_bytes
        self.begin_stage(f"pass {self.state.n_passes + 1}", n_blocks, is_pass=True)

    def end_passes(self, n_passes: int, n_rows: int | None) -> None:
        """Count the current pass over one block, and those that followed it unseen."""
        with self._lock:
            self.state.n_passes += n_passes - 1
        self.advance(1, None if n_rows is None else n_passes * n_rows)

    def advance(self, n_steps: int = 1, n_rows: int | None = None) -> None:
        """Count finished blocks and their rows."""
        state = self.state
        with self._lock:
            state.n_done += n_steps
            state.add_rows(n_rows)
        self._show()

    def _show(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.show()

    def count(self, done: Iterable[T], stage: str, total: int, unit: str) -> Iterator[T]:
        """Yield what is done, and count it."""
        self.begin_stage(stage, total, unit)
        for result in done:
            self.state.n_done += 1
            self._show()
            yield result

    def count_blocks(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield blocks of this process, and count each when the next one is asked for."""
        for block in blocks:
            n_rows, n_bytes = block.n_rows, block_bytes(block)
            yield block
            with self._lock:
                self._loaded_bytes += n_bytes
                self.state.n_bytes = max(self.state.n_bytes, self._loaded_bytes)
            self.advance(1, n_rows)
            del block

    def watch_blocks(
        self,
        engine: Engine,
        tasks: Sequence[Task],
        groups: Sequence[Sequence[BlockRef]],
        rows: RowBlocks,
    ) -> None:
        """Count the blocks of each task on a cluster when it is done; here they are counted."""
        for task, group in zip(tasks, groups, strict=True):
            self.watch(engine, [task], len(group), n_rows_of(group, rows))

    def watch(
        self, engine: Engine, tasks: Sequence[Task], n_steps: int = 1, n_rows: int | None = 0
    ) -> None:
        """Count the steps of each task on a cluster when it is done."""
        if not engine.is_local:
            call = partial(self._advance_if_done, self._stage_number, n_steps, n_rows)
            for task in tasks:
                task.add_done_callback(call)

    def _advance_if_done(self, stage: int, n_steps: int, n_rows: int | None, task: Task) -> None:
        """Count the steps of a task, unless it failed or its pass is over."""
        if task.status == "finished" and stage == self._stage_number:
            self.advance(n_steps, n_rows)

    @contextmanager
    def nested(self, estimator: object) -> Iterator[None]:
        """Name an estimator that is fitted inside this fit."""
        name, before = type(estimator).__name__, self.state.step
        self._depth += 1
        self.state.step = "" if name == self.state.name else name
        try:
            yield
        finally:
            self.state.step = before
            self._depth -= 1

    def expect_passes(self, n_passes: int) -> None:
        """Set the number of passes to come; what is fitted inside this fit knows its own only."""
        if not self._depth:
            self.state.n_expected = self.state.n_passes + n_passes

    def pause(self) -> None:
        """Take the bar from the screen between two steps of a pipeline."""
        if self._bar is not None:
            self._bar.pause()

    def resume(self) -> None:
        """Show the bar again."""
        if self._bar is not None:
            self._bar.resume()

    def close(self, *, is_complete: bool) -> None:
        """Show the final state; tasks that are not done yet count no more."""
        with self._lock:
            self._stage_number += 1
            self.state.is_complete = is_complete
            if self._bar is not None:
                self._bar.close()
                self._bar = None


def n_rows_of(blocks: Iterable[BlockRef], rows: RowBlocks) -> int | None:
    """Return the number of rows in some of the blocks of rows; None where it is not known."""
    if rows.lengths is None:
        return None
    lengths = dict(zip((block.number for block in rows.blocks), rows.lengths, strict=True))
    return sum(lengths[block.number] for block in blocks)


class FitProgressMixin:
    """Mixin of estimators whose fits on passes over rows have a bar."""

    # Whether `verbose` asks for the bar; else it prints lines, which take its place.
    _verbose_shows_bar = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in FITS:
            if isfunction(vars(cls).get(name)):
                setattr(cls, name, _with_fit_progress(vars(cls)[name]))


def _with_fit_progress(
    fit: Callable[Concatenate[Fitted, P], T],
) -> Callable[Concatenate[Fitted, P], T]:
    @wraps(fit)
    def fit_with_progress(self: Fitted, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with fit_progress(self):
            return fit(self, *args, **kwargs)

    return fit_with_progress


class FitHint(ProgressHint):
    """Hint at the bars of fits, once in a process, for a fit that takes a few seconds."""

    _text = "skfleet.config_context(progress=True) shows how far a fit is."

    def __init__(self) -> None:
        super().__init__(is_enabled=True)
        self._is_on_screen = self._is_enabled
        self._is_enabled = self.may_print()

    @classmethod
    def may_print(cls) -> bool:
        """Return whether anybody would read the hint, who has not yet."""
        return not cls._is_printed and (logger.isEnabledFor(logging.INFO) or is_interactive())

    def _print(self) -> None:
        if not self._is_printed:
            logger.info(self._text)
            if self._is_on_screen:
                super()._print()
            type(self)._is_printed = True


# False outside fits, True in one without a bar.
_current: ContextVar[FitProgress | bool] = ContextVar("skfleet_fit_progress", default=False)
# The pipeline of another library's between two of its steps, and its bar.
_paused: list[tuple[weakref.ref[Any], FitProgress]] = []


def current_fit_progress() -> FitProgress | None:
    """Return the progress of the fit that runs; None without a bar."""
    progress = _current.get()
    return progress if isinstance(progress, FitProgress) else None


def begin_pass(n_blocks: int, rows: RowBlocks | None = None) -> FitProgress | None:
    """Show that a pass over blocks begins, and return the progress; None without a bar."""
    progress = current_fit_progress()
    if progress is not None:
        progress.begin_pass(n_blocks, rows)
    return progress


def count_steps(done: Iterable[T], stage: str, total: int, unit: str = "blocks") -> Iterable[T]:
    """Return an iterable of what is done, which the bar counts, where there is one."""
    progress = current_fit_progress()
    return done if progress is None else progress.count(done, stage, total, unit)


def expect_passes(n_passes: int) -> None:
    """Show how many more passes the fit that runs makes."""
    if (progress := current_fit_progress()) is not None:
        progress.expect_passes(n_passes)


@contextmanager
def no_fit_progress() -> Iterator[None]:
    """Show no bars of the fits inside a ``with``, and no hint."""
    token = _current.set(True)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def fit_progress(estimator: object) -> Iterator[None]:
    """Show the passes inside a ``with``, which is a fit, on one bar, if that is wanted.

    A fit inside another one goes on with its bar.
    """
    around = _current.get()
    if around is not False:
        with nullcontext() if around is True else around.nested(estimator):
            yield
    elif _shows_bar(estimator) and not _is_in_task():
        with _bar_of(estimator):
            yield
    else:
        may_hint = get_config().progress == "auto" and FitHint.may_print() and not _is_in_task()
        with no_fit_progress(), FitHint() if may_hint else nullcontext():
            yield


@contextmanager
def _bar_of(estimator: object) -> Iterator[None]:
    """Show the passes inside a ``with`` on a bar, which those of a pipeline's steps share."""
    pipeline, is_first, is_last = _pipeline_of(estimator)
    paused = _pop_paused(pipeline)
    if is_first or paused is None:
        progress = FitProgress(type(estimator if pipeline is None else pipeline).__name__)
    else:
        progress = paused
        progress.resume()
    token, is_complete = _current.set(progress), False
    try:
        with progress.nested(estimator) if pipeline is not None else nullcontext():
            yield
        is_complete = True
    finally:
        _current.reset(token)
        if is_complete and not is_last:
            progress.pause()
            _paused.append((weakref.ref(pipeline), progress))
        else:
            progress.close(is_complete=is_complete)


def _pipeline_of(estimator: object) -> tuple[Pipeline | None, bool, bool]:
    """Return the outermost pipeline in its fit, and whether this is its first and its last step.

    Only steps of this library count. Without a pipeline, which is None then, this is both.
    """
    callers = [caller for name, caller in calling_estimators() if name.startswith("fit")]
    pipelines = [caller for caller in callers if isinstance(caller, Pipeline)]
    if not pipelines:
        return None, True, True
    steps = list(_steps_of(pipelines[-1]))
    return pipelines[-1], steps[0] is estimator, steps[-1] is estimator


def _steps_of(pipeline: Pipeline) -> Iterator[FitProgressMixin]:
    """Yield the steps of a pipeline, and of those inside it, that have a bar."""
    for _, step in pipeline.steps:
        if isinstance(step, FitProgressMixin):
            yield step
        elif isinstance(step, Pipeline):
            yield from _steps_of(step)


def _pop_paused(pipeline: Pipeline | None) -> FitProgress | None:
    """Return the progress that paused after a step of a pipeline; None without one."""
    paused = [progress for of, progress in _paused if pipeline is not None and of() is pipeline]
    _paused.clear()
    return paused[0] if paused else None


def _shows_bar(estimator: Any) -> bool:
    """Return whether a fit is to have a bar, by the config, `verbose` or joblib's context."""
    verbose, setting = getattr(estimator, "verbose", 0), get_config().progress
    if verbose and not estimator._verbose_shows_bar:
        return False
    if setting != "auto":
        return bool(setting)
    return bool(verbose) or getattr(get_active_backend()[0], "progress", False) is True


def _is_in_task() -> bool:
    """Return whether this is a worker's task, whose output nobody looks at."""
    if "distributed" not in sys.modules:
        return False
    from skfleet._cluster import current_worker_address

    return bool(current_worker_address())
