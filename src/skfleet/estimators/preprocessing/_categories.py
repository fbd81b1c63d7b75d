"""Distinct values of columns with statistics of each, merged over blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise
from math import isnan
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.preprocessing import OrdinalEncoder


@dataclass(frozen=True)
class SortedValues:
    """Distinct values in scikit-learn's order, the missing ones last, and statistics of each."""

    values: np.ndarray
    statistics: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (pack_text(self.values), self.statistics)


# What several blocks have in common: parts whose lengths fall by half at least, to be merged.
Parts = list[SortedValues]
# merge(a, b, positions of a, positions of b, number of values)
MergeStatistics = Callable[[Any, Any, np.ndarray, np.ndarray, int], Any]


def merge(a: SortedValues, b: SortedValues, merge_statistics: MergeStatistics) -> SortedValues:
    """Return the union of two, with their statistics merged."""
    values, a_positions, b_positions = union(a.values, b.values)
    if a.statistics is None or b.statistics is None:
        return SortedValues(values)
    merged = merge_statistics(a.statistics, b.statistics, a_positions, b_positions, len(values))
    return SortedValues(values, merged)


def add_parts(a: Parts, b: Parts, merge_statistics: MergeStatistics) -> Parts:
    """Return the parts of both, in which those of like lengths are merged.

    A value takes part in as many merges as the length doubles, in whatever order blocks are added.
    """
    parts = sorted([*a, *b], key=_length, reverse=True)
    while len(parts) > 1 and 2 * _length(parts[-1]) > _length(parts[-2]):
        parts.append(merge(parts.pop(), parts.pop(), merge_statistics))
        parts.sort(key=_length, reverse=True)
    return parts


def join_parts(parts: Parts, merge_statistics: MergeStatistics) -> SortedValues:
    """Return one union of all parts."""
    return reduce(lambda a, b: merge(a, b, merge_statistics), reversed(parts))


def add_counts(
    a: np.ndarray, b: np.ndarray, a_positions: np.ndarray, b_positions: np.ndarray, n: int
) -> np.ndarray:
    """Return the sums of two arrays of statistics with a row per value."""
    total = np.zeros((n, *a.shape[1:]), dtype=np.result_type(a, b))
    total[a_positions] = a
    total[b_positions] += b
    return total


def union(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sorted union of two sorted arrays, and the positions of their values in it."""
    a, b = _with_common_dtype(a, b)
    n_a, n_b = len(a) - n_missing(a), len(b) - n_missing(b)
    missing = _missing_values(a[n_a:], b[n_b:])
    values = np.concatenate([a[:n_a], b[:n_b]])
    try:
        order = np.argsort(values, kind="stable")  # merges what is sorted
        ordered = values[order]
        is_new = np.ones(len(ordered), dtype=bool)
        is_new[1:] = (ordered[1:] != ordered[:-1]).astype(bool)
    except TypeError:
        return _union_of_objects(a, b)
    positions = np.empty(len(order), dtype=np.intp)
    positions[order] = np.cumsum(is_new) - 1
    merged = ordered[is_new]
    a_tail, b_tail = (
        [len(merged) + _index_of(value, missing) for value in tail] for tail in (a[n_a:], b[n_b:])
    )
    if missing:
        merged = np.concatenate([merged, np.array(missing, dtype=merged.dtype)])
    a_positions = np.concatenate([positions[:n_a], np.array(a_tail, dtype=np.intp)])
    return merged, a_positions, np.concatenate([positions[n_a:], np.array(b_tail, dtype=np.intp)])


def is_missing(value: Any) -> bool:
    """Return whether a value is None or NaN, which scikit-learn sorts behind all other values."""
    if value is None:
        return True
    return isinstance(value, Real) and not isinstance(value, Integral) and isnan(value)


def pack_text(values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return objects that are text as one text and lengths, which are small to pickle."""
    if values.dtype != object or values.ndim != 1:
        return (values,)
    n = len(values) - n_missing(values)
    if set(map(type, values[:n])) != {str}:
        return (values,)
    lengths = np.fromiter(map(len, values[:n]), dtype=np.uint32, count=n)
    text = "".join(values[:n]).encode("utf-8", "surrogatepass")
    return np.frombuffer(text, dtype=np.uint8), lengths, values[n:]


def unpack_text(packed: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return what `pack_text` was called with."""
    if len(packed) == 1:
        return packed[0]
    characters, lengths, missing = packed
    text = characters.tobytes().decode("utf-8", "surrogatepass")
    values = np.empty(len(lengths) + len(missing), dtype=object)
    bounds = accumulate(lengths.tolist(), initial=0)
    for i, (low, high) in enumerate(pairwise(bounds)):
        values[i] = text[low:high]
    values[len(lengths) :] = missing
    return values


def _unpack(packed: Any, statistics: Any) -> SortedValues:
    return SortedValues(unpack_text(packed), statistics)


def _length(part: SortedValues) -> int:
    return len(part.values)


def _with_common_dtype(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays that NumPy concatenates without making text of numbers."""
    if (a.dtype.kind in "US") == (b.dtype.kind in "US"):
        return a, b
    return a.astype(object), b.astype(object)


def n_missing(values: np.ndarray) -> int:
    """Return the number of missing values at the end of sorted values."""
    if values.dtype.kind in "fcmM":
        return int(len(values) > 0 and np.isnan(values[-1]))
    if values.dtype != object:
        return 0
    return sum(map(is_missing, values[-2:]))


def _missing_values(a: np.ndarray, b: np.ndarray) -> list[Any]:
    """Return the missing values of two arrays: None before NaN."""
    values = [*a, *b]
    has_none = any(value is None for value in values)
    return [None] * has_none + [value for value in values if value is not None][:1]


def _index_of(value: Any, missing: Sequence[Any]) -> int:
    return len(missing) - 1 if value is not None else 0


def _union_of_objects(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the union of objects without an order, or raise as scikit-learn does."""
    values = np.concatenate([a.astype(object), b.astype(object)])
    merged = OrdinalEncoder().fit(values[:, None]).categories_[0]
    number = {value: i for i, value in enumerate(merged)}
    positions = np.array([number.get(v, len(merged) - 1) for v in values], dtype=np.intp)
    return merged, positions[: len(a)], positions[len(a) :]
