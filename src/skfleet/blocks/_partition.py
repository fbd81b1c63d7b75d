"""How rows of any container become blocks: the way in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from skfleet import _linalg
from skfleet._array import is_not_numpy
from skfleet._config import get_config
from skfleet._device import device_memory_available
from skfleet.blocks._block import Block, RowBlocks, check_dense
from skfleet.blocks._containers import local_blocks, n_rows_of
from skfleet.blocks._lazy import compute_together, is_lazy
from skfleet.blocks._per_sample_params import check_per_row

# How large the blocks are into which rows of this process are cut for a cluster: on a device, few
# large kernels win.
HOST_BYTES = 64 * 2**20
DEVICE_BYTES = 2**30
# Rows that a device does not hold are loaded in blocks of such a share of it: while one is worked
# on, the next one is loaded, and the one before may not be gone.
DEVICE_SHARE = 8


def row_blocks(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    more: dict[str, Any] | None = None,
    dtype: Any = "float",
    cuts: Any = None,
) -> RowBlocks:
    """Cut X, and y, sample_weight and more along with it, into blocks.

    Parameters
    ----------
    X : array, sparse matrix, frame, Dask array or Dask DataFrame with n_samples rows
    y, sample_weight : the same for one or more values a row, however they are cut themselves
    more : dict of str to the same, default=None
    dtype : "float" or None, default="float"
        "float" makes numeric matrices of frames and computes in X's own float type; None leaves
        every row as it is.
    cuts : sequence of int or None, default=None
        Numbers of rows of the blocks, for rows in this process; by default one block, or, where the
        device does not hold them all, as many as it takes.
    """
    X, y, sample_weight, more = check_per_row(X, y, sample_weight, more or {})
    distribute_local = get_config().engine == "dask" and dtype is not None
    to_device = get_config().device == "cuda" and dtype is not None
    if distribute_local or is_lazy(X):
        from skfleet.blocks._dask_collections import dask_blocks, from_local

        if not is_lazy(X):
            X = from_local(X, DEVICE_BYTES if to_device else HOST_BYTES)
        rows = dask_blocks(X, y, sample_weight, more, dtype=dtype)
        if to_device:
            check_dense(getattr(X, "_meta", None))
            blocks = tuple(block._replace(to_device=True) for block in rows.blocks)
            rows = replace(rows, blocks=blocks)
        return rows
    y, sample_weight, *values = compute_together(y, sample_weight, *more.values())
    more = dict(zip(more, values, strict=True))
    if to_device:
        check_dense(X)
        cuts = _block_sizes_for_device(X) if cuts is None else cuts
    parts, lengths, n_features, kind = local_blocks(
        X, y, sample_weight, more, dtype=dtype, cuts=cuts
    )
    starts = np.concatenate([[0], np.cumsum(lengths)])
    blocks = tuple(
        Block(
            *part,
            number=i,
            start=int(starts[i]),
            more=others or None,
            to_device=to_device and not is_not_numpy(part[0]),
        )
        for i, (part, others) in enumerate(parts)
    )
    n_bytes = None
    if kind is not None:
        n_bytes = sum(n * _linalg.row_bytes(b.X) for n, b in zip(lengths, blocks, strict=True))
    return RowBlocks(blocks, tuple(lengths), n_features, kind, n_bytes=n_bytes)


def _block_sizes_for_device(X: Any) -> list[int] | None:
    """Return how to cut rows that a device is to work on but cannot hold; None where it can."""
    n_rows = n_rows_of(X)
    n_bytes, room = n_rows * _linalg.row_bytes(X), device_memory_available()
    if is_not_numpy(X) or 2 * n_bytes <= room:
        return None
    n_blocks = min(n_rows, -(-n_bytes // max(1, min(DEVICE_BYTES, room // DEVICE_SHARE))))
    return np.diff(np.linspace(0, n_rows, n_blocks + 1).astype(int)).tolist()
