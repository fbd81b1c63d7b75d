"""The rows of an adaptive search: who holds them, which are for scores, what a call learns."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import train_test_split

from skfleet.blocks import (
    Block,
    RowBlocks,
    block_bytes,
    concat_rows,
    open_block,
    take_block_rows,
)
from skfleet.engine import Engine, Holdout, draw_holdout, open_scattered, with_row_offsets

__all__ = ["Batch", "Lessons", "Rows", "hold_rows", "learn_from", "opened_rows"]

# Blocks of rows of this process: more rows than these are shuffled apart from the others.
BLOCK_ROWS = 100_000
# Rows for one call of partial_fit, where nothing is said and nothing is cut already.
BATCH_ROWS = 10_000
# The share of a worker's memory that all rows may take on each of them.
ROOM = 0.4
# The share that the rows to score on may take together: to join those of all blocks takes it twice.
TEST_ROOM = 0.1
# The share that one block may take where each worker has only some of them.
BLOCK_ROOM = 0.03


class Batch(NamedTuple):
    """What one call learns: the rows from `low` to `high` of the block's order in an epoch."""

    block: int
    epoch: int
    low: float
    high: float


@dataclass(frozen=True)
class Lessons:
    """Which rows each call of partial_fit learns: all of them once an epoch, in another order."""

    seed: int
    n_batches: tuple[int, ...]  # of every block

    def __len__(self) -> int:
        return sum(self.n_batches)

    def __getitem__(self, call: int) -> Batch:
        """Return what a call learns; calls are counted from 0."""
        epoch, i = divmod(call, sum(self.n_batches))
        block, part = self._order(epoch)[i]
        n = self.n_batches[block]
        return Batch(block, epoch, part / n, (part + 1) / n)

    def blocks_of(self, calls: range) -> list[int]:
        """Return the numbers of the blocks that some calls learn, in order."""
        return sorted({self[call].block for call in calls})

    def _order(self, epoch: int) -> list[tuple[int, int]]:
        return _batch_order(self.seed, epoch, self.n_batches)


@lru_cache(maxsize=64)
def _batch_order(seed: int, epoch: int, n_batches: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the batches of all blocks in the order of an epoch."""
    batches = [(block, part) for block, n in enumerate(n_batches) for part in range(n)]
    order = np.random.default_rng([seed, epoch]).permutation(len(batches))
    return [batches[i] for i in order]


@dataclass(frozen=True)
class Rows:
    """Rows on an engine.

    `blocks` are handles of the training rows; where `aside` is given they hold the rows for scores
    as well, which are then not learned. `test` are the handles of these: one, unless no worker can
    hold them together.
    """

    blocks: tuple[Block, ...]
    lessons: Lessons
    test: tuple[Block, ...]
    n_train: int
    n_test: int
    aside: Holdout | None = None
    are_everywhere: bool = True  # every worker can hold all of them
    kept: tuple[Any, ...] = ()

    @property
    def held(self) -> tuple[Any, ...]:
        """What is on the engine for the sake of the search alone."""
        return self.kept or tuple(handle.X for handle in self.test)


def hold_rows(
    engine: Engine,
    rows: RowBlocks,
    y: Any,
    *,
    test_size: float | int | None,
    stratify: bool,
    batch_size: int | None,
    seed: int,
) -> Rows:
    """Set rows for scores aside, and hold both parts on the engine."""
    if rows.on_dask:
        rows = with_row_offsets(engine, rows)
        size = 0.15 if test_size is None else test_size
        # labels alone where the rows would be loaded for it
        labels = (y if engine.is_out_of_core(rows) else "rows") if stratify else None
        aside = draw_holdout(engine, rows, size, seed, labels)
        return _hold_blocks(engine, rows, aside, batch_size, seed)
    return _hold_ours(engine, rows.blocks[0], test_size, stratify, batch_size, seed)


def _hold_ours(
    engine: Engine,
    block: Block,
    test_size: float | int | None,
    stratify: bool,
    batch_size: int | None,
    seed: int,
) -> Rows:
    """Send rows of this process to the engine, in an order that mixes all of them."""
    train, test = _split(block, 0.15 if test_size is None else test_size, stratify, seed)
    n_bytes = block_bytes(block)
    everywhere = engine.is_local or n_bytes <= ROOM * engine.memory_limit
    most = BLOCK_ROWS
    if not everywhere:
        most = max(1, int(BLOCK_ROOM * engine.memory_limit * block.n_rows / n_bytes))
    n_blocks = -(-len(train) // most)
    size = batch_size or BATCH_ROWS
    kept, n_batches = [], []
    for part in np.array_split(train, n_blocks):
        kept.append(engine.scatter(take_block_rows(block, part)))
        n_batches.append(-(-len(part) // size))
    n_parts = 1
    if not engine.is_local:
        test_bytes = n_bytes * len(test) / block.n_rows
        n_parts = min(len(test), math.ceil(test_bytes / (TEST_ROOM * engine.memory_limit)))
    parts = np.array_split(test, max(1, n_parts))
    kept += [engine.scatter(take_block_rows(block, part)) for part in parts]
    handles = tuple(Block(one, number=i) for i, one in enumerate(kept))
    return Rows(
        handles[:n_blocks],
        Lessons(seed, tuple(n_batches)),
        handles[n_blocks:],
        len(train),
        len(test),
        are_everywhere=everywhere,
        kept=tuple(kept),
    )


def _split(
    block: Block, test_size: float | int, stratify: bool, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the rows to learn, and of those to score on: by class, if it goes."""
    places = np.arange(block.n_rows)
    how = {"test_size": test_size, "random_state": seed}
    if stratify:
        y = np.asarray(block.y)
        try:
            return tuple(train_test_split(places, stratify=y, **how))
        except ValueError:  # a class of one row, or more classes than rows to score on
            pass
    return tuple(train_test_split(places, **how))


def _hold_blocks(
    engine: Engine, rows: RowBlocks, aside: Holdout, batch_size: int | None, seed: int
) -> Rows:
    """Take the rows to score on out of every block, and leave the others where they are."""
    n_bytes = rows.n_bytes
    parts = engine.map(_set_aside, rows.blocks, aside, name="set-test-rows-aside")
    told = engine.gather([engine.submit(_sizes, part, name="count-rows") for part in parts])
    lengths = [n_train for n_train, _, _ in told]
    n_test = sum(n for _, n, _ in told)
    test_bytes = sum(n for _, _, n in told)
    if n_bytes is None:
        n_bytes = int(test_bytes * (sum(lengths) + n_test) / max(1, n_test))
    if test_bytes <= TEST_ROOM * engine.memory_limit:
        joined = engine.submit(_join, parts, name="join-test-rows")
        test: tuple[Block, ...] = (Block(joined),)
    else:
        test = tuple(
            Block(engine.submit(_second, part, name="test-rows"), number=i)
            for i, part in enumerate(parts)
        )
    full = [i for i, n in enumerate(lengths) if n]
    if not full or not n_test:
        raise ValueError(
            f"X must have rows to learn and rows to score on. Got {sum(lengths)} and {n_test} "
            "instead. Take more rows, or another test_size."
        )
    n_batches = tuple(-(-lengths[i] // batch_size) if batch_size else 1 for i in full)
    return Rows(
        tuple(rows.blocks[i] for i in full),
        Lessons(seed, n_batches),
        test,
        sum(lengths),
        n_test,
        aside,
        are_everywhere=n_bytes <= ROOM * engine.memory_limit and not engine.is_out_of_core(rows),
    )


def _set_aside(handle: Block, aside: Holdout) -> tuple[int, Block, int]:
    """Return the number of rows to learn, the rows to score on and their size in bytes."""
    block = open_block(handle)
    chosen = aside.mask(block)
    test = take_block_rows(block, chosen)
    return int((~chosen).sum()), test, block_bytes(test)


def _sizes(part: tuple[int, Block, int]) -> tuple[int, int, int]:
    return part[0], part[1].n_rows, part[2]


def _second(part: tuple[int, Block, int]) -> Block:
    return part[1]


def _join(parts: Sequence[tuple[int, Block, int]]) -> Block:
    """Put the rows to score on of all blocks together."""
    return concat_rows([part[1] for part in parts])


def opened_rows(handle: Block) -> Block:
    """Open a block of rows in a task."""
    kept = open_scattered(handle.X)
    if not isinstance(kept, Block):
        return open_block(handle)
    # of held rows of unknown lengths only the handle knows where they begin
    return kept._replace(number=handle.number, start=handle.start)


def learn_from(block: Block, batch: Batch, seed: int, aside: Holdout | None) -> Block:
    """Return the rows of a batch in the order in which they are learned."""
    places = None if aside is None else _places.of(block, aside)
    n_rows = block.n_rows if places is None else len(places)
    order = _row_order(seed, batch.epoch, batch.block, n_rows)
    order = order[round(batch.low * n_rows) : round(batch.high * n_rows)]
    return take_block_rows(block, order if places is None else places[order])


@lru_cache(maxsize=8)
def _row_order(seed: int, epoch: int, block: int, n_rows: int) -> np.ndarray:
    """Return the rows of a block to learn in the order of an epoch."""
    return np.random.default_rng([seed, epoch, block]).permutation(n_rows)


class _Places:
    """Which rows of the last few blocks are to be learned."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], np.ndarray] = {}
        self._lock = threading.Lock()

    def of(self, block: Block, aside: Holdout) -> np.ndarray:
        """Return the places of a block's rows to learn."""
        key = aside.key, block.number
        with self._lock:
            places = self._known.pop(key, None)
        if places is None:
            places = np.flatnonzero(~aside.mask(block))
        with self._lock:
            self._known[key] = places  # the last one again
            for oldest in list(self._known)[:-8]:
                del self._known[oldest]
        return places


_places = _Places()
