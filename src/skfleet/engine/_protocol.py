"""The protocols `Engine`, of passes over rows, and `TaskPool`, of searches; their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from skfleet._typing import RowsT
from skfleet.blocks import BlockRef, RowBlocks
from skfleet.engine._resources import ANY_WORKER, ResourceRequest

T = TypeVar("T")

# The handle of a submitted call: a future on a cluster, the result itself in this process.
Task: TypeAlias = Any


class Call(NamedTuple):
    """A call to be submitted with others, which may be among its arguments.

    With `summarize`, a completion queue fetches ``summarize(value)`` instead of the value.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    name: str = ""
    summarize: Callable[[Any], Any] | None = None


class TaskResult(NamedTuple):
    """The value of a completed task, or its error."""

    task: Task
    value: Any = None
    error: BaseException | None = None
    was_lost: bool = False  # with its worker or its inputs; it may be submitted again
    killed_workers: bool = False  # its workers died while they ran it


class CompletionQueue(Protocol):
    """Submitted tasks, to be fetched as they complete."""

    def add(self, task: Task, summarize: Callable[[Any], object] | None = None) -> None:
        """Add a task, whose value or summary is fetched once it is done."""

    def next(self, timeout: float | None = None) -> list[TaskResult]:
        """Return the tasks that are done, after waiting for at least one, or for `timeout`."""


class TaskPool(Protocol):
    """A pool of workers, or this process, that runs tasks: what adaptive searches rely on."""

    def count_slots(self, resources: ResourceRequest) -> int:
        """Count the tasks with this request that can run at once."""

    def run_on_all(self, func: Callable[..., T], *args: object) -> list[T]:
        """Run func(*args) once in every process that runs tasks, and return the results."""

    def check(self, resources: ResourceRequest) -> None:
        """Raise unless a task with this request can run."""

    def submit(
        self,
        func: Callable[..., object],
        /,
        *args: object,
        name: str = "",
        priority: int = 0,
        resources: ResourceRequest = ANY_WORKER,
    ) -> Task:
        """Submit func(*args); arguments may be tasks, scattered values, and blocks of these."""

    def submit_all(
        self, calls: Sequence[Call], *, priority: int = 0, resources: ResourceRequest = ANY_WORKER
    ) -> list[Task]:
        """Submit several calls, in one message; a call comes after those in its arguments."""

    def completion_queue(self) -> CompletionQueue:
        """Return a queue of completed tasks, to which tasks can be added at any time."""

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Cancel tasks that have not completed."""

    def scatter(self, value: object) -> object:
        """Send a large value once, with the first task; tasks read it with `open_scattered`.

        The result is an argument of tasks, or the values of a block.
        """

    def rescatter(self, scattered: Any) -> None:
        """Send a scattered value again if it was lost with its workers."""

    def release(self, handle: Any) -> None:
        """Release a scattered value or a task, though references to it remain."""


class Engine(TaskPool, Protocol):
    """A task pool that holds blocks of rows: what passes over the rows rely on."""

    is_local: bool  # calls run at once, in this process
    client: Any  # of the cluster; None in this process

    @property
    def memory_limit(self) -> int:
        """Bytes that this process, and any worker, may hold."""

    def map(
        self,
        func: Callable[..., object],
        items: Iterable[object],
        *args: object,
        name: str = "",
        resources: ResourceRequest = ANY_WORKER,
        is_threaded: bool = False,
    ) -> list[Task]:
        """Submit func(item, *args) for every item.

        One that `is_threaded` is also given `n_threads` where it may use more than one.
        """

    def gather(self, tasks: Sequence[Task]) -> list[Any]:
        """Return the results in order; the first failure is raised with its traceback."""

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Yield the tasks as they complete."""

    def has_failed(self, task: Task) -> bool:
        """Return whether a completed task raised."""

    def is_done(self, task: Task) -> bool:
        """Return whether a task has returned its result."""

    def scatter_small(self, value: object) -> object:
        """Send a value to the workers once; the result is an argument of tasks."""

    def group_by_worker(self, blocks: Sequence[BlockRef]) -> list[list[BlockRef]]:
        """Group blocks by worker: each group is one task of a pass."""

    def persist(
        self, rows: RowBlocks, *, to_disk: bool = True
    ) -> AbstractContextManager[RowBlocks]:
        """Load blocks into the workers' memory inside a ``with``, if configured or they fit.

        With `to_disk` blocks that do not fit may be written to the disk.
        """

    def persist_collections(
        self, rows: RowBlocks, collections: Sequence[RowsT]
    ) -> AbstractContextManager[list[RowsT]]:
        """Load Dask collections into the workers' memory as `persist` does; `rows` are the first's.

        In this process, where each fit loads its own rows, they are not changed.
        """

    def persist_sources(self, blocks: Sequence[BlockRef]) -> AbstractContextManager[list[BlockRef]]:
        """Persist the subgraph that several blocks share inside a ``with``.

        Otherwise each of several tasks, submitted one after the other, would compute it again.
        """

    def with_block_cache(self, rows: RowBlocks) -> RowBlocks:
        """Return the same rows with a cache for every block in memory, or on a disk if they fit."""

    def is_out_of_core(self, rows: RowBlocks) -> bool:
        """Return whether a pass loads any blocks."""

    def resident_nbytes(self, rows: RowBlocks) -> int | None:
        """Return the bytes in memory of blocks, or of what they are made of; None before all is."""

    def free_bytes(self) -> float:
        """Return how many bytes of rows may be loaded into memory, half of which is spared."""
