"""The memory plan of the fits of a call: sizes of its rows and splits, and of the workers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from skfleet._cluster import all_workers_on_this_host
from skfleet.blocks import Block, block_bytes, is_lazy, row_blocks
from skfleet.engine import engine_for
from skfleet.model_selection._dispatch._memory import (
    IN_PROCESS,
    MemoryPlan,
    RowSize,
    block_memory,
    check_memory,
    check_peak,
    describe_memory,
    fit_memory,
    idle_bytes,
    memory_line,
    plan_memory,
    refit_bytes,
)
from skfleet.model_selection._dispatch._requests import SearchJob
from skfleet.model_selection._dispatch._search_context import SearchContext
from skfleet.model_selection._dispatch._worker_memory import processes_of
from skfleet.model_selection._records._evaluations import LaterIteration

logger = logging.getLogger("skfleet.model_selection")


def plan_fits(
    client: Any,
    job: SearchJob,
    context: SearchContext,
    addresses: Sequence[str],
    *,
    later: Sequence[LaterIteration] = (),
    limit: int | None = None,
) -> MemoryPlan:
    """Plan the fits at a time of each worker, log it, and raise where no fit fits into a worker.

    `addresses` has the worker of each slot; `later` are iterations that follow. Of several
    estimators the one whose fits take most counts.
    """
    rows = _nbytes(job.X) + _nbytes(job.y)
    n_rows = max(1, job.X.shape[0] if hasattr(job.X, "shape") else len(job.X))
    n_train, *tested = max((tuple(map(_n_rows, fold)) for fold in job.folds), key=sum)
    n_test = sum(tested)  # and those to validate on
    growth = max([1.0, *(iteration.rows for iteration in later)])
    growth = min(growth, n_rows / max(1, n_train + n_test))
    itemsize = getattr(getattr(job.X, "dtype", None), "itemsize", 8)
    size = RowSize(rows / n_rows, itemsize)
    estimator = max(job.estimators, key=lambda e: fit_memory(e, size, n_train, n_test).total)
    processes = processes_of(client, addresses)
    is_shared = IN_PROCESS not in processes and all_workers_on_this_host(client)
    driver = context.gathered_bytes + is_shared * rows
    if context.refits:
        driver += refit_bytes(estimator, size, n_rows)

    def plan(growth: float) -> MemoryPlan:
        fit = fit_memory(estimator, size, int(growth * n_train), int(growth * n_test))
        return plan_memory(rows, fit, processes, driver=driver, limit=limit)

    if processes:
        largest = plan(growth)
        check_memory(largest)
        if context.begin_memory_report():
            logger.info("%s", describe_memory(context.name or type(estimator).__name__, largest))
    return plan(1.0)


def report_block_memory(
    client: Any, job: SearchJob, context: SearchContext, addresses: Sequence[str], n_fits: int
) -> None:
    """Log the memory of fits on Dask rows, and raise where a block does not fit into a worker.

    This process has the numbers of the rows of each split, and targets that are here; `n_fits` run
    at once.
    """
    rows = row_blocks(job.X, dtype=None)
    processes = processes_of(client, addresses)
    if not processes or not rows.n_bytes or not rows.lengths:
        return
    block = int(rows.n_bytes * max(rows.lengths) / sum(rows.lengths))
    train_fraction = max(_n_rows(train) for train, *_ in job.folds) / sum(rows.lengths)
    resident = (engine_for(rows).resident_nbytes(rows) or 0) // len(processes)
    part = round(train_fraction * rows.n_bytes / len(processes))
    peaks = {}
    for name, process in processes.items():
        least, most = block_memory(block, train_fraction, process, resident, part, n_fits)
        peaks[name] = idle_bytes(process) + most
        check_peak(
            idle_bytes(process) + least,
            "a block of X, with the training rows cut from it,",
            process,
            name,
            "Cut X into smaller blocks (rechunk), or start workers with more memory.",
        )
    name = max(peaks, key=lambda name: peaks[name] / processes[name].limit)
    fits = f"{n_fits} fit{'s' * (n_fits > 1)} at a time"
    details = f"{len(rows.blocks)} blocks on the workers, {fits}"
    if context.begin_memory_report():
        driver = sum(np.asarray(part).nbytes for fold in job.folds for part in fold)
        driver += 0 if is_lazy(job.y) else _nbytes(job.y)
        line = memory_line(
            context.name, peaks[name], processes[name], rows.n_bytes, details, driver
        )
        logger.info("%s", line)


def _nbytes(values: Any) -> int:
    """Return the size of rows; 0 where it is unknown."""
    with suppress(Exception):  # of rows of any type
        return 0 if values is None else block_bytes(Block(values))
    return 0


def _n_rows(part: Any) -> int:
    """Return the number of rows of a part of a split: indices, or a mask."""
    part = np.asarray(part)
    return int(part.sum()) if part.dtype == bool else len(part)
