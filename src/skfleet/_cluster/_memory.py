"""Memory of the workers of a client, as the scheduler knows it."""

from __future__ import annotations

import math
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import psutil
from distributed import Client
from distributed.system import MEMORY_LIMIT

from skfleet._cluster._client import scheduler_workers
from skfleet._cluster._client_state import state_of


class WorkerMemory(NamedTuple):
    """Memory limit of a worker's process, and the bytes that the process has in use."""

    limit: int
    used: int
    is_in_process: bool  # a thread of the calling process


# What a worker process has when all is imported that fits need: at most, and at least. One that
# says less has just started, and imports it before its first fit.
IMPORTED_BYTES, MIN_IMPORTED_BYTES = 300_000_000, 250_000_000
# What sparse adds, with Numba: Dask's arrays import it wherever it is installed.
SPARSE_BYTES = 80_000_000
# Seconds for which the limits of workers are reused.
LIMITS_SECONDS = 10.0


@cache
def sparse_bytes() -> int:
    """Return what a worker imports beside what all do, by what is installed in this process."""
    return SPARSE_BYTES if find_spec("sparse") else 0


def least_thread_memory(client: Client) -> float:
    """Return the memory limit of the smallest worker, less its imports, for each of its threads."""
    workers = scheduler_workers(client, LIMITS_SECONDS).values()
    imported = max(IMPORTED_BYTES + sparse_bytes(), state_of(client).imported_bytes)
    per_thread = [
        (w["memory_limit"] - imported) / w["nthreads"] for w in workers if w["memory_limit"]
    ]
    return min(per_thread, default=math.inf)


def worker_memory(client: Client, max_age: float = 0.0) -> dict[str, WorkerMemory]:
    """Return the memory of each worker by its address, at most `max_age` seconds old."""
    memory = {}
    for address, worker in scheduler_workers(client, max_age).items():
        is_in_process = address.startswith("inproc://")
        if is_in_process:  # the last message of a worker may be older than the caller's rows
            used = psutil.Process().memory_info().rss
        else:
            imported = MIN_IMPORTED_BYTES + sparse_bytes()
            used = max(worker["metrics"].get("memory", 0), imported)
        limit = worker["memory_limit"] or MEMORY_LIMIT
        memory[address] = WorkerMemory(int(limit), int(used), is_in_process)
    return memory
