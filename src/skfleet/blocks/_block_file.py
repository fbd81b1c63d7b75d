"""Blocks in files, from which they are mapped: what is written of a block, and joblib's format."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import joblib
import numpy as np

from skfleet import _linalg
from skfleet.blocks._block import Block, as_numeric


class BlockFile(NamedTuple):
    """A block on the disk of this machine: loading it maps its arrays, to be read only."""

    path: str
    n_bytes: int

    @property
    def is_cached(self) -> bool:
        """Whether it comes from the disk, and not from where its rows do."""
        return True

    def load(self) -> Block:
        """Map the block; what the arrays hold is read where it is used."""
        return Block(*map(_plain, joblib.load(self.path, mmap_mode="r")))


def write_block(block: Block, path: str) -> BlockFile:
    """Write a block to a new file: through write(), so that a full disk raises an OSError."""
    joblib.dump(tuple(block._replace(notes=None)), path)
    return BlockFile(path, os.path.getsize(path))


def compact(block: Block, dtype: np.dtype | None) -> Block:
    """Return what to write of a block: numbers of dtype, or their own type where that is smaller.

    With those of their own a pass does what it does with a block that it has loaded.
    """
    X = block.X
    narrow = (
        dtype is not None
        and isinstance(X, np.ndarray)
        and X.dtype.kind in "biuf"
        and X.dtype.itemsize < dtype.itemsize
    )
    converted = as_numeric(block, dtype)
    return converted._replace(X=X) if narrow else converted


def size_of(block: Block) -> int:
    """Return about how many bytes the rows of a block, and their other values, take in a file."""
    values = [block.X, block.y, block.sample_weight, *(block.more or {}).values()]
    return sum(_n_bytes(part) for part in values if part is not None)


def _n_bytes(values: Any) -> int:
    """Return about how large values are."""
    if not hasattr(values, "shape"):
        return 8 * len(values)
    return int(values.shape[0]) * _linalg.row_bytes(values)


def _plain(value: Any) -> Any:
    """Return a mapped array as one of NumPy's own class, which is what is made of it too."""
    if isinstance(value, np.memmap):
        return np.asarray(value)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if _linalg.is_sparse(value):
        value.data, value.indices, value.indptr = map(
            np.asarray, (value.data, value.indices, value.indptr)
        )
    return value
