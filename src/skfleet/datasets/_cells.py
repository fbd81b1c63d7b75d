"""Rows drawn in cells: fixed ranges of rows with a random generator each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from skfleet.engine import limit_threadpools

# Random numbers of a cell, which fit a core's cache, and its largest number of rows.
CELL_DRAWS, MAX_CELL_ROWS = 2**16, 2**12


class RowDraws(Protocol):
    """Random rows: `n_draws` numbers for each, and arrays like `metas` made of them."""

    n_draws: int
    metas: tuple[np.ndarray, ...]

    def __call__(self, rng: np.random.Generator, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the arrays of the rows of a cell, of global numbers `numbers`."""


@dataclass(frozen=True)
class CellRows:
    """Rows of which each depends on the seed and on its global number, not on the partition.

    The generator of a cell is Philox with the seed as key and the cell's number in the counter
    (Salmon et al., 2011, Parallel random numbers: as easy as 1, 2, 3). A block draws the cells that
    it overlaps, each as a whole: so its products of matrices have the same shapes, and the same
    rounding, for every partition.
    """

    draws: RowDraws
    seed: int
    n_samples: int

    @property
    def cell_rows(self) -> int:
        return max(1, min(CELL_DRAWS // self.draws.n_draws, MAX_CELL_ROWS))

    def between(self, start: int, stop: int) -> list[np.ndarray]:
        """Return the arrays of the rows start to stop."""
        arrays = [np.empty((stop - start, *x.shape[1:]), x.dtype) for x in self.draws.metas]
        first_row = start - start % self.cell_rows
        with limit_threadpools(1):
            for low in range(first_row, stop, self.cell_rows):
                high = min(low + self.cell_rows, self.n_samples)
                values = self.draws(self._generator(low), np.arange(low, high))
                first, last = max(low, start), min(high, stop)
                for array, of_cell in zip(arrays, values, strict=True):
                    array[first - start : last - start] = of_cell[first - low : last - low]
        return arrays

    def _generator(self, low: int) -> np.random.Generator:
        counter = [0, 0, low // self.cell_rows, 0]  # a cell may use 2**128 counts
        return np.random.Generator(np.random.Philox(key=self.seed, counter=counter))


def draw_seed(rng: np.random.RandomState) -> int:
    """Return a seed of rows."""
    return int(rng.randint(np.iinfo(np.int64).max, dtype=np.int64))
