"""Blocks on the disks of a cluster's workers, as results of tasks: Dask knows who has which.

A file lives as long as its task's result on its worker, and is made again with it elsewhere when
the worker dies. A task that runs on another worker links the file where the two share a disk, and
otherwise loads the block again, and writes it there.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import dask
import numpy as np
import psutil
from distributed import Future, Worker, WorkerPlugin, get_worker
from distributed.diskutils import WorkSpace
from distributed.protocol import dask_deserialize, dask_serialize, pickle
from distributed.system import MEMORY_LIMIT
from distributed.utils import sync

from skfleet._array import is_host
from skfleet._config import get_config
from skfleet.blocks import Block, BlockCache, BlockFile, LazyBlock, open_block
from skfleet.engine._disk_cache import (
    DiskSpace,
    DiskSpeed,
    disk_limit,
    is_cached,
    load_compact,
    pays,
    try_disk,
)
from skfleet.engine._protocol import Engine, Probe

__all__ = ["caches", "held_block", "scratch_space", "split_mapped", "store_block"]

# The way to load a block again is kept up to this size: it may hold what others are made of too.
_SMALL_BYTES = 2**18
# So many workers try their disks at a time, which may be one and the same.
N_TRIALS = 3
_lock = threading.Lock()


class CacheFiles(WorkerPlugin):
    """The files of one worker, removed when it lets go of the results that they belong to."""

    name = "skfleet-disk-cache"

    def setup(self, worker: Worker) -> None:
        """Take a directory beside the one that Dask spills to, which goes with the worker."""
        self.space = DiskSpace(os.path.join(worker.local_directory, "skfleet-blocks"))
        self._files: defaultdict[Any, list[BlockFile]] = defaultdict(list)

    def write(self, key: Any, block: Block, limit: float) -> BlockFile | None:
        """Write a block for a task's result, where there is room."""
        file = self.space.write(block, limit)
        if file is not None:
            self._files[key].append(file)
        return file

    def find(self, key: Any) -> BlockFile | None:
        """Return the file of a result on this worker."""
        found = self._files.get(key)
        return found[-1] if found else None

    def link(self, key: Any, file: BlockFile) -> None:
        """Share another worker's file, which stays then when that one lets go of it."""
        if key in self._files:
            return
        path = os.path.join(self.space.directory, os.path.basename(file.path))
        with contextlib.suppress(OSError):  # the other one has another disk
            os.makedirs(self.space.directory, exist_ok=True)
            os.link(file.path, path)
            self._files[key].append(BlockFile(path, 0))

    def transition(self, key: Any, start: Any, finish: Any, **kwargs: Any) -> None:
        """Remove the files of a result that the worker lets go."""
        if finish in ("released", "forgotten", "error") and key in self._files:
            for file in self._files.pop(key):
                self.space.drop(file)

    def teardown(self, worker: Worker) -> None:
        """Remove all files."""
        self.space.clear()


def _files_of(worker: Worker) -> CacheFiles:
    """Return a worker's files, looked after from the first on."""
    with _lock:
        if CacheFiles.name not in worker.plugins:
            sync(worker.loop, worker.plugin_add, plugin=CacheFiles(), name=CacheFiles.name)
        return cast(CacheFiles, worker.plugins[CacheFiles.name])


class StoredBlock:
    """A block in a file of some worker's, and the way to load it again, pickled, where small."""

    def __init__(
        self, key: Any, file: BlockFile, handle: bytes | None, dtype: Any, limit: float
    ) -> None:
        self.key, self.file, self.handle = key, file, handle
        self.dtype, self.limit = dtype, limit

    def load(self) -> Block:
        """Map the file; without it, load the block again and write it to this worker's disk."""
        try:
            files = _files_of(get_worker())
        except ValueError:  # not in the thread of a task
            files = None
        for file in (files.find(self.key) if files else None, self.file):
            with contextlib.suppress(OSError):  # it may be another machine's, or a dead worker's
                if file is not None:
                    block = file.load()
                    if files is not None:
                        files.link(self.key, file)
                    return block
        if self.handle is None:
            raise FileNotFoundError(f"The block in {self.file.path} must be there. Got no file.")
        block = load_compact(pickle.loads(self.handle), self.dtype)
        if files is not None:
            files.write(self.key, block, self.limit)
        return block


@dask_serialize.register(StoredBlock)
def _serialize(stored: StoredBlock, context: Any = None) -> tuple[dict, list]:
    """Give another process the place of the file, or the rows where it could not do without.

    What Dask spills stays on this worker, and so does the file.
    """
    travels = context is not None and "recipient" in context
    buffers: list[Any] = []
    value = stored.load() if travels and stored.handle is None else stored
    pickled = pickle.dumps(value, buffer_callback=buffers.append)
    return {}, [pickled, *(buffer.raw() for buffer in buffers)]


@dask_deserialize.register(StoredBlock)
def _deserialize(header: dict, frames: list) -> StoredBlock | Block:
    value: StoredBlock | Block = pickle.loads(frames[0], buffers=frames[1:])
    return value


class CachedBlock(NamedTuple):
    """What stands in a block's handle for a result of `store_block`: a future, in tasks its value.

    That is a block itself where the task was run again and found no room.
    """

    stored: Any

    @property
    def is_cached(self) -> bool:
        """Whether it comes from the disk, and not from where its rows do."""
        return True

    def load(self) -> Block:
        """Map the block, or load it again."""
        stored = self.stored
        return open_block(stored) if isinstance(stored, Block) else stored.load()


def store_block(handle: Block, dtype: np.dtype | None, limit: float) -> StoredBlock | Block:
    """Load a block and write it to the disk of the worker that runs this.

    Without room the result is the way to load it, or the block itself where that is not small.
    """
    handle = handle._replace(to_device=False)
    worker = get_worker()
    key, block = worker.get_current_task(), load_compact(handle, dtype)
    pickled = _small(handle)
    file = _files_of(worker).write(key, block, limit) if is_host(block.X) else None
    if file is not None:
        return StoredBlock(key, file, pickled, dtype, limit)
    return block if pickled is None else handle


def _small(handle: Block) -> bytes | None:
    """Pickle the way to load a block, unless it holds much."""
    buffers: list[Any] = []
    pickled: bytes = pickle.dumps(handle, buffer_callback=buffers.append)
    n_bytes = len(pickled) + sum(buffer.raw().nbytes for buffer in buffers)
    if n_bytes > _SMALL_BYTES:
        return None
    return pickle.dumps(handle) if buffers else pickled


def try_worker(limit: float, n_bytes: int) -> DiskSpeed:
    """Try the disk of the worker that runs this, where so many bytes are to be written in all."""
    memory = min(MEMORY_LIMIT, psutil.virtual_memory().available)
    space = _files_of(get_worker()).space
    return try_disk(space, limit, in_page_cache=2 * n_bytes <= memory)


def caches(engine: Engine, probe: Probe, shares_work: bool) -> bool:
    """Decide whether to write rows to the workers' disks: what was asked for, or what pays."""
    wanted, limit, rows = get_config().disk_cache, disk_limit(), probe.rows
    if rows.on_device or not limit or not all(isinstance(b.X, LazyBlock) for b in rows.blocks):
        return False
    if wanted != "auto" or get_config().keep_blocks != "auto":
        return wanted != "auto"  # rows that are not to be kept might well fit
    if shares_work:
        return True  # it may go through all rows, so that a trial would cost a pass
    n_trials = min(N_TRIALS, engine.n_slots)
    tasks = engine.map(try_worker, [limit] * n_trials, probe.n_bytes, name="try-disk")
    return pays(probe.seconds_per_byte, engine.gather(tasks))


def held_block(block: Block, task: Future, in_memory: bool) -> Block:
    """Return the handle of a block that a task has brought to memory, or to the disk.

    One that found no room there is loaded as before. Of a result the scheduler tells the type.
    """
    if in_memory:
        return block._replace(X=task, notes=BlockCache(), to_device=False)
    if task.type is StoredBlock:
        return block._replace(X=CachedBlock(task))
    task.release()
    return block


def split_mapped(group: Sequence[Block], n_threads: int) -> list[list[Block]]:
    """Split a worker's blocks: those in memory, and for each thread some that it maps in turn."""
    held = [block for block in group if not is_cached(block)]
    mapped = [block for block in group if is_cached(block)]
    parts = [held, *(mapped[i::n_threads] for i in range(n_threads))]
    return [part for part in parts if part]


@contextmanager
def scratch_space() -> Iterator[DiskSpace]:
    """Give room on the disk beside Dask's, which goes at the end, or when its process has died.

    In the latter case it goes when Dask next needs room there.
    """
    base = dask.config.get("temporary-directory") or tempfile.gettempdir()
    try:
        work = WorkSpace(os.path.join(base, "dask-scratch-space")).new_work_dir(prefix="skfleet-")
    except OSError:  # nothing can be written there
        yield DiskSpace(os.devnull)
        return
    try:
        yield DiskSpace(work.dir_path)
    finally:
        work.release()
