"""Groups of trees that are trained on one copy of the rows that they draw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skfleet._sklearn_private import bootstrap_indices
from skfleet.blocks import RowSet

# The fraction of a worker's memory for the rows of a group: twice that while they are joined, and
# room for those of another group.
MEMORY_FRACTION = 0.25
# Bytes per row of its weight, and of what scikit-learn's tree holds of it.
TREE_BYTES = 48
# A tree that draws at most this fraction of its group's rows is fitted on a copy of its own.
OWN_ROWS_FRACTION = 0.5
# A group that draws this fraction of all rows takes all of them: its rows need not be drawn twice.
ALL_ROWS_FRACTION = 0.8


@dataclass(frozen=True)
class Bootstrap:
    """The rows that trees draw: `n_drawn` of `n_rows` with repeats, or each of them if None."""

    n_rows: int
    n_drawn: int | None

    def draw(self, tree: Any, weights: np.ndarray | None) -> np.ndarray:
        """Return the numbers of the rows that a tree draws, in scikit-learn's order."""
        return bootstrap_indices(tree.random_state, self.n_rows, self.n_drawn, weights)

    def expected_fraction(self, n_trees: int) -> float:
        """Return the fraction of the rows that some trees draw at least once, at most.

        Weights only make it smaller.
        """
        if self.n_drawn is None:
            return 1.0
        return -math.expm1(-n_trees * self.n_drawn / self.n_rows)

    def row_set(self, trees: Sequence[Any], weights: np.ndarray | None, max_rows: int) -> RowSet:
        """Return the rows that any of the trees draws, or all where these are nearly as many."""
        fraction = self.expected_fraction(len(trees))
        if self.n_drawn is None or (fraction > ALL_ROWS_FRACTION and self.n_rows <= max_rows):
            return RowSet(self.n_rows, [(0, self.n_rows)])
        is_drawn = np.zeros(self.n_rows, dtype=bool)
        for tree in trees:
            is_drawn[self.draw(tree, weights)] = True
        return RowSet(self.n_rows, bits=np.packbits(is_drawn))


def n_workers_of(engine: Any) -> int:
    """Return the number of processes that train trees."""
    return 1 if engine.is_local else len(engine.worker_threads())


def threads_of_worker(engine: Any) -> int:
    """Return the most trees that a process trains at once."""
    return int(engine.n_threads if engine.is_local else max(engine.worker_threads().values()))


def threads_of_task(engine: Any) -> tuple[int, int]:
    """Return the threads of a task that has its machine, and those of all machines."""
    if engine.is_local:
        return engine.n_threads, engine.n_threads
    from skfleet.engine import threads_of_machine

    return threads_of_machine(engine), sum(engine.worker_threads().values())


def max_rows_of_group(memory: int, row_bytes: float, n_threads: int) -> int:
    """Return how many rows a worker may hold for a group of trees, and for each in training."""
    of_tree = OWN_ROWS_FRACTION * row_bytes + TREE_BYTES
    return int(MEMORY_FRACTION * memory / (row_bytes + n_threads * of_tree))


def check_memory(bootstrap: Bootstrap, max_rows: int) -> None:
    """Raise unless a worker can hold the rows of a single tree."""
    n_rows = math.ceil(bootstrap.n_rows * bootstrap.expected_fraction(1))
    if n_rows <= max_rows:
        return
    if bootstrap.n_drawn is None:
        raise ValueError(
            f"bootstrap must be True for rows that do not fit a quarter of each worker's memory. "
            f"Got False, {n_rows} rows and room for {max_rows} instead. Set bootstrap=True and "
            f"max_samples={max_rows}."
        )
    raise ValueError(
        "max_samples must be so small that the rows of a tree fit a quarter of each worker's "
        f"memory. Got {bootstrap.n_drawn} draws of {n_rows} rows, and room for {max_rows}, "
        f"instead. Set max_samples={max_rows}."
    )


def group_trees(
    trees: Sequence[Any], bootstrap: Bootstrap, max_rows: int, n_workers: int
) -> Iterator[Sequence[Any]]:
    """Yield consecutive trees: at least a group for each worker, of rows that it can hold."""
    size = -(-len(trees) // n_workers)
    fraction = max_rows / bootstrap.n_rows
    if bootstrap.n_drawn is not None and fraction < 1:
        in_memory = -math.log1p(-fraction) * bootstrap.n_rows / bootstrap.n_drawn
        size = max(1, min(size, int(in_memory)))
    for low in range(0, len(trees), size):
        yield trees[low : low + size]
