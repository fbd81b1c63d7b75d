"""Rows too large for memory, on the disk: how much of it may be taken, and where that pays."""

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
from skfleet.blocks import Block, BlockFile, compact, open_block, size_of, write_block

# So much of a disk stays free, for others and for what Dask spills: a share of it, up to a limit.
RESERVED_SHARE, RESERVED_BYTES = 0.1, 10 * 2**30
# How much a trial of the disk writes and reads.
TRIAL_BYTES = 16 * 2**20
# Where files lie in memory, writing them frees none.
_MEMORY_FILESYSTEMS = {"tmpfs", "ramfs"}


class DiskSpace:
    """A directory for blocks, and the files in it.

    Nothing here raises because of the disk: a block that finds no room is not written.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.n_bytes = 0
        self._lock = threading.Lock()

    def write(self, block: Block, limit: float) -> BlockFile | None:
        """Write a block; None where it finds no room under the limit, or cannot be written."""
        size = size_of(block)
        with self._lock:
            if size > self._room(limit):
                return None
            self.n_bytes += size
        path = os.path.join(self.directory, f"{uuid4().hex}.joblib")
        try:
            file = write_block(block, path)
        except (OSError, pickle.PickleError, TypeError, AttributeError):
            # a full or broken disk, or values that cannot be pickled
            self._remove(path, size)
            return None
        with self._lock:
            self.n_bytes += file.n_bytes - size
        return file

    def drop(self, file: BlockFile) -> None:
        """Remove a file; who has mapped it keeps what it holds."""
        self._remove(file.path, file.n_bytes)

    def clear(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.n_bytes = 0

    def _remove(self, path: str, n_bytes: int) -> None:
        with self._lock:
            self.n_bytes -= n_bytes
        with contextlib.suppress(OSError):  # it was never made, or went with the directory
            os.unlink(path)

    def _room(self, limit: float) -> float:
        """Return how many bytes may be written yet: a limit is for all that is here at a time."""
        try:
            os.makedirs(self.directory, exist_ok=True)
            disk = shutil.disk_usage(self.directory)
        except OSError:
            return 0.0
        if math.isinf(limit) and is_in_memory(self.directory):
            return 0.0
        free = disk.free - min(RESERVED_SHARE * disk.total, RESERVED_BYTES)
        return min(limit - self.n_bytes, free)


@lru_cache(maxsize=64)
def is_in_memory(directory: str) -> bool:
    """Say whether files in a directory take memory, as in a tmpfs."""
    place = Path(directory).resolve()
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    for folder in (place, *place.parents):
        if str(folder) in mounts:
            return mounts[str(folder)] in _MEMORY_FILESYSTEMS
    return False


def disk_limit() -> float:
    """Return how many bytes each worker may write: as many as there is room for, by default."""
    limit = get_config().disk_cache
    if isinstance(limit, bool) or limit == "auto":
        return math.inf if limit else 0.0
    return float(limit)


class DiskSpeed(NamedTuple):
    """Seconds that it takes to bring a byte to the disk, and to read it back from there."""

    write: float = math.inf
    read: float = math.inf


def try_disk(space: DiskSpace, limit: float, in_page_cache: bool = False) -> DiskSpeed:
    """Write a file as large as a small block, and read it; what has no room takes for ever.

    Unless the machine has memory enough to hold what will be written in its page cache, the file
    is brought to the disk itself, and read from there.
    """
    noise = np.random.default_rng(0).integers(256, size=TRIAL_BYTES, dtype=np.uint8)
    speeds = [_write_and_read(Block(noise), space, limit, in_page_cache) for _ in range(3)]
    return DiskSpeed(*map(min, zip(*speeds, strict=True)))


def _write_and_read(block: Block, space: DiskSpace, limit: float, in_page_cache: bool) -> DiskSpeed:
    """Write a block to a new file, and read that; what has no room takes for ever."""
    began = time.perf_counter()
    file = space.write(block, limit)
    if file is None:
        return DiskSpeed()
    try:
        with open(file.path, "rb", buffering=0) as stream:
            if not in_page_cache:
                os.fsync(stream)
            write = time.perf_counter() - began
            if not in_page_cache and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            stream.readall()
            read = time.perf_counter() - began
        return DiskSpeed(write / file.n_bytes, read / file.n_bytes)
    except OSError:
        return DiskSpeed()
    finally:
        space.drop(file)


def pays(load: float, disks: Sequence[DiskSpeed]) -> bool:
    """Say whether disks save time in three passes, at so many seconds to load a byte.

    The best of several trials counts, as it does for loading: others work on the machine, too.
    """
    write, read = (min(seconds) for seconds in zip(*disks, strict=True))
    return bool(2 * load > write + 3 * read)


def load_compact(handle: Block, dtype: np.dtype | None) -> Block:
    """Load a block on the host, as it is to be written."""
    block = open_block(handle._replace(to_device=False))
    try:
        return compact(block, dtype)
    except Exception as error:
        error.add_note(f"While loading block {handle.number}.")
        raise


def is_cached(block: Block) -> bool:
    """Say whether a block comes from the disk."""
    return bool(getattr(block.X, "is_cached", False))


def reads_of(args: Sequence[Any]) -> dict[str, int]:
    """Count the blocks among a task's arguments, alone or in lists, that it loads or maps."""
    loads = cache_reads = 0
    for arg in args:
        for part in arg if type(arg) in (list, tuple) else (arg,):
            if not isinstance(part, Block) or not hasattr(part.X, "load"):
                continue
            if is_cached(part):
                cache_reads += 1
            elif not getattr(part.X, "is_resident", False):
                loads += 1
    return {"loads": loads, "cache_reads": cache_reads}
