"""The memory of the worker processes of a fleet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from skfleet.model_selection._dispatch._memory import ProcessMemory, process_of


def processes_of(client: Any, addresses: Iterable[str]) -> dict[str, ProcessMemory]:
    """Return the memory of each worker process, by the address of a worker for each slot.

    Workers on threads of this process are one.
    """
    from skfleet._cluster import worker_memory

    processes: dict[str, ProcessMemory] = {}
    memory = worker_memory(client, max_age=1.0)
    for address in addresses:
        if address not in memory:  # it left meanwhile
            continue
        limit, used, is_in_process = memory[address]
        name = process_of(address)
        n_slots = processes[name].n_slots + 1 if name in processes else 1
        processes[name] = ProcessMemory(limit, used, n_slots, is_in_process)
    return processes
