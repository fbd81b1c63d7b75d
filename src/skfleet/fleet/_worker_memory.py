"""Memory of the worker processes of a local cluster: limits, and when they spill and pause."""

from __future__ import annotations

import logging

import dask.config
from distributed.worker_memory import parse_memory_limit

logger = logging.getLogger(__name__)

# What a worker process has imported before its first task (234 MB on Linux), and some to spare.
MIN_WORKER_BYTES = 250_000_000
# Fractions of its memory limit at which a worker process spills results, and is paused: Dask's
# defaults, and a fleet's. What a pass over large files takes is bounded, and spilling results frees
# none of it, nor does a pause.
_MEMORY_FRACTIONS = {"spill": (0.7, 0.8), "pause": (0.8, 0.9)}
# Bytes from which on glibc returns memory to the system at once. distributed trims at 64 kB, so
# that every temporary array of a kernel is paged in again.
_MALLOC_VARIABLES = {
    "MALLOC_MMAP_THRESHOLD_": str(16 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(32 * 2**20),
}
# Where a thread has less than so much memory, what glibc and Arrow's mimalloc keep is a part of it.
_SMALL_THREAD_BYTES = 1_000_000_000
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


def split_memory(n_bytes: int, n_cpu_workers: int, n_gpu_workers: int) -> tuple[int, int]:
    """Return the memory limits of each CPU worker and of each GPU worker.

    All have equal shares, but for GPU workers with many CPU workers beside them: together they have
    half of the memory, for they hold the rows that they upload, and what the device spills.
    """
    equal = n_bytes // max(1, n_cpu_workers + n_gpu_workers)
    if not n_cpu_workers or n_gpu_workers >= n_cpu_workers:
        return equal, equal
    if not n_gpu_workers:
        return equal, 0
    return n_bytes // 2 // n_cpu_workers, n_bytes // 2 // n_gpu_workers


def check_memory_limit(memory_limit: int | float | str | None) -> None:
    """Raise for a limit that a worker process exceeds by its imports, to be restarted for ever."""
    n_bytes = parse_memory_limit(memory_limit, 1, 1, logger=logger)
    if n_bytes is not None and n_bytes < MIN_WORKER_BYTES:
        raise ValueError(
            f"memory_limit must be at least {MIN_WORKER_BYTES / 1e6:.0f} MB for a worker process, "
            f"which imports that much. Got {n_bytes / 1e6:.0f} MB instead. Start fewer workers "
            "with more memory each, or use processes=False."
        )
