"""The client that work runs on when none is named, and the embedded fleet that it may start."""

from __future__ import annotations

import atexit
import sys
import threading

from dask.system import CPU_COUNT
from distributed import Client

from skfleet._cluster import current_client, register_client
from skfleet._worker_plugins import log_failures, stop_log_failures
from skfleet.fleet._local_cluster import start_local_cluster

_embedded_lock = threading.Lock()
_embedded: Client | None = None


def default_client() -> Client:
    """Return the current client; start the embedded fleet where there is none.

    The embedded fleet is one worker on the threads of this process. It starts once, prints a line
    on the standard error stream, and closes when the interpreter exits. Its client does not become
    distributed's default: other work on Dask in the program is not affected, and a client that the
    program opens later is used from the next call on. An asynchronous client raises a TypeError.

    Returns
    -------
    client : distributed.Client
        The current client, or that of the embedded fleet.

    Examples
    --------
    >>> from skfleet import Fleet
    >>> from skfleet.fleet import default_client
    >>> client = default_client()
    >>> client.submit(pow, 2, 5).result()
    32
    >>> default_client() is client
    True
    >>> with Fleet(n_workers=1, processes=False) as opened:
    ...     default_client() is opened
    True
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
    cluster = start_local_cluster(n_workers=1, processes=False, dashboard_address=None)
    client = Client(cluster, set_as_default=False)
    register_client(client)
    log_failures(client)
    print(
        f"scikit-fleet: no client is open, so {CPU_COUNT} threads of this process are used. "
        "Use Fleet() for worker processes, or open a distributed.Client.",
        file=sys.stderr,
    )
    return client


@atexit.register
def _close_embedded() -> None:
    """Close the embedded fleet, if it runs."""
    global _embedded
    with _embedded_lock:
        if _embedded is not None:
            cluster = _embedded.cluster
            stop_log_failures(_embedded)
            _embedded.close()
            cluster.close()
            _embedded = None
