"""Memory of the worker processes of a local cluster: limits, and when they spill and pause."""

from __future__ import annotations

import logging
import math
from typing import Any

import dask.config
from distributed import Client
from distributed.worker_memory import parse_memory_limit

from skfleet._cluster import scheduler_workers, sparse_bytes, state_of
from skfleet._worker_plugins import memory_of_imports

logger = logging.getLogger(__name__)

# What a worker process must have beside what it has imported before its first task (234 MB on
# Linux); what no worker starts with less than, without the package sparse; and the limit below
# which its imports are measured.
SPARE_BYTES, MIN_WORKER_BYTES, MEASURED_BYTES = 100_000_000, 330_000_000, 600_000_000
# Fractions of its memory limit at which a worker process spills results, and is paused: Dask's
# defaults, and a fleet's. What a pass over large files takes is bounded, and spilling results frees
# none of it, nor does a pause.
_MEMORY_FRACTIONS = {"spill": (0.7, 0.8), "pause": (0.8, 0.9)}
# Bytes from which on glibc returns memory to the system at once; it takes no larger first value.
# distributed trims at 64 kB, so that every temporary array of a kernel is paged in again, and what
# Dask reads of every Parquet file (20 MB: 30 ms, and 20 ms in memory that was kept).
_MALLOC_VARIABLES = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}
# Where a thread has less than so much memory, what glibc and Arrow's mimalloc keep is a part of it.
_SMALL_THREAD_BYTES = 700_000_000
_SMALL_THREAD_VARIABLES = {
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    "MALLOC_TRIM_THRESHOLD_": str(4 * 2**20),
    "MIMALLOC_PURGE_DELAY": "0",
}


def allocator_variables(memory_limit: int | float | str | None, n_threads: int) -> dict[str, str]:
    """Return environment variables by which a worker process returns freed memory in time."""
    n_bytes = parse_memory_limit(memory_limit, 1, 1, logger=logger)
    is_small = n_bytes is not None and n_bytes < n_threads * _SMALL_THREAD_BYTES
    return _SMALL_THREAD_VARIABLES if is_small else _MALLOC_VARIABLES


def memory_fractions() -> dict[str, float]:
    """Return Dask's settings of when a worker spills and pauses, where they are its defaults."""
    return {
        f"distributed.worker.memory.{name}": fraction
        for name, (default, fraction) in _MEMORY_FRACTIONS.items()
        if dask.config.get(f"distributed.worker.memory.{name}") == default
    }


def divide_memory(n_bytes: int, n_cpu_workers: int, n_gpu_workers: int) -> tuple[int, int]:
    """Return the memory limits of each CPU worker and of each GPU worker.

    All have equal parts, but for GPU workers with many CPU workers beside them: together they have
    half of the memory, for they hold the rows that they upload, and what the device spills.
    """
    equal = n_bytes // max(1, n_cpu_workers + n_gpu_workers)
    if not n_cpu_workers or n_gpu_workers >= n_cpu_workers:
        return equal, equal
    if not n_gpu_workers:
        return equal, 0
    return n_bytes // 2 // n_cpu_workers, n_bytes // 2 // n_gpu_workers


def check_memory_limit(memory_limit: int | float | str | None) -> None:
    """Raise for a limit that a worker process exceeds when it starts, to be restarted for ever."""
    n_bytes = parse_memory_limit(memory_limit, 1, 1, logger=logger)
    needed = MIN_WORKER_BYTES + sparse_bytes()
    if n_bytes is not None and n_bytes < needed:
        raise _limit_error(n_bytes, needed)


def check_free_memory(client: Client) -> None:
    """Raise unless workers have memory to spare beside what one of them takes for its imports.

    It is measured where the limit is low, and takes the second in which a first task would wait.
    """
    workers = scheduler_workers(client)
    limits = {address: worker["memory_limit"] or math.inf for address, worker in workers.items()}
    lowest = min(limits, key=limits.__getitem__, default=None)
    if lowest is None or limits[lowest] >= MEASURED_BYTES:
        return
    options: dict[str, Any] = {"workers": [lowest], "on_error": "ignore"}
    imported = client.run(memory_of_imports, **options).get(lowest)
    state_of(client).imported_bytes = imported or 0
    # one that has ended meanwhile did so for its memory
    needed = (imported or int(limits[lowest])) + SPARE_BYTES
    if limits[lowest] < needed:
        raise _limit_error(limits[lowest], needed)


def _limit_error(limit: float, needed: float) -> ValueError:
    return ValueError(
        f"memory_limit must be at least {needed / 1e6:.0f} MB for a worker process, for what it "
        f"imports and {SPARE_BYTES / 1e6:.0f} MB of work. Got {limit / 1e6:.0f} MB instead. Start "
        "fewer workers with more memory each, or use processes=False."
    )
