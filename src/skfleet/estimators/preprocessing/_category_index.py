"""Positions of values in categories: by search in sorted arrays, or in tables built once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from skfleet.estimators.preprocessing._categories import (
    SortedValues,
    is_missing,
    n_missing,
    pack_text,
)

# Number of categories from which on text is searched in an array instead of a table of objects.
MIN_SORTED_TEXT = 100_000
# Bytes of an array of fixed width, at most, for each byte of text.
MAX_PADDING = 4
# Values that are encoded at a time, to have few objects in memory.
CHUNK = 100_000


class CategoryIndex(list):
    """The categories of each column for lookups in tasks.

    Numbers, NumPy's text and long sorted text are searched. All else is in a table that is built
    where it is used first, and not pickled; with `n_indexed` only of the first categories.
    """

    def __init__(self, categories: Sequence[Any], n_indexed: int | None = None) -> None:
        super().__init__(categories)
        self._n_indexed = n_indexed
        self._tables: dict[int, dict[Any, int]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return CategoryIndex, (list(self), self._n_indexed)

    def __deepcopy__(self, memo: Any) -> CategoryIndex:
        return self

    @classmethod
    def for_tasks(cls, categories: Sequence[np.ndarray]) -> CategoryIndex:
        """Return an index of categories that is small to send and needs no large table."""
        return cls([SortedText.make(known) or known for known in categories])

    def codes(self, i: int, values: np.ndarray) -> np.ndarray:
        """Return the position of each value in the categories of a column, -1 if unknown."""
        known = self[i]
        if hasattr(known, "positions_of"):
            return known.positions_of(values)
        if _are_ordered(known, values):
            return _positions(known, values)
        table = self._table(i)
        codes = np.fromiter(map(table.get, values.tolist(), repeat(-1)), np.intp, len(values))
        # NaN equals nothing, so no table has it.
        for row in np.flatnonzero(codes < 0) if _ends_with_nan(known) else ():
            if values[row] is not None and is_missing(values[row]):
                codes[row] = len(known) - 1
        return codes

    def _table(self, i: int) -> dict[Any, int]:
        with self._lock:
            # One of a worker's threads builds it, and the others wait.
            if i not in self._tables:
                known = self[i][: self._n_indexed].tolist()
                self._tables[i] = dict(zip(known, range(len(known)), strict=True))
            return self._tables[i]


class SortedText:
    """Sorted text as an array of bytes of fixed width, and the missing values behind it.

    UTF-8 has the order of the text.
    """

    def __init__(self, encoded: np.ndarray, missing: np.ndarray) -> None:
        self.encoded, self.missing = encoded, missing
        self.dtype = np.dtype(object)

    @classmethod
    def make(cls, values: np.ndarray) -> SortedText | None:
        """Return many objects as sorted text; None if they are not that, or of unlike lengths."""
        if len(values) < MIN_SORTED_TEXT or values.dtype != object:
            return None
        n = len(values) - n_missing(values)
        characters, *packed = pack_text(values)
        if not packed or not characters.all():  # NumPy drops zeros at the end
            return None
        if n * int(packed[0].max()) > MAX_PADDING * (characters.nbytes + n):
            return None
        chunks = (values[low : min(low + CHUNK, n)].tolist() for low in range(0, n, CHUNK))
        width = int(packed[0].max())
        encoded = np.zeros(n, dtype=f"S{width}")  # of one byte per character, or else wider
        for i, chunk in enumerate(chunks):
            part = np.array(list(map(_encode, chunk)))
            if part.dtype.itemsize > encoded.dtype.itemsize:
                encoded = encoded.astype(part.dtype)
            encoded[i * CHUNK : i * CHUNK + len(part)] = part
        is_sorted = (encoded[1:] > encoded[:-1]).all()
        return cls(encoded, values[n:]) if is_sorted else None

    def __len__(self) -> int:
        return len(self.encoded) + len(self.missing)

    def __getitem__(self, key: Any) -> Any:
        return self.__array__()[key] if isinstance(key, slice) else self._take(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__array__())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._take(np.arange(len(self)))

    def _take(self, key: Any) -> Any:
        positions = np.arange(len(self))[key]
        values = np.empty(np.shape(positions), dtype=object)
        is_text = positions < len(self.encoded)
        encoded = self.encoded[positions[is_text]].tolist()
        values[is_text] = [text.decode("utf-8", "surrogatepass") for text in encoded]
        values[~is_text] = self.missing[positions[~is_text] - len(self.encoded)]
        return values

    def positions_of(self, values: np.ndarray) -> np.ndarray:
        """Return the position of each value, -1 if it is unknown."""
        codes = np.full(len(values), -1, dtype=np.intp)
        width = self.encoded.dtype.itemsize
        rows, texts = [], []
        for row, value in enumerate(values.tolist()):
            if isinstance(value, str):
                text = _encode(value)
                # NumPy would cut off or drop the end of others, which are not among these.
                if len(text) <= width and not text.endswith(b"\0"):
                    rows.append(row)
                    texts.append(text)
            elif is_missing(value):
                same = [i for i, v in enumerate(self.missing) if (v is None) == (value is None)]
                codes[row] = len(self.encoded) + same[0] if same else -1
        sought = np.array(texts, dtype=self.encoded.dtype)
        order = np.argsort(sought)  # neighbours are searched in the same part of the array
        sought = sought[order]
        positions = np.searchsorted(self.encoded, sought)
        positions[positions == len(self.encoded)] = 0
        is_known = self.encoded[positions] == sought
        codes[np.array(rows, dtype=np.intp)[order]] = np.where(is_known, positions, -1)
        return codes


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


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


def sorted_text(values: np.ndarray, codes: np.ndarray, *, with_counts: bool) -> SortedValues:
    """Return the values that rows have, sorted, with their counts if needed."""
    counts = np.bincount(codes, minlength=len(values))
    has_nan = len(values) > 0 and values[-1] != values[-1]
    order = np.argsort(values[: len(values) - has_nan], kind="stable")
    order = np.append(order, np.full(int(has_nan), len(values) - 1, dtype=np.intp))
    order = order[counts[order] > 0]
    return SortedValues(values[order], counts[order] if with_counts else None)


def _are_ordered(known: np.ndarray, values: np.ndarray) -> bool:
    """Return whether two arrays are numbers, or both are dates, durations or NumPy's text."""
    kinds = {known.dtype.kind, values.dtype.kind}
    return kinds <= set("iuf") or kinds in ({"m"}, {"M"}, {"U"})


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
