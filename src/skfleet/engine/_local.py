"""The engine in this process: calls run at once, and a pass uses the processor's cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import psutil

from skfleet._array import is_host
from skfleet._config import get_config
from skfleet._device import device_library, device_memory_available
from skfleet._typing import RowsT
from skfleet.blocks import (
    Block,
    BlockCache,
    BlockRef,
    RowBlocks,
    block_bytes,
    by_partition,
    is_lazy_block,
    sample_blocks,
)
from skfleet.engine._counters import add_counts
from skfleet.engine._disk_cache import (
    DiskSpace,
    can_have_cache,
    disk_limit,
    is_cached,
    is_disk_faster,
    load_compact,
    measure_disk,
    reads_of,
)
from skfleet.engine._fit_progress import count_steps
from skfleet.engine._probe import Probe, timed_load
from skfleet.engine._protocol import Call, Task, TaskResult
from skfleet.engine._resources import ANY_WORKER, ResourceRequest, check_satisfiable
from skfleet.engine._threadpools import count_local_threads, limit_threadpools

T = TypeVar("T")


class _LocalQueue:
    """Tasks that are all done, because calls run at once."""

    def __init__(self) -> None:
        self._done: list[TaskResult] = []

    def add(self, task: Task, summarize: Callable[[Any], object] | None = None) -> None:
        self._done.append(TaskResult(task, task if summarize is None else summarize(task)))

    def next(self, timeout: float | None = None) -> list[TaskResult]:
        done, self._done = self._done, []
        return done


class LocalEngine:
    """The engine of this process, with as many threads in a pass as it has cores.

    Calls run one by one as they are submitted; a task is its result, and nothing need be sent.
    """

    is_local = True
    client = None

    def __init__(self, n_threads: int | None = None) -> None:
        self.n_threads = n_threads or count_local_threads()

    def run_on_all(self, func: Callable[..., T], *args: object) -> list[T]:
        return [func(*args)]

    def check(self, resources: ResourceRequest) -> None:
        offer = {"CPU": float(self.n_threads), "GPU": float(device_library() is not None)}
        check_satisfiable(resources, {"this process": offer})

    def submit(
        self,
        func: Callable[..., object],
        /,
        *args: object,
        name: str = "",
        priority: int = 0,
        resources: ResourceRequest = ANY_WORKER,
    ) -> Task:
        add_counts(tasks=1, **reads_of(args))
        return func(*args)

    def submit_all(
        self, calls: Sequence[Call], *, priority: int = 0, resources: ResourceRequest = ANY_WORKER
    ) -> list[Task]:
        results: dict[int, Any] = {}
        for call in calls:
            args = (results.get(id(a), a) if isinstance(a, Call) else a for a in call.args)
            results[id(call)] = self.submit(call.func, *args)
        return [results[id(call)] for call in calls]

    def map(
        self,
        func: Callable[..., object],
        items: Iterable[object],
        *args: object,
        name: str = "",
        resources: ResourceRequest = ANY_WORKER,
        is_threaded: bool = False,
    ) -> list[Task]:
        if is_threaded:
            func = partial(func, n_threads=self.n_threads)
        return [self.submit(func, item, *args, name=name, resources=resources) for item in items]

    def gather(self, tasks: Sequence[Task]) -> list[Any]:
        return list(tasks)

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[Task]:
        yield from tasks

    def completion_queue(self) -> _LocalQueue:
        return _LocalQueue()

    def has_failed(self, task: Task) -> bool:
        return False  # a call that fails has already raised in `submit`

    def is_done(self, task: Task) -> bool:
        return True

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Do nothing: all tasks are done."""

    def group_by_worker(self, blocks: Sequence[BlockRef]) -> list[list[BlockRef]]:
        return [list(blocks)]

    def scatter_small(self, value: T) -> T:
        return value

    scatter = scatter_small

    def rescatter(self, scattered: object) -> None:
        """Do nothing: the value cannot be lost."""

    def release(self, handle: object) -> None:
        """Do nothing: Python frees the value with the last reference."""

    def count_slots(self, resources: ResourceRequest) -> int:
        return 1

    @property
    def memory_limit(self) -> int:
        return int(psutil.virtual_memory().available)

    @contextmanager
    def persist(self, rows: RowBlocks, *, to_disk: bool = True) -> Iterator[RowBlocks]:
        """Load the blocks that are not in memory, if configured or they fit into half of it.

        Blocks that do not fit are written to the disk, where that is allowed and faster.
        """
        keep_blocks: Any = get_config().keep_blocks
        is_lazy, sampled, probe = self.is_out_of_core(rows), rows, Probe(self, rows)
        if is_lazy and keep_blocks == "auto":
            on_device = any(block.to_device for block in rows.blocks)
            limit = device_memory_available() if on_device else self.memory_limit
            if rows.n_bytes is None and not on_device:
                sampled, probe = self._load_sample(rows)
            keep_blocks = 2 * probe.n_bytes <= limit
        if is_lazy and keep_blocks:
            rows = replace(sampled, blocks=tuple(block for block, _ in self._load(sampled.blocks)))
        del sampled  # its blocks need not fit beside a pass
        if is_lazy and not keep_blocks and to_disk and self._may_store(rows):
            with self._stored(probe) as rows:
                yield rows
            return
        yield rows

    def _load_sample(self, rows: RowBlocks) -> tuple[RowBlocks, Probe]:
        """Return the rows with a few blocks loaded, and a probe of these."""
        sample = sample_blocks(rows)
        loads = self._load(sample)
        loaded = {id(ref): block for ref, (block, _) in zip(sample, loads, strict=True)}
        blocks = tuple(loaded.get(id(ref), ref) for ref in rows.blocks)
        probe = Probe(self, rows, [(block_bytes(block), seconds) for block, seconds in loads])
        return replace(rows, blocks=blocks), probe

    def _load(self, blocks: Sequence[BlockRef]) -> list[tuple[Block, float]]:
        """Return blocks in memory, loaded in several threads on the host, and the seconds."""
        add_counts(**reads_of(blocks))
        if any(block.to_device for block in blocks):
            return list(map(timed_load, blocks))
        with limit_threadpools(1), ThreadPoolExecutor(self.n_threads) as pool:
            loads = pool.map(_load_in_turn, by_partition(blocks))
            return [*count_steps(chain.from_iterable(loads), "loading", len(blocks))]

    @contextmanager
    def persist_collections(
        self, rows: RowBlocks, collections: Sequence[RowsT]
    ) -> Iterator[list[RowsT]]:
        yield list(collections)

    @contextmanager
    def persist_sources(self, blocks: Sequence[BlockRef]) -> Iterator[list[BlockRef]]:
        yield list(blocks)  # their common source is computed once in this process

    def _may_store(self, rows: RowBlocks) -> bool:
        """Return whether the config lets lazy blocks be written to the disk, and there are any."""
        disk_cache, keep_blocks = get_config().disk_cache, get_config().keep_blocks
        if rows.on_device or not any(map(_is_storable, rows.blocks)):
            return False
        return keep_blocks == "auto" if disk_cache == "auto" else bool(disk_cache)

    @contextmanager
    def _stored(self, probe: Probe) -> Iterator[RowBlocks]:
        """Yield rows with their lazy blocks in files, where there is space and it is faster."""
        from skfleet.engine._dask._disk_blocks import scratch_space

        rows, limit = probe.rows, disk_limit()
        with scratch_space() as space:
            if get_config().disk_cache == "auto":
                disk = measure_disk(space, limit)
                if not is_disk_faster(probe.seconds_per_byte, [disk]):
                    yield rows
                    return
            add_counts(loads=sum(map(_is_storable, rows.blocks)))
            stored = (  # loaded one at a time: together they do not fit into memory
                _store_block(block, rows.dtype, space, limit) if _is_storable(block) else block
                for block in rows.blocks
            )
            blocks = tuple(count_steps(stored, "loading", len(rows.blocks)))
            yield replace(rows, blocks=blocks)

    def with_block_cache(self, rows: RowBlocks) -> RowBlocks:
        fit = can_have_cache(rows, 1, self.memory_limit)

        def with_cache(block: BlockRef) -> BlockRef:
            is_lazy = is_lazy_block(block.X) and not (fit and is_cached(block))
            return block if is_lazy else block._replace(cache=BlockCache())

        return replace(rows, blocks=tuple(map(with_cache, rows.blocks)))

    def is_out_of_core(self, rows: RowBlocks) -> bool:
        return any(block.to_device or is_lazy_block(block.X) for block in rows.blocks)

    def resident_nbytes(self, rows: RowBlocks) -> int | None:
        return sum(block_bytes(block) for block in rows.blocks if not is_lazy_block(block.X))

    def free_bytes(self) -> float:
        return 0.5 * self.memory_limit


def _load_in_turn(blocks: Sequence[BlockRef]) -> list[tuple[Block, float]]:
    return list(map(timed_load, blocks))


def _is_storable(block: BlockRef) -> bool:
    """Return whether a block is lazy, and not in a file already."""
    return is_lazy_block(block.X) and not is_cached(block)


def _store_block(
    block: BlockRef, dtype: np.dtype | None, space: DiskSpace, limit: float
) -> BlockRef:
    """Write a block to the disk and return its reference, unchanged where there is no space."""
    loaded = load_compact(block, dtype)
    file = space.write(loaded, limit) if is_host(loaded.X) else None
    return block if file is None else block._replace(X=file)
