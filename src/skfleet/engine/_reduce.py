"""Passes over rows: statistics of blocks, combined in a tree and finalized (`map_reduce`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any, TypeVar

import numpy as np

from skfleet._array import is_host, tree_to_host
from skfleet._config import get_config
from skfleet._validation import check_block
from skfleet.blocks import (
    Block,
    BlockRef,
    RowBlocks,
    as_numeric,
    by_partition,
    open_block,
    open_parts,
    row_slices,
)
from skfleet.engine._counters import log_pass
from skfleet.engine._fit_progress import begin_pass, current_fit_progress
from skfleet.engine._halving import gather_or_halve
from skfleet.engine._prefetch import prefetch
from skfleet.engine._protocol import Engine, Task
from skfleet.engine._resources import ANY_WORKER, ResourceRequest
from skfleet.engine._threadpools import limit_threadpools

T = TypeVar("T")

# Partial results that one task of the tree combines, which has all of them in memory: fewer where
# they have more bytes together.
FAN_IN, FAN_IN_BYTES = 8, 32 * 2**20
# Slices of blocks that a thread reduces before it waits for the others of its task.
SLICES_PER_THREAD = 64
# Slices in which a block is cut for each of several threads at least, so that all have work.
MIN_SLICES_PER_THREAD = 8


def add(a: Any, b: Any) -> Any:
    """Add two partial results: numbers, arrays, or tuples, lists, dicts and dataclasses of them."""
    if isinstance(a, tuple | list):
        merged = [add(x, y) for x, y in zip(a, b, strict=True)]
        return type(a)(*merged) if hasattr(a, "_fields") else type(a)(merged)
    if isinstance(a, dict):
        return {key: add(value, b[key]) for key, value in a.items()}
    if is_dataclass(a) and not isinstance(a, type):
        return replace(a, **{k: add(getattr(a, k), getattr(b, k)) for k in a.__dataclass_fields__})
    return a + b


def identity(x: T) -> T:
    """Return x."""
    return x


@dataclass(frozen=True)
class Reduction:
    """A statistic of rows whose partial results may be combined in any grouping.

    `per_block(block, *args)` returns the partial result of a block (or a slice of one) of at least
    one row, in float64 and on the block's device: nothing there should wait for a result, which a
    task copies to the host once for all its blocks. `combine` merges two and must be associative.
    `finalize` runs in the driver. The functions and the arguments are pickled for the workers.
    Blocks on the host are reduced in slices of `piece_bytes`, by default few enough for a cache.
    `result_bytes` is the size of a partial result, where it may be large. On a device, a block for
    which `takes_whole(block, *args)` is true is not cut: `per_block` makes no copies of its rows.
    """

    per_block: Callable[..., Any]
    combine: Callable[[Any, Any], Any] = add
    finalize: Callable[[Any], Any] = identity
    piece_bytes: int | None = None
    result_bytes: int = 0
    takes_whole: Callable[..., bool] | None = None

    @property
    def name(self) -> str:
        """The name of its tasks on the dashboard."""
        func = self.per_block
        while isinstance(func, partial):
            func = func.func
        return getattr(func, "__name__", type(func).__name__).strip("_").replace("_", "-")


def map_reduce(
    engine: Engine,
    reduction: Reduction,
    rows: RowBlocks,
    *args: object,
    resources: ResourceRequest = ANY_WORKER,
) -> Any:
    """Run one pass over the rows and return the reduction's result.

    One task per worker reduces the blocks in its memory; blocks that are loaded for the pass are a
    task each, or several small files one. Partial results are combined in a tree. Dask repeats the
    tasks of a lost worker.
    """
    blocks = rows.blocks
    is_fixed = get_config().deterministic
    groups = by_partition(blocks) if is_fixed else engine.group_by_worker(blocks)
    reduce = partial(reduce_group, reduction, rows.dtype, not rows.checked)
    options: dict[str, Any] = {"name": reduction.name, "resources": resources, "is_threaded": True}
    progress = begin_pass(len(blocks), rows)

    def submit(groups: Sequence[Sequence[BlockRef]]) -> list[Task]:
        tasks = engine.map(reduce, groups, *args, **options)
        if progress is not None:
            progress.watch_blocks(engine, tasks, groups, rows)
        return tasks

    def combine(tasks: list[Task]) -> list[Any]:
        return engine.gather(_combine_in_tree(engine, reduction, tasks, resources))

    partials = gather_or_halve(engine, submit, groups, combine)
    log_pass(reduction.name, len(blocks), len(groups))
    return reduction.finalize(checked_result(combine_all(reduction.combine, partials)))


def checked_result(result: T | None) -> T:
    """Return a result, or raise where it is that of no rows."""
    if result is None:
        raise ValueError("X must have at least one row. Got none instead.")
    return result


def _combine_in_tree(
    engine: Engine, reduction: Reduction, tasks: list[Task], resources: ResourceRequest
) -> list[Task]:
    """Submit the combination of partial results, a few in a task, with priority over other tasks.

    The last two are for the driver to combine, which saves a round trip and sends no more data.
    """
    combine, name = partial(combine_all, reduction.combine), f"{reduction.name}-combine"
    fan_in = max(2, min(FAN_IN, FAN_IN_BYTES // max(1, reduction.result_bytes)))
    while len(tasks) > 2:
        groups = [tasks[low : low + fan_in] for low in range(0, len(tasks), fan_in)]
        tasks = [
            engine.submit(combine, group, name=name, priority=10, resources=resources)
            if len(group) > 1
            else group[0]
            for group in groups
        ]
    return tasks


def combine_all(combine: Callable[[T, T], T], partials: Iterable[T | None]) -> T | None:
    """Combine partial results from left to right; None is that of no rows."""
    result = None
    for value in partials:
        if value is not None:
            result = value if result is None else combine(result, value)
    return result


def reduce_group(
    reduction: Reduction,
    dtype: np.dtype | None,
    check: bool,
    block_refs: Sequence[BlockRef],
    *args: object,
    n_threads: int = 1,
) -> object:
    """Reduce the blocks of one task, in several threads on the host; return None without rows."""

    # Slices are combined as they come: a thread has the partial results of two at most.
    def reduce_slices(slices: Iterable[Block]) -> object:
        return combine_all(reduction.combine, map(reduce_slice, slices))

    def reduce_chunk(slices: Sequence[Block]) -> object:
        with limit_threadpools(1):  # OpenMP's limit belongs to the thread
            return reduce_slices(slices)

    # The number of the block is the only trace of where invalid values are.
    def reduce_slice(rows: Block) -> object:
        try:
            block = as_numeric(rows, dtype)
            if check:
                check_block(block)
            return reduction.per_block(block, *args)
        except Exception as error:
            error.add_note(f"While reducing block {rows.number} ({reduction.name}).")
            raise

    def reduce_blocks(block_refs: Sequence[BlockRef]) -> object:
        with limit_threadpools(1):
            blocks = counted(map(open_block, block_refs))
            return reduce_slices(chain.from_iterable(map(partial(row_slices, dtype=None), blocks)))

    def cut(block: Block) -> Iterable[Block]:
        takes_whole = None if check else reduction.takes_whole  # a check makes copies
        if takes_whole and block.n_rows and not is_host(block.X) and takes_whole(block, *args):
            return [block]
        return row_slices(block, dtype, reduction.piece_bytes, n_pieces)

    progress = current_fit_progress()  # None on a worker
    counted = identity if progress is None else progress.count_blocks
    # Where blocks come from: to a device the next one is copied while this one is reduced.
    is_uploaded = any(ref.to_device for ref in block_refs)
    blocks: Iterable[Block]
    if is_uploaded:
        blocks = prefetch([partial(open_block, ref) for ref in block_refs])
    elif dtype is None:  # whole blocks
        blocks = map(open_block, block_refs)
    else:
        blocks = open_parts(block_refs)
    # Slices that fit a cache, and enough of them for all threads.
    n_pieces = 1 if n_threads == 1 else MIN_SLICES_PER_THREAD * n_threads
    # Without a name for it here, a block is freed before the next one is loaded.
    slices = chain.from_iterable(map(cut, counted(blocks)))
    # A device is busy with one thread; more would only wait for it.
    if n_threads == 1 or is_uploaded or not all(is_host(ref.X) for ref in block_refs):
        return tree_to_host(reduce_slices(slices))
    # Each thread gets consecutive slices; results are combined in the order of the rows. For one
    # slice none is started, which would take longer than a small slice does.
    if dtype is None:  # whole blocks, of which each thread has one in memory
        partitions = by_partition(block_refs)
        if len(partitions) == 1:
            return tree_to_host(reduce_blocks(partitions[0]))
        with limit_threadpools(1), ThreadPoolExecutor(n_threads) as pool:
            return tree_to_host(combine_all(reduction.combine, pool.map(reduce_blocks, partitions)))
    results: list[Any] = []
    # In windows, so that few slices of lazy blocks are in memory at a time.
    window = list(islice(slices, SLICES_PER_THREAD * n_threads))
    if len(window) == 1:
        return tree_to_host(reduce_chunk(window))
    with limit_threadpools(1), ThreadPoolExecutor(n_threads) as pool:
        while window:
            bounds = np.linspace(0, len(window), n_threads + 1).astype(int)
            results.extend(pool.map(reduce_chunk, [window[a:b] for a, b in pairwise(bounds)]))
            window = list(islice(slices, SLICES_PER_THREAD * n_threads))
    return tree_to_host(combine_all(reduction.combine, results))


def with_row_offsets(engine: Engine, rows: RowBlocks) -> RowBlocks:
    """Return the same rows with known lengths, and every block with its first row's number."""
    if rows.lengths is not None:
        return rows
    groups = engine.group_by_worker(rows.blocks)
    progress = current_fit_progress()
    if progress is not None:
        progress.begin_stage("counting rows", len(rows.blocks))

    def submit(groups: Sequence[Sequence[BlockRef]]) -> list[Task]:
        tasks = engine.map(_count_rows, groups, name="count-rows")
        if progress is not None:
            progress.watch_blocks(engine, tasks, groups, rows)
        return tasks

    counts = chain.from_iterable(gather_or_halve(engine, submit, groups))
    refs = chain.from_iterable(groups)
    n_rows = {id(ref): count for ref, count in zip(refs, counts, strict=True)}
    return rows.with_lengths([n_rows[id(ref)] for ref in rows.blocks])


def _count_rows(block_refs: Sequence[BlockRef]) -> list[int]:
    return [open_block(ref._replace(to_device=False)).n_rows for ref in block_refs]
