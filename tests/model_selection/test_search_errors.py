"""Searches on worker processes when something is wrong, or when the fleet is shared."""

import concurrent.futures
import contextlib
import functools
import gc
import os
import pickle
import threading
import time
import warnings

import dask
import joblib
import numpy as np
import pytest
import sklearn.model_selection as reference
from distributed import Client, LocalCluster
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import KFold, cross_val_predict, learning_curve, validation_curve
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import skfleet  # noqa: F401  (registers the backend)
from clusters import local_client
from skfleet._joblib._parallel_call import ParallelCall
from skfleet.exceptions import FleetError, PlacementError
from skfleet.model_selection import GridSearchCV, cross_val_score, cross_validate
from skfleet.model_selection._dispatch import _dispatcher
from skfleet.model_selection._dispatch._routes import _on_workers

X, y = load_iris(return_X_y=True)


@pytest.fixture(
    params=[pytest.param(1, marks=pytest.mark.slow), 2],
    ids=["1 thread", "2 threads"],
    scope="module",
)
def cluster(request):
    # A worker that takes longer than this to be started again is given up by Dask's own cluster.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"}),
        LocalCluster(
            n_workers=2, threads_per_worker=request.param, dashboard_address=":0"
        ) as cluster,
    ):
        yield cluster


@pytest.fixture(autouse=True)
def client(cluster):
    with Client(cluster) as client:
        yield client


class Model(ClassifierMixin, BaseEstimator):
    """Fits to order."""

    def __init__(self, p=0, seconds=0.0, folder=None, fails=False, keeps=None, until=None):
        self.p = p
        self.seconds = seconds
        self.folder = folder
        self.fails = fails
        self.keeps = keeps
        self.until = until

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        if self.folder is not None:
            (self.folder / f"{self.p!r}-{time.time_ns()}-{os.getpid()}").touch()
        time.sleep(0 if self.fails else self.seconds)
        if self.fails:
            raise RuntimeError(f"no fit of {self.p}")
        if self.until is not None:
            wait_for(self.until.exists)
        if self.keeps:
            self.lock_ = threading.Lock()
        return self

    def predict(self, X):
        return np.zeros(len(X), dtype=int)

    def score(self, X, y):
        return float(X.sum()) + self.p


def wait_for(condition, seconds=30):
    """Wait until something is true, but not for ever."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_argument_that_cannot_travel_raises_and_names_the_fit():
    with joblib.parallel_config("skfleet"), pytest.raises(TypeError, match="pickle") as error:
        cross_validate(Model(), X, y, cv=2, scoring=functools.partial(one, threading.Lock()))
    assert "arguments of " in "".join(error.value.__notes__)
    # found out while the fits are still being read
    many = GridSearchCV(
        Model(), {"p": list(range(50))}, scoring=functools.partial(one, threading.Lock())
    )
    with pytest.raises(TypeError, match="pickle"):
        many.fit(X, y)
    search = GridSearchCV(Model(), {"p": [1, Unclonable()]}, cv=2)
    with pytest.raises(TypeError, match="pickle") as error:
        search.fit(X, y)
    assert "arguments of fit_and_score-Model must be picklable" in "".join(error.value.__notes__)


def one(lock, estimator, X, y):
    return 1.0


class Unclonable:
    """Can be copied, and not pickled."""

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError("cannot pickle this")


def test_model_that_cannot_come_back_raises_and_names_the_fit():
    with (
        joblib.parallel_config("skfleet"),
        pytest.raises(pickle.PicklingError, match=r"result of .*Model.* must be picklable"),
    ):
        cross_validate(Model(keeps=True), X, y, return_estimator=True)


class SplitsByGenerator:
    """A splitter that cannot be pickled."""

    def __init__(self):
        self.generator = (i for i in range(3))

    def split(self, X, y=None, groups=None):
        yield from KFold(3).split(X)

    def get_n_splits(self, X=None, y=None, groups=None):
        return 3


@pytest.mark.parametrize("callbacks", [False, True])
def test_splitter_that_cannot_travel_is_used(callbacks):
    search = GridSearchCV(SVC(), {"C": [1, 10]}, cv=SplitsByGenerator())
    if callbacks:
        search.set_callbacks(Silent())
    search.fit(X, y)
    assert search.n_splits_ == 3


class Silent:
    def setup(self, *args, **kwargs):
        pass

    teardown = on_fit_task_begin = on_fit_task_end = setup


class NoScore(SVC):
    @property
    def score(self):
        raise AttributeError


def raising_scorer(estimator, X, y):
    raise ValueError("no score")


def nan_scorer(estimator, X, y):
    return np.nan if estimator.C == 1 else 1.0


@pytest.mark.parametrize("name", ["svcc__C", "svc__CC", "memry"])
@pytest.mark.parametrize("kind", [GridSearchCV, reference.GridSearchCV])
def test_misspelt_parameter_of_a_pipeline_is_told_as_scikit_learn_does(kind, name):
    """Nothing of ours is in the pipeline that the error shows."""
    X, y = load_iris(return_X_y=True)
    messages = []
    for backend in ("skfleet", "threading"):
        search = kind(make_pipeline(StandardScaler(), SVC()), {name: [1, 2]}, cv=2, n_jobs=2)
        with joblib.parallel_config(backend), pytest.raises(ValueError, match="Invalid") as error:
            search.fit(X, y)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("kind", [GridSearchCV, reference.GridSearchCV])
def test_estimator_without_a_score_is_told_before_its_rows_are(kind):
    with pytest.raises(TypeError, match="no scoring"):
        kind(NoScore(), {"C": [1, 2]}).fit([[1]])


def test_failing_scorer_is_scikit_learns_nan_or_error():
    search = GridSearchCV(SVC(), {"C": [1, 10]}, cv=2, scoring=raising_scorer)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        search.fit(X, y)
    assert np.isnan(search.cv_results_["mean_test_score"]).all()
    [one] = [str(one.message) for one in warned if "no score" in str(one.message)]
    assert "in 4 of 4 fits" in one
    with pytest.raises(ValueError, match="no score"):
        search.set_params(error_score="raise").fit(X, y)


def test_nan_scores_are_ranked_last():
    search = GridSearchCV(SVC(), {"C": [1, 10]}, cv=2, scoring=nan_scorer)
    with pytest.warns(UserWarning, match="non-finite"):
        search.fit(X, y)
    assert list(search.cv_results_["rank_test_score"]) == [2, 1]
    assert search.best_params_ == {"C": 10}


def test_some_fits_that_fail_make_one_warning():
    grid = [{"p": [1, 2], "fails": [True]}, {"p": [3]}]
    with pytest.warns(FitFailedWarning, match="4 fits failed out of a total of 6"):
        search = GridSearchCV(Model(), grid, cv=2, error_score=-1.0).fit(X, y)
    assert list(search.cv_results_["mean_test_score"][:2]) == [-1.0, -1.0]


@pytest.mark.parametrize("option", [{"resources": {"FPGA": 1}}, {"device": "cuda"}])
def test_resource_that_nobody_has_raises_before_work(option):
    with (
        joblib.parallel_config("skfleet", **option),
        pytest.raises(PlacementError, match=r"FPGA|GPU"),
    ):
        reference.GridSearchCV(SVC(), {"C": [1]}).fit(X, y)


def states_of_tasks(client):
    """Tell of all workers in which states their tasks are that are not over."""
    found = client.run(lambda dask_worker: [t.state for t in dask_worker.state.tasks.values()])
    return {state for states in found.values() for state in states} - {"memory"}


def test_error_cancels_the_fits_that_were_to_come(client, tmp_path, monkeypatch):
    # What a slow machine shares out anew may be made twice.
    monkeypatch.setattr(_on_workers, "SLOW_BATCH_SECONDS", 60.0)
    begun, end = tmp_path / "begun", tmp_path / "end"
    begun.mkdir()
    # All but the first two last until the error has come home, however long that takes.
    grid = [
        {"p": [0]}, {"p": [1], "fails": [True]}, {"p": list(range(2, 40)), "until": [end]}
    ]  # fmt: skip
    search = GridSearchCV(
        Model(folder=begun), grid, cv=[(np.arange(100), np.arange(100, 150))], error_score="raise"
    )
    with pytest.raises(RuntimeError, match="no fit of 1"):
        search.fit(X, y)
    wait_for(lambda: states_of_tasks(client) <= {"cancelled"})
    end.touch()
    wait_for(lambda: not states_of_tasks(client))
    assert len(list(begun.iterdir())) <= 2 + sum(client.nthreads().values())


def test_error_of_the_plan_itself_ends_the_search(monkeypatch):
    def fail(*args):
        raise ZeroDivisionError("in the plan")

    monkeypatch.setattr(_on_workers.FitScheduler, "record_duration", fail)
    with pytest.raises(ZeroDivisionError, match="in the plan"):
        GridSearchCV(Model(), {"p": [1, 2]}, cv=2).fit(X, y)


def test_fleet_that_grows_is_used(client, tmp_path, monkeypatch):
    monkeypatch.setattr(_on_workers, "_RECOUNT_SECONDS", 0.0)
    slots = []
    recount = _on_workers.FitsOnWorkers.recount_slots

    def watching(self):
        ((_, plan),) = self._schedulers
        slots.append(plan.n_slots)
        recount(self)

    monkeypatch.setattr(_on_workers.FitsOnWorkers, "recount_slots", watching)
    end = tmp_path / "end"

    def grow():
        wait_for(lambda: any(tmp_path.iterdir()))  # fits have begun
        client.cluster.scale(3)
        client.wait_for_workers(3)
        end.touch()

    threading.Thread(target=grow).start()
    grid = {"p": list(range(20))}
    GridSearchCV(Model(folder=tmp_path, until=end), grid, cv=4, refit=False).fit(X, y)
    client.cluster.scale(2)
    n_threads = next(iter(client.nthreads().values()))
    assert slots[0] == 2 * n_threads
    assert max(slots) == 3 * n_threads


def test_candidate_given_twice_is_fitted_once_and_reported_twice(tmp_path, monkeypatch):
    # What a slow machine shares out anew may be made twice.
    monkeypatch.setattr(_on_workers, "SLOW_BATCH_SECONDS", 60.0)
    search = GridSearchCV(Model(folder=tmp_path), {"p": [1, 1, 1.0, True]}, cv=2, refit=False).fit(
        X, y
    )
    made = sorted(path.name.partition("-")[0] for path in tmp_path.iterdir())
    assert made == ["1", "1", "1.0", "1.0", "True", "True"]
    assert search.cv_results_["params"] == [{"p": 1}, {"p": 1}, {"p": 1.0}, {"p": True}]
    assert len(set(search.cv_results_["mean_test_score"])) == 1
    assert np.all(search.cv_results_["mean_fit_time"] > 0)


@pytest.mark.parametrize("limit", [{"n_jobs": 2}, {"pre_dispatch": 2}, {"pre_dispatch": "n_jobs"}])
def test_n_jobs_and_pre_dispatch_bound_what_is_on_its_way(monkeypatch, limit):
    most = []
    send = _on_workers.FitsOnWorkers.run

    def watching(self):
        send(self)
        most.append(sum(plan.n_in_flight for _, plan in self._schedulers))

    monkeypatch.setattr(_on_workers.FitsOnWorkers, "run", watching)
    GridSearchCV(Model(seconds=0.02), {"p": list(range(20))}, cv=2, refit=False, **limit).fit(X, y)
    assert 1 <= max(most) <= (4 if "n_jobs" in limit.values() else 2)


def test_windows_are_planned_one_after_the_other(monkeypatch):
    read = []
    add = _dispatcher.FitDispatcher.add

    def watching(self, *args):
        add(self, *args)
        read.append(sum(plan.n_waiting for _, plan in self._on_workers._schedulers))

    monkeypatch.setattr(_dispatcher.FitDispatcher, "add", watching)
    monkeypatch.setattr(_dispatcher, "READ_AHEAD_FITS", 30)
    ours = GridSearchCV(Model(), {"p": list(range(100))}, cv=2).fit(X, y)
    assert len(read) == 200
    assert max(read) <= 30
    with joblib.parallel_config("sequential"):
        theirs = reference.GridSearchCV(Model(), {"p": list(range(100))}, cv=2).fit(X, y)
    np.testing.assert_array_equal(
        ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"]
    )


def test_two_searches_share_the_fleet():
    seconds, n_fits = {}, 40

    def search(name):
        start = time.monotonic()
        with joblib.parallel_config("skfleet"):
            GridSearchCV(
                Model(seconds=0.05), {"p": list(range(n_fits // 2))}, cv=2, refit=False
            ).fit(X, y)
        seconds[name] = time.monotonic() - start

    threads = [threading.Thread(target=search, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # neither waits for the other to end
    assert abs(seconds["a"] - seconds["b"]) < 0.5 * max(seconds.values())


def test_search_within_a_search_gives_the_same_and_needs_no_more_threads(client):
    inner = GridSearchCV(make_pipeline(StandardScaler(), SVC()), {"svc__C": [0.1, 1, 10]}, cv=3)
    with joblib.parallel_config("skfleet"):
        cross_val_score(inner, X, y, cv=3)
        before = client.run(threading.active_count)
        ours = cross_val_score(inner, X, y, cv=3)
        after = client.run(threading.active_count)
    assert all(after[address] <= before[address] + 2 for address in before)
    with joblib.parallel_config("sequential"):
        np.testing.assert_array_equal(ours, cross_val_score(inner, X, y, cv=3))


def test_functions_of_scikit_learn_give_the_same():
    def results():
        return [
            cross_val_predict(SVC(), X, y),
            *learning_curve(SVC(), X, y, shuffle=True, random_state=0),
            *validation_curve(SVC(), X, y, param_name="C", param_range=[0.1, 1]),
            cross_validate(SVC(), X, y, return_train_score=True)["train_score"],
        ]

    with joblib.parallel_config("skfleet"):
        ours = results()
    with joblib.parallel_config("sequential"):
        theirs = results()
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def no_collection():
    """Nothing is collected that a reference cycle keeps alive."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("seconds", [0.0, 0.3], ids=["quick", "shared out anew"])
def test_nothing_of_a_search_stays_on_the_fleet(client, no_collection, seconds):
    search_large_rows(Model(seconds=seconds))
    assert_nothing_stays(client)


def test_nothing_of_a_search_stays_when_a_result_was_cancelled_on_its_way(
    client, no_collection, monkeypatch
):
    fetch, failed = ParallelCall._fetch, []

    def fetch_from_the_second_time_on(self, futures):
        if not failed:
            failed.append(True)
            task = concurrent.futures.Future()
            task.set_exception(concurrent.futures.CancelledError())
            task.result()  # its error refers to this frame, which refers to it
        return fetch(self, futures)

    monkeypatch.setattr(ParallelCall, "_fetch", fetch_from_the_second_time_on)
    search_large_rows(Model())
    assert failed
    assert_nothing_stays(client)


def search_large_rows(model):
    rows = np.random.default_rng(0).random((20_000, 10))
    GridSearchCV(model, {"p": [1, 2, 3]}, cv=2, refit=False).fit(rows, np.arange(20_000) % 2)


def assert_nothing_stays(client):
    wait_for(lambda: not client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)))


@pytest.mark.slow
def test_fits_meant_for_workers_that_are_gone_go_to_others(monkeypatch):
    send = ParallelCall._send
    with local_client(1, threads_per_worker=1, processes=False) as client:

        def send_while_nobody_is_there(self, batches):
            monkeypatch.setattr(ParallelCall, "_send", send)
            assert all(batch.worker in client.nthreads() for batch in batches)
            client.cluster.scale(0)
            while client.nthreads():
                time.sleep(0.01)
            send(self, batches)
            client.cluster.scale(1)

        monkeypatch.setattr(ParallelCall, "_send", send_while_nobody_is_there)
        search = GridSearchCV(Model(), {"p": [1, 2, 3]}, cv=2).fit(X, y)
        assert len(search.cv_results_["params"]) == 3


class Deadly(Model):
    def fit(self, X, y):
        os.kill(os.getpid(), 9)


@pytest.mark.slow
@pytest.mark.parametrize(("n_fits", "subject"), [(1, "a fit"), (6, "one of 6 fits")])
def test_error_names_the_fit_that_kills_its_workers(client, monkeypatch, n_fits, subject):
    # Fits of a slow batch are sent again one by one, and either could be the first to fail.
    monkeypatch.setattr(_on_workers, "SLOW_BATCH_SECONDS", 60.0)
    client.wait_for_workers(2)  # a test before may have killed some
    cv = [(np.arange(100), np.arange(100, 150))]
    with pytest.raises(FleetError, match=f"{subject} of Deadly must leave its worker"):
        GridSearchCV(Deadly(), {"p": list(range(n_fits))}, cv=cv).fit(X, y)


@pytest.mark.slow
@pytest.mark.parametrize("n_killed", [1, 2])
def test_search_survives_the_death_of_workers(client, n_killed):
    grid = {"p": list(range(30))}
    client.wait_for_workers(2)
    killed = []

    def kill():
        # Workers that a test before this one killed may be listed still, and not be there.
        while len(killed) < n_killed:
            for pid in set(client.run(os.getpid, on_error="ignore").values()) - set(killed):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
                    killed.append(pid)
                if len(killed) == n_killed:
                    break

    killer = threading.Timer(0.5, kill)
    killer.start()
    ours = GridSearchCV(Model(seconds=0.05), grid, cv=3).fit(X, y)
    killer.join()
    assert len(killed) == n_killed
    with joblib.parallel_config("sequential"):
        theirs = reference.GridSearchCV(Model(), grid, cv=3).fit(X, y)
    np.testing.assert_array_equal(
        ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"]
    )
