"""Where tasks run, and the passes over rows that are written once for all engines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from skfleet._array import is_not_numpy
from skfleet._config import config_context, get_config
from skfleet._device import device_library
from skfleet.blocks import Block, RowBlocks, set_scheduler
from skfleet.engine._counters import Counts, counting, counting_disabled, log_pass
from skfleet.engine._fold import TrainingBatch, fold
from skfleet.engine._gpu._cuml_model import as_portable, call_response_method
from skfleet.engine._gpu._device_cache import DeviceArrayCache
from skfleet.engine._gpu._estimator_device import CandidateDevices, attributes_to_host, device_of
from skfleet.engine._gpu._remote import (
    call_method_on_gpu_worker,
    fit_cuml_on_gpu_worker,
    fit_on_gpu_worker,
    rows_cached_on_workers,
    run_on_gpu_worker,
)
from skfleet.engine._holdout import Holdout, draw_holdout
from skfleet.engine._local import LocalEngine
from skfleet.engine._protocol import (
    Call,
    CompletionQueue,
    Engine,
    Task,
    TaskResult,
    estimate_nbytes,
)
from skfleet.engine._reduce import Reduction, add, identity, map_reduce, with_row_offsets
from skfleet.engine._resources import (
    ANY_WORKER,
    ResourceRequest,
    check_device,
    resources_for_device,
)
from skfleet.engine._task_context import open_scattered
from skfleet.engine._threadpools import limit_threadpools
from skfleet.engine._travel import check_picklable


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
        on_gpu = estimator is not None and device_of(estimator) == "cuda"
        return fleet_engine(client, on_gpu=on_gpu, follows_gpu=rows.on_device)
    if wanted == "dask":
        raise RuntimeError(
            "engine='dask' must have a client to run on. Got none instead. Open a "
            "distributed.Client or skfleet.Fleet() first."
        )
    return _here(rows, device)


def check_fits_in_memory(rows: RowBlocks, estimator: str) -> None:
    """Raise unless this process and every worker can hold rows, and copies of their parts."""
    engine = engine_for(rows)
    n_bytes, room = estimate_nbytes(engine, rows), engine.memory_limit
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
    engine.resources = resources_for_device(device, engine.offers)
    return engine


def gpu_engine() -> Engine | None:
    """Return the engine whose GPU workers rows of this process should go to; None to stay here.

    They go where workers have a GPU, but not out of a task on one: it might wait for itself.
    """
    if get_config().engine != "auto" or "distributed" not in sys.modules:
        return None
    from skfleet.engine._dask._client import (
        current_client,
        current_worker_address,
        scheduler_workers,
    )

    has_device = device_library() is not None
    # to ask for the client inside a task is to open one
    client = None if has_device and current_worker_address() else current_client(is_required=False)
    if client is None:
        return None
    if has_device and not any(
        w.get("resources", {}).get("GPU") for w in scheduler_workers(client).values()
    ):
        return None
    return fleet_engine(client)


@contextmanager
def training_engine(rows: RowBlocks, estimator: Any) -> Iterator[tuple[Engine, RowBlocks]]:
    """Give the engine on which an estimator learns rows block by block, and the rows there.

    Rows of this process go to workers with a GPU, where there are any, for what computes on one.
    """
    engine = None
    on_host = not rows.on_dask and not any(is_not_numpy(block.X) for block in rows.blocks)
    if on_host and device_of(estimator) == "cuda":
        with config_context(device="cuda"):
            engine = gpu_engine()
    if engine is None:
        yield engine_for(rows, estimator), rows
        return
    kept: list[Any] = []
    try:
        kept.extend(engine.scatter(block) for block in rows.blocks)
        blocks = (
            Block(one, number=block.number, start=block.start)
            for one, block in zip(kept, rows.blocks, strict=True)
        )
        yield engine, replace(rows, blocks=tuple(blocks))
    finally:
        for one in kept:
            engine.release(one)


@contextmanager
def device_cache(engine: Engine, estimator: Any) -> Iterator[Any]:
    """Give what keeps copies of blocks on devices inside a ``with``, to be an argument of tasks.

    None where an estimator does not compute there, or where this process leaves that to workers.
    """
    if device_of(estimator) != "cuda" or (engine.is_here and _delegates_to_gpu_worker()):
        yield None
        return
    copies = DeviceArrayCache()
    shared = engine.scatter_small(copies)
    try:
        yield shared
    finally:
        engine.release(shared)
        copies.end()


def _delegates_to_gpu_worker() -> bool:
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
    if not all(is_not_numpy(block.X) for block in rows.blocks):
        here = {"CPU": 1.0} if device_library() is None else {"CPU": 1.0, "GPU": 1.0}
        resources_for_device(device, {"this process": here})
    return LocalEngine()


__all__ = [
    "ANY_WORKER",
    "Call",
    "CandidateDevices",
    "CompletionQueue",
    "Counts",
    "Engine",
    "Holdout",
    "LocalEngine",
    "Reduction",
    "ResourceRequest",
    "Task",
    "TaskResult",
    "TrainingBatch",
    "add",
    "as_portable",
    "attributes_to_host",
    "call_method_on_gpu_worker",
    "call_response_method",
    "check_device",
    "check_fits_in_memory",
    "check_picklable",
    "counting",
    "counting_disabled",
    "device_cache",
    "device_of",
    "draw_holdout",
    "engine_for",
    "estimate_nbytes",
    "fit_cuml_on_gpu_worker",
    "fit_on_gpu_worker",
    "fleet_engine",
    "fold",
    "gpu_engine",
    "identity",
    "limit_threadpools",
    "log_pass",
    "map_reduce",
    "open_scattered",
    "rows_cached_on_workers",
    "run_on_gpu_worker",
    "training_engine",
    "with_row_offsets",
]
