"""Views of rows on Dask that are split when scikit-learn indexes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from skfleet.blocks import (
    RowSet,
    compute_together,
    is_lazy,
    n_rows_of,
    partition_lengths,
    row_numbers,
    take_row_set,
)


class LazyRows:
    """Rows of a Dask collection of known length, from which scikit-learn takes parts of splits.

    It has the shape of an array. Indexing returns the rows with these numbers, lazily, in the
    container of the collection and in its order.
    """

    def __init__(self, collection: Any) -> None:
        self.collection = collection
        self._lengths = partition_lengths(collection) or ()
        self.shape = sum(self._lengths), *map(int, collection.shape[1:])
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the values, which a splitter reads."""
        (values,) = compute_together(self.collection)
        return np.asarray(values, dtype=dtype)

    def __getitem__(self, key: Any) -> Any:
        rows = key[0] if isinstance(key, tuple) and len(key) == 2 and key[1] is ... else key
        row_set = RowSet.from_indices(np.asarray(rows), len(self))
        return take_row_set(self.collection, row_set, self._lengths, "rows-of-a-search")


def as_indexable(values: Any) -> Any:
    """Return a Dask collection as rows that scikit-learn can index; others are not changed."""
    return LazyRows(values) if is_lazy(values) else values


def collection_of(values: Any) -> Any:
    """Return the Dask collection of rows that scikit-learn can index; others are not changed."""
    return values.collection if type(values) is LazyRows else values


def collections_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with the Dask collections of rows that scikit-learn can index."""
    return {name: collection_of(value) for name, value in params.items()}


def in_order(part: Any, n_rows: int) -> np.ndarray:
    """Return the numbers of the rows of a part, in the order of the rows."""
    return np.sort(row_numbers(part, n_rows))


def without_mask(part: Any, X: Any) -> Any:
    """Return the numbers of the rows of a mask of X; other parts of a split are not changed."""
    dtype = getattr(part, "dtype", None) or np.asarray(part).dtype
    is_mask = getattr(dtype, "kind", None) == "b" and len(part) == n_rows_of(as_indexable(X))
    return np.flatnonzero(part) if is_mask else part


class PreparedSplit:
    """Rows, or targets, that scikit-learn indexes by the very objects that name their parts."""

    def __init__(self, n_rows: int, names: Sequence[Any], parts: Sequence[Any]) -> None:
        self._names, self._parts = names, parts
        self.shape, self.ndim = (n_rows, *parts[0].shape[1:]), parts[0].ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        name = key[0] if isinstance(key, tuple) and len(key) == 2 and key[1] is ... else key
        return next(p for n, p in zip(self._names, self._parts, strict=True) if n is name)
