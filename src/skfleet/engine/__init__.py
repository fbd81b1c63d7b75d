"""Where tasks run, and the passes over rows that are written once for all engines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from skfleet._array import device_library, is_foreign
from skfleet._config import config_context, get_config
from skfleet.blocks import Block, RowBlocks, set_scheduler
from skfleet.engine._answers import answer_rows, lend
from skfleet.engine._counters import Counts, counting, log_pass, uncounted
from skfleet.engine._fold import Lesson, fold
from skfleet.engine._gpu._device_cache import DeviceCopies
from skfleet.engine._gpu._estimator_device import Placements, leave_device, placement
from skfleet.engine._gpu._remote import call_there, fit_both_there, fit_there, rows_stay, run_there
from skfleet.engine._holdout import Holdout, draw_holdout
from skfleet.engine._local import LocalEngine
from skfleet.engine._protocol import Call, Ended, Engine, Task, Watch, bytes_of
from skfleet.engine._reduce import Reduction, add, identity, map_reduce, with_starts
from skfleet.engine._resources import ANYWHERE, Placement, check_device, placement_for
from skfleet.engine._task_context import opened
from skfleet.engine._threadpools import library_threads
from skfleet.engine._travel import check_travels


def engine_for(rows: RowBlocks, estimator: Any = None) -> Engine:
    """Return the engine for rows: the current client's cluster for Dask collections, else here.

    Tasks that train an estimator are placed where it computes.
    """
    wanted, device = get_config().engine, get_config().device
    if wanted == "local" or not rows.on_dask:
        return _here(rows, device)
    from skfleet.engine._dask._client import current_client

    client = current_client()
    if client is not None:
        if rows.on_device and device == "cpu":
            raise ValueError(
                "X must lie on the host with device='cpu'. Got a Dask collection on a GPU instead. "
                "Leave device at 'auto', or bring it home with X.map_blocks(cupy.asnumpy)."
            )
        on_gpu = estimator is not None and placement(estimator) == "cuda"
        return fleet_engine(client, on_gpu=on_gpu, follows_gpu=rows.on_device)
    if wanted == "dask":
        raise RuntimeError(
            "engine='dask' must have a client to run on. Got none instead. Open a "
            "distributed.Client or skfleet.Fleet() first."
        )
    return _here(rows, device)


def check_fits_home(rows: RowBlocks, estimator: str) -> None:
    """Raise unless this process and every worker can hold rows, and copies of their parts."""
    engine = engine_for(rows)
    n_bytes, room = bytes_of(engine, rows), engine.room
    if 2 * n_bytes > room:
        raise ValueError(
            f"X must fit into each worker twice, whole and cut in two, to fit {estimator}. Got "
            f"{n_bytes / 1e6:.0f} MB of rows for {room / 1e6:.0f} MB of memory instead. Use an "
            f"estimator of skfleet.estimators, or Incremental({estimator}(...)) where it learns in "
            "parts; or search on some of the rows."
        )


def fleet_engine(client: Any, *, on_gpu: bool = False, follows_gpu: bool = False) -> Engine:
    """Return the engine on a client's cluster, placed as the config says.

    But on GPU workers where models need one, or where rows lie on one and any worker has one.
    """
    from skfleet.engine._dask._engine import DaskEngine

    engine, device = DaskEngine(client), get_config().device
    if on_gpu or (follows_gpu and any(offer.get("GPU") for offer in engine.offers.values())):
        device = "cuda"
    engine.placement = placement_for(device, engine.offers)
    return engine


def gpu_engine() -> Engine | None:
    """Return the engine whose GPU workers rows of this process should go to; None to stay here.

    They go where workers have a GPU, but not out of a task on one: it might wait for itself.
    """
    if get_config().engine != "auto" or "distributed" not in sys.modules:
        return None
    from skfleet.engine._dask._client import current_client, this_worker, workers_of

    has_device = device_library() is not None
    # to ask for the client inside a task is to open one
    client = None if has_device and this_worker() else current_client(is_required=False)
    if client is None:
        return None
    if has_device and not any(
        w.get("resources", {}).get("GPU") for w in workers_of(client).values()
    ):
        return None
    return fleet_engine(client)


@contextmanager
def where_it_learns(rows: RowBlocks, estimator: Any) -> Iterator[tuple[Engine, RowBlocks]]:
    """Give the engine on which an estimator learns rows block by block, and the rows there.

    Rows of this process go to workers with a GPU, where there are any, for what computes on one.
    """
    engine = None
    on_host = not rows.on_dask and not any(is_foreign(block.X) for block in rows.blocks)
    if on_host and placement(estimator) == "cuda":
        with config_context(device="cuda"):
            engine = gpu_engine()
    if engine is None:
        yield engine_for(rows, estimator), rows
        return
    kept: list[Any] = []
    try:
        kept.extend(engine.keep(block) for block in rows.blocks)
        blocks = (
            Block(one, number=block.number, start=block.start)
            for one, block in zip(kept, rows.blocks, strict=True)
        )
        yield engine, replace(rows, blocks=tuple(blocks))
    finally:
        for one in kept:
            engine.drop(one)


@contextmanager
def device_copies(engine: Engine, estimator: Any) -> Iterator[Any]:
    """Give what keeps copies of blocks on devices inside a ``with``, to be an argument of tasks.

    None where an estimator does not compute there, or where this process leaves that to workers.
    """
    if placement(estimator) != "cuda" or (engine.is_here and _leaves_rows()):
        yield None
        return
    copies = DeviceCopies()
    shared = engine.share(copies)
    try:
        yield shared
    finally:
        engine.drop(shared)
        copies.end()


def _leaves_rows() -> bool:
    """Tell whether rows on this process's host go to a worker's GPU, if to any."""
    with config_context(device="cuda"):
        return device_library() is None or gpu_engine() is not None


def _scheduler_for_values() -> Any:
    """Return what computes values that must be known at once; None leaves the choice to Dask."""
    if "distributed" not in sys.modules:
        return None
    from skfleet.engine._dask._client import scheduler_for_values

    return scheduler_for_values()


set_scheduler(_scheduler_for_values)


def _here(rows: RowBlocks, device: str) -> Engine:
    """Return the engine of this process, unless rows here are to be worked on elsewhere."""
    if not all(is_foreign(block.X) for block in rows.blocks):
        here = {"CPU": 1.0} if device_library() is None else {"CPU": 1.0, "GPU": 1.0}
        placement_for(device, {"this process": here})
    return LocalEngine()


__all__ = [
    "ANYWHERE",
    "Call",
    "Counts",
    "Ended",
    "Engine",
    "Holdout",
    "Lesson",
    "LocalEngine",
    "Placement",
    "Placements",
    "Reduction",
    "Task",
    "Watch",
    "add",
    "answer_rows",
    "bytes_of",
    "call_there",
    "check_device",
    "check_fits_home",
    "check_travels",
    "counting",
    "device_copies",
    "draw_holdout",
    "engine_for",
    "fit_both_there",
    "fit_there",
    "fleet_engine",
    "fold",
    "gpu_engine",
    "identity",
    "leave_device",
    "lend",
    "library_threads",
    "log_pass",
    "map_reduce",
    "opened",
    "placement",
    "rows_stay",
    "run_there",
    "uncounted",
    "where_it_learns",
    "with_starts",
]
