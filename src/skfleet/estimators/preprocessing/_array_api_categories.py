"""Categories of blocks of numbers on a device: the distinct values go to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from skfleet._array import asarray_like, is_floating, namespace, to_device_of, to_host
from skfleet._linalg import hstack
from skfleet.estimators._array_api_blocks import valid_floats
from skfleet.estimators.preprocessing._categories import SortedValues


def device_categories(encoder: Any, X: Any, *, with_counts: bool) -> list[SortedValues]:
    """Return the distinct values of each column of a block, with their counts if needed."""
    X = _without_nan(encoder, X)
    xp, columns = namespace(X), []
    for j in range(X.shape[1]):
        values, counts = xp.unique_counts(X[:, j])
        n_rows = to_host(counts).astype(np.int64) if with_counts else None
        columns.append(SortedValues(_with_nan(to_host(values)), n_rows))
    return columns


def encode_on_device(
    encoder: Any, encode: Callable[[np.ndarray], np.ndarray], X: Any, widths: Sequence[int]
) -> Any:
    """Return a block encoded by a function of rows on the host, which gets its distinct values.

    `widths` are the numbers of columns that each column is encoded as.
    """
    X = _without_nan(encoder, X)
    xp = namespace(X)
    distinct = [xp.unique_inverse(X[:, j]) for j in range(X.shape[1])]
    values = [_with_nan(to_host(column.values)) for column in distinct]
    rows = np.stack([np.resize(column, max(map(len, values))) for column in values], axis=1)
    table, parts = encode(rows), []
    bounds = pairwise(accumulate(widths, initial=0))
    for (low, high), column in zip(bounds, distinct, strict=True):
        encoded = to_device_of(np.ascontiguousarray(table[:, low:high]), X)
        parts.append(xp.take(encoded, xp.reshape(column.inverse_indices, (-1,)), axis=0))
    return hstack(parts)


def _without_nan(encoder: Any, X: Any) -> Any:
    """Return valid rows with infinity for NaN, each of which the array API takes for another."""
    if not is_floating(X):
        return X
    X = valid_floats(encoder, X)
    xp = namespace(X)
    return xp.where(xp.isnan(X), asarray_like(np.inf, X), X)


def _with_nan(values: np.ndarray) -> np.ndarray:
    """Return distinct values with NaN for infinity."""
    if values.dtype.kind == "f":
        values[np.isinf(values)] = np.nan
    return values
