"""Models in the tasks of lazy results: with each task, in one of their own, or scattered."""

from __future__ import annotations

from typing import Any

import dask
from dask.delayed import Delayed

from skfleet._cluster import current_client
from skfleet.engine import Pickled, scatter_content
from skfleet.inference._map_dask import Boxed

# Smaller values travel with the graph: a result without futures can be computed on any cluster.
MIN_SCATTER_BYTES = 2**20
# Copies of a model, one in each task, that are no more than this save a task that all depend on.
MAX_COPIES_BYTES = 2**21


def scatter_cached(owner: Any, value: Any, name: str, n_tasks: float) -> Any:
    """Return a value for a graph: itself, a box for each task, or a Delayed of its future."""
    if dask.config.get("scheduler", None) not in (None, "distributed", "dask.distributed"):
        return value
    try:
        client = current_client(is_required=False)
    except TypeError:  # an asynchronous one
        return value
    if client is None:
        return value
    pickled = Pickled.dumps(value)
    if pickled.nbytes * n_tasks <= MAX_COPIES_BYTES:
        return Boxed(value)
    if pickled.nbytes < MIN_SCATTER_BYTES:
        return value
    scattered = scatter_content(client, pickled, owner=owner, name=name)
    # A task instead of Client.scatter: it is computed again if its only worker dies.
    return Delayed(scattered.future.key, {scattered.future.key: scattered.future})
