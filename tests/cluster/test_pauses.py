"""Workers that are all paused for lack of memory: what is logged, and what raises."""

import logging
import os
import subprocess
import sys
import time

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.core import Status
from joblib import Parallel, delayed, parallel_config
from sklearn.linear_model import SGDClassifier
from sklearn.svm import SVC

from skfleet import config_context
from skfleet._cluster import _pauses, _wait
from skfleet._cluster._pauses import PauseCheck
from skfleet._joblib import _parallel_call
from skfleet.blocks._lazy import compute_together
from skfleet.engine._dask import _scatter
from skfleet.engine._dask._engine import DaskEngine
from skfleet.estimators import LogisticRegression
from skfleet.exceptions import WorkerMemoryError, WorkersPausedError
from skfleet.fleet._local_cluster import start_local_cluster
from skfleet.model_selection import GridSearchCV, HyperbandSearchCV

X = np.random.default_rng(0).normal(size=(120, 3))
y = (X[:, 0] > 0).astype(int)
ballast = []


class Cluster:
    """A client, a clock, and workers as their scheduler describes them at a time."""

    status, seconds = "running", 100.0

    def monotonic(self):
        return self.seconds

    def worker(self, *, status="paused", limit=2**30, counts=(), spilled=0, seen=None):
        return {
            "status": status,
            "memory_limit": limit,
            "last_seen": self.seconds if seen is None else seen,
            "resources": {},
            "metrics": {
                "memory": 900 * 2**20,
                "task_counts": dict(counts),
                "managed_bytes": 10,
                "spilled_bytes": {"memory": 0, "disk": spilled},
            },
        }

    def looks(self, check, seconds, has_workers=bool, **options):
        """Check two workers every five seconds, for so many; options may depend on the time."""
        end = self.seconds + seconds
        while self.seconds <= end:
            now = {k: v(self.seconds) if callable(v) else v for k, v in options.items()}
            check({"tcp://a:1": self.worker(**now), "tcp://b:2": self.worker(**now)}, has_workers)
            self.seconds += 5


@pytest.fixture
def cluster(monkeypatch):
    cluster = Cluster()
    monkeypatch.setattr(_pauses, "time", cluster)
    return cluster


def test_a_pause_is_logged_once_and_then_raises(cluster, caplog):
    check = PauseCheck(cluster)
    cluster.looks(check, 8)
    assert not caplog.records
    cluster.looks(check, 30)
    cluster.looks(PauseCheck(cluster), 30)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("skfleet", logging.WARNING)
    assert "tcp://a:1 has 900.00 MiB of 1.00 GiB in use, tcp://b:2" in record.getMessage()
    assert "--memory-limit" in record.getMessage()
    message = r"Got 2 instead that are paused, and have run nothing for \d\d seconds \(tcp://a:1"
    with pytest.raises(WorkersPausedError, match=message) as raised:
        cluster.looks(check, 60)
    assert not isinstance(raised.value, WorkerMemoryError)  # of which pieces are halved
    assert "smaller partitions" in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"spilled": lambda seconds: seconds // 30},  # results are written to disk
        {"counts": lambda seconds: {"memory": 200 - seconds // 30}},  # and released
        {"counts": {"executing": 1}},
        {"counts": {"long-running": 1}},
        {"status": lambda seconds: "running" if seconds % 50 == 0 else "paused"},
        {"seen": 1.0},  # no heartbeat: the worker may be writing
        {"limit": None},  # paused by hand
    ],
)
def test_a_pause_that_may_end_raises_nothing(cluster, options):
    cluster.looks(PauseCheck(cluster), 200, **options)


def test_a_longer_wait_can_be_set(cluster):
    with config_context(wait_for_workers_timeout=300):
        cluster.looks(PauseCheck(cluster), 290)
    cluster.looks(PauseCheck(cluster, timeout=300), 290)


def test_only_workers_that_may_run_the_tasks_count(cluster, caplog):
    workers = {"gpu": cluster.worker(), "cpu": cluster.worker(status="running")}
    check = PauseCheck(cluster)
    assert not check(workers)
    assert check(workers, lambda some: "gpu" in some)
    cluster.seconds += 61
    busy = cluster.worker(status="running", counts={"executing": 1})
    check({"gpu": cluster.worker(), "cpu": busy}, lambda some: "gpu" in some)
    assert "gpu has" in caplog.text  # the other may release what it has in memory
    idle = cluster.worker(status="running")
    with pytest.raises(WorkersPausedError, match="Got 1 instead"):
        check({"gpu": cluster.worker(), "cpu": idle}, lambda some: "gpu" in some)


def test_many_workers_are_not_all_named():
    workers = {f"tcp://a:{i}": Cluster().worker() for i in range(9)}
    assert _pauses._memory_of(workers).endswith("in use, and 6 more")


@pytest.fixture(scope="module")
def client():
    with (
        start_local_cluster(n_workers=2, threads_per_worker=1, processes=False) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def impatience(monkeypatch):
    monkeypatch.setattr(_wait, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(_parallel_call, "FLEET_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(_scatter, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(_scatter, "WORKER_INFO_SECONDS", 0.0)
    for name, seconds in ("LOOK", 0.05), ("LOGGED", 0.1), ("PAUSED", 0.3):
        monkeypatch.setattr(_pauses, f"{name}_SECONDS", seconds)
    with config_context(wait_for_workers_timeout=0.1, single_task_below=0):
        yield


def set_status(status, dask_worker):
    dask_worker.memory_manager.memory_pause_fraction = False  # or its monitor sets another
    dask_worker.status = status


@pytest.fixture
def paused_client(client, impatience):
    client.run(set_status, Status.paused)
    yield client
    client.run(set_status, Status.running)


def pending_tasks(client):
    tasks = client.cluster.scheduler.tasks.values()
    return [task.key for task in tasks if task.state not in ("memory", "erred", "forgotten")]


def run_tasks(client):
    engine = DaskEngine(client)
    engine.gather([engine.submit(len, ())])


def wait_for_tasks(client):
    list(DaskEngine(client).as_completed([client.submit(len, ())]))


def fit(client):
    LogisticRegression().fit(da.from_array(X, chunks=(40, 3)), da.from_array(y, chunks=40))


def search(client):
    GridSearchCV(SVC(), {"C": [0.1, 1.0]}, cv=2).fit(X, y)


def search_adaptively(client):
    HyperbandSearchCV(SGDClassifier(), {"alpha": [0.1, 1.0]}, max_iter=3).fit(X, y)


def call(client):
    with parallel_config("skfleet"):
        Parallel()(delayed(abs)(i) for i in range(3))


def call_with_rows(client):
    with parallel_config("skfleet"):
        Parallel()(delayed(np.sum)(np.ones(500_000)) for _ in range(3))


def compute(client):
    compute_together(da.from_array(X, chunks=(40, 3)).sum())


WORK = [run_tasks, wait_for_tasks, fit, search, search_adaptively, call, call_with_rows, compute]


@pytest.mark.parametrize("work", WORK)
def test_all_kinds_of_work_end_with_the_same_error(paused_client, work, caplog):
    with pytest.raises(WorkersPausedError, match="Got 2 instead that are paused"):
        work(paused_client)
    deadline = time.monotonic() + 10
    while (left := pending_tasks(paused_client)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left
    assert "Traceback" not in caplog.text


def test_rows_of_the_user_stay(client, impatience):
    rows = client.submit(np.ones, 3)
    assert rows.result().sum() == 3
    client.run(set_status, Status.paused)
    with pytest.raises(WorkersPausedError):
        fit(client)
    client.run(set_status, Status.running)
    assert rows.result().sum() == 3
    fit(client)


def test_rows_that_the_user_has_persisted_are_still_loaded(client, impatience):
    client.run(set_status, Status.paused)
    rows = da.from_array(X, chunks=(40, 3)).sum()
    persisted = rows.persist()  # under the key that is computed
    with pytest.raises(WorkersPausedError):
        compute_together(rows)
    client.run(set_status, Status.running)
    np.testing.assert_allclose(persisted.compute(), X.sum())


def grow(fraction, dask_worker):
    """Take memory until the process has a fraction of its limit."""
    while (used := dask_worker.monitor.get_process_memory()) < fraction * 500_000_000:
        ballast.append(b"1" * max(10**6, int(fraction * 500_000_000 - used)))


@pytest.mark.slow
@pytest.mark.parametrize("work", [fit, search, call])
def test_worker_process_without_memory(monkeypatch, work, tmp_path):
    """A worker of ``dask worker``, of whose memory more than 80 % is no result of a task."""
    monkeypatch.setattr(_pauses, "LOGGED_SECONDS", 1.0)
    monkeypatch.setattr(_pauses, "PAUSED_SECONDS", 2.0)
    monkeypatch.setattr(_wait, "CHECK_SECONDS", 0.5)
    monkeypatch.setattr(_parallel_call, "FLEET_CHECK_SECONDS", 0.5)
    options = ["--no-dashboard", "--nworkers", "1", "--nthreads", "1", "--memory-limit", "500MB"]
    with LocalCluster(n_workers=0, processes=True, dashboard_address="127.0.0.1:0") as cluster:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
        worker = subprocess.Popen(
            [*command, *options, "--local-directory", str(tmp_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with Client(cluster) as client, config_context(single_task_below=0):
                cluster.wait_for_workers(1, timeout=60)
                work(client)  # imports all
                client.run(grow, 0.86)
                with pytest.raises(WorkersPausedError, match=r"Got 1 instead.*of 476.84 MiB in"):
                    work(client)
        finally:
            worker.terminate()
            worker.wait()
