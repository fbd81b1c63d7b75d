"""The engine on a cluster: where tasks go, what stays there, and what is left behind."""

import threading
import time
from dataclasses import replace

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import get_worker, wait

from clusters import local_client
from skfleet import Fleet, config_context
from skfleet._device import DEVICE_VARIABLE
from skfleet.blocks import open_block, row_blocks
from skfleet.engine import (
    ANY_WORKER,
    LocalEngine,
    Reduction,
    ResourceRequest,
    counting,
    engine_for,
    map_reduce,
)
from skfleet.engine._dask import _block_locations
from skfleet.engine._dask._block_locations import futures_of
from skfleet.engine._dask._engine import DaskEngine
from skfleet.engine._resources import resources_for_device
from skfleet.engine._task_context import open_scattered
from skfleet.estimators import Ridge
from skfleet.exceptions import PlacementError


def _count(block):
    return block.n_rows


def _keys(client):
    """What the scheduler still knows of."""
    return {
        str(key)
        for key in client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.tasks))
    }


def _settled(client, known):
    """Wait until the scheduler knows nothing new."""
    deadline = time.monotonic() + 10
    while _keys(client) - known and time.monotonic() < deadline:
        time.sleep(0.02)
    return _keys(client) - known


def _sum_of_first_column(parts):
    return sum(float(np.sum(open_block(block).X[:, 0])) for part in parts for block in part)


def test_a_task_takes_blocks_of_two_collections_whose_chunks_were_cut(cluster_client):
    X = da.from_array(np.arange(1200.0).reshape(600, 2), chunks=(140, 2))
    with cluster_client.as_current():
        parts = [list(row_blocks(X[rows]).blocks) for rows in (np.arange(300), np.arange(300, 600))]
        engine = engine_for(row_blocks(X))
        (total,) = engine.gather([engine.submit(_sum_of_first_column, parts)])
    assert total == X[:, 0].sum().compute(scheduler="sync")


def test_the_engine_follows_the_data(cluster_client):
    X = np.ones((6, 2))
    assert isinstance(engine_for(row_blocks(X)), LocalEngine)
    lazy = row_blocks(da.from_array(X))
    assert isinstance(engine_for(lazy), LocalEngine), "there is no client"
    with config_context(engine="dask"), pytest.raises(RuntimeError, match="must have a client"):
        engine_for(lazy)
    with cluster_client.as_current():
        assert isinstance(engine_for(lazy), DaskEngine)
        assert isinstance(engine_for(row_blocks(X)), LocalEngine)
        with config_context(engine="local"):
            assert isinstance(engine_for(lazy), LocalEngine)
        with config_context(engine="dask"):
            rows = row_blocks(X)
            engine = engine_for(rows)
            assert isinstance(engine, DaskEngine)
            assert map_reduce(engine, Reduction(_count), rows) == 6


def test_blocks_are_grouped_while_a_worker_leaves(cluster_client, monkeypatch):
    client, engine = cluster_client, DaskEngine(cluster_client)
    _, stays = client.nthreads()
    with engine.persist(row_blocks(da.ones((40, 3), chunks=(4, 3)))) as held:
        client.replicate([f for block in held.blocks for f in futures_of(block)])
        # its blocks were listed before
        workers = {stays: {"nthreads": 1}}
        monkeypatch.setattr(_block_locations, "scheduler_workers", lambda *_, **__: workers)
        assert [len(group) for group in engine.group_by_worker(held.blocks)] == [10]


def _write_files(table, folder):
    for i, low in enumerate(range(0, len(table), 100)):
        table[low : low + 100].to_parquet(folder / f"{i}.parquet")


def test_a_task_of_a_pass_reads_several_small_files(cluster_client, tmp_path, monkeypatch):
    table = pd.DataFrame({"a": np.arange(800.0), "b": 1, "city": "x"})
    _write_files(table, tmp_path)
    frame, engine = dd.read_parquet(tmp_path), DaskEngine(cluster_client)
    numbers = frame[["a", "b"]]

    def sizes_of_groups(*collections, dtype="float"):
        rows = row_blocks(*collections, dtype=dtype)
        return [len(group) for group in engine.group_by_worker(rows.blocks)]

    with cluster_client.as_current():
        assert sizes_of_groups(numbers) == [4, 4]
        assert sizes_of_groups(frame[["a"]], frame["b"]) == [4, 4]
        # others may take long for each block, or have any size
        assert sizes_of_groups(frame, dtype=None) == [1] * 8
        assert sizes_of_groups(numbers.map_partitions(lambda part: part)) == [1] * 8
        assert sizes_of_groups(numbers, da.ones(800, chunks=100)) == [1] * 8
        for n_files, expected in ((2, [2, 2, 2, 2]), (1, [1] * 8), (3, [2, 2, 2, 2])):
            monkeypatch.setattr(_block_locations, "TASK_BYTES", n_files * 1600 + 400)
            assert sizes_of_groups(numbers) == expected
        with counting() as counts:
            rows = row_blocks(numbers)
            assert map_reduce(engine, Reduction(_count), rows) == 800
    # and one that adds up the numbers of rows
    assert (counts.passes, counts.loads, counts.tasks) == (1, 8, 5)


def test_numbers_of_files_are_loaded_without_a_look_at_some(cluster_client, tmp_path):
    table = pd.DataFrame({"a": np.arange(800.0), "city": "x"})
    _write_files(table, tmp_path)
    engine = DaskEngine(cluster_client)
    for columns, n_looks in ((["a"], 0), (["city"], 3)):
        frame = dd.read_parquet(tmp_path)[columns]
        with cluster_client.as_current(), counting() as counts:
            rows = row_blocks(frame, dtype=None)
            with engine.persist(rows):
                pass
        assert counts.tasks == 8 + n_looks


def test_sizes_are_asked_of_blocks_that_are_there(cluster_client):
    engine = DaskEngine(cluster_client)
    MAY_GO_ON.clear()  # the workers are threads of this process
    held = cluster_client.persist(
        da.ones((40, 3), chunks=(10, 3)).map_blocks(_wait_to_go_on, dtype=float)
    )
    blocks = row_blocks(held)
    assert engine.resident_nbytes(blocks) is None  # the question may overtake the message
    MAY_GO_ON.set()
    with cluster_client.as_current():
        wait(held)
    assert engine.resident_nbytes(blocks) == 40 * 3 * 8
    assert engine.resident_nbytes(row_blocks(held + 1)) == 40 * 3 * 8
    assert engine.resident_nbytes(row_blocks(da.ones((40, 3)))) == 0


MAY_GO_ON = threading.Event()


def _wait_to_go_on(rows):
    if rows.size:  # not for the type of the result
        assert MAY_GO_ON.wait(timeout=30)
    return np.ones(rows.shape)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays_after_rows_were_held(cluster_client, fails):
    engine = DaskEngine(cluster_client)
    known = _keys(cluster_client)
    rows = row_blocks(da.ones((40, 3), chunks=(4, 3)))
    try:
        with engine.persist(rows) as held:
            assert map_reduce(engine, Reduction(_count), held) == 40
            assert len(engine.group_by_worker(held.blocks)) <= 2
            assert len(_keys(cluster_client) - known) >= 10
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    del held
    assert _settled(cluster_client, known) == set()


def test_rows_that_do_not_fit_are_not_held():
    with Fleet(n_workers=1, threads_per_worker=1, processes=False, memory_limit="16 GB") as client:
        engine = DaskEngine(client)
        large = row_blocks(da.zeros((10**9, 4), chunks=(10**7, 4)))  # 32 GB, made lazily
        small = row_blocks(da.zeros((100, 4), chunks=(10, 4)))
        for rows, stays in ((large, False), (small, True)):
            with engine.persist(rows) as held:
                assert (held is not rows) == stays
        with config_context(keep_blocks=False), engine.persist(small) as held:
            assert held is small
        unknown = da.zeros((100, 4), chunks=(10, 4))
        unknown = row_blocks(unknown[unknown[:, 0] == 0])
        with engine.persist(unknown) as held:
            assert held is not unknown


def test_a_block_that_cannot_be_loaded_is_named(cluster_client):
    def load(block_info=None):
        if block_info[None]["chunk-location"][0] == 3:
            raise OSError("no such file")
        return np.ones((5, 2))

    X = da.map_blocks(load, chunks=((5,) * 6, (2,)), dtype=float, meta=np.empty((0, 0)))
    engine = DaskEngine(cluster_client)
    known = _keys(cluster_client)
    with pytest.raises(OSError, match="no such file") as caught, engine.persist(row_blocks(X)):
        pass
    assert "While loading block 3." in caught.value.__notes__
    del caught
    assert _settled(cluster_client, known) == set()


def test_a_large_argument_is_sent_once(cluster_client):
    engine = DaskEngine(cluster_client)
    shared = engine.scatter_small(np.ones(10**6))
    tasks = [engine.submit(lambda x, i: x.sum() + i, shared, i) for i in range(4)]
    assert engine.gather(tasks) == [10**6 + i for i in range(4)]


def test_tasks_are_cancelled(cluster_client):
    engine = DaskEngine(cluster_client)
    known = _keys(cluster_client)
    tasks = engine.map(time.sleep, [0.2] * 50)
    # Dask does not hear of a cancellation while it takes the tasks in.
    while len(_keys(cluster_client) - known) < len(tasks):
        time.sleep(0.01)
    engine.cancel(tasks)
    del tasks
    assert _settled(cluster_client, known) == set()


def test_tasks_come_as_they_end(cluster_client):
    engine = DaskEngine(cluster_client)
    slow, quick = engine.submit(time.sleep, 1.0), engine.submit(int, 3)
    assert next(engine.as_completed([slow, quick])) is quick


def test_parts_of_rows_in_memory_are_held_too(cluster_client):
    with cluster_client.as_current():
        X = da.ones((40, 3), chunks=(4, 3)).persist()
        wait(X)
        engine = DaskEngine(cluster_client)
        rows = row_blocks(X, X[:, 0])  # the target is still to be made
        with engine.persist(rows) as held:
            assert sum(map(len, engine.group_by_worker(held.blocks))) == 10
            assert len(engine.group_by_worker(held.blocks)) <= 2


def _where(block):
    return {get_worker().address: 1}


def _merge(a, b):
    return a | b


def test_placed_passes_run_where_the_label_is():
    with Fleet(
        n_workers=2, threads_per_worker=1, processes=False, resources=[{"CPU": 1}, {"GPU": 1}]
    ) as client:
        engine = DaskEngine(client)
        rows = row_blocks(da.ones((40, 3), chunks=(4, 3)))
        offers = engine.offers
        for device, label in (("cuda", "GPU"), ("cpu", "CPU")):
            resources = resources_for_device(device, offers)
            found = map_reduce(engine, Reduction(_where, _merge), rows, resources=resources)
            assert [offers[address] for address in found] == [{label: 1.0}]
        with pytest.raises(PlacementError, match="TPU"):
            map_reduce(
                engine, Reduction(_where, _merge), rows, resources=ResourceRequest.of({"TPU": 1})
            )


def test_what_was_offered_is_asked_for_again_while_nobody_is_there(monkeypatch):
    with Fleet(n_workers=1, threads_per_worker=1, processes=False, resources={"GPU": 1}) as client:
        engine = DaskEngine(client)
        gpu = ResourceRequest.of({"GPU": 1})
        engine.check(gpu)
        monkeypatch.setattr(engine, "_workers", dict)
        assert engine.submit(abs, -1, resources=gpu).result(timeout=10) == 1
        with pytest.raises(PlacementError, match="offer nothing"):
            engine.submit(abs, -1, resources=ResourceRequest.of({"TPU": 1}))


def test_the_device_asked_for_is_where_passes_run(monkeypatch):
    monkeypatch.setenv(DEVICE_VARIABLE, "array_api_strict:device1")
    X = da.ones((40, 3), chunks=(4, 3))
    with Fleet(
        n_workers=2, threads_per_worker=1, processes=False, resources=[{"CPU": 1}, {"GPU": 1}]
    ) as client:
        offers = DaskEngine(client).offers
        for device, label in (("cuda", "GPU"), ("cpu", "CPU")):
            with config_context(device=device):
                rows = row_blocks(X)
                engine = engine_for(rows)
                with engine.persist(rows) as held:
                    found = map_reduce(engine, Reduction(_where, _merge), held)
            assert [offers[address] for address in found] == [{label: 1.0}]


def test_rows_on_devices_are_left_to_gpu_workers(cluster_client):
    rows = replace(row_blocks(da.ones((40, 3), chunks=(4, 3))), on_device=True)
    with Fleet(processes=False, threads_per_worker=1, resources=[{"CPU": 1}, {"GPU": 1}]):
        assert engine_for(rows).resources == ResourceRequest.of({"GPU": 1})
        with config_context(device="cpu"), pytest.raises(ValueError, match="must lie on the host"):
            engine_for(rows)
    with cluster_client.as_current():  # whose workers nobody has labelled
        assert engine_for(rows).resources == ANY_WORKER


def test_a_device_that_is_not_there_raises_before_any_task(cluster_client):
    for rows in (np.ones((6, 2)), da.ones((6, 2))):
        with (
            cluster_client.as_current(),
            config_context(device="cuda"),
            counting() as counts,
            pytest.raises(PlacementError, match="GPU=1"),
        ):
            Ridge().fit(rows, np.arange(6.0))
        assert counts.tasks == 0


def _fit_inside(_):
    X = da.from_array(np.random.default_rng(0).normal(size=(60, 3)), chunks=(20, 3))
    return Ridge().fit(X, X[:, 0]).coef_


def test_a_fit_inside_a_task_does_not_wait_for_itself():
    with Fleet(n_workers=1, threads_per_worker=1, processes=False) as client:
        coef = client.submit(_fit_inside, 0).result(timeout=60)
        assert coef.shape == (3,)


def test_what_no_worker_can_hold_is_not_sent():
    # the worker is a thread of this process, which is larger than its limit by
    # far: where it looked at its memory, it would pause and compute nothing
    with (
        dask.config.set({"distributed.worker.memory.pause": False}),
        local_client(
            1, threads_per_worker=1, processes=False, memory_limit="20 MB", set_as_default=False
        ) as client,
    ):
        engine = DaskEngine(client)
        with pytest.raises(ValueError, match="Got 24 MB for 20 MB"):
            engine.scatter(np.zeros(3_000_000))
        kept = engine.scatter(np.zeros(10))
        assert engine.gather([engine.submit(_length_of, kept)]) == [10]


def _length_of(kept):
    return len(open_scattered(kept))
