"""What every engine can do: the protocol that passes over rows are written against."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias

from skfleet.blocks import Block, RowBlocks, block_bytes, open_block, sample_blocks
from skfleet.engine._resources import ANY_WORKER, ResourceRequest

# What stands for a call that was submitted: a future on a cluster, a finished call in this process.
Task: TypeAlias = Any


class Call(NamedTuple):
    """A call that is to be submitted with others; its arguments may be some of these.

    Where only a part of its value is to come home, `summarize` gives that part.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    name: str = ""
    summarize: Callable[[Any], Any] | None = None


class TaskResult(NamedTuple):
    """What became of a task: its value, or why there is none."""

    task: Task
    value: Any = None
    error: BaseException | None = None
    was_lost: bool = False  # with what it needed, and not by its own fault
    killed_workers: bool = False  # its workers died while they ran it


class CompletionQueue(Protocol):
    """Tasks under way, whose values come home one by one."""

    def add(self, task: Task, summarize: Callable[[Any], Any] | None = None) -> None:
        """Wait for one more task, for its value or for what its call tells of it."""
        ...

    def next(self, timeout: float | None = None) -> list[TaskResult]:
        """Wait until some tasks have ended, or for so many seconds; give those that have."""
        ...


class Engine(Protocol):
    """Somewhere that tasks run."""

    is_here: bool  # calls run at once, in this process
    client: Any  # of the cluster, where that is where they run

    @property
    def n_slots(self) -> int:
        """How many tasks run at once."""
        ...

    @property
    def memory_limit(self) -> int:
        """Bytes that this process, and any worker, may hold."""
        ...

    def count_slots(self, resources: ResourceRequest) -> int:
        """How many tasks with a placement run at once."""
        ...

    def run_on_all(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """Run func(*args) once wherever tasks may run, and return the answers."""
        ...

    def check(self, resources: ResourceRequest) -> None:
        """Raise unless a task with this placement can run."""
        ...

    def submit(
        self,
        func: Callable[..., Any],
        /,
        *args: Any,
        name: str = "",
        priority: int = 0,
        resources: ResourceRequest = ANY_WORKER,
    ) -> Task:
        """Start func(*args); arguments may be tasks, and blocks of any kind the engine made."""
        ...

    def submit_all(
        self, calls: Sequence[Call], *, priority: int = 0, resources: ResourceRequest = ANY_WORKER
    ) -> list[Task]:
        """Start several calls, in one message; those that others take come before these."""
        ...

    def map(
        self,
        func: Callable[..., Any],
        items: Iterable[Any],
        *args: Any,
        name: str = "",
        resources: ResourceRequest = ANY_WORKER,
    ) -> list[Task]:
        """Start func(item, *args) for every item."""
        ...

    def gather(self, tasks: Sequence[Task]) -> list[Any]:
        """Return the results in order; the first failure is raised with its traceback."""
        ...

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Yield the tasks as they end."""
        ...

    def completion_queue(self) -> CompletionQueue:
        """Return something to wait with for tasks that are still being submitted."""
        ...

    def has_failed(self, task: Task) -> bool:
        """Say whether a task that has ended raised."""
        ...

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Give up what has not ended."""
        ...

    def group_by_worker(self, blocks: Sequence[Block]) -> list[list[Block]]:
        """Group blocks by who holds them: each group is one task of a pass."""
        ...

    def scatter_small(self, value: Any) -> Any:
        """Make a value available to many tasks at the price of one transfer per worker."""
        ...

    def scatter(self, value: Any) -> Any:
        """Make a large value available to tasks, which open it with `open_scattered`.

        What is returned stands for it among arguments, and in blocks; it is sent with the first.
        """
        ...

    def rescatter(self, kept: Any) -> None:
        """Send a kept value again if it was lost with the workers that held it."""
        ...

    def release(self, held: Any) -> None:
        """Let go of a kept value or a task, whoever may still refer to it."""
        ...

    def persist(self, rows: RowBlocks) -> AbstractContextManager[RowBlocks]:
        """Keep blocks in the workers' memory inside a ``with``, where that is wanted and fits."""
        ...

    def persist_sources(self, blocks: Sequence[Block]) -> AbstractContextManager[list[Block]]:
        """Keep what several blocks are made of in the workers' memory inside a ``with``.

        For blocks that are submitted one after the other: each would make it again.
        """
        ...

    def with_block_cache(self, rows: RowBlocks) -> RowBlocks:
        """Return the same rows with room for notes beside every block that is in memory."""
        ...

    def is_out_of_core(self, rows: RowBlocks) -> bool:
        """Say whether a pass loads any blocks, rather than find all of them in memory."""
        ...


class Probe:
    """Rows of which a few blocks are loaded, once, to tell their size and what loading costs."""

    def __init__(self, engine: Engine, rows: RowBlocks) -> None:
        self.engine, self.rows = engine, rows

    @cached_property
    def _blocks(self) -> list[tuple[int, float]]:
        """The bytes and seconds of some blocks."""
        engine = self.engine
        return engine.gather(
            engine.map(_time_block, sample_blocks(self.rows), name="measure-block")
        )

    @property
    def n_bytes(self) -> int:
        """How large all rows are in memory."""
        if self.rows.n_bytes is not None:
            return self.rows.n_bytes
        return int(max(n_bytes for n_bytes, _ in self._blocks) * len(self.rows.blocks))

    @property
    def seconds_per_byte(self) -> float:
        """How long loading takes; the fastest, as the first of a process may import modules."""
        return min((seconds / n for n, seconds in self._blocks if n), default=0.0)


def _time_block(handle: Block) -> tuple[int, float]:
    """Return how large a block is, and how long it takes to load."""
    began = time.perf_counter()
    block = open_block(handle._replace(to_device=False))
    seconds = time.perf_counter() - began
    return block_bytes(block), seconds


def estimate_nbytes(engine: Engine, rows: RowBlocks) -> int:
    """Return how large rows are in memory: measured on a few blocks where nothing else tells."""
    return Probe(engine, rows).n_bytes
