"""Sequential training (`fold`): a state updated batch after batch, the next ones prefetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from skfleet._validation import check_block
from skfleet.blocks import (
    Block,
    BlockRef,
    LazyBlock,
    RowBlocks,
    as_numeric,
    halve_pieces,
    open_block,
    shuffle_rows,
)
from skfleet.engine._counters import add_counts, log_pass
from skfleet.engine._disk_cache import reads_of
from skfleet.engine._fit_progress import begin_pass, n_rows_of
from skfleet.engine._halving import warn_of_halving
from skfleet.engine._prefetch import prefetch
from skfleet.engine._protocol import Call, Engine, Task
from skfleet.engine._reduce import Reduction
from skfleet.engine._resources import ANY_WORKER, ResourceRequest
from skfleet.exceptions import WorkerMemoryError

# Tasks submitted, and their blocks loaded, ahead of the running one.
PREFETCH_TASKS = 2
# Batches that take less time than this together share a task, up to the maximum.
TASK_SECONDS = 0.5
MAX_BATCHES_PER_TASK = 8
# Batches between two states that the driver keeps: after a worker's death, these are trained again.
MIN_CHECKPOINT_INTERVAL, MAX_CHECKPOINT_INTERVAL = 8, 64
# Within these bounds, the least time between two such states.
CHECKPOINT_SECONDS = 2.0
# Seconds for which the places of blocks are taken for known: a question is two round trips.
PLACES_SECONDS = 5.0


# What is updated.
State = TypeVar("State")


class TrainingBatch(NamedTuple):
    """The rows of one update: a block, or several blocks shuffled together with a seed."""

    block_refs: Sequence[BlockRef]
    seed: int | None = None


class FoldPace:
    """Pace of folds over the same rows, measured by each fold for the next one.

    It also remembers on which workers the blocks are. A fold without one begins with a task for
    each batch.
    """

    def __init__(self) -> None:
        self.batches_per_task, self.interval = 1, MIN_CHECKPOINT_INTERVAL
        self._places: dict[int, int] = {}
        self._expires = 0.0

    def record(self, n_batches: int, seconds: float, max_seconds: float) -> None:
        """Choose the batches of a task, and the length of the next window of batches.

        A window of `n_batches` took `seconds`, and a task is to take at most `max_seconds`.
        """
        n_in_time = max_seconds * n_batches / seconds
        self.batches_per_task = int(np.clip(n_in_time, 1, MAX_BATCHES_PER_TASK))
        if seconds < CHECKPOINT_SECONDS:
            self.interval = min(2 * self.interval, MAX_CHECKPOINT_INTERVAL)

    def place_of(self, engine: Engine, rows: RowBlocks, batch: TrainingBatch) -> int:
        """Return a number of the place of a batch: one task may have all batches of a place."""
        if time.monotonic() > self._expires:
            groups = enumerate(engine.group_by_worker(rows.blocks))
            self._places = {block.number: place for place, group in groups for block in group}
            self._expires = time.monotonic() + PLACES_SECONDS
        return self._places[batch.block_refs[0].number]


class FoldSpec(NamedTuple):
    """The functions and checks of a fold, the same for all its batches; sent to workers."""

    update: Callable[..., Any]
    dtype: np.dtype | None
    check: bool
    select: Callable[[Block], Block] | None

    def load(self, block_refs: Sequence[BlockRef], seed: int | None) -> Block:
        """Load, select, check and shuffle a batch."""
        blocks = []
        for block_ref in block_refs:
            block = open_block(block_ref)
            if block.n_rows and self.select is not None:
                block = self.select(block)
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

    def train(
        self, state: State, batch: Block | Sequence[BlockRef], seed: int | None, *args: object
    ) -> State:
        """Return the state updated with a batch, loaded or not; the same state without rows."""
        block = batch if isinstance(batch, Block) else self.load(batch, seed)
        if block.n_rows == 0:
            return state
        try:
            return self.update(state, block, *args)
        except Exception as error:
            error.add_note(f"While learning from block {block.number}.")
            raise

    def train_batches(
        self,
        state: State,
        batches: Sequence[Block | Sequence[BlockRef]],
        seeds: Sequence[int | None],
        *args: object,
    ) -> State:
        """Return the state updated with one batch after the other."""
        for batch, seed in zip(batches, seeds, strict=True):
            state = self.train(state, batch, seed, *args)
        return state


def fold(
    engine: Engine,
    update: Callable[..., State],
    state: State,
    rows: RowBlocks,
    *args: object,
    batches: Sequence[TrainingBatch] | None = None,
    select: Callable[[Block], Block] | None = None,
    on_checkpoint: Callable[[State, int], None] | None = None,
    resources: ResourceRequest = ANY_WORKER,
    pace: FoldPace | None = None,
) -> State:
    """Update a state batch after batch, and return the last state.

    `update(state, block, *args)` returns a new state and leaves the old one unchanged, so that a
    batch that was lost with a worker is repeated from the state before it, and counts once. By
    default each block of the rows is a batch, in their order. `select` may drop rows of a loaded
    block. `on_checkpoint(state, n)` is called with states after n batches: every few batches, at
    the end, and before an error is raised. Epochs over the same rows share a `pace`.
    """
    batches = [TrainingBatch([ref]) for ref in rows.blocks] if batches is None else batches
    spec = FoldSpec(update, rows.dtype, not rows.checked, select)
    name = Reduction(update).name
    on_checkpoint = on_checkpoint or (lambda state, n: None)
    if not batches:
        return state
    if engine.is_local:
        return _fold_locally(spec, state, batches, args, name, on_checkpoint)
    with engine.persist_sources([ref for batch in batches for ref in batch.block_refs]) as refs:
        ref = iter(refs)
        batches = [b._replace(block_refs=[next(ref) for _ in b.block_refs]) for b in batches]
        distributed = _DistributedFold(
            engine, spec, rows, batches, args, name, resources, pace or FoldPace()
        )
        return distributed.run(state, on_checkpoint)


def _fold_locally(
    spec: FoldSpec,
    state: State,
    batches: Sequence[TrainingBatch],
    args: tuple[object, ...],
    name: str,
    on_checkpoint: Callable[[State, int], None],
) -> State:
    """Fold in this process, with a thread that loads the next batch."""
    for batch in batches:
        add_counts(**reads_of(batch))
    progress = begin_pass(len(batches))
    # Closed, so that after an error no further batch is loaded.
    with closing(prefetch([partial(spec.load, *batch) for batch in batches])) as blocks:
        for n_trained, block in enumerate(blocks, start=1):
            state = spec.train(state, block, None, *args)
            on_checkpoint(state, n_trained)
            if progress is not None:
                progress.advance(1, block.n_rows)
    log_pass(name, len(batches), len(batches))
    return state


class _DistributedFold:
    """A fold on a cluster: states are futures, and tasks are submitted ahead of the running one."""

    def __init__(
        self,
        engine: Engine,
        spec: FoldSpec,
        rows: RowBlocks,
        batches: Sequence[TrainingBatch],
        args: tuple[object, ...],
        name: str,
        resources: ResourceRequest,
        pace: FoldPace,
    ) -> None:
        self.engine, self.spec, self.rows, self.batches = engine, spec, rows, batches
        self.args, self.name, self.resources, self.pace = args, name, resources, pace
        self.loads: dict[int, Any] = {}  # by a batch's number: its future, or resident blocks
        self.is_resident = not any(_needs_load(batch) for batch in batches)
        # Nothing is sent to workers but the state, and nothing has to be loaded ahead.
        self.is_chain = self.is_resident and not engine.is_out_of_core(rows)
        # A shuffled batch is as large as many blocks.
        self.n_prefetch = PREFETCH_TASKS if all(batch.seed is None for batch in batches) else 1
        self.n_tasks = 0
        self.halving: tuple[WorkerMemoryError, int] | None = None

    # 1. Train a window of batches, several in a task, and fetch the state after the last.
    # 2. If a task failed, repeat its batches one in a task, to name the batch and keep the state
    #    before it; that raises, unless the failure was not the batches' own, or the memory that it
    #    took to load them, for which pieces of files are halved.
    # 3. From the time taken, choose the batches per task and the next window's length.
    def run(self, state: State, on_checkpoint: Callable[[State, int], None]) -> State:
        """Train all batches; the driver fetches a state after every window, to go on from."""
        n_trained, pace = 0, self.pace
        progress = begin_pass(len(self.batches))
        while n_trained < len(self.batches):
            start_time, batches_per_task = time.monotonic(), pace.batches_per_task
            stop = min(n_trained + pace.interval, len(self.batches))
            on_failure = on_checkpoint if batches_per_task == 1 else None
            state, n_new = self._run_window(state, n_trained, stop, batches_per_task, on_failure)
            if n_new:
                on_checkpoint(state, n_trained + n_new)
            while n_trained + n_new < stop:
                n_before = n_trained + n_new
                state, n_more = self._run_window(state, n_before, stop, 1, on_checkpoint)
                n_new += n_more
                if n_more:
                    on_checkpoint(state, n_trained + n_new)
            seconds = time.monotonic() - start_time
            # A task starts when all its batches are loaded: fewer batches, where they have to be.
            max_seconds = TASK_SECONDS if self.is_resident else TASK_SECONDS / 10
            pace.record(stop - n_trained, seconds, max_seconds)
            if progress is not None:
                refs = (r for b in self.batches[n_trained:stop] for r in b.block_refs)
                progress.advance(stop - n_trained, n_rows_of(refs, self.rows))
            n_trained = stop
        if self.halving is not None:
            warn_of_halving(*self.halving)
        log_pass(self.name, len(self.batches), self.n_tasks)
        return state

    def _run_window(
        self,
        state: State,
        start: int,
        stop: int,
        batches_per_task: int,
        on_failure: Callable[[State, int], None] | None = None,
    ) -> tuple[State, int]:
        """Train the batches from start to stop, from a state in the driver.

        Return (state, number of batches trained). If a task fails, that is the state before it; or,
        with `on_failure`, this is called with that state, and the task's error is raised, unless
        the loads of its batches were halved.
        """
        # Each task takes the state of the one before as a future: no state comes here in between.
        runs = self._runs(start, stop, batches_per_task)
        tasks: list[Task] = []
        last_state = state
        try:
            if self.is_chain:
                tasks = self._submit_chain(state, runs)
            for i, run in enumerate(runs):
                # Ahead of the running task: trainings that wait for its state, and loads that do
                # not. Only a few, as loaded batches take memory until they are trained.
                while len(tasks) < min(i + self.n_prefetch + 1, len(runs)):
                    last_state = self._submit_train(last_state, runs[len(tasks)])
                    tasks.append(last_state)
                upcoming = range(run.stop, run.stop + self.n_prefetch * batches_per_task)
                for j in upcoming[: len(self.batches) - run.stop]:
                    self._submit_load(j)
                # Wait for this task alone, without fetching its state.
                for _ in self.engine.as_completed([tasks[i]]):
                    pass
                if self.engine.has_failed(tasks[i]):
                    # The state before the failed task is still on a worker.
                    before = self.engine.gather([tasks[i - 1]])[0] if i else state
                    if on_failure is None:
                        self.engine.cancel(tasks[i:])
                        return before, run.start - start
                    try:
                        self.engine.gather([tasks[i]])  # raises
                    except BaseException as error:
                        if self._halve_loads(error, run):
                            self.engine.cancel(tasks[i:])
                            return before, run.start - start
                        if i:
                            on_failure(before, run.start)
                        raise
                for j in run:
                    del self.loads[j]
                if i:
                    tasks[i - 1] = None  # released: only the latest state is needed
            return self.engine.gather([tasks[-1]])[0], stop - start
        except BaseException:
            # An interrupt too must not leave tasks behind that go on training.
            loads = [load for load in self.loads.values() if not isinstance(load, list)]
            self.engine.cancel([task for task in [*tasks, *loads] if task is not None])
            raise

    def _runs(self, start: int, stop: int, batches_per_task: int) -> list[range]:
        """Return the batches of each task: of a chain, those in turn that one worker has."""
        if not self.is_chain or batches_per_task == 1:
            lows = range(start, stop, batches_per_task)
            return [range(low, min(low + batches_per_task, stop)) for low in lows]
        runs: list[range] = []
        place = None
        for i in range(start, stop):
            before, place = place, self.pace.place_of(self.engine, self.rows, self.batches[i])
            if runs and place == before and len(runs[-1]) < batches_per_task:
                runs[-1] = range(runs[-1].start, i + 1)
            else:
                runs.append(range(i, i + 1))
        return runs

    def _halve_loads(self, error: BaseException, run: range) -> bool:
        """Halve the pieces of batches if workers died of loading them; return whether they did."""
        loads = {j: load for j, load in self.loads.items() if not isinstance(load, list)}
        failed = [j for j in run if j in loads and self.engine.has_failed(loads[j])]
        if not isinstance(error, WorkerMemoryError):
            return False
        n_parts = halve_pieces([self.batches[j].block_refs for j in failed])
        if n_parts:
            self.halving = error, n_parts
            lost = [j for j, load in loads.items() if not self.engine.is_done(load)]
            self.engine.cancel([self.loads.pop(j) for j in lost])
        return bool(n_parts)

    def _submit_load(self, i: int) -> None:
        """Submit the load of a batch, unless it is submitted or in the workers' memory."""
        if i in self.loads:
            return
        block_refs, seed = self.batches[i]
        if not _needs_load(self.batches[i]):
            self.loads[i] = list(block_refs)
            return
        self.n_tasks += 1
        self.loads[i] = self.engine.submit(
            self.spec.load, list(block_refs), seed, name="load-block", resources=self.resources
        )

    def _submit_train(self, state: object, run: range) -> Task:
        """Submit the training of a run of batches, and return the future of the new state."""
        call = self._training(state, run)
        return self.engine.submit(
            call.func, *call.args, name=call.name, priority=1, resources=self.resources
        )

    def _submit_chain(self, state: object, runs: Sequence[range]) -> list[Task]:
        """Submit the training of all runs in one message: it goes on without the driver."""
        calls: list[Call] = []
        for run in runs:
            calls.append(self._training(calls[-1] if calls else state, run))
        return self.engine.submit_all(calls, priority=1, resources=self.resources)

    def _training(self, state: object, run: range) -> Call:
        """Return the call that trains a run of batches; their loads are submitted."""
        for i in run:
            self._submit_load(i)
        self.n_tasks += 1
        batches, seeds = [self.loads[i] for i in run], [self.batches[i].seed for i in run]
        args = (state, batches, seeds, *self.args)
        return Call(self.spec.train_batches, args, self.name)


def _needs_load(batch: TrainingBatch) -> bool:
    """Return whether a batch takes a task to be loaded or shuffled."""
    return batch.seed is not None or any(
        ref.to_device or (isinstance(ref.X, LazyBlock) and not getattr(ref.X, "is_resident", False))
        for ref in batch.block_refs
    )
