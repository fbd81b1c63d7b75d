"""Files of blocks that do not fit into memory: disk space, disk speed, and when they save time."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import shutil
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import psutil

from skfleet._config import get_config
from skfleet.blocks import (
    Block,
    BlockFile,
    BlockRef,
    LazyBlock,
    RowBlocks,
    compact,
    open_block,
    size_of,
    write_block,
)

# Of a disk, to be left free for other programs and for what Dask spills: the smaller of the two.
RESERVED_FRACTION, RESERVED_BYTES = 0.1, 10 * 2**30
# Written and read to measure the disk.
TRIAL_BYTES = 16 * 2**20
# Files on these take memory, so that writing a block frees none.
_MEMORY_FILESYSTEMS = {"tmpfs", "ramfs"}


class DiskSpace:
    """A directory for blocks, and the files in it.

    A full or broken disk raises no error: the block is not written.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.n_bytes = 0
        self._lock = threading.Lock()

    def write(self, block: Block, limit: float) -> BlockFile | None:
        """Write a block; None where the limit leaves no space, or it cannot be written."""
        size = size_of(block)
        with self._lock:
            if size > self._free_bytes(limit):
                return None
            self.n_bytes += size
        path = os.path.join(self.directory, f"{uuid4().hex}.joblib")
        try:
            file = write_block(block, path)
        except (OSError, pickle.PickleError, TypeError, AttributeError):
            # a full or broken disk, or values that cannot be pickled
            self.remove(BlockFile(path, size))
            return None
        with self._lock:
            self.n_bytes += file.n_bytes - size
        return file

    def remove(self, file: BlockFile) -> None:
        """Remove a file; mappings of it stay readable."""
        with self._lock:
            self.n_bytes -= file.n_bytes
        with contextlib.suppress(OSError):  # it was never made, or went with the directory
            os.unlink(file.path)

    def clear(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.n_bytes = 0

    def _free_bytes(self, limit: float) -> float:
        """Return how many bytes may still be written under a limit on all files together."""
        try:
            os.makedirs(self.directory, exist_ok=True)
            disk = shutil.disk_usage(self.directory)
        except OSError:
            return 0.0
        if math.isinf(limit) and is_in_memory(self.directory):
            return 0.0
        free = disk.free - min(RESERVED_FRACTION * disk.total, RESERVED_BYTES)
        return min(limit - self.n_bytes, free)


@lru_cache(maxsize=64)
def is_in_memory(directory: str) -> bool:
    """Return whether files in a directory take memory, as in a tmpfs."""
    path = Path(directory).resolve()
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    parents = map(str, (path, *path.parents))
    return next((mounts[p] in _MEMORY_FILESYSTEMS for p in parents if p in mounts), False)


def disk_limit() -> float:
    """Return how many bytes each worker may write; infinity where only the disk limits it."""
    limit = get_config().disk_cache
    if isinstance(limit, bool) or limit == "auto":
        return math.inf if limit else 0.0
    return float(limit)


class DiskSpeed(NamedTuple):
    """Seconds to write a byte to the disk, and to read it back."""

    write: float = math.inf
    read: float = math.inf


def measure_disk(space: DiskSpace, limit: float, in_page_cache: bool = False) -> DiskSpeed:
    """Time writing and reading a file of a small block's size; infinite without space for it.

    With `in_page_cache`, the machine has memory enough to hold all files in its page cache.
    Otherwise the file is flushed to the disk, and read from there.
    """
    noise = np.random.default_rng(0).integers(256, size=TRIAL_BYTES, dtype=np.uint8)
    speeds = [_write_and_read(Block(noise), space, limit, in_page_cache) for _ in range(3)]
    return DiskSpeed(*map(min, zip(*speeds, strict=True)))


def _write_and_read(block: Block, space: DiskSpace, limit: float, in_page_cache: bool) -> DiskSpeed:
    """Time writing a block to a new file, and reading that."""
    start = time.perf_counter()
    file = space.write(block, limit)
    if file is None:
        return DiskSpeed()
    try:
        with open(file.path, "rb", buffering=0) as stream:
            if not in_page_cache:
                os.fsync(stream)
            write = time.perf_counter() - start
            if not in_page_cache and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            stream.readall()
            read = time.perf_counter() - start
        return DiskSpeed(write / file.n_bytes, read / file.n_bytes)
    except OSError:
        return DiskSpeed()
    finally:
        space.remove(file)


def is_disk_faster(load: float, disks: Sequence[DiskSpeed]) -> bool:
    """Return whether disks save time over three passes, at `load` seconds to load a byte.

    The best of several trials counts, as it does for loading: other programs use the machine too.
    """
    write, read = (min(seconds) for seconds in zip(*disks, strict=True))
    return bool(2 * load > write + 3 * read)


def load_compact(block_ref: BlockRef, dtype: np.dtype | None) -> Block:
    """Load a block on the host, in the compact form in which it is written."""
    block = open_block(block_ref._replace(to_device=False))
    try:
        return compact(block, dtype)
    except Exception as error:
        error.add_note(f"While loading block {block_ref.number}.")
        raise


def is_cached(block: BlockRef) -> bool:
    """Return whether a block is in a file of this cache."""
    return bool(getattr(block.X, "is_cached", False))


def are_cached(rows: RowBlocks) -> bool:
    """Return whether a pass over rows reads each block from memory or from a worker's disk."""
    lazy = (block for block in rows.blocks if isinstance(block.X, LazyBlock))
    return all(is_cached(block) or getattr(block.X, "is_resident", False) for block in lazy)


# Bytes of a row in a block's cache, and the part of a worker's memory that they may take beside
# blocks which are read from files.
CACHED_ROW_BYTES, MAX_CACHE_FRACTION = 16, 1 / 12


def can_have_cache(rows: RowBlocks, n_workers: int, memory_limit: float) -> bool:
    """Return whether there is memory for the caches of blocks that are in files of this cache."""
    n_bytes = CACHED_ROW_BYTES * (rows.n_rows or math.inf) / max(1, n_workers)
    return n_bytes <= MAX_CACHE_FRACTION * memory_limit


def reads_of(args: Sequence[Any]) -> dict[str, int]:
    """Count the blocks that a task loads or maps: those among its arguments, or in lists there."""
    loads = cache_reads = 0
    for arg in args:
        for value in arg if type(arg) in (list, tuple) else (arg,):
            if not isinstance(value, BlockRef) or not hasattr(value.X, "load"):
                continue
            if is_cached(value):
                cache_reads += 1
            elif not getattr(value.X, "is_resident", False):
                loads += 1
    return {"loads": loads, "cache_reads": cache_reads}
