"""Workers, threads, memory and addresses of a fleet, for its representations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from distributed import Client

from skfleet._cluster import WorkerInfo, address_of, latest_workers
from skfleet._display import Cell, Link, count, format_bytes, html_table

# A representation waits no longer for the scheduler, and then shows what was last known of it.
ANSWER_SECONDS = 1.0
MAX_ROWS = 20


class FleetSummary(NamedTuple):
    """An open fleet as its scheduler described it; `is_answered` if that was just now."""

    workers: dict[str, WorkerInfo]
    is_answered: bool
    address: str
    dashboard: str | None

    @classmethod
    def of(cls, client: Client, dashboard: str | None) -> FleetSummary:
        """Return the summary of the fleet of an open client."""
        return cls(*latest_workers(client, ANSWER_SECONDS), address_of(client), dashboard)

    @property
    def parts(self) -> list[str]:
        """Texts on workers, threads, memory and the address."""
        if not self.workers:
            return ["no worker" if self.is_answered else "workers unknown", self.address]
        workers = list(self.workers.values())
        n_on_gpus = sum(map(_is_on_gpu, workers))
        counts = {"worker": len(workers)}
        if n_on_gpus:
            counts = {"CPU worker": len(workers) - n_on_gpus, "GPU worker": n_on_gpus}
        counts["thread"] = sum(worker.get("nthreads", 0) for worker in workers)
        limit = memory_limit(self.workers)
        return [
            *(count(n, noun) for noun, n in counts.items() if n),
            "no memory limit" if limit is None else format_bytes(limit),
            self.address,
            *([] if self.is_answered else ["as last known"]),
        ]

    def __str__(self) -> str:
        dashboard = [f"dashboard {self.dashboard}"] if self.dashboard else []
        return f"Fleet({', '.join(self.parts + dashboard)})"

    def html(self) -> str:
        """Return a table of the workers, and the link to the dashboard."""
        rows: list[tuple[str, *tuple[Cell, ...]]] = [
            _row(*item) for item in sorted(self.workers.items(), key=_by_name)[:MAX_ROWS]
        ]
        if (n_more := len(self.workers) - MAX_ROWS) > 0:
            rows.append((f"and {count(n_more, 'more worker')}", "", "", "", ""))
        if self.dashboard:
            rows.append(("Dashboard", Link(self.dashboard)))
        header = ("Worker", "Device", "Threads", "Memory limit", "Memory in use")
        return html_table(f"Fleet: {', '.join(self.parts)}", rows, header if self.workers else ())


def memory_limit(workers: dict[str, WorkerInfo]) -> int | None:
    """Return the memory that workers may use together; None where one has no limit.

    Workers on the threads of one process have the same memory.
    """
    limits: dict[str, int] = {}
    for address, worker in workers.items():
        limit = worker.get("memory_limit")
        if not limit:
            return None
        is_in_process = address.startswith("inproc://")
        process = address.rpartition("/")[0] if is_in_process else address
        limits[process] = max(limits.get(process, 0), limit)
    return sum(limits.values())


def _row(address: str, worker: WorkerInfo) -> tuple[str, *tuple[Cell, ...]]:
    """Return the cells of a worker."""
    name = str(worker.get("name", address))
    limit, used = worker.get("memory_limit"), (worker.get("metrics") or {}).get("memory")
    return (
        address if name == address else f"{name}, {address}",
        _device(worker),
        str(worker.get("nthreads", "")),
        format_bytes(limit) if limit else "none",
        format_bytes(used) if used else "",
    )


def _by_name(item: tuple[str, WorkerInfo]) -> tuple[int, str]:
    name = str(item[1].get("name", item[0]))
    return len(name), name  # 9 before 10


def _device(worker: WorkerInfo) -> str:
    if not _is_on_gpu(worker):
        return "CPU"
    models: Any = (worker.get("gpu") or {}).get("name", "")
    models = [models] if isinstance(models, str) or not isinstance(models, Iterable) else models
    return ", ".join(filter(None, ["GPU", *dict.fromkeys(map(str, models))]))


def _is_on_gpu(worker: WorkerInfo) -> bool:
    return (worker.get("resources") or {}).get("GPU", 0) > 0
