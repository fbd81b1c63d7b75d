"""Cache of the large models of lazy results, each scattered once to the open cluster."""

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

# Smaller values travel with the graph: a result without futures can be computed on any cluster.
MIN_SCATTER_BYTES = 2**20

# By owner: (client's id, digest, future).
_scattered_models: WeakKeyDictionary[Any, tuple[str, bytes, Future]] = WeakKeyDictionary()
_USABLE = ("pending", "finished")
_lock = threading.Lock()


def scatter_cached(owner: Any, value: Any, name: str) -> Any:
    """Return a value for a graph: itself if it is small, or a Delayed of its future."""
    if dask.config.get("scheduler", None) not in (None, "distributed", "dask.distributed"):
        return value
    try:
        client = current_client(is_required=False)
    except TypeError:  # an asynchronous one
        return value
    if client is None:
        return value
    pickled = Pickled.dumps(value)
    if pickled.nbytes < MIN_SCATTER_BYTES:
        return value
    digest = pickled.digest()
    with _lock:
        entry = _scattered_models.get(owner)
        if entry is None or entry[:2] != (client.id, digest) or entry[2].status not in _USABLE:
            # A task instead of Client.scatter: it is computed again if its only worker dies.
            future = DaskEngine(client).submit(
                partial(Pickled.loads, steal=True), pickled, name=name
            )
            entry = _scattered_models[owner] = client.id, digest, future
    future = entry[2]
    return Delayed(future.key, {future.key: future})
