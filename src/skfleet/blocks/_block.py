"""What rows look like to the rest of the house: a Block, and RowBlocks made of many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from skfleet import _linalg
from skfleet._array import is_host
from skfleet._device import to_device
from skfleet.blocks._containers import (
    as_rows,
    as_vector,
    float_dtype,
    is_frame,
    n_rows_of,
    slice_rows,
)

# A piece of a block that is worked on at once: its working copies stay this small.
PIECE_BYTES = 4 * 2**20
# On a device few large kernels win, but small next to its memory.
DEVICE_PIECE_BYTES = 256 * 2**20
# Pieces of fewer rows multiply badly; for the sake of as many a piece may be larger, up to a limit.
FEWEST_ROWS, MOST_BYTES = 256, 12 * 2**20


class BlockCache(dict):
    """What passes remember of a block, beside it in memory, by the number of a piece's first row.

    They may be lost at any time: whoever keeps notes must do without them. Copies are empty.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockCache, ()


class Block(NamedTuple):
    """Aligned rows, all on one device.

    In a handle the fields may also be futures (of the parts), or X a future of, or a way to load,
    the whole block: `open_block` makes a block of arrays of any of them, and brings it from the
    host to the device of the process that opens it where `to_device` says so.
    """

    X: Any
    y: Any = None
    sample_weight: Any = None
    number: int = 0  # which block of the rows this is
    start: int | None = None  # global number of its first row, where known
    more: dict[str, Any] | None = None  # other values per row, by name
    notes: BlockCache | None = None  # where passes may keep something until the next one
    to_device: bool = False

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return n_rows_of(self.X)


@runtime_checkable
class LazyBlock(Protocol):
    """A block that is not in memory yet."""

    def load(self) -> Block:
        """Bring the block into this process's memory."""
        ...


@dataclass(frozen=True)
class RowBlocks:
    """Rows cut into blocks that one worker can hold.

    `lengths` are the blocks' numbers of rows, None where that is not known before a pass. `dtype`
    is what kernels compute in: float32 for float32 rows, float64 for all others, and None for rows
    that are handed on untouched. `checked` says that the driver has seen the values and found them
    finite. `n_bytes` estimates the rows' size in memory. `on_device` says that chunks of Dask's are
    made, or lie, on a device.
    """

    blocks: tuple[Block, ...]
    lengths: tuple[int, ...] | None
    n_features: int
    dtype: np.dtype | None
    checked: bool = True
    n_bytes: int | None = None
    on_dask: bool = False
    on_device: bool = False

    @property
    def n_rows(self) -> int | None:
        """The number of rows, None where not all lengths are known."""
        return None if self.lengths is None else sum(self.lengths)


def open_block(handle: Block) -> Block:
    """Make a block of a handle, loading it as needed."""
    X, y, weight, more = handle.X, handle.y, handle.sample_weight, handle.more
    notes = handle.notes
    if isinstance(X, LazyBlock):
        try:
            X = X.load()
        except Exception as error:
            error.add_note(f"While loading block {handle.number}.")
            raise
    if isinstance(X, Block):
        notes = notes if X.notes is None else X.notes
        X, y, weight, more = X.X, X.y, X.sample_weight, X.more
    n_rows = n_rows_of(X)
    for name, part in {"y": y, "sample_weight": weight, **(more or {})}.items():
        if part is not None and n_rows_of(part) != n_rows:
            raise ValueError(
                f"{name} must have as many rows as X in every block. Got {n_rows_of(part)} instead "
                f"of {n_rows} in block {handle.number}. Cut both alike, or make lengths known."
            )
    block = Block(X, y, weight, handle.number, handle.start, more, notes)
    return block_to_device(block) if handle.to_device else block


def block_to_device(block: Block) -> Block:
    """Bring the numbers of a block to this process's device; labels stay where they are."""
    X = block.X
    check_dense(X)
    return block._replace(
        X=to_device(as_rows(X, float_dtype(X)) if is_frame(X) else X),
        y=to_device(as_vector(block.y)),
        sample_weight=to_device(as_vector(block.sample_weight)),
        more=block.more and {name: to_device(v) for name, v in block.more.items()},
    )


def check_dense(X: Any) -> None:
    """Raise for rows that no device takes."""
    if _linalg.is_sparse(X):
        raise ValueError(
            "X must be dense to be on a GPU. Got a sparse matrix instead. "
            "Leave device at 'auto', or make X dense."
        )


def block_bytes(handle: Block) -> int:
    """Load a block and measure its X."""
    block = open_block(handle._replace(to_device=False))
    if not hasattr(block.X, "shape"):  # a list: as large as the first of it say
        first = block.X[:100]
        return block.n_rows * sum(map(getsizeof, first)) // max(1, len(first))
    return block.n_rows * _linalg.row_bytes(block.X)


def sample_blocks(rows: RowBlocks) -> list[Block]:
    """Return the blocks from which to guess the size of all: the first, a middle, the last one."""
    last = len(rows.blocks) - 1
    return [rows.blocks[i] for i in sorted({0, last // 2, last})]


def row_slices(block: Block, dtype: np.dtype | None) -> Iterator[Block]:
    """Cut a block into pieces whose working copies in dtype stay small; nothing is copied yet."""
    n_rows = block.n_rows
    if dtype is None:
        if n_rows:
            yield block
        return
    most = PIECE_BYTES if is_host(block.X) else DEVICE_PIECE_BYTES
    if _linalg.is_sparse(block.X):
        size = 2 * _linalg.row_bytes(block.X)
        # A piece of many columns makes results of as many, or several times as many.
        most = max(most, 32 * block.X.shape[1], min(1024 * block.X.shape[1], MOST_BYTES))
    else:
        size = dtype.itemsize * (block.X.shape[1] if len(block.X.shape) == 2 else 1)
        most = max(most, min(FEWEST_ROWS * size, MOST_BYTES))
    step = max(1, most // max(size, 1))
    for low in range(0, n_rows, step):
        high = min(low + step, n_rows)
        yield rows_between(block, low, high)


def rows_between(block: Block, low: int, high: int) -> Block:
    """Return a run of a block's rows, without a copy where the container can."""
    return Block(
        slice_rows(block.X, low, high),
        slice_rows(block.y, low, high),
        slice_rows(block.sample_weight, low, high),
        block.number,
        None if block.start is None else block.start + low,
        notes=block.notes,
    )


def as_numeric(block: Block, dtype: np.dtype | None) -> Block:
    """Convert a block (or a piece) to what kernels compute on: matrices of dtype."""
    if dtype is None:
        return block
    return block._replace(
        X=as_rows(block.X, dtype),
        y=as_vector(block.y),
        sample_weight=as_vector(block.sample_weight),
    )
