"""Large values that lazy answers need: sent to the open cluster once, and again if they changed."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import dask
from dask.delayed import Delayed
from distributed import Future

from skfleet.engine._dask._client import current_client
from skfleet.engine._dask._engine import DaskEngine
from skfleet.engine._dask._serialize import Pickled

# Smaller values travel with the graph: an answer that holds none of the cluster's is everyone's.
MIN_SCATTER_BYTES = 2**20

# What each owner has on which cluster: (client's id, digest, future).
_scattered_models: WeakKeyDictionary[Any, tuple[str, bytes, Future]] = WeakKeyDictionary()
_USABLE = ("pending", "finished")
_lock = threading.Lock()


def scatter_cached(owner: Any, value: Any, name: str) -> Any:
    """Return what stands for a value in a graph: itself, or what the cluster has of it."""
    if dask.config.get("scheduler", None) not in (None, "distributed", "dask.distributed"):
        return value
    try:
        client = current_client(is_required=False)
    except TypeError:  # an asynchronous one
        return value
    if client is None:
        return value
    parcel = Pickled.dumps(value)
    if parcel.nbytes < MIN_SCATTER_BYTES:
        return value
    digest = parcel.digest()
    with _lock:
        held = _scattered_models.get(owner)
        if held is None or held[:2] != (client.id, digest) or held[2].status not in _USABLE:
            # The result of a task, so that it is made again if its only holder dies.
            task = DaskEngine(client).submit(partial(Pickled.loads, steal=True), parcel, name=name)
            held = _scattered_models[owner] = client.id, digest, task
    future = held[2]
    return Delayed(future.key, {future.key: future})
