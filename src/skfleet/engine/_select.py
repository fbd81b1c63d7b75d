"""The choice of the engine for rows and an estimator (`engine_for`)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from skfleet._array import is_not_numpy
from skfleet._config import config_context, get_config
from skfleet._device import device_library
from skfleet._typing import Rows, RowsT
from skfleet.blocks import Block, RowBlocks, row_blocks
from skfleet.engine._gpu._device_cache import DeviceArrayCache
from skfleet.engine._gpu._estimator_device import device_of
from skfleet.engine._local import LocalEngine
from skfleet.engine._probe import estimate_nbytes
from skfleet.engine._protocol import Engine
from skfleet.engine._resources import ANY_WORKER, offers_gpu, resources_for_device
from skfleet.engine._small_rows import leave_if_small

# Of rows for each thread. Three fits at once took .73, .76 and .83 of their time in turn, on 40, 80
# and 240 MB.
SHORT_PASS_BYTES = 256 * 2**20


def engine_for(rows: RowBlocks, estimator: object = None) -> Engine:
    """Return the engine for rows: the current client's for Dask collections, else this process's.

    Tasks that train an estimator are placed on its device.
    """
    engine_name, device = get_config().engine, get_config().device
    if engine_name == "local" or not rows.on_dask:
        return _local_engine(rows, device)
    from skfleet._cluster import current_client

    leave_if_small()
    client = current_client()
    if client is not None:
        if rows.on_device and device == "cpu":
            raise ValueError(
                "X must lie on the host with device='cpu'. Got a Dask collection on a GPU instead. "
                "Leave device at 'auto', or bring it home with X.map_blocks(cupy.asnumpy)."
            )
        on_gpu = estimator is not None and device_of(estimator) == "cuda"
        return fleet_engine(client, on_gpu=on_gpu, follows_gpu=rows.on_device)
    if engine_name == "dask":
        raise RuntimeError(
            "engine='dask' must have a client to run on. Got none instead. Open a "
            "distributed.Client or skfleet.Fleet() first."
        )
    engine = _local_engine(rows, device)
    _tell_of_no_client()
    return engine


@cache
def _tell_of_no_client() -> None:
    """Print, once in a process, that Dask rows are worked on here, as searches do."""
    print(
        "scikit-fleet: no client is open, so this process works on the Dask rows. "
        "Use Fleet() for worker processes, or open a distributed.Client.",
        file=sys.stderr,
    )


def _local_engine(rows: RowBlocks, device: str) -> Engine:
    """Return the engine of this process, or raise where the config asks for another device."""
    if not all(is_not_numpy(block.X) for block in rows.blocks):
        offer = {"CPU": 1.0} if device_library() is None else {"CPU": 1.0, "GPU": 1.0}
        resources_for_device(device, {"this process": offer})
    return LocalEngine()


def check_fits_in_memory(rows: RowBlocks, estimator: str) -> None:
    """Raise unless this process and every worker can hold rows, and copies of their parts."""
    engine = engine_for(rows)
    n_bytes, limit = estimate_nbytes(engine, rows), engine.memory_limit
    if 2 * n_bytes > limit:
        raise ValueError(
            f"X must fit into each worker twice, whole and cut in two, to fit {estimator}. Got "
            f"{n_bytes / 1e6:.0f} MB of rows for {limit / 1e6:.0f} MB of memory instead. Use an "
            f"estimator of skfleet.estimators, or Incremental({estimator}(...)) where it learns in "
            "parts; or search on some of the rows."
        )


def fleet_engine(client: Any, *, on_gpu: bool = False, follows_gpu: bool = False) -> Engine:
    """Return the engine on a client's cluster, with tasks placed by the config.

    They go to GPU workers where the model needs one (`on_gpu`), or where rows are on a GPU
    (`follows_gpu`) and any worker has one.
    """
    from skfleet.engine._dask._engine import DaskEngine

    engine, device = DaskEngine(client), get_config().device
    if on_gpu or (follows_gpu and offers_gpu(engine.offers.values())):
        device = "cuda"
    engine.resources = resources_for_device(device, engine.offers)
    return engine


def gpu_engine() -> Engine | None:
    """Return the engine whose GPU workers take rows of this process; None to compute here.

    It is also None inside a task on a GPU worker: a task for that worker might wait for itself.
    """
    if get_config().engine != "auto" or "distributed" not in sys.modules:
        return None
    from skfleet._cluster import (
        current_client,
        current_worker_address,
        scheduler_workers,
        worker_resources,
    )

    has_device = device_library() is not None
    # Inside a task, current_client would open a client.
    if (has_device and current_worker_address()) or worker_resources().get("GPU"):
        return None
    client = current_client(is_required=False)
    if client is None:
        return None
    workers = scheduler_workers(client).values() if has_device else ()
    if has_device and not offers_gpu(worker.get("resources") or {} for worker in workers):
        return None
    return fleet_engine(client)


def have_short_passes(X: Rows, n_copies: int) -> bool:
    """Return whether passes over Dask rows are short, and `n_copies` of the rows have room.

    Passes are short where the workers have all rows in memory, and so few that sending messages
    takes most of the time.
    """
    rows = row_blocks(X, dtype=None)
    engine = engine_for(rows)
    n_bytes = engine.resident_nbytes(rows) or math.inf
    most = min(SHORT_PASS_BYTES * engine.count_slots(ANY_WORKER), engine.free_bytes() / n_copies)
    return n_bytes <= most


@contextmanager
def persisted_collections(*collections: RowsT) -> Iterator[list[RowsT]]:
    """Yield Dask collections of the same rows, in the workers' memory if configured or they fit."""
    rows = row_blocks(collections[0], dtype=None)
    with engine_for(rows).persist_collections(rows, collections) as persisted:
        yield persisted


@contextmanager
def training_engine(rows: RowBlocks, estimator: object) -> Iterator[tuple[Engine, RowBlocks]]:
    """Yield the engine that trains an estimator block by block, and the rows on it.

    For an estimator that computes on a GPU, rows of this process are scattered to GPU workers,
    where there are any.
    """
    engine = None
    # Dask collections stay where they are: `engine_for` places the tasks.
    on_host = not rows.on_dask and not any(is_not_numpy(block.X) for block in rows.blocks)
    if on_host and device_of(estimator) == "cuda":
        with config_context(device="cuda"):
            engine = gpu_engine()
    if engine is None:
        yield engine_for(rows, estimator), rows
        return
    scattered: list[Any] = []
    try:
        blocks = []
        for block in rows.blocks:
            scattered.append(engine.scatter(block))
            blocks.append(Block(scattered[-1], number=block.number, row_offset=block.row_offset))
        yield engine, replace(rows, blocks=tuple(blocks))
    finally:
        for values in scattered:
            engine.release(values)


@contextmanager
def device_cache(engine: Engine, estimator: object) -> Iterator[object]:
    """Yield the argument of tasks by which they cache blocks on their devices, inside a ``with``.

    None for an estimator that computes on the host, and where workers' GPUs train it for this
    process.
    """
    if device_of(estimator) != "cuda" or (engine.is_local and _delegates_to_gpu_worker()):
        yield None
        return
    cache = DeviceArrayCache()
    scattered = engine.scatter_small(cache)
    try:
        yield scattered
    finally:
        engine.release(scattered)
        cache.close()


def _delegates_to_gpu_worker() -> bool:
    """Return whether fits on a GPU with rows of this process go to workers, if anywhere."""
    with config_context(device="cuda"):
        return device_library() is None or gpu_engine() is not None
