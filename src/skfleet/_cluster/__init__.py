"""The client and the workers of a Dask cluster, below the rows and the tasks on it."""

from skfleet._cluster._client import (
    address_of,
    all_workers_on_this_host,
    check_running,
    check_synchronous,
    check_workers,
    current_client,
    current_worker_address,
    has_dashboard,
    host_identity,
    is_cancelled,
    latest_workers,
    n_workers_planned,
    register_client,
    scheduler_for_values,
    scheduler_workers,
    seceded,
    wait_for_workers,
    worker_resources,
)
from skfleet._cluster._client_state import WorkerInfo, state_of
from skfleet._cluster._interrupts import interruptible_waits
from skfleet._cluster._memory import least_thread_memory, sparse_bytes, worker_memory
from skfleet._cluster._pauses import HasWorkers, PauseCheck
from skfleet._cluster._wait import (
    MEMORY_TOPIC,
    completed,
    compute_graph,
    death_error,
    explained_deaths,
    gather,
)

__all__ = [
    "MEMORY_TOPIC",
    "HasWorkers",
    "PauseCheck",
    "WorkerInfo",
    "address_of",
    "all_workers_on_this_host",
    "check_running",
    "check_synchronous",
    "check_workers",
    "completed",
    "compute_graph",
    "current_client",
    "current_worker_address",
    "death_error",
    "explained_deaths",
    "gather",
    "has_dashboard",
    "host_identity",
    "interruptible_waits",
    "is_cancelled",
    "latest_workers",
    "least_thread_memory",
    "n_workers_planned",
    "register_client",
    "scheduler_for_values",
    "scheduler_workers",
    "seceded",
    "sparse_bytes",
    "state_of",
    "wait_for_workers",
    "worker_memory",
    "worker_resources",
]
