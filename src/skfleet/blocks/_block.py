"""Aligned rows (`Block`), references to them (`BlockRef`), and partitioned data (`RowBlocks`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from sys import getsizeof
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np

from skfleet import _linalg
from skfleet._array import in_row_order, is_host, is_not_numpy
from skfleet._config import get_config
from skfleet._device import device_memory_available, to_device
from skfleet.blocks._containers import (
    as_matrix,
    as_vector,
    float_dtype,
    is_frame,
    n_rows_of,
    slice_rows,
    with_pandas_text,
)
from skfleet.blocks._dask_scheduler import thread_memory

# Size of the working copies of one piece of a block: on the host one that caches hold; on a device,
# where few large kernels are faster, one that is small next to its memory.
PIECE_BYTES, DEVICE_PIECE_BYTES = 4 * 2**20, 256 * 2**20
# Matrix products of fewer rows are slow, so wide rows have larger pieces, up to a limit.
MIN_PIECE_ROWS, MAX_PIECE_BYTES = 256, 12 * 2**20
# SciPy takes as long for a small product as for a thousand rows, so sparse rows have larger ones.
SPARSE_PIECE_BYTES = 32 * 2**20


# Bytes of 100 values of a sparse row, with their columns: more are not expected.
SPARSE_ROW_BYTES = 1200
# Sizes of blocks of rows that are read from Parquet files, by default. Up to the medium size they
# are a part of the memory of a worker's thread, less what a pass takes with the smallest ones: one
# is decoded while the arrays that were made of the one before it are worked on. Larger ones, for
# which threads wait less for one another, are a smaller part of it.
MIN_FILE_BLOCK_BYTES, MEDIUM_FILE_BLOCK_BYTES, MAX_FILE_BLOCK_BYTES = 2 * 2**20, 2**24, 2**27
PART_OF_MEDIUM, PART_OF_LARGE, PASS_BYTES = 1 / 24, 1 / 64, 100e6


def file_block_bytes() -> int:
    """Return the size of the blocks in which large files are read, by config or workers' memory."""
    block_bytes: Any = get_config().block_bytes
    if block_bytes != "auto":
        return int(block_bytes)
    memory = thread_memory() - PASS_BYTES
    medium = min(memory * PART_OF_MEDIUM, MEDIUM_FILE_BLOCK_BYTES)
    large = min(memory * PART_OF_LARGE, MAX_FILE_BLOCK_BYTES)
    return int(max(MIN_FILE_BLOCK_BYTES, medium, large))


class BlockCache(dict):
    """Results of a pass over a block for the next one, by the number of a piece's first row.

    The cache is in memory beside the block, and may be lost at any time. Copies of it are empty.
    """

    def __reduce__(self) -> tuple[type[BlockCache], tuple[()]]:
        return BlockCache, ()


class BlockRef(NamedTuple):
    """Reference to a block, which `open_block` returns.

    Parameters
    ----------
    X : rows, future of rows or of a Block, or LazyBlock
        The rows, or the whole block with all that comes with them.
    y : values per row or a future, default=None
        Targets.
    sample_weight : values per row or a future, default=None
        Weights.
    number : int, default=0
        Position of the block among all blocks.
    row_offset : int, default=None
        Number of the first row among all rows, where it is known.
    per_sample : dict of values per row, default=None
        Other parameters per sample, by name.
    cache : BlockCache, default=None
        Results of a pass for the next one.
    to_device : bool, default=False
        Whether the block is copied to the device of the process that opens it.
    """

    X: Any
    y: Any = None
    sample_weight: Any = None
    number: int = 0
    row_offset: int | None = None
    per_sample: dict[str, Any] | None = None
    cache: BlockCache | None = None
    to_device: bool = False


class Block(BlockRef):
    """Aligned rows in memory, all on one device: a reference whose fields are arrays."""

    __slots__ = ()

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return n_rows_of(self.X)


@runtime_checkable
class LazyBlock(Protocol):
    """A block that is not in memory yet."""

    def load(self) -> Block:
        """Return the block in the memory of this process."""


def is_lazy_block(x: Any) -> TypeGuard[LazyBlock]:
    """Return whether x is a block that is not in memory; an array is told at once."""
    return not isinstance(x, np.ndarray) and isinstance(x, LazyBlock)


@dataclass(frozen=True)
class RowBlocks:
    """Rows cut into blocks that one worker can hold.

    Parameters
    ----------
    blocks : tuple of BlockRef
        References to the blocks, in the order of the rows.
    lengths : tuple of int or None
        Numbers of rows of the blocks; None where they take a pass to count.
    n_features : int
        Number of columns.
    dtype : numpy.dtype or None
        What kernels compute in: float32 for float32 rows, float64 for all others; None for rows
        that are not converted.
    checked : bool, default=True
        Whether the driver has checked that the values are finite.
    n_bytes : int, default=None
        Estimate of the size of the rows in memory.
    on_dask : bool, default=False
        Whether the rows are a Dask collection.
    on_device : bool, default=False
        Whether the rows are Dask chunks on a device.
    is_sparse : bool, default=False
        Whether the rows are a sparse matrix, or Dask chunks of sparse matrices.
    """

    blocks: tuple[BlockRef, ...]
    lengths: tuple[int, ...] | None
    n_features: int
    dtype: np.dtype | None
    checked: bool = True
    n_bytes: int | None = None
    on_dask: bool = False
    on_device: bool = False
    is_sparse: bool = False

    @property
    def n_rows(self) -> int | None:
        """The number of rows, None where not all lengths are known."""
        return None if self.lengths is None else sum(self.lengths)

    @property
    def row_bytes(self) -> int:
        """An estimate of the bytes of a row's numbers."""
        dense = 8 * self.n_features
        return min(dense, SPARSE_ROW_BYTES) if self.is_sparse else dense

    def with_lengths(self, lengths: Sequence[int]) -> RowBlocks:
        """Return the rows with the lengths of blocks, and the number of each block's first row."""
        starts = accumulate(lengths, initial=0)
        blocks = (b._replace(row_offset=s) for b, s in zip(self.blocks, starts, strict=False))
        return replace(self, blocks=tuple(blocks), lengths=tuple(lengths))


def open_block(block_ref: BlockRef) -> Block:
    """Return the block of a reference, loaded if needed and aligned; text has NaN for gaps."""
    X, y, weight, number, row_offset, per_sample, cache, _ = block_ref
    if is_lazy_block(X):
        try:
            X = X.load()
        except Exception as error:
            error.add_note(f"While loading block {number}.")
            raise
    # X may be a whole block: one loaded just now, or the result of the task that loaded it.
    if isinstance(X, Block):
        cache = cache if X.cache is None else X.cache
        X, y, weight, per_sample = X.X, X.y, X.sample_weight, X.per_sample
    n_rows = n_rows_of(X)
    for name, part in {"y": y, "sample_weight": weight, **(per_sample or {})}.items():
        if part is not None and n_rows_of(part) != n_rows:
            raise ValueError(
                f"{name} must have as many rows as X in every block. Got {n_rows_of(part)} instead "
                f"of {n_rows} in block {number}. Cut both alike, or make lengths known."
            )
    X = rows_in_order(with_pandas_text(X))
    block = Block(X, y, weight, number, row_offset, per_sample, cache)
    return block_to_device(block) if block_ref.to_device else block


def rows_in_order(X: Any) -> Any:
    """Return a matrix on a device with its rows one after the other, where there is room for it."""
    has_room = not is_not_numpy(X) or device_memory_available() > n_rows_of(X) * _linalg.row_bytes(
        X
    )
    return in_row_order(X) if has_room else X


def block_to_device(block: Block) -> Block:
    """Return a block with its numbers on this process's device; labels remain on the host."""
    X, per_sample = block.X, block.per_sample
    check_dense(X)
    return block._replace(
        X=to_device(as_matrix(X, float_dtype(X)) if is_frame(X) else X),
        y=to_device(as_vector(block.y)),
        sample_weight=to_device(as_vector(block.sample_weight)),
        per_sample=per_sample and {name: to_device(v) for name, v in per_sample.items()},
    )


def check_dense(X: object) -> None:
    """Raise for sparse rows, which have no kernels on a device."""
    if _linalg.is_sparse(X):
        raise ValueError(
            "X must be dense to be on a GPU. Got a sparse matrix instead. "
            "Leave device at 'auto', or make X dense."
        )


def block_bytes(block_ref: BlockRef) -> int:
    """Return the size of X of a block, which is loaded for it."""
    block = open_block(block_ref._replace(to_device=False))
    if not hasattr(block.X, "shape"):  # a list: estimate from its first elements
        first = block.X[:100]
        return block.n_rows * sum(map(getsizeof, first)) // max(1, len(first))
    return block.n_rows * _linalg.row_bytes(block.X)


def file_sizes(blocks: Sequence[BlockRef]) -> list[float] | None:
    """Return about the bytes of blocks of numbers that are read from files; None for others."""
    sizes = [getattr(block.X, "n_bytes", None) for block in blocks]
    known = [size for size in sizes if size is not None]
    return known if len(known) == len(sizes) else None


def sample_blocks(rows: RowBlocks) -> list[BlockRef]:
    """Return the first, the middle and the last block, to estimate the size of all."""
    last = len(rows.blocks) - 1
    return [rows.blocks[i] for i in sorted({0, last // 2, last})]


def row_slices(
    block: Block, dtype: np.dtype | None, piece_bytes: int | None = None, n_pieces: int = 1
) -> Iterator[Block]:
    """Yield views of consecutive rows of a block, whose copies in dtype fit into a cache.

    On the host they have `piece_bytes`, where that is another size. Sparse rows have larger ones,
    but for a block of fewer than `n_pieces` of them.
    """
    n_rows = block.n_rows
    if dtype is None:
        if n_rows:
            yield block
        return
    n_bytes = (piece_bytes or PIECE_BYTES) if is_host(block.X) else DEVICE_PIECE_BYTES
    if _linalg.is_sparse(block.X):
        row_bytes, n_columns = 2 * _linalg.row_bytes(block.X), block.X.shape[1]
        # Each piece has a dense result of one or several values a column, which must not dominate.
        n_bytes = max(n_bytes, 32 * n_columns, min(1024 * n_columns, MAX_PIECE_BYTES))
        if piece_bytes is None:
            n_bytes = max(n_bytes, min(n_rows * row_bytes // n_pieces, SPARSE_PIECE_BYTES))
    else:
        row_bytes = dtype.itemsize * (block.X.shape[1] if len(block.X.shape) == 2 else 1)
        n_bytes = max(n_bytes, min(MIN_PIECE_ROWS * row_bytes, MAX_PIECE_BYTES))
    # A single row may be larger than a piece, and an empty one has no bytes.
    step = max(1, n_bytes // max(row_bytes, 1))
    for low in range(0, n_rows, step):
        yield slice_block(block, low, min(low + step, n_rows))


def slice_block(block: Block, low: int, high: int) -> Block:
    """Return consecutive rows of a block, as views where the containers allow."""
    return Block(
        slice_rows(block.X, low, high),
        slice_rows(block.y, low, high),
        slice_rows(block.sample_weight, low, high),
        block.number,
        None if block.row_offset is None else block.row_offset + low,
        cache=block.cache,
    )


def as_numeric(block: Block, dtype: np.dtype | None) -> Block:
    """Return a block, or a piece of one, as the arrays of dtype that kernels compute on."""
    if dtype is None:
        return block
    return block._replace(
        X=as_matrix(block.X, dtype),
        y=as_vector(block.y),
        sample_weight=as_vector(block.sample_weight),
    )


def by_partition(blocks: Sequence[BlockRef]) -> list[list[BlockRef]]:
    """Group blocks that are pieces of a partition, which is then read once; others are alone."""
    groups: list[list[BlockRef]] = []
    previous = None
    for block in blocks:
        partition = getattr(block.X, "partition", None)
        if partition is None or partition != previous:
            groups.append([])
        groups[-1].append(block)
        previous = partition
    return groups
