"""How a fleet is started and closed: a local cluster of labelled workers, and its client."""

from __future__ import annotations

import atexit
import sys
import threading

from dask.system import CPU_COUNT
from distributed import Client, LocalCluster

from skfleet.engine._client import current_client, offer_client

__all__ = ["default_client"]

_embedded_lock = threading.Lock()
_embedded: Client | None = None


def default_client() -> Client:
    """Give the current client, and start the embedded fleet where there is none.

    The embedded fleet is one worker on the threads of this process. It starts once, says so in one
    line on the standard error stream, and closes when the interpreter exits. Its client does not
    become distributed's default: what else the program does with Dask runs where it ran before,
    and a client that the program opens later takes over from the next call.

    Returns
    -------
    distributed.Client
        A synchronous client.

    Raises
    ------
    TypeError
        When the current client is asynchronous.
    """
    client = current_client()
    if client is not None:
        return client
    global _embedded
    with _embedded_lock:
        if _embedded is None or _embedded.status in ("closing", "closed"):
            _embedded = _start_embedded()
        return _embedded


def _start_embedded() -> Client:
    """Start one worker on the threads of this process, and a client that is not the default."""
    cluster = LocalCluster(
        processes=False,
        n_workers=1,
        threads_per_worker=CPU_COUNT,
        dashboard_address=None,
        resources={"CPU": CPU_COUNT},
    )
    client = Client(cluster, set_as_default=False)
    offer_client(client)
    atexit.register(_close_embedded)
    print(
        f"scikit-fleet: no client is open, so {CPU_COUNT} threads of this process are used. "
        "Use Fleet() for worker processes, or open a distributed.Client.",
        file=sys.stderr,
    )
    return client


def _close_embedded() -> None:
    """Close the embedded fleet, if it runs."""
    global _embedded
    with _embedded_lock:
        if _embedded is not None:
            cluster = _embedded.cluster
            _embedded.close()
            cluster.close()
            _embedded = None
