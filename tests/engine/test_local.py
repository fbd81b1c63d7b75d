"""The engine in this process: what it loads, and how many threads it uses."""

import gc
import threading
import weakref

import dask.array as da
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
import psutil
import pytest
import threadpoolctl

from skfleet import config_context
from skfleet.blocks import Block, row_blocks
from skfleet.engine import LocalEngine, Reduction, _threadpools, counting, map_reduce
from skfleet.engine._threadpools import limit_threadpools


def _loaded(rows):
    return not any(hasattr(block.X, "load") for block in rows.blocks)


@pytest.mark.parametrize("unknown", [False, True])
def test_blocks_are_loaded_where_they_fit(unknown, monkeypatch):
    X = da.ones((1000, 4), chunks=(100, 4))
    rows = row_blocks(X[X[:, 0] > 0] if unknown else X)
    engine = LocalEngine()
    with engine.persist(rows) as held:
        assert _loaded(held)
        assert isinstance(held.blocks[3], Block)
        np.testing.assert_array_equal(held.blocks[3].X, 1)
    small = psutil.virtual_memory()._replace(available=2 * 1000 * 4 * 8 - 100)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: small)
    with engine.persist(rows) as held:
        assert not _loaded(held)
    with config_context(keep_blocks=True), engine.persist(rows) as held:
        assert _loaded(held)


def test_blocks_that_were_measured_are_loaded_once_or_freed(monkeypatch):
    tables = []

    def read(i):
        table = pd.DataFrame({"a": np.full(100, float(i))})
        tables.append(weakref.ref(table))
        return table

    frame = dd.from_map(read, range(10), meta=pd.DataFrame({"a": [0.0]}))
    rows, engine = row_blocks(frame, dtype=None), LocalEngine()
    with counting() as counts, engine.persist(rows, to_disk=False) as held:
        assert [float(block.X["a"].iloc[0]) for block in held.blocks] == [*range(10)]
    assert counts.loads == len(tables) == 10
    del held
    tables.clear()
    small = psutil.virtual_memory()._replace(available=100)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: small)
    with counting() as counts, engine.persist(rows, to_disk=False) as held:
        assert not _loaded(held)
        gc.collect()
        assert [table() for table in tables] == [None] * 3
    assert counts.loads == 3


def _threads(block):
    limits = {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    return {(threading.get_ident(), max(limits, default=1))}


def _union(a, b):
    return a | b


@pytest.mark.usefixtures("two_library_threads")
def test_a_pass_uses_threads_and_one_of_the_libraries_in_each():
    rows = row_blocks(np.ones((400_000, 8)))
    found = map_reduce(LocalEngine(3), Reduction(_threads, _union), rows)
    assert len({ident for ident, _ in found}) > 1
    assert {n for _, n in found} == {1}


@pytest.mark.usefixtures("two_library_threads")
def test_overlapping_limits_are_restored_by_the_last():
    def limits():
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]

    before = limits()
    inside, leave = threading.Event(), threading.Event()

    def other():
        with limit_threadpools(1):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with limit_threadpools(1):
        thread.start()
        inside.wait(10)
    leave.set()
    thread.join()
    assert limits() == before


def test_cores_are_counted_again_where_their_limit_has_changed(monkeypatch):
    counted = []
    monkeypatch.setattr(joblib, "cpu_count", lambda: counted.append(1) or len(counted))
    _threadpools._count_cores.cache_clear()
    try:
        assert LocalEngine().n_threads == LocalEngine().n_threads == 1
        monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "7")
        assert LocalEngine().n_threads == LocalEngine().n_threads == 2
    finally:
        _threadpools._count_cores.cache_clear()
