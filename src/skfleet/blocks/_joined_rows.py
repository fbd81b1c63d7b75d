"""Results of consecutive rows, one below the other, without a second copy of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from skfleet.blocks._containers import stack_rows


def joined(results: Iterator[Any], n_results: int) -> Any:
    """Return the rows of so many results, of about equal lengths, one below the other.

    Numbers of one dtype are written into one array as they come.
    """
    first = next(results)
    if hasattr(first, "joined_with"):  # several outputs
        return first.joined_with(list(results))
    if _number_type(first) is None:
        return stack_rows([first, *results])
    rows = _GrowingRows(first, n_results)
    for result in results:
        if not rows.append(result):  # no rows may have another dtype
            return stack_rows([rows.result(), result, *results])
    return rows.result()


def _number_type(rows: object) -> np.dtype | None:
    """Return the dtype of an array, a Series or a frame of numbers; None where it is not one."""
    if isinstance(rows, pd.DataFrame):
        dtypes = set(rows.dtypes)
    elif isinstance(rows, pd.Series | np.ndarray):
        dtypes = {rows.dtype}
    else:
        return None
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    return dtype if isinstance(dtype, np.dtype) and dtype.kind in "fiub" else None


class _GrowingRows:
    """Rows of numbers in an array that grows, with contiguous columns where they are a frame."""

    def __init__(self, first: Any, n_results: int) -> None:
        self._first, self._dtype = first, _number_type(first)
        self._order: Any = "F" if isinstance(first, pd.DataFrame) else "C"
        self._step = (len(first) + 1) * n_results  # what is not written to takes no memory
        self._rows, self._n_rows = self._allocate(self._step), 0
        self._indexes: list[Any] = []
        self.append(first)

    def append(self, rows: Any) -> bool:
        """Write rows below the others, and return whether they are of one kind with them."""
        first = self._first
        if type(rows) is not type(first) or _number_type(rows) != self._dtype:
            return False
        if isinstance(first, pd.DataFrame) and not rows.columns.equals(first.columns):
            return False
        low, self._n_rows = self._n_rows, self._n_rows + len(rows)
        if self._n_rows > len(self._rows):
            grown = self._allocate(self._n_rows + self._step)
            grown[:low] = self._rows[:low]
            self._rows = grown
        self._rows[low : self._n_rows] = rows
        self._indexes.append(getattr(rows, "index", None))
        return True

    def result(self) -> np.ndarray | pd.DataFrame | pd.Series:
        """Return all rows, in the container of the first ones."""
        first, rows = self._first, self._rows[: self._n_rows]
        if isinstance(first, np.ndarray):
            return rows
        index = self._indexes[0].append(self._indexes[1:])
        if isinstance(first, pd.DataFrame):
            return pd.DataFrame(rows, index=index, columns=first.columns, copy=False)
        return pd.Series(rows, index=index, name=first.name, copy=False)

    def _allocate(self, n_rows: int) -> np.ndarray:
        return np.empty((n_rows, *self._first.shape[1:]), self._dtype, self._order)
