"""Blocks in files on the workers' disks, each the result of a task that Dask keeps track of.

A file lives as long as its task's result on its worker, and is written again with it elsewhere when
the worker dies. A task that runs on another worker links the file where the two share a disk, and
otherwise loads the block again, and writes it there.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import dask
import numpy as np
import psutil
from dask.typing import Key
from distributed import Future, Worker, WorkerPlugin, get_worker
from distributed.diskutils import WorkSpace
from distributed.protocol import dask_deserialize, dask_serialize, pickle
from distributed.system import MEMORY_LIMIT
from distributed.utils import sync

from skfleet._array import is_host
from skfleet._config import get_config
from skfleet._private_files import scratch_directory
from skfleet.blocks import Block, BlockCache, BlockFile, BlockRef, LazyBlock, open_block
from skfleet.engine._disk_cache import (
    DiskSpace,
    DiskSpeed,
    disk_limit,
    is_cached,
    is_disk_faster,
    load_compact,
    measure_disk,
)
from skfleet.engine._probe import Probe
from skfleet.engine._protocol import Engine

# Bytes up to which a block's reference is kept with its file: it may contain the sources of others.
_MAX_REF_BYTES = 2**18
# Workers whose disks are tried at the same time; they may share one.
N_TRIALS = 3
_lock = threading.Lock()


class CacheFiles(WorkerPlugin):
    """The files of one worker, removed when it releases the results that they belong to."""

    name = "skfleet-disk-cache"

    def setup(self, worker: Worker) -> None:
        """Choose a directory in the worker's own, which Dask removes with the worker."""
        self.space = DiskSpace(os.path.join(worker.local_directory, "skfleet-blocks"))
        self._files: defaultdict[Key, list[BlockFile]] = defaultdict(list)

    def write(self, key: Key, block: Block, limit: float) -> BlockFile | None:
        """Write a block for a task's result, where there is space."""
        file = self.space.write(block, limit)
        if file is not None:
            self._files[key].append(file)
        return file

    def find(self, key: Key) -> BlockFile | None:
        """Return the file of a result on this worker."""
        return self._files.get(key, [None])[-1]

    def link(self, key: Key, file: BlockFile) -> None:
        """Link another worker's file, which then outlives that worker's result."""
        if key in self._files:
            return
        path = os.path.join(self.space.directory, os.path.basename(file.path))
        with contextlib.suppress(OSError):  # the other worker may have another disk
            os.makedirs(self.space.directory, exist_ok=True)
            os.link(file.path, path)
            self._files[key].append(BlockFile(path, 0))

    def transition(self, key: Key, start: str, finish: str, **kwargs: object) -> None:
        """Remove the files of a result that the worker releases."""
        if finish in ("released", "forgotten", "error") and key in self._files:
            for file in self._files.pop(key):
                self.space.remove(file)

    def teardown(self, worker: Worker) -> None:
        self.space.clear()


def _files_of(worker: Worker) -> CacheFiles:
    """Return a worker's plugin, installed on first use."""
    with _lock:
        if CacheFiles.name not in worker.plugins:
            sync(worker.loop, worker.plugin_add, plugin=CacheFiles(), name=CacheFiles.name)
        return cast(CacheFiles, worker.plugins[CacheFiles.name])


class StoredBlock:
    """A block in a worker's file, with its pickled reference to load it again, if that is small."""

    def __init__(
        self,
        key: Key,
        file: BlockFile,
        block_ref: bytes | None,
        dtype: np.dtype | None,
        limit: float,
    ) -> None:
        self.key, self.file, self.block_ref = key, file, block_ref
        self.dtype, self.limit = dtype, limit

    def load(self) -> Block:
        """Map the file; without it, load the block again and write it to this worker's disk."""
        try:
            files = _files_of(get_worker())
        except ValueError:  # not in a task's thread
            files = None
        for file in (files.find(self.key) if files else None, self.file):
            with contextlib.suppress(OSError):  # it may be on another machine, or of a dead worker
                if file is not None:
                    block = file.load()
                    if files is not None:
                        files.link(self.key, file)
                    return block
        if self.block_ref is None:
            raise FileNotFoundError(f"The block in {self.file.path} must be there. Got no file.")
        block = load_compact(pickle.loads(self.block_ref), self.dtype)
        if files is not None:
            files.write(self.key, block, self.limit)
        return block


@dask_serialize.register(StoredBlock)
def _serialize(
    stored: StoredBlock, context: Mapping[str, object] | None = None
) -> tuple[dict, list]:
    """Send the path of the file, or the block where the receiver could not load it again.

    Dask spills by this function too; a spilled block stays on this worker, as its file does.
    """
    is_sent = context is not None and "recipient" in context
    buffers: list[Any] = []
    value = stored.load() if is_sent and stored.block_ref is None else stored
    pickled = pickle.dumps(value, buffer_callback=buffers.append)
    return {}, [pickled, *(buffer.raw() for buffer in buffers)]


@dask_deserialize.register(StoredBlock)
def _deserialize(header: dict, frames: list) -> StoredBlock | BlockRef:
    value: StoredBlock | BlockRef = pickle.loads(frames[0], buffers=frames[1:])
    return value


class CachedBlock(NamedTuple):
    """The result of `store_block` in a block's reference: a future, or in tasks its value.

    The value is a block where the task was run again and had no space.
    """

    stored: Any

    @property
    def is_cached(self) -> bool:
        return True  # it is read from the disk, not from its source

    def load(self) -> Block:
        stored = self.stored
        return open_block(stored) if isinstance(stored, BlockRef) else stored.load()


def store_block(
    block_ref: BlockRef, dtype: np.dtype | None, limit: float
) -> StoredBlock | BlockRef:
    """Load a block and write it to the disk of the worker that runs this.

    Without space the result is the reference, or the block itself where that is not small; so it
    is for a block on a device.
    """
    block_ref = block_ref._replace(to_device=False)
    worker = get_worker()
    key, block = worker.get_current_task(), load_compact(block_ref, dtype)
    pickled = _pickle_if_small(block_ref)
    file = _files_of(worker).write(key, block, limit) if is_host(block.X) else None
    if file is not None:
        return StoredBlock(key, file, pickled, dtype, limit)
    return block if pickled is None or not is_host(block.X) else block_ref


def local_block(block_ref: BlockRef) -> BlockFile | Block:
    """Return the file on this worker of a stored block; the block itself where there is none."""
    stored = block_ref.X.stored if isinstance(block_ref.X, CachedBlock) else None
    if not isinstance(stored, StoredBlock):
        return open_block(block_ref)
    block = stored.load()  # links or writes the file, if it is not here
    file = _files_of(get_worker()).find(stored.key)
    return block if file is None else file


def _pickle_if_small(block_ref: BlockRef) -> bytes | None:
    """Pickle a reference; return None for a large one."""
    buffers: list[Any] = []
    pickled: bytes = pickle.dumps(block_ref, buffer_callback=buffers.append)
    if len(pickled) + sum(buffer.raw().nbytes for buffer in buffers) > _MAX_REF_BYTES:
        return None
    return pickle.dumps(block_ref) if buffers else pickled


def measure_worker_disk(limit: float, n_bytes: int) -> DiskSpeed:
    """Time the disk of the worker that runs this, for `n_bytes` to be written in all."""
    memory = min(MEMORY_LIMIT, psutil.virtual_memory().available)
    space = _files_of(get_worker()).space
    return measure_disk(space, limit, in_page_cache=2 * n_bytes <= memory)


def should_store(engine: Engine, probe: Probe, shares_subgraph: bool) -> bool:
    """Return whether to write rows to the workers' disks: by the config, or where it is faster."""
    disk_cache, limit, rows = get_config().disk_cache, disk_limit(), probe.rows
    if rows.on_device or not limit or not all(isinstance(b.X, LazyBlock) for b in rows.blocks):
        return False
    if disk_cache != "auto" or get_config().keep_blocks != "auto":
        return disk_cache != "auto"  # with keep_blocks=False, the rows may well fit into memory
    if shares_subgraph:
        return True  # the subgraph may read all rows, so that a trial would cost a pass
    n_trials = min(N_TRIALS, max(1, sum(engine.client.nthreads().values())))
    tasks = engine.map(measure_worker_disk, [limit] * n_trials, probe.n_bytes, name="try-disk")
    return is_disk_faster(probe.seconds_per_byte, engine.gather(tasks))


def persisted_block(block: BlockRef, task: Future, in_memory: bool) -> BlockRef:
    """Return a reference to a block that a task has loaded into memory, or stored on the disk.

    One without space there is loaded as before: the scheduler knows the type of the result.
    """
    if in_memory:
        return block._replace(X=task, cache=BlockCache(), to_device=False)
    if task.type is StoredBlock:
        return block._replace(X=CachedBlock(task))
    task.release()
    return block


def group_mapped(group: Sequence[BlockRef], n_threads: int) -> list[list[BlockRef]]:
    """Group a worker's blocks: those in memory, and a part of the mapped ones for each thread."""
    in_memory = [block for block in group if not is_cached(block)]
    mapped = [block for block in group if is_cached(block)]
    parts = [in_memory, *(mapped[i::n_threads] for i in range(n_threads))]
    return [part for part in parts if part]


@contextmanager
def scratch_space() -> Iterator[DiskSpace]:
    """Yield a directory in Dask's scratch space, removed at the end.

    Where the process dies first, Dask removes it when it next uses the scratch space.
    """
    parent = dask.config.get("temporary-directory")
    try:
        base = scratch_directory(parent) or parent or tempfile.gettempdir()
        work = WorkSpace(os.path.join(base, "dask-scratch-space")).new_work_dir(prefix="skfleet-")
    except OSError:  # the disk is not writable
        yield DiskSpace(os.devnull)
        return
    try:
        yield DiskSpace(work.dir_path)
    finally:
        work.release()
