"""Reductions of rows as parts of a lazy graph, for arguments that are lazy themselves."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import dask

from skfleet.blocks import BlockRef, RowBlocks
from skfleet.engine._dask._graph import with_shared_subgraph
from skfleet.engine._dask._worker_functions import limit_threads
from skfleet.engine._protocol import Engine
from skfleet.engine._reduce import FAN_IN, Reduction, combine_all, reduce_group
from skfleet.engine._resources import ANY_WORKER


# 1. One conversion, as blocks and arguments may share a part of the graph.
# 2. A task opens the arguments of a batch, which goes to each worker once.
# 3. One task for the blocks of a worker, or for each block that is loaded, and batch.
# 4. Their results are combined in a tree.
# 5. A task for each result of a batch.
def delay_reductions(
    engine: Engine,
    reduction: Reduction,
    rows: RowBlocks,
    batches: Sequence[Sequence[BlockRef]],
    opened: Callable[[Sequence[BlockRef]], Any],
    results: Sequence[Callable[[Any, Any, int], Any]],
) -> list[list[Any]]:
    """Return Delayed results of a reduction, whose argument is each batch of blocks in turn.

    The argument is ``opened(batch)``. For each of `results` there is a list with a Delayed of
    ``result(argument, reduced, i)`` for every block, the i-th one of its batch. They keep the rows
    in the workers' memory that are there now.
    """
    groups = engine.group_by_worker(rows.blocks)
    _, (groups, batches) = with_shared_subgraph((groups, [list(batch) for batch in batches]))
    reduce = partial(reduce_group, reduction, rows.dtype, not rows.checked)
    parts: list[list[Any]] = [[] for _ in results]
    for batch in batches:
        argument = _delayed(opened, "open-rows")(batch)
        tasks = [_delayed(reduce, reduction.name)(group, argument) for group in groups]
        while len(tasks) > 1:
            combine = _delayed(partial(combine_all, reduction.combine), f"{reduction.name}-combine")
            tasks = [combine(tasks[low : low + FAN_IN]) for low in range(0, len(tasks), FAN_IN)]
        for result, delayed in zip(results, parts, strict=True):
            call = _delayed(result, "result")
            delayed += [call(argument, tasks[0], i) for i in range(len(batch))]
    return parts


def _delayed(func: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function of Delayed values, whose tasks have a name and one library thread."""
    call = dask.delayed(limit_threads(func, ANY_WORKER), pure=False)
    return lambda *args: call(*args, dask_key_name=f"{name}-{uuid.uuid4().hex}")
