"""Passes over rows: statistics that merge in any grouping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np

from skfleet._array import is_host, tree_to_host
from skfleet._config import get_config
from skfleet._validation import check_block
from skfleet.blocks import Block, RowBlocks, as_numeric, open_block, row_slices
from skfleet.engine._counters import log_pass
from skfleet.engine._prefetch import prefetch
from skfleet.engine._protocol import Engine, Task
from skfleet.engine._resources import ANY_WORKER, ResourceRequest
from skfleet.engine._threadpools import limit_threadpools

# How many partial results one task of the combining tree merges.
FAN_IN = 8
# How many pieces a thread takes on before the group's threads meet.
WINDOW = 64


def add(a: Any, b: Any) -> Any:
    """Add two partial results: numbers, arrays, and tuples, lists, dicts or dataclasses of them."""
    if isinstance(a, tuple | list):
        merged = [add(x, y) for x, y in zip(a, b, strict=True)]
        return type(a)(*merged) if hasattr(a, "_fields") else type(a)(merged)
    if isinstance(a, dict):
        return {key: add(value, b[key]) for key, value in a.items()}
    if is_dataclass(a) and not isinstance(a, type):
        return replace(a, **{k: add(getattr(a, k), getattr(b, k)) for k in a.__dataclass_fields__})
    return a + b


def identity(x: Any) -> Any:
    """Return x."""
    return x


@dataclass(frozen=True)
class Reduction:
    """A statistic of rows that may be merged in any grouping.

    `per_block(block, *args)` makes a partial result of a block (or a piece of one) of at least one
    row, in float64, and where the block is: on a device nothing should wait for a result, and a
    task brings home the one of all its blocks. `combine` merges two and must be associative;
    `finalize` runs in the driver. The functions and the arguments travel to the workers.
    """

    per_block: Callable[..., Any]
    combine: Callable[[Any, Any], Any] = add
    finalize: Callable[[Any], Any] = identity

    @property
    def name(self) -> str:
        """What runs, in a word: the name of its tasks on the dashboard."""
        func = self.per_block
        while isinstance(func, partial):
            func = func.func
        return getattr(func, "__name__", type(func).__name__).strip("_").replace("_", "-")


def map_reduce(
    engine: Engine,
    reduction: Reduction,
    rows: RowBlocks,
    *args: Any,
    resources: ResourceRequest = ANY_WORKER,
) -> Any:
    """Make one pass over the rows and return the reduction's result.

    One task per worker goes over the blocks that live there; blocks that are loaded for the pass
    are a task each. Partial results are merged in a tree. A lost worker's share is computed again.
    """
    blocks = rows.blocks
    groups = [[b] for b in blocks] if get_config().deterministic else engine.group_by_worker(blocks)
    tasks = engine.map(
        partial(reduce_group, reduction, rows.dtype, not rows.checked),
        groups,
        *args,
        name=reduction.name,
        resources=resources,
    )
    log_pass(reduction.name, len(blocks), len(tasks))
    partials = engine.gather(_tree(engine, reduction, tasks, resources))
    result = _combine_all(reduction.combine, partials)
    if result is None:
        raise ValueError("X must have at least one row. Got none instead.")
    return reduction.finalize(result)


def _tree(
    engine: Engine, reduction: Reduction, tasks: list[Task], resources: ResourceRequest
) -> list[Task]:
    """Merge partial results a few at a time, ahead of other work, so that they never pile up.

    The last two are left: for the driver to merge them sends no more, and saves a round trip.
    """
    while len(tasks) > 2:
        tasks = [
            tasks[low]
            if low + 1 == len(tasks)
            else engine.submit(
                partial(_combine_all, reduction.combine),
                tasks[low : low + FAN_IN],
                name=f"{reduction.name}-combine",
                priority=10,
                resources=resources,
            )
            for low in range(0, len(tasks), FAN_IN)
        ]
    return tasks


def _combine_all(combine: Callable[[Any, Any], Any], partials: Iterable[Any]) -> Any:
    """Merge partial results from left to right; None stands for no rows."""
    result = None
    for value in partials:
        if value is not None:
            result = value if result is None else combine(result, value)
    return result


def reduce_group(
    reduction: Reduction,
    dtype: np.dtype | None,
    check: bool,
    handles: Sequence[Block],
    *args: Any,
    n_threads: int = 1,
) -> Any:
    """Reduce the blocks of one group, in threads where asked; None where there are no rows."""

    def reduce_pieces(share: Sequence[Block] | Iterator[Block]) -> Any:
        return _combine_all(reduction.combine, map(reduce_piece, share))

    def reduce_share(share: Sequence[Block]) -> Any:
        with limit_threadpools(1):  # OpenMP's limit is each thread's own
            return reduce_pieces(share)

    def reduce_piece(piece: Block) -> Any:
        try:
            block = as_numeric(piece, dtype)
            if check:
                check_block(block)
            return reduction.per_block(block, *args)
        except Exception as error:
            error.add_note(f"While reducing block {piece.number} ({reduction.name}).")
            raise

    goes_up = any(handle.to_device for handle in handles)
    calls = [partial(open_block, handle) for handle in handles]
    blocks = prefetch(calls) if goes_up else (call() for call in calls)
    cut = chain.from_iterable(row_slices(block, dtype) for block in blocks)
    if n_threads == 1 or goes_up or not all(is_host(handle.X) for handle in handles):
        return tree_to_host(reduce_pieces(cut))
    results: list[Any] = []
    with limit_threadpools(1), ThreadPoolExecutor(n_threads) as pool:
        for window in _windows(cut, WINDOW * n_threads):
            cuts = np.linspace(0, len(window), n_threads + 1).astype(int)
            results.extend(pool.map(reduce_share, [window[a:b] for a, b in pairwise(cuts)]))
    return tree_to_host(_combine_all(reduction.combine, results))


def _windows(cut: Iterable[Block], most: int) -> Iterator[list[Block]]:
    """Give pieces together, as many as there may be."""
    cut = iter(cut)
    while window := list(islice(cut, most)):
        yield window


def with_row_offsets(engine: Engine, rows: RowBlocks) -> RowBlocks:
    """Return the same rows with known lengths, so that every block knows its first row's number."""
    if rows.lengths is not None:
        return rows
    groups = [[block] for block in rows.blocks]
    lengths = tuple(engine.gather(engine.map(_count_rows, groups, name="count-rows")))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    blocks = tuple(b._replace(start=int(s)) for b, s in zip(rows.blocks, starts, strict=False))
    return replace(rows, blocks=blocks, lengths=lengths)


def _count_rows(handles: Sequence[Block]) -> int:
    """Count the rows of a group."""
    return sum(open_block(handle._replace(to_device=False)).n_rows for handle in handles)
