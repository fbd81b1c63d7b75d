"""Learning in sequence: one state goes from lesson to lesson, the next ones loaded meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from skfleet._validation import check_block
from skfleet.blocks import Block, LazyBlock, RowBlocks, as_numeric, open_block, shuffle_rows
from skfleet.engine._counters import add_counts, log_pass
from skfleet.engine._disk_cache import reads_of
from skfleet.engine._prefetch import prefetch
from skfleet.engine._protocol import Engine, Task
from skfleet.engine._reduce import Reduction
from skfleet.engine._resources import ANY_WORKER, ResourceRequest

# How many tasks are asked for, and their blocks loaded, ahead of the one that is running.
AHEAD = 2
# Lessons that are learned in less time than this share a task, up to so many.
TASK_SECONDS = 0.5
MOST_A_TASK = 8
# How many lessons are learned between two states that the driver keeps: what a lost worker costs.
MIN_CHECKPOINT_INTERVAL, MOST = 8, 64
# The driver keeps states at least so many seconds apart, within the bounds above.
SECONDS = 2.0


class TrainingBatch(NamedTuple):
    """What is learned at once: a block, or the rows of several, mixed by a seed."""

    handles: Sequence[Block]
    seed: int | None = None


class Lessons(NamedTuple):
    """How lessons are opened and learned: the part of a fold that is the same for all of them."""

    step: Callable[..., Any]
    dtype: np.dtype | None
    check: bool
    prepare: Callable[[Block], Block] | None

    def open(self, handles: Sequence[Block], seed: int | None) -> Block:
        """Load a lesson: checked, prepared and mixed."""
        blocks = []
        for handle in handles:
            block = open_block(handle)
            if block.n_rows and self.prepare is not None:
                block = self.prepare(block)
            try:
                if block.n_rows:
                    block = as_numeric(block, self.dtype)
                    if self.check and self.dtype is not None:
                        check_block(block)
            except Exception as error:
                error.add_note(f"While learning from block {block.number}.")
                raise
            blocks.append(block)
        return blocks[0] if seed is None else shuffle_rows(blocks, seed)

    def learn(self, state: Any, lesson: Any, seed: int | None, *args: Any) -> Any:
        """Learn a lesson, opened or not; one without rows teaches nothing."""
        block = lesson if isinstance(lesson, Block) else self.open(lesson, seed)
        if block.n_rows == 0:
            return state
        try:
            return self.step(state, block, *args)
        except Exception as error:
            error.add_note(f"While learning from block {block.number}.")
            raise

    def learn_run(
        self, state: Any, lessons: Sequence[Any], seeds: Sequence[int | None], *args: Any
    ) -> Any:
        """Learn one lesson after the other."""
        for lesson, seed in zip(lessons, seeds, strict=True):
            state = self.learn(state, lesson, seed, *args)
        return state


def fold(
    engine: Engine,
    step: Callable[..., Any],
    state: Any,
    rows: RowBlocks,
    *args: Any,
    lessons: Sequence[TrainingBatch] | None = None,
    prepare: Callable[[Block], Block] | None = None,
    keep: Callable[[Any, int], None] | None = None,
    resources: ResourceRequest = ANY_WORKER,
) -> Any:
    """Learn lesson after lesson: state = step(state, block, *args).

    `step` returns the new state and leaves the old one as it was, so that a lesson learned on a
    worker that died can be learned again from the state before it, and exactly once. By default
    each block of the rows is a lesson, in their order. `prepare` may take rows out of a block
    that was opened. `keep(state, n)` is told of states after n lessons: every few lessons, at the
    end, and before a failure is raised.
    """
    lessons = [TrainingBatch([handle]) for handle in rows.blocks] if lessons is None else lessons
    how = Lessons(step, rows.dtype, not rows.checked, prepare)
    name = Reduction(step).name
    keep = keep or (lambda state, n: None)
    if not lessons:
        return state
    if engine.is_here:
        return _fold_here(how, state, lessons, args, name, keep)
    with engine.persist_sources(
        [block for lesson in lessons for block in lesson.handles]
    ) as blocks:
        block = iter(blocks)
        lessons = [
            lesson._replace(handles=[next(block) for _ in lesson.handles]) for lesson in lessons
        ]
        return _DistributedFold(engine, how, lessons, args, name, resources).run(state, keep)


def _fold_here(
    how: Lessons,
    state: Any,
    lessons: Sequence[TrainingBatch],
    args: tuple[Any, ...],
    name: str,
    keep: Callable[[Any, int], None],
) -> Any:
    """Learn in this process, a thread loading the next lesson."""
    for lesson in lessons:
        add_counts(**reads_of(lesson))
    # Closed, so that after a failure no more is loaded.
    with closing(prefetch([partial(how.open, *lesson) for lesson in lessons])) as blocks:
        for n_learned, block in enumerate(blocks, start=1):
            state = how.learn(state, block, None, *args)
            keep(state, n_learned)
    log_pass(name, len(lessons), len(lessons))
    return state


class _DistributedFold:
    """Lessons on a cluster: the model goes to where each is, a few tasks ahead of the worker."""

    def __init__(
        self,
        engine: Engine,
        how: Lessons,
        lessons: Sequence[TrainingBatch],
        args: tuple[Any, ...],
        name: str,
        resources: ResourceRequest,
    ) -> None:
        self.engine, self.how, self.lessons = engine, how, lessons
        self.args, self.name, self.resources = args, name, resources
        self.loads: dict[int, Any] = {}
        self.loads_nothing = all(not _has_to_load(lesson) for lesson in lessons)
        # A lesson that is mixed is as large as many blocks.
        self.ahead = AHEAD if all(lesson.seed is None for lesson in lessons) else 1
        self.n_tasks = 0

    def run(self, state: Any, keep: Callable[[Any, int], None]) -> Any:
        """Learn everything; the driver holds a state every few lessons, from which to go on."""
        done, size, together = 0, MIN_CHECKPOINT_INTERVAL, 1
        while done < len(self.lessons):
            began = time.monotonic()
            stop = min(done + size, len(self.lessons))
            told = keep if together == 1 else None
            state, learned = self._window(state, done, stop, together, told)
            if learned:
                keep(state, done + learned)
            if done + learned < stop:  # a task failed: find the lesson that did
                state, _ = self._window(state, done + learned, stop, 1, keep)
                keep(state, stop)
            seconds = time.monotonic() - began
            # A task waits for all that it needs: fewer lessons, where these have to be loaded.
            longest = TASK_SECONDS if self.loads_nothing else TASK_SECONDS / 10
            together = int(np.clip(longest * (stop - done) / seconds, 1, MOST_A_TASK))
            if seconds < SECONDS:
                size = min(2 * size, MOST)
            done = stop
        log_pass(self.name, len(self.lessons), self.n_tasks)
        return state

    def _window(
        self,
        state: Any,
        start: int,
        stop: int,
        together: int,
        keep: Callable[[Any, int], None] | None = None,
    ) -> tuple[Any, int]:
        """Learn the lessons from start to stop, beginning with a state that the driver holds.

        Returns the state and how many lessons it has learned. Where one fails: all before its
        task, or, if `keep` is given to be told of the state before it, the error is raised.
        """
        runs = [range(low, min(low + together, stop)) for low in range(start, stop, together)]
        tasks: list[Task] = []
        previous = state
        try:
            for i, run in enumerate(runs):
                while len(tasks) < min(i + self.ahead + 1, len(runs)):
                    previous = self._learn(previous, runs[len(tasks)])
                    tasks.append(previous)
                next_ones = range(run.stop, run.stop + self.ahead * together)
                for j in next_ones[: len(self.lessons) - run.stop]:
                    self._load(j)
                for _ in self.engine.as_completed([tasks[i]]):
                    pass
                if self.engine.has_failed(tasks[i]):
                    before = self.engine.gather([tasks[i - 1]])[0] if i else state
                    if keep is None:
                        self.engine.cancel(tasks[i:])
                        return before, run.start - start
                    if i:
                        keep(before, run.start)
                    self.engine.gather([tasks[i]])  # raises
                for j in run:
                    del self.loads[j]
                if i:
                    tasks[i - 1] = None  # the state before the next one is enough
            return self.engine.gather([tasks[-1]])[0], stop - start
        except BaseException:
            loads = [load for load in self.loads.values() if not isinstance(load, list)]
            self.engine.cancel([task for task in [*tasks, *loads] if task is not None])
            raise

    def _load(self, i: int) -> None:
        """Ask for a lesson's rows, unless they are in the workers' memory."""
        if i in self.loads:
            return
        handles, seed = self.lessons[i]
        if not _has_to_load(self.lessons[i]):
            self.loads[i] = list(handles)
            return
        self.n_tasks += 1
        self.loads[i] = self.engine.submit(
            self.how.open, list(handles), seed, name="load-block", resources=self.resources
        )

    def _learn(self, state: Any, run: range) -> Task:
        """Ask for a run of lessons to be learned."""
        for i in run:
            self._load(i)
        self.n_tasks += 1
        return self.engine.submit(
            self.how.learn_run,
            state,
            [self.loads[i] for i in run],
            [self.lessons[i].seed for i in run],
            *self.args,
            name=self.name,
            priority=1,
            resources=self.resources,
        )


def _has_to_load(lesson: TrainingBatch) -> bool:
    """Say whether a lesson is made in a task of its own: loaded, or mixed."""
    return lesson.seed is not None or any(
        handle.to_device
        or (isinstance(handle.X, LazyBlock) and not getattr(handle.X, "is_resident", False))
        for handle in lesson.handles
    )
