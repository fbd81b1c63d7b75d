"""What a fleet adds to its workers: failed tasks in one line, and modules loaded in time."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed.core import Status

from clusters import local_client
from skfleet import Fleet, _worker_plugins
from skfleet.estimators import Ridge


def fails(block):
    raise ValueError("a bad block")


def lines(caplog, *, n):
    """Give what was logged of failures, once so many lines have come, and a moment has gone."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
        if len(found) >= n:
            break
        time.sleep(0.01)
    return found


def test_one_line_for_all_blocks(caplog):
    X, y = da.ones((80, 3), chunks=(10, 3)), da.ones(80, chunks=10)
    with Fleet(n_workers=2, processes=False) as client:
        with pytest.raises(ValueError, match="a bad block"):
            Ridge().fit(X.map_blocks(fails, meta=np.empty((0, 3))), y)
        with pytest.raises(ZeroDivisionError):
            client.submit(divmod, 1, 0).result()
        first, second = lines(caplog, n=2)
    assert first.endswith("failed: ValueError('a bad block')")
    assert second.startswith("task divmod failed: ZeroDivisionError(")


def test_other_clusters_log_as_ever(caplog):
    with (
        Fleet(n_workers=1, processes=False),
        local_client(1, processes=False) as client,
    ):
        with pytest.raises(ZeroDivisionError):
            client.submit(divmod, 1, 0).result()
        (page,) = lines(caplog, n=1)
    assert page.startswith("Compute Failed")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True])
def test_a_healthy_shuffle_is_not_warned_of(processes, caplog):
    frame = pd.DataFrame({"key": np.arange(60) % 7, "a": np.arange(60.0)})
    with Fleet(n_workers=2, processes=processes, dashboard_address=None):
        left, right = (dd.from_pandas(frame, npartitions=n) for n in (3, 4))
        merged = left.merge(right, on="key")
        Ridge().fit(merged[["a_x"]], merged["a_y"])
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_a_scheduler_that_goes_before_its_workers_is_no_news(caplog):
    async def last_heartbeat(dask_worker):
        async def away(**kwargs):
            raise OSError("closed")

        scheduler, dask_worker.scheduler = dask_worker.scheduler, SimpleNamespace()
        dask_worker.scheduler.heartbeat_worker = away
        await dask_worker.heartbeat()
        dask_worker.scheduler = scheduler

    with Fleet(n_workers=1, processes=False) as client:
        client.run(last_heartbeat)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_nothing_is_left_in_the_loggers():
    loggers = [logging.getLogger(f"distributed.worker{end}") for end in ("", ".state_machine")]
    loggers.append(logging.getLogger("distributed.shuffle._scheduler_plugin"))
    before = [list(one.filters) for one in loggers]
    with Fleet(n_workers=2, processes=False):
        n_new = [len(one.filters) - len(some) for one, some in zip(loggers, before, strict=True)]
        assert n_new == [2, 2, 1]
    assert [one.filters for one in loggers] == before


def test_what_workers_load_before_they_are_ready_is_light():
    code = """
import distributed.nanny, distributed.worker, joblib, sys
before = set(sys.modules)
import skfleet._worker_plugins
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["skfleet"]


def loaded():
    """Tell which of the modules that tasks need are there."""
    return [name for name in _worker_plugins._PRELOADED_MODULES if name in sys.modules]


@pytest.mark.slow
def test_first_task_finds_its_modules_loaded():
    with Fleet(n_workers=1) as client:
        time.sleep(3 * _worker_plugins._PRELOAD_DELAY_SECONDS)
        assert client.submit(loaded).result() == list(_worker_plugins._PRELOADED_MODULES)


def test_worker_that_is_closed_loads_no_more(monkeypatch):
    imported = []
    worker = SimpleNamespace(status=Status.running)

    def import_and_close(name):
        imported.append(name)
        worker.status = Status.closing

    monkeypatch.setattr(_worker_plugins.importlib, "import_module", import_and_close)
    asyncio.run(_worker_plugins._load_modules(worker))
    assert imported == ["pandas"]


def test_modules_are_imported_where_tasks_are_unpickled(monkeypatch):
    """Two threads that import scikit-learn at once may each see a part of it."""
    threads = []

    def import_module(name):
        threads.append(threading.get_ident())
        time.sleep(0.01)

    monkeypatch.setattr(_worker_plugins.importlib, "import_module", import_module)
    plugin = _worker_plugins.OwnProcess()
    with ThreadPoolExecutor(2) as executor:
        state = SimpleNamespace(nthreads=2)
        worker = SimpleNamespace(
            status=Status.running, state=state, executors={"default": executor}
        )

        async def load():
            preload = asyncio.create_task(plugin._load_when_ready(worker))
            while plugin.imports is None:
                await asyncio.sleep(0.01)
            first_task = executor.submit(lambda: len(threads))
            await preload
            return await asyncio.wrap_future(first_task)

        assert asyncio.run(load()) == len(_worker_plugins._PRELOADED_MODULES)
    assert {*threads} == {threading.get_ident()}


def leave_holes(dask_worker):
    """Take 400 MB in pieces and free all but the last: glibc keeps what lies below that."""
    pieces = [bytes(100_000) for _ in range(4000)]
    dask_worker.last_piece = pieces[-1]
    del pieces
    return dask_worker.monitor.get_process_memory()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="malloc_trim is glibc's")
def test_a_worker_short_of_memory_hands_back_what_is_free():
    with Fleet(n_workers=1, memory_limit="700 MB", dashboard_address=None) as client:
        (before,) = client.run(leave_holes).values()
        assert before > _worker_plugins.RELEASE_FRACTION * 700e6
        deadline = time.monotonic() + 10
        after = before
        while after > before - 200e6 and time.monotonic() < deadline:
            time.sleep(0.1)
            (after,) = client.run(
                lambda dask_worker: dask_worker.monitor.get_process_memory()
            ).values()
    assert after < before - 200e6


def test_a_worker_that_has_nothing_to_spill_does_not_say_so():
    def logged():
        logger = logging.getLogger("distributed.worker.memory")
        texts = ["Unmanaged memory use is high. This may", "Worker is at 91% memory usage."]
        records = (logger.makeRecord(logger.name, 30, "", 0, text, (), None) for text in texts)
        return [bool(logger.filter(record)) for record in records]

    with Fleet(n_workers=1, dashboard_address=None) as client:
        assert client.submit(logged).result() == [False, True]


def test_a_worker_paused_from_the_start_still_says_what_it_imports():
    """Its limit is too low, which is to be said: a Fleet must not wait for ever."""
    plugin, submitted = _worker_plugins.OwnProcess(), []
    executor = SimpleNamespace(submit=submitted.append)
    worker = SimpleNamespace(
        status=Status.paused, state=SimpleNamespace(nthreads=1), executors={"default": executor}
    )
    asyncio.run(plugin._load_when_ready(worker))
    assert len(submitted) == 1
    assert plugin.imports.done()
