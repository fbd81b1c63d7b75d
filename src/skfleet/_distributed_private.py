"""Private names of distributed that have no public equivalent; a test fails where one goes.

Where one is gone the current client is the only default one, and a cluster that closes does not
wait. `OVERRIDES` are the private methods of its classes that classes of ours override.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Any

from distributed import Client, SpecCluster
from distributed import client as dask_client

from skfleet._private_names import PrivateNames

PrivateNames("distributed")  # whose version is looked at

# What is overridden, and what is lost without it.
OVERRIDES = {"_update_worker_status": "restarts of workers that take longer than 15 s to start"}

# Of clusters that have no place for them: the loop of a coroutine does not keep it alive.
_futures: set[asyncio.Future[None]] = set()


def default_clients() -> Iterator[Client]:
    """Yield the clients that distributed would take by default, the first choice first.

    Its own functions stop at the first that is not closed, though it may never have started.
    """
    try:
        context, clients = dask_client._current_client.get(), dask_client._global_clients
    except AttributeError:
        with suppress(ValueError):  # there is none
            yield Client.current()
        return
    if context is not None:
        yield context
    for _, client in sorted(clients.items(), reverse=True):
        if client is not context:
            yield client


def run_until_closed(cluster: SpecCluster, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in the loop of a cluster, which waits for it when it closes."""
    future = asyncio.ensure_future(coroutine)
    getattr(cluster, "_futures", _futures).add(future)
    future.add_done_callback(_futures.discard)
