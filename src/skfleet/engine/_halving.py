"""Tasks that are run again on smaller pieces of files after their workers died of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from skfleet._warnings import warn
from skfleet.blocks import file_block_bytes, halve_pieces
from skfleet.exceptions import WorkerMemoryError

if TYPE_CHECKING:
    from skfleet.engine._protocol import Engine, Task

T = TypeVar("T")


def gather_or_halve(
    engine: Engine,
    submit: Callable[[Sequence[T]], list[Task]],
    items: Sequence[T],
    gather: Callable[[list[Task]], object] | None = None,
) -> Any:
    """Return the results of a task for each item, which refers to blocks; or what `gather` returns.

    Where a worker died of memory, the pieces of files in the items are halved, up to three times,
    and the tasks that are not done are submitted again.
    """
    gather = gather or engine.gather
    tasks, n_parts = submit(items), 1
    while True:
        try:
            results = gather(tasks)
        except WorkerMemoryError as error:
            left = [i for i, task in enumerate(tasks) if not engine.is_done(task)]
            n_halved, death = halve_pieces([items[i] for i in left]), error
            engine.cancel([tasks[i] for i in left])
            if not n_halved:
                raise
            n_parts = n_halved
            for i, task in zip(left, submit([items[i] for i in left]), strict=True):
                tasks[i] = task
            continue
        if n_parts > 1:
            warn_of_halving(death, n_parts)
        return results


def warn_of_halving(death: WorkerMemoryError, n_parts: int) -> None:
    """Warn that pieces of files were halved, and say how to begin with smaller ones."""
    n_bytes = file_block_bytes()
    warn(
        f"Pieces of Parquet files must fit into the memory of a worker, beside what is made of "
        f"them. Got workers that were ended with pieces of {n_bytes / 2**20:.1f} MiB instead, so "
        f"that each is read in {n_parts} parts now ({death.cause}). Set "
        f"skfleet.config_context(block_bytes={n_bytes / n_parts:.0f}) to begin so, or give workers "
        "more memory."
    )
