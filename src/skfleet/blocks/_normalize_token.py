"""Tokens of the content of rows and arrays, independent of their layout in memory."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from skfleet._array import is_not_numpy, to_host
from skfleet._linalg import is_sparse
from skfleet.blocks._containers import _is_pandas, is_frame

if TYPE_CHECKING:
    import pandas as pd
    from scipy import sparse

    from skfleet._dask_private import AnyExpr

# Arrays that are not in C order are copied and hashed in pieces of this size.
_PIECE_BYTES = 2**24
# Operands of Dask expressions that do not define the value: caches of file metadata, and the graph
# of persisted partitions, which have keys.
_CACHES = frozenset(["_dataset_info_cache", "_pq_length_stats", "layer"])


def normalize_token(x: Any) -> tuple[Any, ...] | None:
    """Return values that are equal for equal containers; None for other objects.

    A Dask collection is represented by its token, or by its expression, and not computed. Object
    arrays are represented by their elements.
    """
    kind = type(x)
    if hasattr(kind, "__dask_tokenize__") and hasattr(kind, "expr"):
        return "collection", x.expr
    if hasattr(kind, "__dask_tokenize__") and hasattr(kind, "_parameters"):
        return "expression", kind.__name__, *_operands(x)
    if hasattr(kind, "__dask_tokenize__"):
        return "collection", x.__dask_tokenize__()
    if isinstance(x, np.generic):
        return "scalar", x.dtype.str, x.tobytes()
    if kind in (np.ndarray, np.memmap):
        return "array", x.shape, *_values(x)
    if is_not_numpy(x):
        return f"array of {kind.__module__}", to_host(x)
    if is_sparse(x):
        return "sparse", kind.__name__, x.shape, *_sparse_values(x)
    if is_frame(x) or (_is_pandas(x) and hasattr(x, "to_frame")):
        return _frame_content(x.to_pandas() if hasattr(x, "to_pandas") else x)
    return None


def _operands(x: AnyExpr) -> tuple[object, ...]:
    """Return the operands of a Dask expression, and the checksum of the files that it reads.

    The token of a Parquet reader includes cached file metadata, which differs from process to
    process (dask 2026.8.0), so it cannot be used.
    """
    n_params = len(x._parameters)
    params = dict(zip(x._parameters, x.operands, strict=False))
    files = x.checksum if hasattr(type(x), "checksum") else None
    return files, {k: v for k, v in params.items() if k not in _CACHES}, x.operands[n_params:]


def _values(x: np.ndarray) -> tuple[str, bytes | list[object]]:
    """Return the dtype of an array, and a digest of its values in C order."""
    kind = str(x.dtype.descr) if x.dtype.names else x.dtype.str
    if x.dtype.hasobject or x.dtype.kind == "T":  # the bytes are addresses
        return kind, x.reshape(-1).tolist()
    digest = hashlib.blake2b(digest_size=16)
    if x.nbytes:
        x = x.reshape(1) if x.ndim == 0 else x
        step = len(x) if x.flags.c_contiguous else max(1, _PIECE_BYTES * len(x) // x.nbytes)
        for low in range(0, len(x), step):
            part = np.ascontiguousarray(x[low : low + step])
            digest.update(part.reshape(-1).view(np.uint8).data)
    return kind, digest.digest()


def _sparse_values(x: sparse.sparray | sparse.spmatrix) -> tuple[np.ndarray, ...]:
    """Return the rows of a sparse matrix, each in the order of its columns."""
    rows = x.tocsr()
    rows = rows if rows.has_sorted_indices else rows.sorted_indices()
    # equal matrices may have indices of 32 or 64 bits
    positions = (part.astype(np.int64, copy=False) for part in (rows.indptr, rows.indices))
    return *positions, rows.data


def _frame_content(x: Any) -> tuple[object, ...]:
    """Return names, dtypes and values by column of a frame, a series or an index."""
    from pandas.util import hash_pandas_object

    def values_of(column: pd.Series) -> object:
        if column.dtype == object:
            return column.tolist()
        return hash_pandas_object(column, index=False).to_numpy()

    def columns_of(frame: pd.DataFrame) -> list[tuple[object, object]]:
        columns = (frame.iloc[:, i] for i in range(frame.shape[1]))
        return [(column.dtype, values_of(column)) for column in columns]

    index = getattr(x, "index", x)
    content = type(x).__name__, list(index.names), columns_of(index.to_frame(index=False))
    if index is x:
        return content
    frame = x if x.ndim == 2 else x.to_frame()
    names = x.name if x.ndim == 1 else (list(x.columns), list(x.columns.names))
    return *content, names, columns_of(frame)
