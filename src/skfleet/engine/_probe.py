"""Size of rows, and seconds to load them, estimated from a few blocks."""

from __future__ import annotations

import math
import time
from functools import cached_property, partial

from skfleet.blocks import (
    Block,
    BlockRef,
    RowBlocks,
    block_bytes,
    file_sizes,
    open_block,
    sample_blocks,
)
from skfleet.engine._halving import gather_or_halve
from skfleet.engine._protocol import Engine

# How much larger rows may be than metadata of a few files says: numbers become float64.
FILE_ERROR = 10


class Probe:
    """A sample of a few blocks, loaded once, that estimates the rows' size and loading time.

    `blocks` are the bytes and seconds of blocks that are loaded already.
    """

    def __init__(
        self, engine: Engine, rows: RowBlocks, blocks: list[tuple[int, float]] | None = None
    ) -> None:
        self.engine, self.rows = engine, rows
        if blocks is not None:
            self._blocks = blocks

    @cached_property
    def _blocks(self) -> list[tuple[int, float]]:
        """The bytes of each sampled block, and the seconds that it took to load."""
        measure = partial(self.engine.map, _time_block, name="measure-block")
        return gather_or_halve(self.engine, measure, sample_blocks(self.rows))

    @property
    def n_bytes(self) -> int:
        """Size of all rows in memory."""
        if self.rows.n_bytes is not None:
            return self.rows.n_bytes
        return int(max(n_bytes for n_bytes, _ in self._blocks) * len(self.rows.blocks))

    @property
    def most_bytes(self) -> float:
        """A generous guess at the size of all rows without a look; infinite but for files."""
        sizes = file_sizes(self.rows.blocks)
        return math.inf if sizes is None else FILE_ERROR * sum(sizes)

    @property
    def seconds_per_byte(self) -> float:
        """Seconds to load a byte; the minimum, as a process's first load may import modules."""
        return min((seconds / n for n, seconds in self._blocks if n), default=0.0)


def _time_block(block_ref: BlockRef) -> tuple[int, float]:
    """Return a block's size in bytes, and the seconds that it takes to load."""
    block, seconds = timed_load(block_ref._replace(to_device=False))
    return block_bytes(block), seconds


def timed_load(block_ref: BlockRef) -> tuple[Block, float]:
    """Return a block, and the seconds that it takes to load."""
    start = time.perf_counter()
    block = open_block(block_ref)
    return block, time.perf_counter() - start


def estimate_nbytes(engine: Engine, rows: RowBlocks) -> int:
    """Return the size of rows in memory, estimated from a few blocks where it is unknown."""
    return Probe(engine, rows).n_bytes
