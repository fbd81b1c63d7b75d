"""What the joblib backend and the searches on it do when worker processes die."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import sklearn.model_selection as reference
from distributed import Client, LocalCluster
from joblib import Parallel, delayed, parallel_config
from sklearn.datasets import load_digits
from sklearn.ensemble import BaggingClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import skfleet  # noqa: F401  (registers the backend)
from clusters import local_client
from skfleet.exceptions import FleetError
from skfleet.model_selection import GridSearchCV

pytestmark = pytest.mark.slow


@pytest.fixture(params=[1, 2])
def fleet(request):
    with local_client(request.param, threads_per_worker=1) as client:
        yield client


def kill_when(started, pids):
    """Kill processes as soon as a file of that name is there."""

    def kill():
        while not started.exists():
            time.sleep(0.01)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def slow_sum(X, i, started):
    if i == 5:
        started.touch()
    time.sleep(0.1)
    return float(X.sum()) + i


@pytest.mark.parametrize("pre_dispatch", ["2*n_jobs", "all"])
@pytest.mark.parametrize("n_killed", [1, 2])
def test_parallel_survives_the_death_of_workers(fleet, tmp_path, n_killed, pre_dispatch):
    # with every worker the only copies of X die too
    X = np.ones(100_000)
    pids = list(fleet.run(os.getpid).values())[:n_killed]
    thread = kill_when(tmp_path / "started", pids)
    with parallel_config("skfleet"):
        results = Parallel(batch_size=1, pre_dispatch=pre_dispatch)(
            delayed(slow_sum)(X, i, tmp_path / "started") for i in range(20)
        )
    thread.join()
    assert results == [100_000.0 + i for i in range(20)]
    assert set(pids).isdisjoint(fleet.run(os.getpid).values())


def test_heavy_batches_survive_the_death_of_all_workers(fleet, tmp_path):
    arrays = [np.full(5_000, float(i)) for i in range(120)]
    pids = list(fleet.run(os.getpid).values())
    thread = kill_when(tmp_path / "started", pids)
    with parallel_config("skfleet"):
        results = Parallel(batch_size=30, pre_dispatch="all")(
            delayed(slow_sum)(array, i, tmp_path / "started") for i, array in enumerate(arrays)
        )
    thread.join()
    assert results == [5_000.0 * i + i for i in range(120)]


class SlowSVC(SVC):
    """Takes its time, and tells when it is being fitted."""

    def __init__(self, C=1.0, started=None):
        super().__init__(C=C)
        self.started = started

    def fit(self, X, y):
        if self.started is not None:
            time.sleep(0.1)
            if self.C == 2.0:
                self.started.touch()
        return super().fit(X, y)


def test_grid_search_survives_the_death_of_a_worker(fleet, tmp_path):
    X, y = load_digits(return_X_y=True)
    grid = {"C": [0.5, 1.0, 2.0, 4.0]}
    pids = list(fleet.run(os.getpid).values())[:1]
    thread = kill_when(tmp_path / "started", pids)
    ours = GridSearchCV(SlowSVC(started=tmp_path / "started"), grid).fit(X, y)
    thread.join()
    assert set(pids).isdisjoint(fleet.run(os.getpid).values())
    theirs = reference.GridSearchCV(SVC(), grid).fit(X, y)
    np.testing.assert_array_equal(
        ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"]
    )
    assert ours.best_params_ == theirs.best_params_


class SlowTree(DecisionTreeClassifier):
    """Takes its time, and tells when it is being fitted."""

    def __init__(self, started=None, random_state=None):
        super().__init__(random_state=random_state)
        self.started = started

    def fit(self, X, y, **params):
        if self.started is not None:
            self.started.touch()
            time.sleep(0.05)
        return super().fit(X, y, **params)


def test_fits_in_one_survive_the_death_of_a_worker(fleet, tmp_path):
    X, y = load_digits(return_X_y=True)
    grid = {"n_estimators": [3, 6, 12]}
    pids = list(fleet.run(os.getpid).values())[:1]
    thread = kill_when(tmp_path / "started", pids)
    model = BaggingClassifier(SlowTree(tmp_path / "started"), random_state=0)
    ours = GridSearchCV(model, grid, cv=4, refit=False).fit(X, y)
    thread.join()
    assert set(pids).isdisjoint(fleet.run(os.getpid).values())
    theirs = reference.GridSearchCV(
        BaggingClassifier(SlowTree(), random_state=0), grid, cv=4, refit=False
    ).fit(X, y)
    np.testing.assert_array_equal(
        ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"]
    )
    assert ours.shared_fits_[0].n_saved > 0


def poison(i):
    if i == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return i


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pre_dispatch", ["2*n_jobs", "all"])
def test_task_that_kills_its_workers_ends_in_an_error_that_names_it(fleet, pre_dispatch):
    with parallel_config("skfleet"):
        with pytest.raises(FleetError, match="poison must leave its worker alive"):
            Parallel(batch_size=1, pre_dispatch=pre_dispatch)(delayed(poison)(i) for i in range(40))
        # and the fleet is there for others
        assert Parallel()(delayed(poison)(i) for i in range(3)) == [0, 1, 2]


def test_scheduler_that_goes_away_ends_the_call(tmp_path):
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0")
    client = Client(cluster, set_as_default=False)
    started = tmp_path / "started"

    def close():
        while not started.exists():
            time.sleep(0.01)
        cluster.close()

    closer = threading.Thread(target=close)
    closer.start()
    try:
        with parallel_config("skfleet", client=client), pytest.raises(FleetError, match="slow_sum"):
            Parallel(batch_size=1, pre_dispatch="all")(
                delayed(slow_sum)(np.ones(10), i, started) for i in range(400)
            )
    finally:
        closer.join()
        client.close()
