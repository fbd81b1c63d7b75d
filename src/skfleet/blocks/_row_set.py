"""Some of the rows of a data set, by global number (`RowSet`), and of a block (`BlockRows`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from skfleet._typing import RowsT
from skfleet.blocks._containers import n_rows_of, take_rows


class BlockRows(NamedTuple):
    """The rows of a set in a block: all of them, those with a bit, or each as often as it counts.

    The bits begin with `n_skipped` of rows before the block.
    """

    n_rows: int  # of the block
    n_taken: int
    bits: np.ndarray | None = None
    n_skipped: int = 0
    counts: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"BlockRows({self.n_taken} of {self.n_rows} rows)"

    def take(self, rows: RowsT) -> RowsT:
        """Return the rows of the set, in their container."""
        if n_rows_of(rows) != self.n_rows:
            raise ValueError(
                "X must have the same partitions in every pass. Got one of "
                f"{n_rows_of(rows)} rows that had {self.n_rows} when they were counted. "
                "Persist the collection before it is split."
            )
        return rows if self.is_whole else take_rows(rows, self.numbers())

    def part(self, low: int, high: int) -> BlockRows:
        """Return the rows of the set in the rows from low to high of the block."""
        n_rows = high - low
        if self.counts is not None:
            counts = self.counts[low:high]
            return BlockRows(n_rows, int(counts.sum(dtype=np.int64)), counts=counts)
        if self.bits is None:
            return BlockRows(n_rows, n_rows)
        first, n_skipped = divmod(self.n_skipped + low, 8)
        bits = self.bits[first : first + (n_skipped + n_rows + 7) // 8]
        mask = np.unpackbits(bits, count=n_skipped + n_rows)[n_skipped:]
        return BlockRows(n_rows, int(mask.sum(dtype=np.int64)), bits, n_skipped)

    @property
    def is_whole(self) -> bool:
        """True if the set has each row of the block once."""
        return self.bits is None and self.counts is None

    def numbers(self) -> np.ndarray:
        """Return the numbers of the rows within the block."""
        if self.counts is not None:
            return np.repeat(np.arange(self.n_rows), self.counts)
        if self.bits is None:
            return np.arange(self.n_rows)
        mask = np.unpackbits(self.bits, count=self.n_skipped + self.n_rows)
        return np.flatnonzero(mask[self.n_skipped :])


class RowSet:
    """Some of `n_rows` rows, by global number, in ascending order.

    It is held as ranges of rows, with a bit for each row, or with a count where a row is drawn more
    than once. ``np.asarray`` returns the numbers, each as often as it is drawn.

    Parameters
    ----------
    n_rows : int
        Number of rows that the set is of.
    ranges : sequence of (int, int)
        First and last row (exclusive) of ranges, in ascending order.
    bits : ndarray of uint8, default=None
        A bit for each row, as ``np.packbits`` returns them, in place of ranges.
    counts : ndarray of unsigned integers, default=None
        How often each row is drawn, in place of ranges.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skfleet.model_selection import KFold
    >>> train, test = next(KFold(3).split(da.zeros(9, chunks=4)))
    >>> train, np.asarray(test)
    (RowSet(6 of 9 rows), array([0, 1, 2]))
    """

    ndim = 1
    dtype = np.dtype(np.int64)

    def __init__(
        self,
        n_rows: int,
        ranges: Sequence[tuple[int, int]] = (),
        bits: np.ndarray | None = None,
        counts: np.ndarray | None = None,
    ) -> None:
        self.n_rows, self.bits, self.counts = n_rows, bits, counts
        self.ranges = tuple((low, high) for low, high in ranges if low < high)
        if counts is not None:
            self._size = int(counts.sum(dtype=np.int64))
        elif bits is not None:
            self._size = int(np.bitwise_count(bits).sum(dtype=np.int64))
        else:
            self._size = sum(high - low for low, high in self.ranges)

    @classmethod
    def from_indices(cls, indices: np.ndarray | Sequence[int], n_rows: int) -> RowSet:
        """Return the rows with these numbers, in any order and as often as given, or of a mask."""
        mask = np.zeros(n_rows, dtype=bool)
        mask[indices] = True
        numbers = np.asarray(indices)
        if numbers.dtype == bool or len(numbers) == np.count_nonzero(mask):
            return cls(n_rows, bits=np.packbits(mask))
        return cls(n_rows, counts=count_rows(numbers, n_rows))

    def __len__(self) -> int:
        return self._size

    @property
    def shape(self) -> tuple[int]:
        return (self._size,)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        if self.counts is not None:
            numbers = np.repeat(np.arange(self.n_rows), self.counts)
        elif self.bits is None:
            numbers = np.concatenate([np.arange(0), *(np.arange(*r) for r in self.ranges)])
        else:
            numbers = np.flatnonzero(np.unpackbits(self.bits, count=self.n_rows))
        return numbers.astype(self.dtype if dtype is None else dtype, copy=False)

    def __invert__(self) -> RowSet:
        """Return the set of all other rows."""
        if self.counts is not None:
            return RowSet(self.n_rows, bits=np.packbits(self.counts == 0))
        if self.bits is None:
            ends = [0, *(row for bounds in self.ranges for row in bounds), self.n_rows]
            return RowSet(self.n_rows, list(zip(ends[::2], ends[1::2], strict=True)))
        bits = ~self.bits
        if self.n_rows % 8:
            bits[-1] &= 0xFF << (8 - self.n_rows % 8) & 0xFF
        return RowSet(self.n_rows, bits=bits)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return type(self).__name__, self.n_rows, self.ranges, self.bits, self.counts

    def __repr__(self) -> str:
        return f"RowSet({self._size} of {self.n_rows} rows)"

    def count_before(self, row: int) -> int:
        """Return how many rows of the set come before a row."""
        if self.counts is not None:
            return int(self.counts[:row].sum(dtype=np.int64))
        if self.bits is None:
            return sum(min(high, row) - low for low, high in self.ranges if low < row)
        counts = np.bitwise_count(self.bits[: row // 8]).sum(dtype=np.int64)
        return int(counts + np.unpackbits(self.bits[row // 8 : row // 8 + 1])[: row % 8].sum())

    def cut(self, low: int, high: int) -> BlockRows:
        """Return the rows of the set in a block of the rows from low to high."""
        n_rows = high - low
        if self.counts is not None:
            counts = self.counts[low:high]
            return BlockRows(n_rows, int(counts.sum(dtype=np.int64)), counts=counts)
        if self.bits is not None:
            skipped = low % 8
            bits = self.bits[low // 8 : (high + 7) // 8]
            mask = np.unpackbits(bits, count=skipped + n_rows)[skipped:]
            return BlockRows(n_rows, int(mask.sum(dtype=np.int64)), bits, skipped)
        mask = np.zeros(n_rows, dtype=bool)
        for first, last in self.ranges:
            mask[max(first - low, 0) : max(last - low, 0)] = True
        n_taken = int(mask.sum())
        return BlockRows(n_rows, n_taken, None if n_taken == n_rows else np.packbits(mask))


def count_rows(numbers: np.ndarray, n_rows: int) -> np.ndarray:
    """Return how often each of `n_rows` rows is among numbers, as small integers."""
    # negative numbers count from the end, as in any array
    counts = np.bincount(np.arange(n_rows)[numbers], minlength=n_rows)
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
