"""State of every distributed client, dropped with the client (`state_of`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict
from weakref import WeakKeyDictionary, WeakValueDictionary

from distributed import Client


class WorkerInfo(TypedDict, total=False):
    """A worker as its scheduler describes it: the entries that this library reads."""

    name: object
    host: str
    status: str
    last_seen: float
    nthreads: int
    memory_limit: int | None
    resources: dict[str, float]
    metrics: dict[str, Any]
    gpu: dict[str, Any]  # where NVML reports one


@dataclass(eq=False)
class ClientState:
    """Facts and objects of a client, to which none of them may refer strongly."""

    # Tasks on its workers in this process use it, though it is not distributed's default.
    is_registered: bool = False
    # It is a default client that does not run, and that was printed.
    is_reported: bool = False
    # When the scheduler described its workers, and how.
    workers: tuple[float, dict[str, WorkerInfo]] = (0.0, {})
    # What a worker has in memory when all is imported, where that was measured.
    imported_bytes: int = 0
    # Addresses of workers that were paused for long, which was logged.
    logged_pauses: frozenset[str] = frozenset()
    # Addresses of workers whose versions are equal to the caller's, and those of them that are
    # processes of this machine and user.
    checked: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    # Seconds of work that calls have not sent yet, by the id of what will send it: adaptive scaling
    # adds them to the work that the scheduler has.
    waiting_seconds: dict[int, float] = field(default_factory=dict)
    # Of the rooms above: objects on its cluster, by digest and the id of their owner (0 without
    # one), and the events of its summaries.
    scattered: WeakValueDictionary[tuple[bytes, int], Any] = field(
        default_factory=WeakValueDictionary
    )
    summary_events: Any = None


_states: WeakKeyDictionary[Client, ClientState] = WeakKeyDictionary()


def state_of(client: Client) -> ClientState:
    return _states.setdefault(client, ClientState())


def registered_clients() -> list[Client]:
    """Return the clients that tasks on their workers in this process use."""
    return [client for client, state in list(_states.items()) if state.is_registered]
