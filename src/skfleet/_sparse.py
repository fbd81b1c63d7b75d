"""Products and rows of sparse matrices in CSR format that SciPy makes slowly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

# Part of the rows in which a column of a sparse matrix has values, from which on it is multiplied
# as a dense one.
DENSE_COLUMN = 0.25
# Rows of a large product that are made at a time.
ROWS_TOGETHER = 64
# A slice of about a megabyte fits a core's cache; matrix products of fewer rows are slow.
SLICE_ELEMENTS, MIN_SLICE_ROWS = 2**17, 256


def gram_of_sparse(X: Any, weights: np.ndarray | None) -> np.ndarray:
    """Return X.T @ diag(weights) @ X; columns with many values are multiplied as dense ones."""
    (n_rows, n_columns), X = X.shape, X.tocsr()
    is_dense = np.bincount(X.indices, minlength=n_columns) > n_rows * DENSE_COLUMN
    if is_dense.sum() < 2:
        return np.asarray(_times_weights(X, weights).T.dot(X).toarray(), dtype=np.float64)
    # SciPy takes columns by number faster than as a slice
    D, S = X[:, np.flatnonzero(is_dense)].toarray(), X[:, np.flatnonzero(~is_dense)]
    weighted = _times_weights(S, weights).T
    dense, rare = _slice_if_consecutive(is_dense), _slice_if_consecutive(~is_dense)
    product = np.empty((n_columns, n_columns))
    product[_outer_index(dense, dense)] = _dense_gram(D, weights)
    between = weighted @ D
    product[_outer_index(rare, dense)], product[_outer_index(dense, rare)] = between, between.T
    sparse_product, columns = (weighted @ S).tocsr(), np.arange(n_columns)[rare]
    for low in range(0, len(columns), ROWS_TOGETHER):
        rows = slice(low, low + ROWS_TOGETHER)
        block = columns[rows]
        if isinstance(rare, slice):
            block = slice(block[0], block[-1] + 1)
        product[_outer_index(block, rare)] = sparse_product[rows].toarray()
    return product


def _times_weights(X: Any, weights: np.ndarray | None) -> Any:
    """Return diag(weights) @ X for a sparse X."""
    return X if weights is None else X.multiply(weights[:, None])


def _dense_gram(X: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return X.T @ diag(weights) @ X for host rows, which are weighted in a core's cache."""
    if weights is None:
        return X.T @ X
    step = max(SLICE_ELEMENTS // X.shape[1], MIN_SLICE_ROWS)
    product = np.zeros((X.shape[1], X.shape[1]))
    for low in range(0, len(X), step):
        rows = X[low : low + step]
        product += rows.T @ (rows * weights[low : low + step, None])
    return product


def _slice_if_consecutive(mask: np.ndarray) -> slice | np.ndarray:
    """Return the positions where a mask is true: a slice, which is faster, if there is no gap."""
    positions = np.flatnonzero(mask)
    if not len(positions):
        return slice(0, 0)
    first, last = int(positions[0]), int(positions[-1])
    return slice(first, last + 1) if last - first + 1 == len(positions) else positions


def _outer_index(rows: slice | np.ndarray, columns: slice | np.ndarray) -> tuple[Any, ...]:
    """Return the index of all pairs of a row and a column."""
    if isinstance(rows, slice) or isinstance(columns, slice):
        return rows, columns
    return np.ix_(rows, columns)


class HStackedParts:
    """Columns side by side, some of them sparse, that are multiplied without being joined."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = tuple(parts)
        self.shape = (parts[0].shape[0], sum(part.shape[1] for part in parts))
        self.dtype = np.result_type(*(part.dtype for part in parts))

    def __matmul__(self, B: Any) -> Any:
        """Return the product with a matrix or a vector, part by part."""
        ends = np.cumsum([part.shape[1] for part in self.parts])
        return sum(
            part @ B[high - part.shape[1] : high]
            for part, high in zip(self.parts, ends, strict=True)
        )

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Return the columns in a dtype."""
        return HStackedParts([part.astype(dtype, copy=copy) for part in self.parts])


def hstack_sparse(parts: Sequence[Any]) -> Any:
    """Return parts side by side in CSR format, as SciPy does by way of coordinates of all values.

    A dense part with zeros has no values for them.
    """
    n_rows, n_columns = parts[0].shape[0], sum(part.shape[1] for part in parts)
    # Columns side by side: of each row the values of one part after those of another.
    if any(part.shape[0] != n_rows for part in parts):
        return sparse.hstack(parts, format="csr")  # raises in SciPy's words
    of_rows = [_csr_parts(part) for part in parts]
    # Where each part has the same number of values in all rows, they are blocks of a matrix, which
    # is copied in runs in place of value by value.
    lengths = [np.diff(starts) for _, _, starts in of_rows]
    widths = [int(of_part[0]) if n_rows else 0 for of_part in lengths]
    # of dense parts, and of encoded columns
    is_even = all((n == width).all() for n, width in zip(lengths, widths, strict=True))
    # Zeros of dense parts are dropped at the end, but not with zeros that a sparse part stores.
    has_zeros = any(np.count_nonzero(values) < values.size for values, _, _ in of_rows)
    if has_zeros and not (is_even and all(map(_has_all_its_values, parts))):
        of_rows, has_zeros, is_even = [_csr_parts(_without_zeros(x)) for x in parts], False, False
        lengths = [np.diff(starts) for _, _, starts in of_rows]
    # The arrays of the result, of their final size.
    n_values = sum(values.size for values, _, _ in of_rows)
    # SciPy chooses the type of the indices by the same rule
    index_dtype = np.int32 if max(n_values, n_columns) < np.iinfo(np.int32).max else np.int64
    indptr = sum(starts.astype(index_dtype) for _, _, starts in of_rows)
    data = np.empty(n_values, dtype=np.result_type(*(values.dtype for values, _, _ in of_rows)))
    indices = np.empty(n_values, dtype=index_dtype)
    # Fill them part by part; `free` is the next place of each row.
    free, low, first_column = indptr[:-1].copy(), 0, 0
    for i, (values, columns, starts) in enumerate(of_rows):
        if is_even:
            shape, high = (n_rows, widths[i]), low + widths[i]
            data.reshape(n_rows, sum(widths))[:, low:high] = values.reshape(shape)
            chosen = indices.reshape(n_rows, sum(widths))[:, low:high]
            np.add(columns.reshape(shape), index_dtype(first_column), out=chosen)
            low = high
        else:
            places = np.repeat(free - starts[:-1].astype(index_dtype), lengths[i])
            places += np.arange(values.size, dtype=index_dtype)
            data[places] = values.reshape(-1)
            indices[places] = columns.reshape(-1) + index_dtype(first_column)
            free += lengths[i].astype(index_dtype)
        first_column += parts[i].shape[1]
    # Set after construction, which would check them.
    is_array = any(isinstance(part, sparse.sparray) for part in parts)
    container = sparse.csr_array if is_array else sparse.csr_matrix
    result = container((n_rows, n_columns), dtype=data.dtype)
    result.data, result.indices, result.indptr = data, indices, indptr
    if has_zeros:
        result.eliminate_zeros()
    return result


def _has_all_its_values(part: Any) -> bool:
    """Return whether a matrix is dense, or has no zeros among its values."""
    return not sparse.issparse(part) or bool(part.data.all())


def _without_zeros(part: Any) -> Any:
    """Return a dense part as a sparse one without its zeros; a sparse part as it is."""
    return part if sparse.issparse(part) else sparse.csr_array(part)


def _csr_parts(part: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the values of a matrix by rows, their columns, and the numbers of each row's first.

    Those of a dense matrix have its shape.
    """
    n_rows, n_columns = part.shape
    if not sparse.issparse(part):
        columns = np.broadcast_to(np.arange(n_columns, dtype=np.int32), part.shape)
        starts = np.arange(n_rows + 1, dtype=np.int64) * n_columns
        return part, columns, starts
    rows = part.tocsr()
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows.data, rows.indices, rows.indptr
