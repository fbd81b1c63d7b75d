"""Positions of values in categories, from tables that a process builds once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from skfleet.estimators.preprocessing._categories import is_missing, pack_text, unpack_text


class CategoryIndex(list):
    """The categories of each column, with a table of those that are objects.

    A table is built where it is used first, and not pickled. With `n_indexed` only the first
    categories can be looked up.
    """

    def __init__(self, categories: Sequence[np.ndarray], n_indexed: int | None = None) -> None:
        super().__init__(categories)
        self._n_indexed = n_indexed
        self._tables: dict[int, dict[Any, int]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _index_of_packed, (list(map(pack_text, self)), self._n_indexed)

    def __deepcopy__(self, memo: Any) -> CategoryIndex:
        return self

    def codes(self, i: int, values: np.ndarray) -> np.ndarray:
        """Return the position of each value in the categories of a column, -1 if unknown."""
        known = self[i]
        if _are_ordered(known, values):
            return _positions(known, values)
        table = self._table(i)
        codes = np.fromiter(map(table.get, values.tolist(), repeat(-1)), np.intp, len(values))
        for row in np.flatnonzero(codes < 0) if _ends_with_nan(known) else ():
            if values[row] is not None and is_missing(values[row]):
                codes[row] = len(known) - 1
        return codes

    def _table(self, i: int) -> dict[Any, int]:
        with self._lock:
            if i not in self._tables:
                known = self[i][: self._n_indexed].tolist()
                self._tables[i] = dict(zip(known, range(len(known)), strict=True))
            return self._tables[i]


def text_codes(column: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the distinct values of a column of text, unsorted, and the number of each row's.

    NaN is the last of the values. None for a column of anything else, or with missing values that
    are not NaN.
    """
    dtype = getattr(column, "dtype", None)
    categories = getattr(dtype, "categories", None)
    if categories is not None:
        if str(categories.dtype) not in ("str", "string") or categories.hasnans:
            return None
        codes, uniques = column.cat.codes.to_numpy().astype(np.intp), categories
    elif str(dtype) in ("str", "string"):
        codes, uniques = column.factorize()
    else:
        return None
    values = np.asarray(uniques, dtype=object)
    is_absent = codes < 0
    if is_absent.any():
        if str(dtype) == "string":  # of pd.NA
            return None
        codes = np.where(is_absent, len(values), codes)
        values = np.append(values, np.array([np.nan], dtype=object))
    return values, codes


def _index_of_packed(packed: list[Any], n_indexed: int | None) -> CategoryIndex:
    return CategoryIndex(list(map(unpack_text, packed)), n_indexed)


def _are_ordered(known: np.ndarray, values: np.ndarray) -> bool:
    """Return whether two arrays are numbers, or both are dates or durations."""
    kinds = {known.dtype.kind, values.dtype.kind}
    return kinds <= set("iuf") or kinds in ({"m"}, {"M"})


def _ends_with_nan(values: np.ndarray) -> bool:
    return len(values) > 0 and values[-1] is not None and is_missing(values[-1])


def _positions(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the position of values among sorted ones, of which NaN may be the last."""
    codes = np.searchsorted(known, values)
    codes[codes == len(known)] = 0
    is_known = known[codes] == values
    if _ends_with_nan(known):
        is_known |= np.isnan(values)
        codes[np.isnan(values)] = len(known) - 1
    return np.where(is_known, codes, -1)
