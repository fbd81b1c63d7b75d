"""The few matrix operations that blocks need, dense or sparse: the only file that knows sparse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import linalg, sparse

from skfleet._array import (
    FLOAT64,
    asarray_like,
    astype,
    dtype_of,
    is_array,
    is_not_numpy,
    namespace,
    to_host,
)

# A slice of rows of about a megabyte stays in a core's cache; shorter ones multiply badly.
SLICE_ELEMENTS, FEWEST_IN_SLICE = 2**17, 256
# Rows that are summed up in the precision they have.
ROWS_IN_SUM = 256


def is_sparse(X: Any) -> bool:
    """Say whether X is a SciPy sparse matrix or array."""
    return sparse.issparse(X)


def is_sparse_kind(X: Any) -> bool:
    """Say whether X is sparse, or made of blocks of sparse rows."""
    return is_sparse(X) or is_sparse(getattr(X, "_meta", None))


def rows_between(X: Any, low: int, high: int) -> Any:
    """Return rows of an array or a sparse matrix, in CSR form without a copy of their values."""
    if not is_sparse(X) or X.format != "csr":
        return X[low:high, ...] if is_not_numpy(X) else X[low:high]
    first, last = X.indptr[low], X.indptr[high]
    part = type(X)((high - low, X.shape[1]), dtype=X.dtype)
    # made of these, it would copy them
    part.data, part.indices = X.data[first:last], X.indices[first:last]
    part.indptr = X.indptr[low : high + 1] - first
    return part


def dot(X: Any, B: Any) -> Any:
    """Return X @ B, dense, with the host matrix B, dense or sparse, brought to where X is."""
    if is_sparse(B) and not is_not_numpy(X):
        return dense_rows(X @ B.astype(X.dtype))
    return X @ asarray_like(np.ascontiguousarray(dense_rows(B)), X)


def gram(X: Any, weights: Any = None) -> Any:
    """Return X.T @ diag(weights) @ X as a dense float64 array, where X is."""
    if is_sparse(X):
        scaled = X if weights is None else X.multiply(np.asarray(weights)[:, None]).tocsr()
        product = X.T @ scaled
        return np.asarray(product.toarray(), dtype=np.float64)
    scaled = X if weights is None else X * weights[:, None]
    return astype(X.T @ scaled, FLOAT64)


def weighted_gram(X: Any, shift: Any, root: Any, V: Any) -> tuple[Any, Any]:
    """Return Z.T @ Z and Z.T @ V for dense rows Z = (X - shift) * root, in float64.

    Slices that stay in the processor's cache are made and multiplied in one place, so that the rows
    come from memory once and nothing of their size is made. `shift` and `root` may be None; all is
    where X is.
    """
    if is_not_numpy(X):
        Z = X if shift is None else X - astype(shift, dtype_of(X))
        Z = Z if root is None else Z * root[:, None]
        return astype(Z.T @ Z, FLOAT64), astype(Z.T @ V, FLOAT64)
    n_rows, n_columns = X.shape
    step = max(SLICE_ELEMENTS // max(n_columns, 1), FEWEST_IN_SLICE)
    made = (
        None
        if shift is None and root is None
        else np.empty((min(step, n_rows), n_columns), X.dtype)
    )
    shift = None if shift is None else np.asarray(shift, dtype=X.dtype)
    product, cross = np.zeros((n_columns, n_columns)), np.zeros((n_columns, V.shape[1]))
    for low in range(0, n_rows, step):
        Z = X[low : low + step]
        if made is not None:
            out = made[: len(Z)]
            if shift is not None:
                Z = np.subtract(Z, shift, out=out)
            if root is not None:
                Z = np.multiply(Z, root[low : low + step, None], out=out)
        product += Z.T @ Z
        cross += Z.T @ V[low : low + step]
    return product, cross


def take_columns(X: Any, columns: np.ndarray) -> Any:
    """Return some columns of X, where X is."""
    if is_sparse(X) or not is_not_numpy(X):
        return X[:, columns]
    return namespace(X).take(X, asarray_like(columns, X), axis=1)


def column_sums(X: Any, weights: Any = None) -> Any:
    """Return the (weighted) sums of the columns of X as a float64 array, where X is."""
    if is_sparse(X):
        summed = X.sum(axis=0, dtype=np.float64) if weights is None else X.T @ np.asarray(weights)
        return np.asarray(summed, dtype=np.float64).ravel()
    if weights is not None:
        return astype(weights @ X, FLOAT64)
    if not is_not_numpy(X) and X.dtype == np.float64:
        return np.ones(len(X)) @ X  # several times faster than a sum
    if not is_not_numpy(X) and X.dtype == np.float32:
        return _single_sums(X)
    xp = namespace(X)
    return xp.sum(X, axis=0, dtype=xp.float64)


def _single_sums(X: np.ndarray) -> np.ndarray:
    """Return the sums of the columns of a float32 X, from runs so short that they lose no digit."""
    whole = len(X) // ROWS_IN_SUM * ROWS_IN_SUM
    ones = np.ones((1, ROWS_IN_SUM), dtype=X.dtype)
    runs = ones @ X[:whole].reshape(-1, ROWS_IN_SUM, X.shape[1])
    rest = X[whole:].sum(axis=0, dtype=np.float64)
    return runs.sum(axis=(0, 1), dtype=np.float64) + rest


def row_norms(X: Any, about: np.ndarray | None = None) -> Any:
    """Return the squared norms of the rows of X (about a host row), where X is, as precise as X."""
    if is_sparse(X):
        norms = np.asarray(X.multiply(X).sum(axis=1)).ravel()
        return norms if about is None else np.maximum(norms - 2 * (X @ about) + about @ about, 0.0)
    if about is not None:
        X = X - asarray_like(about, X)
    if not is_not_numpy(X):
        return np.einsum("ij,ij->i", X, X)  # quicker, and nothing of the size of X
    return namespace(X).sum(X * X, axis=1)


def has_values(X: Any) -> np.ndarray | None:
    """Say of each column whether any of the sparse rows has a value for it; None if dense."""
    if not is_sparse(X):
        return None
    held = np.zeros(X.shape[1], dtype=bool)
    held[X.indices] = True
    return held


def squared_distances_to(X: Any, V: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the squared distance of each host row of X to the row of V chosen for it.

    Dense rows are subtracted, which keeps small distances exact.
    """
    n_rows = X.shape[0]
    squared = np.empty(n_rows)
    if is_sparse(X):
        norms = np.einsum("ij,ij->i", V, V)
        of_row = _by_value(X, np.arange(n_rows))
        values = X.data.astype(np.float64, copy=False)
        # (x - v)^2 - v^2 where x is not zero, and v^2 over all columns
        pairs = values * (values - 2 * V[chosen[of_row], X.indices])
        np.maximum(np.bincount(of_row, pairs, n_rows) + norms[chosen], 0.0, out=squared)
        return squared
    V, step = V.astype(X.dtype, copy=False), max(SLICE_ELEMENTS // max(X.shape[1], 1), 1)
    for low in range(0, n_rows, step):
        apart = np.take(V, chosen[low : low + step], axis=0)
        np.subtract(X[low : low + step], apart, out=apart)
        np.einsum("ij,ij->i", apart, apart, out=squared[low : low + step])
    return squared


def with_int32_indices(X: Any) -> Any:
    """Return X; sparse rows with indices of 32 bits, as scikit-learn's kernels take them."""
    if not is_sparse(X) or X.indices.dtype == np.int32:
        return X
    parts = (X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32))
    return type(X)(parts, shape=X.shape)


def group_sums(X: Any, labels: np.ndarray, weights: np.ndarray | None, n_labels: int) -> np.ndarray:
    """Return the (weighted) sums of the host rows of X that share a label, one row per label."""
    n_rows, n_columns = X.shape
    if is_sparse(X):
        where, values = _by_value(X, labels.astype(np.int64) * n_columns), X.data
        where += X.indices
        if weights is not None:
            values = values * _by_value(X, weights)
        return np.bincount(where, values, n_labels * n_columns).reshape(n_labels, n_columns)
    values = np.ones(n_rows, X.dtype) if weights is None else weights.astype(X.dtype)
    which = sparse.csr_array((values, labels, np.arange(n_rows + 1)), (n_rows, n_labels))
    return (which.T @ X).astype(np.float64, copy=False)


def _by_value(X: Any, of_rows: np.ndarray) -> np.ndarray:
    """Return for every value of a sparse X what belongs to its row."""
    return np.repeat(of_rows, np.diff(X.indptr))


def to_dense(X: Any) -> Any:
    """Return X, dense, where it is."""
    return X.toarray() if is_sparse(X) else X


def dense_rows(X: Any) -> np.ndarray:
    """Return X as a dense host array."""
    return X.toarray() if is_sparse(X) else to_host(X)


def svd_right(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the singular values and right singular vectors of a dense X, on the host."""
    if is_not_numpy(X):
        _, values, vectors = namespace(X).linalg.svd(X, full_matrices=False)
        return to_host(values), to_host(vectors)
    return linalg.svd(X, full_matrices=False, check_finite=False)[1:]


def qr_r(X: Any) -> Any:
    """Return R of the QR factorisation of a dense X that is longer than wide, where X is."""
    if is_not_numpy(X):
        return namespace(X).linalg.qr(X)[1]
    return np.linalg.qr(X, mode="r")


def hstack(parts: Sequence[Any]) -> Any:
    """Join parts side by side, sparse if any of them is."""
    if len(parts) == 1:
        return parts[0]
    if any(is_sparse(part) for part in parts):
        return sparse.hstack(parts, format="csr")
    return namespace(*parts).concat(list(parts), axis=1)


def vstack(parts: Sequence[Any]) -> Any:
    """Join parts one below the other, sparse if any of them is."""
    if len(parts) == 1:
        return parts[0]
    if any(is_sparse(part) for part in parts):
        return sparse.vstack(parts, format="csr")
    return namespace(*parts).concat(list(parts), axis=0)


def row_bytes(X: Any) -> int:
    """Return the bytes that one row of X takes, on average for a sparse X."""
    n_rows = max(X.shape[0], 1)
    if is_sparse(X):
        return max(1, (X.data.nbytes + X.indices.nbytes) // n_rows)
    width = int(np.prod(X.shape[1:], dtype=np.int64))
    numbers = is_not_numpy(X) or isinstance(getattr(X, "dtype", None), np.dtype)
    return max(1, width * (dtype_of(X).itemsize if numbers else 8))


def all_finite(X: Any) -> bool:
    """Say whether X holds neither NaN nor infinity."""
    if is_sparse(X):
        return all_finite(X.data)
    if not is_array(X):
        return True
    xp = namespace(X)
    if not xp.isdtype(X.dtype, "real floating"):
        return True
    # A finite sum proves it in one read and without a mask; only a doubt is looked into.
    with np.errstate(over="ignore", invalid="ignore"):
        if bool(xp.isfinite(xp.sum(X))):
            return True
    return bool(xp.all(xp.isfinite(X)))
