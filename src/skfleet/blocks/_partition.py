"""Partition of X, y and sample_weight of any container into aligned blocks (`row_blocks`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from skfleet import _linalg
from skfleet._array import is_not_numpy
from skfleet._config import get_config
from skfleet._device import device_memory_available
from skfleet._typing import Rows, Values
from skfleet.blocks._block import Block, RowBlocks, check_dense, file_block_bytes, rows_in_order
from skfleet.blocks._containers import local_blocks, n_rows_of
from skfleet.blocks._lazy import compute_together, is_lazy
from skfleet.blocks._per_sample_params import check_per_row

# Sizes of blocks of rows that are distributed from this process, on workers' hosts and devices.
HOST_BLOCK_BYTES, DEVICE_BLOCK_BYTES = 64 * 2**20, 2**30
# Rows that do not fit a device are loaded in blocks of at most 1/8 of its free memory: while one is
# processed the next one is loaded, and the one before may not be freed yet.
MIN_BLOCKS_PER_DEVICE = 8


def row_blocks(
    X: Rows,
    y: Values | None = None,
    sample_weight: Values | None = None,
    *,
    per_sample: Mapping[str, Values] | None = None,
    dtype: Literal["float"] | None = "float",
    block_sizes: Iterable[int] | None = None,
    in_partitions: bool = False,
) -> RowBlocks:
    """Partition X, and y, sample_weight and per_sample in the same way, into blocks.

    Parameters
    ----------
    X : array, sparse matrix, frame, list or Dask collection
        The rows.
    y, sample_weight : values per row, default=None
        Dask collections may be in other partitions than X.
    per_sample : dict of values per row, default=None
        Other parameters per sample, by name.
    dtype : {"float", None}, default="float"
        ``"float"`` converts frames to numeric matrices, and computes in the float type of X. None
        does not convert the rows.
    block_sizes : iterable of int, default=None
        Numbers of rows of the blocks of rows in this process. By default there is one block, or as
        many as needed where the device does not hold all rows.
    in_partitions : bool, default=False
        Whether each partition is one block. By default a large partition of Parquet files is
        several blocks.

    Returns
    -------
    RowBlocks
        References to the blocks, and what is known of all rows.
    """
    X, y, sample_weight, per_sample = check_per_row(X, y, sample_weight, per_sample or {})
    # Where the rows go is decided once, here: to the cluster, to this process, to a device.
    distribute_local = get_config().engine == "dask" and dtype is not None
    to_device = get_config().device == "cuda" and dtype is not None
    if distribute_local or is_lazy(X):
        from skfleet.blocks._dask_collections import dask_blocks, from_local

        if not is_lazy(X):
            X = from_local(X, DEVICE_BLOCK_BYTES if to_device else HOST_BLOCK_BYTES)
        # On the cluster. Blocks say themselves that they are to be moved, when a worker opens them.
        piece_bytes = None if in_partitions else file_block_bytes()
        rows = dask_blocks(X, y, sample_weight, per_sample, dtype=dtype, piece_bytes=piece_bytes)
        if to_device:
            check_dense(getattr(X, "_meta", None))
            rows = replace(rows, blocks=tuple(b._replace(to_device=True) for b in rows.blocks))
        return rows
    if dtype is not None:
        X = rows_in_order(X)  # once, and not in every pass
    # X is in this process, so what comes with it is brought here, in one computation.
    y, sample_weight, *values = compute_together(y, sample_weight, *per_sample.values())
    per_sample = dict(zip(per_sample, values, strict=True))
    # In this process: one block, or as many as a device needs.
    if to_device:
        check_dense(X)
        block_sizes = _block_sizes_for_device(X) if block_sizes is None else block_sizes
    parts, lengths, n_features, kind = local_blocks(
        X, y, sample_weight, per_sample, dtype=dtype, block_sizes=block_sizes
    )
    # Rows are drawn by their numbers, so that an answer does not depend on the partitions.
    starts = np.concatenate([[0], np.cumsum(lengths)])
    blocks = tuple(
        Block(
            *part,
            number=i,
            row_offset=int(starts[i]),
            per_sample=params or None,
            to_device=to_device and not is_not_numpy(part[0]),
        )
        for i, (part, params) in enumerate(parts)
    )
    # Without conversion the width of values is not known.
    n_bytes = None
    if kind is not None:
        n_bytes = sum(n * _linalg.row_bytes(b.X) for n, b in zip(lengths, blocks, strict=True))
    return RowBlocks(
        blocks, tuple(lengths), n_features, kind, n_bytes=n_bytes, is_sparse=_linalg.is_sparse(X)
    )


def _block_sizes_for_device(X: Rows) -> list[int] | None:
    """Return the sizes of blocks of rows that do not fit the device; None where they do."""
    n_rows = n_rows_of(X)
    n_bytes, memory = n_rows * _linalg.row_bytes(X), device_memory_available()
    # Twice, for what a pass makes of the rows beside them.
    if is_not_numpy(X) or 2 * n_bytes <= memory:
        return None
    block_bytes = max(1, min(DEVICE_BLOCK_BYTES, memory // MIN_BLOCKS_PER_DEVICE))
    n_blocks = min(n_rows, -(-n_bytes // block_bytes))
    return np.diff(np.linspace(0, n_rows, n_blocks + 1).astype(int)).tolist()
