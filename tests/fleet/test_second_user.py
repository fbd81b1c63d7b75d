"""A second user of the machine gets into no fleet but one without credentials.

What `stranger.py` tries is what gets in there: first it must succeed.
"""

import os
import shutil
import stat
import tempfile
import threading
import time
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_config
from sklearn.callback import ProgressBar
from sklearn.linear_model import LogisticRegression as OtherLogisticRegression

from fleet.strangers import (
    earlier,
    listening,
    open_stranger,
    processes_of_fleet,
    reachable,
    skip_without_other_user,
    tree,
)
from skfleet import Fleet, config_context
from skfleet.engine import _disk_cache as disk_cache
from skfleet.estimators import LogisticRegression, boosting
from skfleet.model_selection import GridSearchCV

WAYS = ("plain", "TLS", "TLS, own certificate")
NOT_IN_MEMORY = {"keep_blocks": False, "disk_cache": True, "single_task_below": 0}
SECRETS = ("PRIVATE KEY", "CERTIFICATE")


@pytest.fixture(scope="module")
def stranger():
    """Another user's process, for all tests."""
    with open_stranger() as process:
        yield process


@pytest.fixture
def temporary(monkeypatch):
    """A folder of temporary files that all users share, as that of the machine."""
    skip_without_other_user()
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o1777)
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    before = os.umask(0o022)
    with dask.config.set({"temporary-directory": None}):
        yield Path(folder)
    os.umask(before)
    shutil.rmtree(folder)


@pytest.fixture
def before():
    """What other tests have running, which is not tried."""
    return earlier()


def targets_of(address, before):
    """Return all that there is to try of the fleets of this test."""
    processes = processes_of_fleet(before)
    ports, sockets = listening(processes, before)
    _, _, host = address.partition("://")
    return {
        "ports": reachable(ports),
        "clients": [(way, f"{'tcp' if way == 'plain' else 'tls'}://{host}") for way in WAYS],
        "sockets": sorted(sockets),
        "pids": [process.pid for process in processes],
        "paths": [],
    }


@contextmanager
def repeated(work):
    """Do something again and again in another thread, until the block ends."""
    is_over, errors = threading.Event(), []

    def repeat():
        try:
            while not is_over.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=copy_context().run, args=(repeat,))  # with its settings
    thread.start()
    try:
        yield thread
    finally:
        is_over.set()
        thread.join()
        if errors:
            raise errors[0]


def rows(n_rows=20_000):
    return da.random.default_rng(0).normal(size=(n_rows, 4), chunks=(n_rows // 8, 4))


# -- connections -----------------------------------------------------------------------------------


def test_without_credentials_a_second_user_runs_code(stranger, before):
    with Fleet(n_workers=1, security=False) as client:
        targets = targets_of(client.scheduler.address, before)
        del targets["clients"][1:]  # with TLS there is no answer, for which a client would wait
        got = {(way, port) for way, port, answer in stranger.attempt(**targets)}
        ports = {str(port) for _, port in targets["ports"]}
        assert len(ports) == 3
        for way in ("plain connection", "plain identity", "bytes"):
            assert {(way, port) for port in ports} <= got
        # of the scheduler, its worker and the nanny each
        runs = {port for way, port in got if way in ("plain run", "plain run_function")}
        assert runs == ports
        assert ("plain client", client.scheduler.address) in got
        # not what is its user's alone on any machine
        assert not [way for way, _ in got if way in ("process", "read", "write", "list", "create")]


def test_a_second_user_gets_nothing_of_the_default_fleet(stranger, before):
    with Fleet(n_workers=2) as client:
        shared = client.scatter(np.arange(100_000.0))
        targets = targets_of(client.scheduler.address, before)
        assert len(targets["ports"]) == 5
        assert stranger.attempt(**targets) == []
        assert not [s for s in SECRETS for line in stranger.command_lines if s in line]
        assert client.submit(np.sum, shared).result() == 4999950000.0


@pytest.mark.slow
def test_a_dashboard_answers_a_second_user_nothing(stranger, before):
    pytest.importorskip("bokeh", reason="the dashboard needs Bokeh")
    with Fleet(n_workers=1, dashboard_address=":0") as client:
        targets = targets_of(client.scheduler.address, before)
        assert len(targets["ports"]) == 4
        got = stranger.attempt(**targets)
    # the status of an answer that refuses, to bytes that are no request
    assert [answer for way, _, answer in got if way != "bytes" or "400 Bad" not in answer] == []


def boosting_fit(kind):
    model = getattr(boosting, kind)(n_estimators=200, max_depth=3)
    X = rows()
    return lambda: model.fit(X, X[:, 0])


def search_with_callbacks():
    X = np.random.default_rng(0).normal(size=(200, 4))
    search = GridSearchCV(OtherLogisticRegression(), {"C": list(np.logspace(-3, 3, 20))})
    search.set_callbacks(ProgressBar())
    return lambda: search.fit(X, X[:, 0] > 0)


def calls_of_joblib():
    def call():
        with parallel_config("skfleet"):
            Parallel()(delayed(np.sum)(np.ones(200_000)) for _ in range(50))

    return call


WORK = {
    "XGBRegressor": lambda: boosting_fit("XGBRegressor"),
    "LGBMRegressor": lambda: boosting_fit("LGBMRegressor"),
    "search": search_with_callbacks,
    "joblib": calls_of_joblib,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_a_second_user_gets_nothing_while_others_work(name, stranger, before, monkeypatch, capfd):
    for library in {"XGBRegressor": ["xgboost"], "LGBMRegressor": ["lightgbm"]}.get(name, ()):
        pytest.importorskip(library, reason="it is not installed")
    monkeypatch.setattr("skfleet.estimators.boosting._boosted_estimator.ONE_WORKER_BYTES", 0)
    with Fleet(n_workers=2) as client, config_context(single_task_below=0):
        n_before = len(processes_of_fleet(before))
        with repeated(WORK[name]()) as thread:
            n_tried, is_seen, deadline = 0, False, time.monotonic() + 60
            while n_tried < 6 or not (is_seen or time.monotonic() > deadline):
                targets = targets_of(client.scheduler.address, before)
                assert stranger.attempt(**targets) == []
                assert thread.is_alive()
                n_tried += 1
                # what is to be seen: the processes that train, the sockets of callbacks
                is_seen |= {
                    "search": bool(targets["sockets"]),
                    "joblib": True,
                }.get(name, len(targets["pids"]) > n_before)
        assert is_seen


# -- files -----------------------------------------------------------------------------------------


def files_got(stranger, folder):
    """Return what the other user gets of files below a folder that all share."""
    paths = tree(folder)
    got = stranger.attempt(paths=paths)
    for path in Path(folder).glob("new"):
        path.unlink()
    # the folder itself is everybody's, and without what is in it
    return paths, [g for g in got if g[1] != str(folder)]


def test_a_second_user_reads_files_of_others_that_are_open(stranger, temporary):
    (temporary / "open").write_text("for all")
    (temporary / "closed").touch(0o600)
    _, got = files_got(stranger, temporary)
    assert [g[:2] for g in got] == [("read", str(temporary / "open"))]


def test_a_second_user_gets_no_spilled_rows(stranger, temporary):
    with dask.config.set({"distributed.worker.memory.target": 1e-6}), Fleet(n_workers=1) as client:
        parts = client.map(np.ones, [100_000, 200_000], pure=False)
        assert sum(map(np.sum, client.gather(parts))) == 300_000
        spilled = client.run(lambda dask_worker: len(dask_worker.data.slow))
        assert sum(spilled.values()) >= 1
        paths, got = files_got(stranger, temporary)
    assert any("/storage/" in path and os.sep in path for path in paths)
    assert got == []


@pytest.mark.parametrize(
    "place", [pytest.param("workers", marks=pytest.mark.slow), "threads", "here"]
)
def test_a_second_user_gets_no_cached_rows(place, stranger, temporary, monkeypatch):
    X = rows().map_blocks(np.abs)
    labels = (X[:, 0] > 0.5).astype(int)
    seen, lock = [], threading.Lock()
    write_block = disk_cache.write_block

    def write_and_look(block, path):
        """Look at a file that is there no longer than the fit."""
        written = write_block(block, path)
        with lock:  # other threads write too
            if not seen:
                seen.append(files_got(stranger, temporary))
        return written

    monkeypatch.setattr(disk_cache, "write_block", write_and_look)
    with open_place(place), config_context(**NOT_IN_MEMORY):
        model = LogisticRegression(max_iter=1000, tol=0)
        if place == "workers":  # processes, which are not patched
            with repeated(lambda: model.fit(X, labels)) as fits:
                while not list(temporary.rglob("*.joblib")):
                    assert fits.is_alive()
                seen.append(files_got(stranger, temporary))
        else:
            model.fit(X, labels)
    paths, got = seen[0]
    assert any(path.endswith(".joblib") for path in paths)
    assert got == []


@contextmanager
def open_place(place):
    """Let fits run on processes, on threads, or in this process without a client."""
    if place == "here":
        with config_context(engine="local"):
            yield
        return
    with Fleet(n_workers=1, processes=place == "workers"):
        yield


def test_a_second_user_gets_no_checkpoint_and_no_connection(stranger, temporary):
    X = np.random.default_rng(0).normal(size=(200, 4))
    y = (X[:, 0] > 0).astype(int)
    folder = temporary / "results"
    folder.mkdir(mode=0o755)
    fleet = Fleet(n_workers=1)
    with fleet:
        fleet.save_connection(folder / "fleet.json")
        model = OtherLogisticRegression()
        GridSearchCV(model, {"C": [1, 10]}, checkpoint=folder / "grid").fit(X, y)
        paths, got = files_got(stranger, temporary)
    assert any("/grid/" in path for path in paths)
    modes = {p: stat.S_IMODE(os.stat(p).st_mode) for p in paths if "/results/" in p}
    assert not [p for p, mode in modes.items() if mode & 0o077]
    # what the user made: a folder that others may list
    assert {g[:2] for g in got} == {("list", str(folder)), ("read", str(folder))}
