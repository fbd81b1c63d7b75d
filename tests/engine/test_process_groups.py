"""Groups of processes beside workers: one for each machine, used again, and ended in time."""

import os
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from distributed import Client, Scheduler, SpecCluster, Worker

from skfleet.blocks import Block
from skfleet.engine import ObjectLostError, ProcessLauncher, report_progress, thread_count
from skfleet.engine._dask import _worker_processes
from skfleet.engine._dask._engine import DaskEngine
from skfleet.engine._dask._process_group import GroupLostError


class Counter:
    """An object of a process, with methods to call."""

    def __init__(self, rank):
        self.rank, self.is_closable = rank, True

    def pid(self):
        return os.getpid()

    def threads(self):
        return int(os.environ["OMP_NUM_THREADS"])

    def refuse_to_close(self):
        self.is_closable = False

    def lose(self):
        raise ObjectLostError("its network failed")

    def fail(self):
        raise KeyError("no such row")

    def close(self):
        if not self.is_closable:
            raise RuntimeError


class Unborn:
    """A class whose objects cannot be made."""

    def __init__(self, rank):
        raise ZeroDivisionError("rank")


def launcher(client, factory=Counter, **options):
    return ProcessLauncher(DaskEngine(client), factory, timeout=30, name="count", **options)


@pytest.fixture
def of_workers(cluster_client, monkeypatch):
    """A launcher of a process on each of two workers; no process is idle before."""
    monkeypatch.setattr("skfleet.engine._dask._process_group.machine_of", str)
    result = launcher(cluster_client)
    kill_idle(cluster_client)
    yield result
    kill_idle(cluster_client)


def plugins_of(client):
    plugins = [
        worker.plugins.get("skfleet-processes") for worker in client.cluster.workers.values()
    ]
    return [plugin for plugin in plugins if plugin is not None]


def kill_idle(client):
    for plugin in plugins_of(client):
        plugin._kill_idle()


def call(group, method):
    return group.call(method, [()] * len(group.hosts))


def wait_for_end(pids):
    deadline = time.monotonic() + 20
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def idle_pids(client):
    return {p._process.pid for plugin in plugins_of(client) for p in plugin._idle}


def wait_for_idle(client, pids):
    deadline = time.monotonic() + 20
    while idle_pids(client) != set(pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_process_is_used_again(of_workers, cluster_client):
    group = of_workers.start(2)
    pids = call(group, "pid")
    assert len(set(pids)) == 2
    group.close()
    wait_for_idle(cluster_client, pids)
    group = of_workers.start(2)
    assert sorted(call(group, "pid")) == sorted(pids)
    with pytest.raises(KeyError, match="no such row"):
        call(group, "fail")
    with pytest.raises(GroupLostError, match="its network failed"):
        call(group, "lose")
    call(group, "refuse_to_close")
    group.close()
    wait_for_end(pids)


def test_processes_are_preloaded(of_workers, cluster_client):
    of_workers.preload()
    deadline = time.monotonic() + 20
    while len(pids := idle_pids(cluster_client)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    group = of_workers.start(2)
    assert set(call(group, "pid")) == pids
    group.close()


@pytest.mark.slow
def test_idle_processes_end(of_workers, monkeypatch):
    monkeypatch.setattr(_worker_processes, "IDLE_SECONDS", 0.2)
    group = of_workers.start(2)
    pids = call(group, "pid")
    group.close()
    wait_for_end(pids)


@pytest.mark.slow
def test_an_idle_process_that_has_died_is_replaced(of_workers, cluster_client):
    group = of_workers.start(2)
    pids = call(group, "pid")
    group.close()
    wait_for_idle(cluster_client, pids)
    for plugin in plugins_of(cluster_client):
        for process in plugin._idle:
            process._process.kill()
            process._process.wait()
    group = of_workers.start(2)
    assert not set(call(group, "pid")) & set(pids)
    group.close()


@pytest.mark.slow
@pytest.mark.parametrize("in_workers", [False, True])
def test_objects_that_cannot_be_made(cluster_client, in_workers):
    group = launcher(cluster_client, Unborn, in_workers=in_workers).start(1)
    with pytest.raises(ZeroDivisionError):
        call(group, "pid")
    group.close()


@contextmanager
def cluster_of(hosts):
    """Yield a client of workers of a thread in this process, with these addresses."""
    workers = {
        i: {"cls": Worker, "options": {"host": host, "nthreads": 1, "dashboard_address": ":0"}}
        for i, host in enumerate(hosts)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    with SpecCluster(workers=workers, scheduler=scheduler) as cluster, Client(cluster) as client:
        yield client


@pytest.mark.slow
def test_a_process_for_each_machine():
    with cluster_of(["127.0.0.1", "127.0.0.1", "127.0.0.2"]) as client:
        by_machine = launcher(client)
        assert by_machine.threads == [2, 1]
        assert by_machine.memory_limits[0] == 2 * by_machine.memory_limits[1]
        group = by_machine.start(2)
        n_cores = len(os.sched_getaffinity(0))
        assert call(group, "threads") == [min(2, n_cores), 1]
        assert group.hosts == ["127.0.0.1", "127.0.0.2"]
        group.close()
        assert launcher(client, in_workers=True).threads == [1, 1, 1]
        group = launcher(client, n_threads=3).start(2)
        assert call(group, "threads") == [min(3, n_cores)] * 2
        group.close()


@pytest.mark.slow
def test_boosting_on_two_machines(monkeypatch):
    xgboost = pytest.importorskip("xgboost")
    import dask.array as da

    from skfleet.estimators import XGBRegressor

    monkeypatch.setattr("skfleet.estimators.boosting._boosted_estimator.ONE_WORKER_BYTES", 0)
    X = np.random.default_rng(0).integers(0, 50, (400, 3)).astype(np.float32)
    y = X @ [1.0, 2.0, 3.0]
    plain = xgboost.XGBRegressor(n_estimators=5).fit(X, y)
    with cluster_of(["127.0.0.1", "127.0.0.1", "127.0.0.2"]):
        ours = XGBRegressor(n_estimators=5).fit(*(da.from_array(v, chunks=50) for v in (X, y)))
    assert np.abs(ours.predict(X) - plain.predict(X)).max() < 1e-4


class Receiver:
    """An object that notes the rows that it is called with."""

    def __init__(self, rank):
        self.rows = None

    def take(self, block):
        self.rows = block.X
        report_progress()
        return type(block.X).__name__, block.X.__array_interface__["data"][0], thread_count()

    def sleep(self):
        time.sleep(9)

    def close(self):
        self.rows = None


def test_threads_of_workers_take_arrays_as_they_are(cluster_client):
    block = Block(np.arange(10.0), number=0)
    address = block.X.__array_interface__["data"][0]
    places = launcher(cluster_client, Receiver, in_workers=True)
    group = places.start(2)
    [task] = cluster_client.scatter([block])  # which the workers of this process share
    answers = group.call("take", [(task,), (task,)])
    assert answers == [("ndarray", address, 1)] * 2
    group.close()


@pytest.mark.slow
def test_a_thread_that_hangs_is_lost(cluster_client):
    places = ProcessLauncher(
        DaskEngine(cluster_client), Receiver, timeout=5, name="count", in_workers=True
    )
    group = places.start(2)  # in the same time
    with pytest.raises(GroupLostError, match="sleep made no progress"):
        group.call("sleep", [(), ()], seconds=10)
    group.close()


def test_a_worker_that_ends_waits_for_the_release_of_its_processes(tmp_path):
    """Files that are removed by two threads at a time make Dask print an error for each."""
    cleared = []

    class Slow:
        def clear(self, seconds):
            time.sleep(0.3)
            cleared.append(self)
            return False

        def kill(self):
            cleared.append("killed")

    worker = SimpleNamespace(local_directory=str(tmp_path), nanny=None)
    processes = _worker_processes.WorkerProcesses()
    processes.setup(worker)
    processes._processes["key"] = slow = Slow()
    processes.transition("key", "memory", "released")
    processes.teardown(worker)
    assert cleared == [slow, "killed"]
