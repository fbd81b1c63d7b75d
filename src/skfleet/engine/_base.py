"""What every engine can do: the protocol that passes over rows are written against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from skfleet.blocks import Block, RowBlocks, block_bytes, probes
from skfleet.engine._placement import ANYWHERE, Placement

# What stands for a call that was submitted: a future on a cluster, a finished call in this process.
Task: TypeAlias = Any


class Engine(Protocol):
    """Somewhere that tasks run."""

    is_here: bool  # calls run at once, in this process

    @property
    def n_slots(self) -> int:
        """How many tasks run at once."""
        ...

    @property
    def room(self) -> int:
        """Bytes that this process, and any worker, may hold."""
        ...

    def submit(
        self,
        func: Callable[..., Any],
        /,
        *args: Any,
        name: str = "",
        priority: int = 0,
        placement: Placement = ANYWHERE,
    ) -> Task:
        """Start func(*args); arguments may be tasks, and blocks of any kind the engine made."""
        ...

    def map(
        self,
        func: Callable[..., Any],
        items: Iterable[Any],
        *args: Any,
        name: str = "",
        placement: Placement = ANYWHERE,
    ) -> list[Task]:
        """Start func(item, *args) for every item."""
        ...

    def gather(self, tasks: Sequence[Task]) -> list[Any]:
        """Return the results in order; the first failure is raised with its traceback."""
        ...

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Yield the tasks as they end."""
        ...

    def has_failed(self, task: Task) -> bool:
        """Say whether a task that has ended raised."""
        ...

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Give up what has not ended."""
        ...

    def together(self, blocks: Sequence[Block]) -> list[list[Block]]:
        """Group blocks by who holds them: each group is one task of a pass."""
        ...

    def share(self, value: Any) -> Any:
        """Make a value available to many tasks at the price of one transfer per worker."""
        ...

    def hold(self, rows: RowBlocks) -> AbstractContextManager[RowBlocks]:
        """Keep blocks in the workers' memory inside a ``with``, where that is wanted and fits."""
        ...

    def with_notes(self, rows: RowBlocks) -> RowBlocks:
        """Return the same rows with room for notes beside every block that is in memory."""
        ...

    def streams(self, rows: RowBlocks) -> bool:
        """Say whether a pass loads any blocks, rather than find all of them in memory."""
        ...


def bytes_of(engine: Engine, rows: RowBlocks) -> int:
    """Return how large rows are in memory: measured on a few blocks where nothing else tells."""
    if rows.n_bytes is not None:
        return rows.n_bytes
    sizes = engine.gather(engine.map(block_bytes, probes(rows), name="measure-block"))
    return int(max(sizes) * len(rows.blocks))
