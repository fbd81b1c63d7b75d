"""The engine in this process: calls run at once, and a pass uses the processor's cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import joblib
import psutil

from skfleet._array import is_host
from skfleet._config import get_config
from skfleet._device import device_library, device_memory_available
from skfleet.blocks import Block, BlockCache, LazyBlock, RowBlocks, open_block
from skfleet.engine._counters import add_counts
from skfleet.engine._disk_cache import (
    DiskSpace,
    disk_limit,
    is_cached,
    load_compact,
    pays,
    reads_of,
    try_disk,
)
from skfleet.engine._protocol import Call, Probe, Task, TaskResult
from skfleet.engine._reduce import reduce_group
from skfleet.engine._resources import ANY_WORKER, ResourceRequest, check_satisfiable


class _Over:
    """Tasks that have all ended, because calls run at once."""

    def __init__(self) -> None:
        self._ended: list[TaskResult] = []

    def add(self, task: Task, summarize: Callable[[Any], Any] | None = None) -> None:
        """Take note of a task, and of its value or what its call tells of it."""
        self._ended.append(TaskResult(task, task if summarize is None else summarize(task)))

    def next(self, timeout: float | None = None) -> list[TaskResult]:
        """Give the tasks that were added since the last time."""
        ended, self._ended = self._ended, []
        return ended


class LocalEngine:
    """The engine of this process, with as many threads in a pass as it has cores."""

    is_here = True
    client = None

    def __init__(self, n_threads: int | None = None) -> None:
        self.n_slots = n_threads or joblib.cpu_count()

    def run_on_all(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """Run func(*args) here, and return the answer."""
        return [func(*args)]

    def check(self, resources: ResourceRequest) -> None:
        """Raise unless a task with this placement can run in this process."""
        offer = {"CPU": float(self.n_slots), "GPU": float(device_library() is not None)}
        check_satisfiable(resources, {"this process": offer})

    def submit(
        self,
        func: Callable[..., Any],
        /,
        *args: Any,
        name: str = "",
        priority: int = 0,
        resources: ResourceRequest = ANY_WORKER,
    ) -> Task:
        """Run func(*args) now; what it returns is the task."""
        add_counts(tasks=1, **reads_of(args))
        if isinstance(func, partial) and func.func is reduce_group:
            func = partial(func, n_threads=self.n_slots)
        return func(*args)

    def submit_all(
        self, calls: Sequence[Call], *, priority: int = 0, resources: ResourceRequest = ANY_WORKER
    ) -> list[Task]:
        """Run several calls, one after the other."""
        results: dict[int, Any] = {}
        for call in calls:
            args = (
                results.get(id(arg), arg) if isinstance(arg, Call) else arg for arg in call.args
            )
            results[id(call)] = self.submit(call.func, *args)
        return [results[id(call)] for call in calls]

    def map(
        self,
        func: Callable[..., Any],
        items: Iterable[Any],
        *args: Any,
        name: str = "",
        resources: ResourceRequest = ANY_WORKER,
    ) -> list[Task]:
        """Run func(item, *args) for every item."""
        return [self.submit(func, item, *args, name=name, resources=resources) for item in items]

    def gather(self, tasks: Sequence[Task]) -> list[Any]:
        """Return the results."""
        return list(tasks)

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Yield the tasks, which have all ended."""
        yield from tasks

    def completion_queue(self) -> _Over:
        """Return something to wait with for tasks, which have all ended."""
        return _Over()

    def has_failed(self, task: Task) -> bool:
        """Say no: a call that raises raises at once, here."""
        return False

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Give up what has not ended: nothing, here."""

    def group_by_worker(self, blocks: Sequence[Block]) -> list[list[Block]]:
        """Return one group: all blocks are in this process."""
        return [list(blocks)]

    def scatter_small(self, value: Any) -> Any:
        """Return the value: there is nowhere to send it."""
        return value

    def scatter(self, value: Any) -> Any:
        """Keep a value for tasks: it is here."""
        return value

    def rescatter(self, kept: Any) -> None:
        """Send a kept value again: it cannot be lost."""

    def release(self, held: Any) -> None:
        """Let go of a kept value or a task: they go with those who refer to them."""

    def count_slots(self, resources: ResourceRequest) -> int:
        """How many tasks with a placement run at once: calls run at once, one by one."""
        return 1

    @property
    def memory_limit(self) -> int:
        """Bytes that this process may hold."""
        return int(psutil.virtual_memory().available)

    @contextmanager
    def persist(self, rows: RowBlocks) -> Iterator[RowBlocks]:
        """Load the blocks that are not in memory, where wanted and if they fit into half of it.

        Those that do not fit are written to the disk, where that is wanted and pays.
        """
        wanted = get_config().keep_blocks
        lazy, probe = self.is_out_of_core(rows), Probe(self, rows)
        if lazy and wanted == "auto":
            goes_up = any(block.to_device for block in rows.blocks)
            wanted = 2 * probe.n_bytes <= (
                device_memory_available() if goes_up else self.memory_limit
            )
        if lazy and wanted:
            add_counts(**reads_of(rows.blocks))
            rows = replace(rows, blocks=tuple(open_block(block) for block in rows.blocks))
        elif lazy and self._may_cache(rows):
            with self._on_disk(probe) as rows:
                yield rows
            return
        yield rows

    @contextmanager
    def persist_sources(self, blocks: Sequence[Block]) -> Iterator[list[Block]]:
        """Keep what several blocks are made of: it stays here once it was made."""
        yield list(blocks)

    def _may_cache(self, rows: RowBlocks) -> bool:
        """Say whether rows that are not kept in memory may go to the disk."""
        wanted, keep = get_config().disk_cache, get_config().keep_blocks
        if rows.on_device or not any(map(_can_cache, rows.blocks)):
            return False
        return keep == "auto" if wanted == "auto" else bool(wanted)

    @contextmanager
    def _on_disk(self, probe: Probe) -> Iterator[RowBlocks]:
        """Write blocks that would be loaded to the disk, as far as there is room and it pays."""
        from skfleet.engine._dask._disk_blocks import scratch_space

        rows, limit = probe.rows, disk_limit()
        with scratch_space() as space:
            if get_config().disk_cache == "auto":
                disk = try_disk(space, limit)
                if not pays(probe.seconds_per_byte, [disk]):
                    yield rows
                    return
            add_counts(loads=sum(map(_can_cache, rows.blocks)))
            blocks = tuple(
                _written(block, rows.dtype, space, limit) if _can_cache(block) else block
                for block in rows.blocks
            )
            yield replace(rows, blocks=blocks)

    def with_block_cache(self, rows: RowBlocks) -> RowBlocks:
        """Return the same rows with room for notes beside every block that is in memory."""
        blocks = (
            block if isinstance(block.X, LazyBlock) else block._replace(notes=BlockCache())
            for block in rows.blocks
        )
        return replace(rows, blocks=tuple(blocks))

    def is_out_of_core(self, rows: RowBlocks) -> bool:
        """Say whether a pass loads any blocks."""
        return any(map(_is_lazy, rows.blocks))


def _is_lazy(block: Block) -> bool:
    """Say whether a block is not yet where it is wanted."""
    return block.to_device or isinstance(block.X, LazyBlock)


def _can_cache(block: Block) -> bool:
    """Say whether a block is loaded, and not from the disk cache."""
    return isinstance(block.X, LazyBlock) and not is_cached(block)


def _written(block: Block, dtype: Any, space: DiskSpace, limit: float) -> Block:
    """Write a block to the disk; return the handle as it was where there is no room."""
    found = load_compact(block, dtype)
    file = space.write(found, limit) if is_host(found.X) else None
    return block if file is None else block._replace(X=file)
