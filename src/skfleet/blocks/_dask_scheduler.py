"""The Dask scheduler for values that are needed before an engine is selected, and its workers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial


def scheduler() -> str | Callable[..., object] | None:
    """Return the ``scheduler`` argument for ``dask.compute``; None leaves the choice to Dask."""
    if "distributed" not in sys.modules:
        return None
    from skfleet._cluster import compute_graph, scheduler_for_values

    client = scheduler_for_values()
    return client if client is None or isinstance(client, str) else partial(compute_graph, client)


def thread_memory() -> float:
    """Return the bytes that each thread of the smallest worker has beside what it has imported.

    Infinity where nothing says so.
    """
    if "distributed" not in sys.modules:
        return math.inf
    from skfleet._cluster import current_client, least_thread_memory

    client = current_client(is_required=False)
    return math.inf if client is None else least_thread_memory(client)
