"""Private names of distributed that have no public equivalent; a test fails where one goes.

`OVERRIDES` are the private methods of its classes that classes of ours override.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

from distributed import Client, SpecCluster
from distributed import client as dask_client

# What is overridden, and what is lost without it.
OVERRIDES = {"_update_worker_status": "restarts of workers that take longer than 15 s to start"}


def default_clients() -> Iterator[Client]:
    """Yield the clients that distributed would take by default, the first choice first.

    Its own functions stop at the first that is not closed, though it may never have started.
    """
    context = dask_client._current_client.get()
    if context is not None:
        yield context
    for _, client in sorted(dask_client._global_clients.items(), reverse=True):
        if client is not context:
            yield client


def run_until_closed(cluster: SpecCluster, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in the loop of a cluster, which waits for it when it closes."""
    cluster._futures.add(asyncio.ensure_future(coroutine))
