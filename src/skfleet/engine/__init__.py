"""Where tasks run, and the passes over rows that are written once for all engines."""

from __future__ import annotations

from skfleet._config import get_config
from skfleet.blocks import RowBlocks
from skfleet.engine._base import Engine, Task
from skfleet.engine._counts import Counts, counting, uncounted
from skfleet.engine._local import LocalEngine
from skfleet.engine._placement import ANYWHERE, Placement
from skfleet.engine._reduce import Reduction, add, fold, identity, map_reduce, with_starts


def engine_for(rows: RowBlocks) -> Engine:
    """Return the engine for rows: the current client's cluster for Dask collections, else here."""
    wanted = get_config().engine
    if wanted == "local" or not rows.on_dask:
        return LocalEngine()
    from skfleet.engine._client import current_client
    from skfleet.engine._dask import DaskEngine

    client = current_client()
    if client is not None:
        return DaskEngine(client)
    if wanted == "dask":
        raise RuntimeError(
            "engine='dask' must have a client to run on. Got none instead. Open a "
            "distributed.Client or skfleet.Fleet() first."
        )
    return LocalEngine()


__all__ = [
    "ANYWHERE",
    "Counts",
    "Engine",
    "LocalEngine",
    "Placement",
    "Reduction",
    "Task",
    "add",
    "counting",
    "engine_for",
    "fold",
    "identity",
    "map_reduce",
    "uncounted",
    "with_starts",
]
