"""Matrix operations on dense and sparse blocks; with `_sparse`, all that knows sparse formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeGuard

import array_api_compat
import numpy as np
from array_api_compat import device
from scipy import linalg, sparse

from skfleet import _cuda_gram
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
from skfleet._sparse import (
    MIN_SLICE_ROWS,
    ROWS_TOGETHER,
    SLICE_ELEMENTS,
    HStackedParts,
    gram_of_sparse,
    hstack_sparse,
)

# Types that may have the values of a kind of type, from the narrowest on.
_INTEGERS = ("uint8", "int8", "uint16", "int16")
NARROW_TYPES = {"f": (*_INTEGERS, "float32"), "i": _INTEGERS, "u": _INTEGERS}
# Entries of a dense matrix of indicators up to which it takes less time than a sparse one.
SMALL_INDICATORS = 2**15
# Rows of float32 that are summed in float32 before the sums are added in float64.
SINGLE_PRECISION_ROWS = 256
# Products in single precision next to the width of their range, up to which three digits are left.
MAX_CANCELLATION = 1e3
# Rows on a device that are reduced together. CuPy has ceil(n_columns / 32) thread blocks work down
# rows in C order, and as many for each run of them.
RUN_ROWS = 512
# Rows on a device whose matrix products are summed in single precision: of 30 million rows an H200
# kept five digits.
PRODUCT_ROWS = 2**17


def is_sparse(X: Any) -> TypeGuard[Any]:
    """Return whether X is a SciPy sparse matrix or array."""
    return sparse.issparse(X)


def column_parts(X: Any) -> tuple[Any, ...]:
    """Return the matrices that make the columns of X: X itself, unless it is in parts."""
    return X.parts if isinstance(X, HStackedParts) else (X,)


def is_sparse_kind(X: Any) -> bool:
    """Return whether X is sparse, or a Dask array of sparse chunks."""
    return is_sparse(X) or is_sparse(getattr(X, "_meta", None))


def rows_between(X: Any, low: int, high: int) -> Any:
    """Return the rows low to high of an array or a sparse matrix; CSR rows share its values."""
    if not is_sparse(X) or X.format != "csr":
        return X[low:high, ...] if is_not_numpy(X) else X[low:high]
    first, last = X.indptr[low], X.indptr[high]
    part = type(X)((high - low, X.shape[1]), dtype=X.dtype)
    # set as attributes, because the constructor would copy them
    part.data, part.indices = X.data[first:last], X.indices[first:last]
    part.indptr = X.indptr[low : high + 1] - first
    return part


def rows_at(X: Any, index: Any) -> Any:
    """Return the rows at these indices, on the device of X."""
    if is_not_numpy(X):
        return namespace(X).take(X, index, axis=0)
    if is_sparse(X) or not X.flags.c_contiguous or X.dtype.hasobject or not X.size:
        return X[index]
    # Copied as bytes, which are no numbers that must be aligned in memory: arrays that were sent to
    # a worker often are not, and NumPy would copy all of X first. It takes half the time, too.
    whole = X.view(np.dtype((np.void, X.shape[1] * X.itemsize)))[:, 0]
    return whole.take(index).view(X.dtype).reshape(len(index), X.shape[1])


def transposed(X: Any) -> Any:
    """Return X.T. SciPy would copy the values of CSR rows that are a small part of an array."""
    if not is_sparse(X) or X.format != "csr":
        return X.T
    return _with_values(X, X.data, is_transposed=True)


def _with_values(X: Any, values: np.ndarray, *, is_transposed: bool = False) -> Any:
    """Return CSR rows with other values at the same places; as the columns of a CSC matrix."""
    container, shape = type(X), X.shape
    if is_transposed:
        is_array = isinstance(X, sparse.sparray)
        container, shape = sparse.csc_array if is_array else sparse.csc_matrix, shape[::-1]
    result = container(shape, dtype=values.dtype)
    # set as attributes, because the constructor would copy them
    result.data, result.indices, result.indptr = values, X.indices, X.indptr
    return result


def dot(X: Any, B: Any) -> Any:
    """Return X @ B, dense, on the device of X; B is a host matrix, dense or sparse."""
    if is_sparse(B) and not is_not_numpy(X):
        return dense_rows(X @ B.astype(X.dtype))
    return X @ asarray_like(np.ascontiguousarray(dense_rows(B)), X)


def affine(X: Any, B: Any, offset: Any) -> Any:
    """Return X @ B + offset, dense, on the device of X; B is a host matrix.

    Host rows in single precision keep three digits at least where the offset takes off the leading
    ones, as for columns that are far from zero.
    """
    product = dot(X, B)
    result = product + asarray_like(np.asarray(offset), product)
    if is_not_numpy(result) or result.dtype != np.float32 or not result.size:
        return result
    width = MAX_CANCELLATION * np.ptp(result, axis=0)
    if np.any(np.maximum(product.max(axis=0), -product.min(axis=0)) > width):
        result = (dot(astype(X, FLOAT64), B) + offset).astype(result.dtype)
    return result


def gram(X: Any, weights: Any = None) -> Any:
    """Return X.T @ diag(weights) @ X as a dense float64 array, on the device of X."""
    if is_sparse(X):
        return gram_of_sparse(X, None if weights is None else np.asarray(weights))
    scaled = X if weights is None else X * weights[:, None]
    return products_down(X, scaled)


def products_down(A: Any, B: Any) -> Any:
    """Return A.T @ B, dense and in float64, on the device of both.

    In single precision a device may sum the rows one by one, until a sum of millions grows no more
    or has lost half of its digits. So runs of them are multiplied, and their products summed. A
    vector's products are sums of many blocks of threads (seven digits of 30 million rows).
    """
    n_rows, is_vector = A.shape[0], 1 in (A.shape[1], B.shape[1])
    if not is_not_numpy(A) or n_rows <= PRODUCT_ROWS or is_vector or dtype_of(A) == FLOAT64:
        return astype(transposed(A) @ B, FLOAT64)
    products = []
    for low in range(0, n_rows, PRODUCT_ROWS):
        high = min(low + PRODUCT_ROWS, n_rows)
        products.append(A[low:high, ...].T @ B[low:high, ...])
    return namespace(A).sum(namespace(A).stack(products), axis=0, dtype=namespace(A).float64)


def add_outer(matrix: Any, factor: Any, a: Any, b: Any) -> Any:
    """Return matrix + factor * outer(a, b), on the device of all three.

    A host matrix is changed, and no other of its size is made.
    """
    a = factor * a
    if is_not_numpy(matrix):
        return matrix + a[:, None] * b[None, :]
    for low in range(0, len(a), ROWS_TOGETHER):
        rows = slice(low, low + ROWS_TOGETHER)
        matrix[rows] += a[rows, None] * b[None, :]
    return matrix


def weighted_gram(X: Any, shift: Any, sqrt_weight: Any, V: Any) -> tuple[Any, Any]:
    """Return Z.T @ Z and Z.T @ V for dense rows Z = (X - shift) * sqrt_weight, in float64.

    On the host Z is computed and multiplied in slices that fit a core's cache, so that X is read
    from memory once and no array of its size is allocated. `shift` and `sqrt_weight` may be None;
    all arrays are on the device of X.
    """
    if is_not_numpy(X):
        shift = None if shift is None else astype(shift, dtype_of(X))
        uses = {"centered": shift is not None, "weighted": sqrt_weight is not None}
        if _cuda_gram.supports(X, V.shape[1], **uses):
            return _cuda_gram.products(X, shift, sqrt_weight, V)
        Z = X if shift is None else X - shift
        Z = Z if sqrt_weight is None else Z * sqrt_weight[:, None]
        return products_down(Z, Z), products_down(Z, V)
    n_rows, n_columns = X.shape
    step = max(SLICE_ELEMENTS // max(n_columns, 1), MIN_SLICE_ROWS)
    buffer = None
    if shift is not None or sqrt_weight is not None:
        buffer = np.empty((min(step, n_rows), n_columns), X.dtype)
    shift = None if shift is None else np.asarray(shift, dtype=X.dtype)
    product, cross = np.zeros((n_columns, n_columns)), np.zeros((n_columns, V.shape[1]))
    for low in range(0, n_rows, step):
        Z = X[low : low + step]
        if buffer is not None:
            out = buffer[: len(Z)]
            if shift is not None:
                Z = np.subtract(Z, shift, out=out)
            if sqrt_weight is not None:
                Z = np.multiply(Z, sqrt_weight[low : low + step, None], out=out)
        product += Z.T @ Z
        cross += Z.T @ V[low : low + step]
    return product, cross


def take_columns(X: Any, columns: np.ndarray) -> Any:
    """Return the columns of X at given positions, on the device of X."""
    if is_sparse(X) or not is_not_numpy(X):
        return X[:, columns]
    return namespace(X).take(X, asarray_like(columns, X), axis=1)


def column_sums(X: Any, weights: Any = None) -> Any:
    """Return the (weighted) sums of the columns of X as a float64 array, on the device of X."""
    if is_sparse(X):
        weights = np.ones(X.shape[0]) if weights is None else np.asarray(weights)
        return np.asarray(transposed(X) @ weights, dtype=np.float64).ravel()
    if weights is not None:
        return astype(weights @ X, FLOAT64)
    # Several times faster than a sum; equal columns may be rounded differently.
    if dtype_of(X) == FLOAT64:
        return namespace(X).ones(X.shape[0], dtype=X.dtype, device=device(X)) @ X
    if not is_not_numpy(X) and X.dtype == np.float32:
        return _float32_sums(X)
    return sums_down(X)


def square_sums(X: Any) -> np.ndarray:
    """Return the sums of the squares of a sparse matrix's columns."""
    X = X.tocsr()
    return column_sums(_with_values(X, X.data * X.data))


def sums_down(X: Any, dtype: np.dtype = FLOAT64) -> Any:
    """Return the sums of a dense array over its rows, on its device."""
    xp = namespace(X)
    return reduce_down(partial(xp.sum, dtype=getattr(xp, dtype.name)), X)


def reduce_down(reduce: Callable[..., Any], X: Any) -> Any:
    """Return reduce(X, axis=0); of many rows on a device, runs are reduced first.

    So it must not matter in which groups rows are reduced: sums, extremes, any and all.
    """
    while is_not_numpy(X) and X.shape[0] >= RUN_ROWS // 2:
        n_rows = X.shape[0]
        length = RUN_ROWS if n_rows >= 4 * RUN_ROWS else math.isqrt(n_rows)
        n_runs, n_other = divmod(n_rows, length)
        end = n_rows - n_other
        runs = namespace(X).reshape(X[:end, ...], (n_runs, length, *X.shape[1:]))
        parts = [reduce(runs, axis=1)]
        if n_other:
            parts.append(reduce(X[end:, ...], axis=0)[None, ...])
        X = vstack(parts)
    return reduce(X, axis=0)


def _float32_sums(X: np.ndarray) -> np.ndarray:
    """Return the float64 sums of the columns of a float32 X, by products of short runs of rows."""
    n_in_runs = len(X) // SINGLE_PRECISION_ROWS * SINGLE_PRECISION_ROWS
    ones = np.ones((1, SINGLE_PRECISION_ROWS), dtype=X.dtype)
    runs = ones @ X[:n_in_runs].reshape(-1, SINGLE_PRECISION_ROWS, X.shape[1])
    remainder = X[n_in_runs:].sum(axis=0, dtype=np.float64)
    return runs.sum(axis=(0, 1), dtype=np.float64) + remainder


def row_norms(X: Any, about: np.ndarray | None = None) -> Any:
    """Return the squared norms of the rows of X, or of X - about, on the device and dtype of X."""
    if is_sparse(X):
        norms = np.asarray(X.multiply(X).sum(axis=1)).ravel()
        return norms if about is None else np.maximum(norms - 2 * (X @ about) + about @ about, 0.0)
    if about is not None:
        X = X - asarray_like(about, X)
    if not is_not_numpy(X):
        return np.einsum("ij,ij->i", X, X)  # faster, and without an array of the size of X
    return namespace(X).sum(X * X, axis=1)


def has_values(X: Any) -> np.ndarray | None:
    """Return a mask of the columns in which sparse rows have any value; None if dense."""
    if not is_sparse(X):
        return None
    mask = np.zeros(X.shape[1], dtype=bool)
    mask[X.indices] = True
    return mask


def squared_distances_to(X: Any, V: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the squared distance of each host row of X to the row of V that its label selects.

    Dense rows are subtracted, which is exact for small distances too.
    """
    n_rows = X.shape[0]
    squared = np.empty(n_rows)
    if is_sparse(X):
        norms = np.einsum("ij,ij->i", V, V)
        row_of_value = _repeat_per_value(X, np.arange(n_rows))
        values = X.data.astype(np.float64, copy=False)
        # (x - v)^2 - v^2 where x is not zero, and v^2 over all columns
        pairs = values * (values - 2 * V[labels[row_of_value], X.indices])
        np.maximum(np.bincount(row_of_value, pairs, n_rows) + norms[labels], 0.0, out=squared)
        return squared
    V, step = V.astype(X.dtype, copy=False), max(SLICE_ELEMENTS // max(X.shape[1], 1), 1)
    for low in range(0, n_rows, step):
        diff = np.take(V, labels[low : low + step], axis=0)
        np.subtract(X[low : low + step], diff, out=diff)
        np.einsum("ij,ij->i", diff, diff, out=squared[low : low + step])
    return squared


def with_int32_indices(X: Any) -> Any:
    """Return X; sparse rows with indices of 32 bits, which scikit-learn's kernels require."""
    if not is_sparse(X) or X.indices.dtype == np.int32:
        return X
    parts = (X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32))
    return type(X)(parts, shape=X.shape)


def group_sums(X: Any, labels: np.ndarray, weights: np.ndarray | None, n_labels: int) -> np.ndarray:
    """Return the (weighted) sums of the host rows of X that share a label, one row per label."""
    n_rows, n_columns = X.shape
    if is_sparse(X):
        # A cell for each label and column; bincount adds in float64.
        cells, values = _repeat_per_value(X, labels.astype(np.int64) * n_columns), X.data
        cells += X.indices
        if weights is not None:
            values = values * _repeat_per_value(X, weights)
        return np.bincount(cells, values, n_labels * n_columns).reshape(n_labels, n_columns)
    if n_rows * n_labels <= SMALL_INDICATORS:
        indicators = (labels == np.arange(n_labels)[:, None]).astype(X.dtype)
        if weights is not None:
            indicators *= weights.astype(X.dtype)
        return (indicators @ X).astype(np.float64, copy=False)
    # A row has one label, so the indicators are in CSR format as they stand.
    values = np.ones(n_rows, X.dtype) if weights is None else weights.astype(X.dtype)
    one_hot = sparse.csr_array((values, labels, np.arange(n_rows + 1)), (n_rows, n_labels))
    return (one_hot.T @ X).astype(np.float64, copy=False)


def _repeat_per_value(X: Any, of_rows: np.ndarray) -> np.ndarray:
    """Return values per row, repeated for each stored value of a sparse X."""
    return np.repeat(of_rows, np.diff(X.indptr))


def to_dense(X: Any) -> Any:
    """Return X as a dense array on its device."""
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
    """Return R of the QR factorisation of a dense X with more rows than columns, on its device."""
    if array_api_compat.is_cupy_array(X):
        import cupy  # array-api-compat takes no other result than Q and R

        return cupy.linalg.qr(X, mode="r")
    if is_not_numpy(X):
        return namespace(X).linalg.qr(X)[1]
    return np.linalg.qr(X, mode="r")


def hstack(parts: Sequence[Any]) -> Any:
    """Return parts side by side, sparse if any of them is."""
    if len(parts) == 1:
        return parts[0]
    if any(is_sparse(part) for part in parts):
        return hstack_sparse(parts)
    return namespace(*parts).concat(list(parts), axis=1)


def vstack(parts: Sequence[Any]) -> Any:
    """Return parts one below the other, sparse if any of them is."""
    if len(parts) == 1:
        return parts[0]
    if any(is_sparse(part) for part in parts):
        return sparse.vstack(parts, format="csr")
    return namespace(*parts).concat(list(parts), axis=0)


def row_bytes(X: Any) -> int:
    """Return the size of a row of X in bytes, on average for a sparse X."""
    n_rows = max(X.shape[0], 1)
    if is_sparse(X):
        return max(1, (X.data.nbytes + X.indices.nbytes) // n_rows)
    width = int(np.prod(X.shape[1:], dtype=np.int64))
    has_dtype = is_not_numpy(X) or isinstance(getattr(X, "dtype", None), np.dtype)
    return max(1, width * (dtype_of(X).itemsize if has_dtype else 8))


def narrowed(X: Any) -> Any:
    """Return numbers in the narrowest type that has their values to the last bit."""
    values = X.data if is_sparse(X) else X
    for dtype in NARROW_TYPES.get(values.dtype.kind, ()):
        if np.dtype(dtype).itemsize < values.dtype.itemsize and _has_values(dtype, values):
            return X.astype(dtype)
    return X


def _has_values(dtype: str, values: np.ndarray) -> bool:
    with np.errstate(invalid="ignore", over="ignore"):
        converted = values.astype(dtype).astype(values.dtype)
    if values.dtype.kind != "f":
        return bool((converted == values).all())
    # -0.0 equals 0.0, but integers have no sign for it.
    is_equal = np.array_equal(converted, values, equal_nan=True)
    return is_equal and np.array_equal(np.signbit(converted), np.signbit(values))


def all_finite(X: Any) -> bool:
    """Return whether X has neither NaN nor infinity."""
    if is_sparse(X):
        return all_finite(X.data)
    if isinstance(X, HStackedParts):
        return all(map(all_finite, X.parts))
    if not is_array(X):
        return True
    xp = namespace(X)
    if not xp.isdtype(X.dtype, "real floating"):
        return True
    # A finite sum proves it in one read without a mask; a sum may also overflow, so check then.
    with np.errstate(over="ignore", invalid="ignore"):
        if bool(xp.isfinite(xp.sum(X))):
            return True
    return bool(xp.all(xp.isfinite(X)))
