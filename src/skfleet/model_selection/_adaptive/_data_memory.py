"""The memory of an adaptive search, estimated before its data are placed."""

from __future__ import annotations

import logging
import math
from typing import Any

from skfleet._display import format_bytes
from skfleet.blocks import RowBlocks, block_bytes
from skfleet.engine import Engine
from skfleet.model_selection._adaptive._data import (
    DEFAULT_BATCH_ROWS,
    MAX_BLOCK_FRACTION,
    MAX_BLOCK_ROWS,
    MAX_DATA_FRACTION,
)
from skfleet.model_selection._dispatch._memory import (
    PLANNED_FRACTION,
    adaptive_memory,
    check_peak,
    idle_bytes,
    memory_line,
)
from skfleet.model_selection._dispatch._worker_memory import processes_of

_SMALLEST = "a batch of X, and for a pipeline the rows that its first steps learn,"
_REMEDY = "Set a smaller batch_size, or start workers with more memory."

logger = logging.getLogger("skfleet.model_selection")


def report_data_memory(
    engine: Engine,
    rows: RowBlocks,
    estimator: Any,
    *,
    name: str,
    batch_size: int | None,
    n_jobs: int | None,
    resource: str | None = None,
) -> None:
    """Log the memory of a search, and raise where its data do not fit into a worker.

    With a `resource` each worker has all rows, and each fit a copy of those it trains on.
    Nothing is known of rows of unknown size, and of those of a search in this process.
    """
    # Sizes: of all rows, of a block, of a batch, and of what the first steps of a pipeline learn.
    n_bytes = rows.n_bytes if rows.on_dask else sum(map(block_bytes, rows.blocks))
    if engine.is_local or not n_bytes or not rows.n_rows:
        return
    processes = processes_of(engine.client, _slots(engine))
    is_replicated = n_bytes <= MAX_DATA_FRACTION * engine.memory_limit
    row = n_bytes / rows.n_rows
    largest = n_bytes if rows.lengths is None else max(rows.lengths) * row
    if resource is not None and not is_replicated:
        raise ValueError(
            f"X must fit into {MAX_DATA_FRACTION:.0%} of the memory of each worker with "
            f"resource={resource!r}. Got {format_bytes(n_bytes)} for a limit of "
            f"{format_bytes(engine.memory_limit)} instead. Start workers with more memory, or "
            'take resource="calls" without cv.'
        )
    batch = min(
        largest, (batch_size or (largest / row if rows.on_dask else DEFAULT_BATCH_ROWS)) * row
    )
    if resource is not None:
        largest = batch = n_bytes
    n_steps = len(getattr(estimator, "steps", [estimator])) - 1
    # rows to learn are concatenated, and go through one step after the other
    learned = n_bytes if is_replicated else largest
    preprocessing = int(2 * learned) if n_steps else 0
    # For each process: raise where not even one candidate has room, else estimate the peak.
    peaks = {}
    for address, process in processes.items():
        n_slots = process.n_slots if n_jobs is None else min(process.n_slots, n_jobs)
        data = 0 if process.holds_rows and not rows.on_dask else n_bytes
        least = idle_bytes(process) + preprocessing + int(batch)
        check_peak(least, _SMALLEST, process, address, _REMEDY)
        peak = idle_bytes(process) + adaptive_memory(
            data, int(batch), preprocessing, n_slots, len(processes), is_replicated=is_replicated
        )
        # blocks that a worker cannot hold are on its disk
        peaks[address] = max(least, min(peak, int(PLANNED_FRACTION * process.limit)))
    if not peaks:
        return
    # One line, on the process that comes closest to its limit.
    address = max(peaks, key=lambda address: peaks[address] / processes[address].limit)
    process = processes[address]
    driver = None
    if not process.holds_rows and not rows.on_dask:
        driver = _driver_bytes(engine, n_bytes, rows.n_rows, is_replicated)
    where = "on every worker" if is_replicated else "divided among workers"
    details = f"{where}, batches of {format_bytes(batch)}"
    line = memory_line(name, peaks[address], process, n_bytes, details, driver)
    logger.info("%s", line)


def _slots(engine: Engine) -> list[str]:
    """Return the address of a worker for each candidate that is trained at a time."""
    dask_engine: Any = engine
    return [a for a, n in dask_engine.worker_threads().items() for _ in range(n)]


def _driver_bytes(engine: Engine, n_bytes: int, n_rows: int, is_replicated: bool) -> int:
    """Return the bytes of rows in this process: one block, and all of them in shared memory."""
    from skfleet._cluster import all_workers_on_this_host

    largest = n_rows if n_rows <= MAX_BLOCK_ROWS else n_rows / math.ceil(n_rows / MAX_BLOCK_ROWS)
    block = n_bytes * largest / n_rows
    if not is_replicated:
        block = min(block, MAX_BLOCK_FRACTION * engine.memory_limit)
    return int(block) + (n_bytes if all_workers_on_this_host(engine.client) else 0)
