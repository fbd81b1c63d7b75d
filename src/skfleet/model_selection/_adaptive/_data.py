"""The data of an adaptive search: placement on the fleet, the holdout, and the order of batches."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import train_test_split

from skfleet.blocks import (
    Block,
    BlockRef,
    RowBlocks,
    block_bytes,
    concat_rows,
    open_block,
    take_block_rows,
)
from skfleet.engine import Engine, Holdout, draw_holdout, open_scattered, with_row_offsets

# Local data are scattered in blocks of so many rows; rows are shuffled within a block only.
MAX_BLOCK_ROWS = 100_000
DEFAULT_BATCH_ROWS = 10_000
# Fractions of a worker's memory: of all rows, where each worker holds them all; of the holdout,
# whose blocks are concatenated and so take twice as much for a moment; and of one block, where
# each worker holds a part of the rows.
MAX_DATA_FRACTION = 0.4
MAX_TEST_FRACTION = 0.1
MAX_BLOCK_FRACTION = 0.03


class BatchSpec(NamedTuple):
    """One batch: the rows from fraction `low` to `high` of a block in the order of an epoch."""

    block: int
    epoch: int
    low: float
    high: float


@dataclass(frozen=True)
class BatchOrder:
    """Batch of each call of ``partial_fit``: every batch once per epoch, shuffled anew.

    The order depends on the seed alone, so it is the same for all candidates.
    """

    seed: int
    n_batches: tuple[int, ...]  # per block

    def __len__(self) -> int:
        return sum(self.n_batches)

    def __getitem__(self, call: int) -> BatchSpec:
        """Return the batch of a call; calls are counted from 0."""
        epoch, i = divmod(call, len(self))
        block, part = _batch_order(self.seed, epoch, self.n_batches)[i]
        n = self.n_batches[block]
        return BatchSpec(block, epoch, part / n, (part + 1) / n)

    def blocks_of(self, calls: range) -> list[int]:
        """Return the sorted numbers of the blocks that calls need."""
        return sorted({self[call].block for call in calls})


@lru_cache(maxsize=64)
def _batch_order(seed: int, epoch: int, n_batches: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the (block, part) pairs of all batches in the order of an epoch."""
    batches = [(block, part) for block, n in enumerate(n_batches) for part in range(n)]
    order = np.random.default_rng([seed, epoch]).permutation(len(batches))
    return [batches[i] for i in order]


@dataclass(frozen=True)
class PlacedData:
    """References to training and test rows on an engine.

    Where `holdout` is not None, `blocks` contain the test rows too, and a batch masks them out.
    `test` has one block, unless the test rows are too large for one worker.
    """

    blocks: tuple[BlockRef, ...]
    batches: BatchOrder
    test: tuple[BlockRef, ...]
    n_train: int
    n_test: int
    holdout: Holdout | None = None
    is_replicated: bool = True  # every worker can hold all rows
    scattered: tuple[Any, ...] = ()
    joined: tuple[BlockRef, ...] = ()  # blocks that are tasks of the search

    @property
    def owned(self) -> tuple[Any, ...]:
        """Objects on the engine that belong to the search and are released with it."""
        return self.scattered or tuple(ref.X for ref in (*self.test, *self.joined))


def place_data(
    engine: Engine,
    rows: RowBlocks,
    y: Any,
    *,
    test_size: float | int | None,
    stratify: bool,
    batch_size: int | None,
    seed: int,
) -> PlacedData:
    """Split off a holdout, and place training and test rows on the engine."""
    if rows.on_dask:
        rows = with_row_offsets(engine, rows)
        # an out-of-core pass reads y alone, without loading the rows
        labels = (y if engine.is_out_of_core(rows) else "rows") if stratify else None
        holdout = draw_holdout(engine, rows, _size_of(test_size), seed, labels)
        return _place_blocks(engine, rows, holdout, batch_size, seed)
    return _place_local(engine, Block(*rows.blocks[0]), test_size, stratify, batch_size, seed)


def _size_of(test_size: float | int | None) -> float:
    return 0.15 if test_size is None else test_size


def _place_local(
    engine: Engine,
    block: Block,
    test_size: float | int | None,
    stratify: bool,
    batch_size: int | None,
    seed: int,
) -> PlacedData:
    """Scatter rows of this process, shuffled, in blocks."""
    train, test = split_holdout(block, test_size, stratify, seed)
    n_bytes = block_bytes(block)
    is_replicated = engine.is_local or n_bytes <= MAX_DATA_FRACTION * engine.memory_limit
    max_rows = MAX_BLOCK_ROWS
    if not is_replicated:
        max_rows = max(1, int(MAX_BLOCK_FRACTION * engine.memory_limit * block.n_rows / n_bytes))
    n_blocks = -(-len(train) // max_rows)
    blocks = np.array_split(train, n_blocks)
    n_batches = tuple(-(-len(part) // (batch_size or DEFAULT_BATCH_ROWS)) for part in blocks)
    n_parts = 1
    if not engine.is_local:
        test_bytes = n_bytes * len(test) / block.n_rows
        n_parts = min(len(test), math.ceil(test_bytes / (MAX_TEST_FRACTION * engine.memory_limit)))
    parts = [*blocks, *np.array_split(test, max(1, n_parts))]
    scattered = tuple(engine.scatter(take_block_rows(block, part)) for part in parts)
    block_refs = [BlockRef(rows, number=i) for i, rows in enumerate(scattered)]
    return PlacedData(
        tuple(block_refs[:n_blocks]),
        BatchOrder(seed, n_batches),
        tuple(block_refs[n_blocks:]),
        len(train),
        len(test),
        is_replicated=is_replicated,
        scattered=scattered,
    )


def split_holdout(
    block: Block, test_size: float | int | None, stratify: bool, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of training and test rows, stratified where the classes permit it."""
    indices = np.arange(block.n_rows)
    options = {"test_size": _size_of(test_size), "random_state": seed}
    if stratify:
        y = np.asarray(block.y)
        with suppress(ValueError):  # a class of one row, or more classes than test rows
            return tuple(train_test_split(indices, stratify=y, **options))
    return tuple(train_test_split(indices, **options))


def _place_blocks(
    engine: Engine, rows: RowBlocks, holdout: Holdout, batch_size: int | None, seed: int
) -> PlacedData:
    """Copy the test rows out of every block of a Dask collection; training rows stay in place."""
    n_bytes = rows.n_bytes
    parts = engine.map(_split_off_holdout, rows.blocks, holdout, name="set-test-rows-aside")
    sizes = engine.gather([engine.submit(_part_sizes, part, name="count-rows") for part in parts])
    lengths = [n_train for n_train, _, _ in sizes]
    n_test = sum(n for _, n, _ in sizes)
    test_bytes = sum(n for _, _, n in sizes)
    # The size of frames is not known: test rows stand for all of them.
    if n_bytes is None:
        n_bytes = int(test_bytes * (sum(lengths) + n_test) / max(1, n_test))
    # One block if a worker can hold it beside other rows; else the parts are scored in turn.
    if test_bytes <= MAX_TEST_FRACTION * engine.memory_limit:
        joined = engine.submit(_concat_holdouts, parts, name="join-test-rows")
        test: tuple[BlockRef, ...] = (BlockRef(joined),)
    else:
        test = tuple(
            BlockRef(engine.submit(_holdout_rows, part, name="test-rows"), number=i)
            for i, part in enumerate(parts)
        )
    nonempty = [i for i, n in enumerate(lengths) if n]
    if not nonempty or not n_test:
        raise ValueError(
            f"X must have rows to learn and rows to score on. Got {sum(lengths)} and {n_test} "
            "instead. Take more rows, or another test_size."
        )
    n_batches = tuple(-(-lengths[i] // batch_size) if batch_size else 1 for i in nonempty)
    fits_on_worker = n_bytes <= MAX_DATA_FRACTION * engine.memory_limit
    return PlacedData(
        tuple(rows.blocks[i] for i in nonempty),
        BatchOrder(seed, n_batches),
        test,
        sum(lengths),
        n_test,
        holdout,
        is_replicated=fits_on_worker and not engine.is_out_of_core(rows),
    )


def _split_off_holdout(block_ref: BlockRef, holdout: Holdout) -> tuple[int, Block, int]:
    """Return the number of training rows, the test rows and their size in bytes."""
    block = open_block(block_ref)
    mask = holdout.mask(block)
    test = take_block_rows(block, mask)
    return int((~mask).sum()), test, block_bytes(test)


def _part_sizes(part: tuple[int, Block, int]) -> tuple[int, int, int]:
    return part[0], part[1].n_rows, part[2]


def _holdout_rows(part: tuple[int, Block, int]) -> Block:
    return part[1]


def _concat_holdouts(parts: Sequence[tuple[int, Block, int]]) -> Block:
    return concat_rows([part[1] for part in parts])


def open_rows(block_ref: BlockRef) -> Block:
    """Open a block of rows in a task."""
    block = open_scattered(block_ref.X)
    if not isinstance(block, Block):
        return open_block(block_ref)
    # of persisted blocks of unknown lengths only the reference knows the row offset
    return block._replace(number=block_ref.number, row_offset=block_ref.row_offset)


def rows_of_batch(block: Block, batch: BatchSpec, seed: int, holdout: Holdout | None) -> Block:
    """Return the training rows of a batch, shuffled."""
    indices = None if holdout is None else _training_rows.of(block, holdout)
    n_rows = block.n_rows if indices is None else len(indices)
    order = _row_order(seed, batch.epoch, batch.block, n_rows)
    order = order[round(batch.low * n_rows) : round(batch.high * n_rows)]
    return take_block_rows(block, order if indices is None else indices[order])


@lru_cache(maxsize=8)
def _row_order(seed: int, epoch: int, block: int, n_rows: int) -> np.ndarray:
    """Return the permutation of a block's training rows in an epoch."""
    return np.random.default_rng([seed, epoch, block]).permutation(n_rows)


class _TrainingRows:
    """LRU cache of the training rows' indices in the eight latest blocks."""

    def __init__(self) -> None:
        self._indices: dict[tuple[str, int], np.ndarray] = {}
        self._lock = threading.Lock()

    def of(self, block: Block, holdout: Holdout) -> np.ndarray:
        """Return the indices of a block's training rows."""
        key = holdout.key, block.number
        with self._lock:
            indices = self._indices.pop(key, None)
        if indices is None:
            indices = np.flatnonzero(~holdout.mask(block))
        with self._lock:
            self._indices[key] = indices  # as the most recently used
            for oldest in list(self._indices)[:-8]:
                del self._indices[oldest]
        return indices


_training_rows = _TrainingRows()
