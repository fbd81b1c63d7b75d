"""Adaptive scaling that knows of work that the scheduler has not been sent yet."""

from __future__ import annotations

import math
from typing import Any

from distributed import Client
from distributed.deploy import Adaptive, Cluster

from skfleet._cluster import state_of

GPU_NAME = "gpu-"  # begin of the names of workers on GPUs


class FleetAdaptive(Adaptive):
    """Dask's adaptive scaling, which adds what searches of the client have yet to send.

    A search has few batches of fits in flight for each slot. By these alone a cluster would not
    grow as long as fits take less than half of Dask's target duration (2.5 s).
    """

    def __init__(self, client: Client, cluster: Cluster, **options: Any) -> None:
        self._client = client
        super().__init__(cluster, **options)

    async def target(self) -> int:
        """Return the number of workers for the scheduler's work, and for what is to come."""
        n_workers = await super().target()
        seconds = sum(list(state_of(self._client).waiting_seconds.values()))
        threads = [w["nthreads"] for w in self.cluster.scheduler_info["workers"].values()]
        n_threads = sum(threads) / max(1, len(threads)) or 1
        return int(n_workers + math.ceil(seconds / self.target_duration / n_threads))


class CpuOnlyAdaptive(FleetAdaptive):
    """Adaptive scaling that never closes GPU workers, which it could not start again."""

    async def workers_to_close(self, target: int) -> list[str]:
        names = await super().workers_to_close(target)
        return [name for name in names if not str(name).startswith(GPU_NAME)]
