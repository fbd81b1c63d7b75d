"""What a fleet says: of a slow start, of parameters, of workers that end, and of no fleet."""

from types import SimpleNamespace

import dask.array as da
import distributed.client
import numpy as np
import pytest
from distributed.core import Status

from skfleet._cluster._client import current_client
from skfleet._cluster._memory import SPARSE_BYTES
from skfleet.blocks import row_blocks
from skfleet.engine import _select, engine_for
from skfleet.fleet import Fleet, _fleet, _worker_memory
from skfleet.fleet._local_cluster import _WorkerDeaths
from skfleet.fleet._worker_memory import MIN_WORKER_BYTES, allocator_variables, memory_fractions

LINE = "scikit-fleet: still waiting for "


def test_slow_start_says_what_it_waits_for(monkeypatch, capsys):
    monkeypatch.setattr(_fleet, "SLOW_START_SECONDS", 0)
    with Fleet(n_workers=1, processes=False) as client:
        assert f"{LINE}the scheduler to start.\n" in capsys.readouterr().err
        with Fleet(client.cluster):
            assert f"{LINE}an answer of the scheduler at" in capsys.readouterr().err


def test_quick_start_says_nothing(monkeypatch, capsys):
    monkeypatch.setattr(_fleet, "SLOW_START_SECONDS", 600)
    with Fleet(n_workers=1, processes=False):
        assert LINE not in capsys.readouterr().err


def test_number_in_place_of_an_address():
    with pytest.raises(TypeError, match=r"Got int instead\. Write Fleet\(n_workers=4\)"):
        Fleet(4)


def test_when_workers_spill_and_pause_is_what_the_user_says():
    import dask

    names = {name: f"distributed.worker.memory.{name}" for name in ("spill", "pause")}
    assert memory_fractions() == {names["spill"]: 0.8, names["pause"]: 0.9}
    with dask.config.set({names["pause"]: 0.85}):
        assert memory_fractions() == {names["spill"]: 0.8}


@pytest.mark.parametrize(("limit", "keeps"), [("500MB", 4), ("1.5GB", 64), (None, 64)])
def test_allocators_of_small_workers_keep_little(limit, keeps):
    variables = allocator_variables(limit, 1)
    assert int(variables["MALLOC_TRIM_THRESHOLD_"]) == keeps * 2**20
    assert ("MIMALLOC_PURGE_DELAY" in variables) == (keeps == 4)
    assert allocator_variables(limit, 4)["MALLOC_TRIM_THRESHOLD_"] == (
        str(4 * 2**20) if limit else variables["MALLOC_TRIM_THRESHOLD_"]
    )


@pytest.mark.parametrize("limit", ["50MB", MIN_WORKER_BYTES - 1, 1e-6])
@pytest.mark.parametrize(("has_sparse", "needed"), [(False, 330), (True, 410)])
def test_memory_limit_that_the_imports_exceed(monkeypatch, limit, has_sparse, needed):
    monkeypatch.setattr(_worker_memory, "sparse_bytes", lambda: SPARSE_BYTES * has_sparse)
    with pytest.raises(ValueError, match=f"memory_limit must be at least {needed} MB for a worker"):
        Fleet(n_workers=1, memory_limit=limit)


def test_first_death_of_a_worker_with_a_task_is_reported():
    """At once, and not when distributed gives the task up, after four of them."""
    keys = {"up_to_2_fits_of_SVC-1": 1, "up_to_2_fits_of_SVC-2": 1, "again-1": 2}
    tasks = {key: SimpleNamespace(key=key, suspicious=n) for key, n in keys.items()}
    logged = []
    scheduler = SimpleNamespace(
        tasks=tasks,
        allowed_failures=3,
        status=Status.running,
        log_event=lambda topic, message: logged.append(message),
    )
    death = {"action": "remove-worker", "expected": False, "processing-tasks": {*keys, "gone-1"}}
    plugin = _WorkerDeaths(scheduler)
    plugin.log_event("all", death)
    (report,) = logged
    assert report["task"] == "up_to_2_fits_of_SVC"
    assert (
        "its worker has ended. It runs again, unless that has happened 4 times" in report["error"]
    )
    plugin.log_event("all", death | {"expected": True})
    plugin.log_event("all", {"action": "add-worker"})
    scheduler.status = Status.closing
    plugin.log_event("all", death)
    assert len(logged) == 1


def test_dask_rows_without_a_client_say_so_once(monkeypatch, capsys):
    # a task in a worker of this process leaves its worker's client as the default one
    monkeypatch.setattr(distributed.client, "_global_clients", {})
    assert current_client(is_required=False) is None
    _select._tell_of_no_client.cache_clear()
    rows = row_blocks(da.ones((4, 2), chunks=2), dtype=np.float64)
    for _ in range(2):
        assert engine_for(rows).is_local
    assert capsys.readouterr().err.count("no client is open, so this process works on") == 1
    engine_for(row_blocks(np.ones((4, 2)), dtype=np.float64))
    assert not capsys.readouterr().err
