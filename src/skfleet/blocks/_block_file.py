"""Blocks in memory-mapped files of joblib's format."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import joblib
import numpy as np

from skfleet import _linalg
from skfleet._typing import Rows
from skfleet.blocks._block import Block, as_numeric


class BlockFile(NamedTuple):
    """A block in a local file, which is loaded as read-only memory-mapped arrays."""

    path: str
    n_bytes: int

    @property
    def is_cached(self) -> bool:
        """True, as lazy blocks that are in no file load the original rows."""
        return True

    def load(self) -> Block:
        """Return the block, whose arrays are read from the file on access."""
        return Block(*map(_plain, joblib.load(self.path, mmap_mode="r")))


def write_block(block: Block, path: str) -> BlockFile:
    """Write a block to a new file; a full disk raises an OSError."""
    joblib.dump(tuple(block._replace(cache=None)), path)
    return BlockFile(path, os.path.getsize(path))


def compact(block: Block, dtype: np.dtype | None) -> Block:
    """Return a block to write: numbers in dtype, or X in its own dtype where that is smaller.

    A pass converts X again in the second case, as it does for a block from the original rows. A
    matrix is in C order, which frames give none: what reads rows would copy them in every pass.
    """
    X = block.X
    is_narrower = (
        dtype is not None
        and isinstance(X, np.ndarray)
        and X.dtype.kind in "biuf"
        and X.dtype.itemsize < dtype.itemsize
    )
    converted = as_numeric(block, dtype)
    converted = converted._replace(X=X) if is_narrower else converted
    is_matrix = isinstance(converted.X, np.ndarray) and converted.X.ndim == 2
    return converted._replace(X=np.ascontiguousarray(converted.X)) if is_matrix else converted


def size_of(block: Block) -> int:
    """Return an estimate of the size of a block's file, in bytes."""
    values = [block.X, block.y, block.sample_weight, *(block.per_sample or {}).values()]
    return sum(_n_bytes(part) for part in values if part is not None)


def _n_bytes(values: Rows) -> int:
    if not hasattr(values, "shape"):
        return 8 * len(values)
    return int(values.shape[0]) * _linalg.row_bytes(values)


def _plain(value: Any) -> Any:
    """Return memory-mapped arrays as plain ndarrays, so that results are plain too."""
    if isinstance(value, np.memmap):
        return np.asarray(value)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if _linalg.is_sparse(value):
        value.data, value.indices, value.indptr = map(
            np.asarray, (value.data, value.indices, value.indptr)
        )
    return value
