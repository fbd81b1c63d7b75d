"""What a search leaves behind when Ctrl-C ends it before all candidates have been scored."""

import signal
import sys
import threading
import time

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn import model_selection
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score

from skfleet.engine._dask._engine import DaskEngine
from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV

X = np.random.default_rng(0).normal(size=(60, 3))
y = X[:, 0]
ROWS = da.from_array(X, chunks=20)
FOLDS = model_selection.KFold(2)
GRID = {"p": [1.0, 0.5, 0.7, 0.1, 0.2]}


@pytest.fixture(scope="module", autouse=True)
def client():
    # Three threads may wait for the gate of `Stuck`.
    workers = {"n_workers": 1, "threads_per_worker": 4, "processes": False}
    with Client(**workers, dashboard_address=":0") as client:
        yield client


class Scaled(RegressorMixin, BaseEstimator):
    """Fitted in the driver, as it seems to be ours; one of its fits is interrupted, others fail."""

    __module__ = "skfleet.of_this_test"
    n_left = np.inf

    def __init__(self, p=1.0, fails=(), size=1):
        self.p = p
        self.fails = fails
        self.size = size

    def fit(self, X, y):
        if Scaled.n_left <= 0:
            raise KeyboardInterrupt
        Scaled.n_left -= 1
        if self.p in self.fails:
            raise ValueError("no luck")
        return self

    def predict(self, X):
        return self.p * np.asarray(X)[:, 0]


class Waits:
    """What the fits of `Stuck` wait for, and show; reached by its name, so that none is pickled."""

    def __init__(self):
        self.gate, self.n_done, self.task = threading.Event(), threading.Semaphore(0), None


WAITS, MODULE = Waits(), __name__
WAITS.gate.set()  # outside of the test no task waits


def wait_for_gate():
    WAITS.gate.wait(20)


class Stuck(Scaled):
    """Fitted in the driver as well; without a positive p it waits for a task that does not end."""

    __module__ = "skfleet.of_this_test"

    def fit(self, X, y):
        if self.p <= 0:
            waits, engine = sys.modules[MODULE].WAITS, DaskEngine(Client.current())
            waits.task = engine.submit(sys.modules[MODULE].wait_for_gate)
            engine.gather([waits.task])
        return self


def score_and_release(estimator, X, y):
    score = r2_score(y, estimator.predict(X))
    sys.modules[MODULE].WAITS.n_done.release()
    return score


def interrupted(search, after):
    """Fit a search, one fit after the other; Ctrl-C is pressed in the fit after so many."""
    Scaled.n_left = after
    try:
        with pytest.raises(KeyboardInterrupt):
            search.set_params(n_jobs=1).fit(ROWS, y)
    finally:
        Scaled.n_left = np.inf
    return search


def several(estimator, X, y):
    return {"a": 1.0, "r2": r2_score(y, estimator.predict(X))}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"refit": False},
        {"scoring": ["r2", "neg_max_error"], "refit": "r2"},
        {"scoring": ["r2", "neg_max_error"], "refit": False},
        {"scoring": several, "refit": "r2"},
        {"refit": lambda results: 1},
    ],
)
def test_all_but_the_last_fit_is_as_in_a_search_of_what_was_scored(how):
    """Seven fits, so three candidates and half of one: scikit-learn's answer for these three."""
    ours = interrupted(GridSearchCV(Scaled(), GRID, cv=FOLDS, **how), 7)
    theirs = model_selection.GridSearchCV(Scaled(), {"p": GRID["p"][:3]}, cv=FOLDS, **how)
    theirs.fit(X, y)
    assert set(vars(theirs)) - set(vars(ours)) <= {"best_estimator_", "refit_time_"}
    assert ours.cv_results_.keys() == theirs.cv_results_.keys()
    for name, values in theirs.cv_results_.items():
        if "time" not in name:
            np.testing.assert_array_equal(ours.cv_results_[name], values)
    for name in ("best_index_", "best_params_", "best_score_", "multimetric_"):
        assert getattr(ours, name, None) == getattr(theirs, name, None)


def test_of_no_candidate_there_is_nothing():
    assert not hasattr(interrupted(GridSearchCV(Scaled(), GRID, cv=FOLDS), 1), "cv_results_")


def test_what_an_earlier_fit_left_stays_until_there_is_something_else():
    search = GridSearchCV(Scaled(), GRID, cv=FOLDS).fit(ROWS, y)
    interrupted(search, 1)
    assert len(search.cv_results_["params"]) == 5
    assert search.predict(X).shape == (60,)
    interrupted(search, 2)
    assert len(search.cv_results_["params"]) == 1
    assert not hasattr(search, "best_estimator_")


def test_failed_fits_are_in_the_results_and_no_warning_tells_of_them():
    search = GridSearchCV(Scaled(fails=(0.5,)), GRID, cv=FOLDS, scoring=several, refit="r2")
    interrupted(search, 6)
    np.testing.assert_array_equal(search.cv_results_["mean_test_r2"] > 0, [True, False, True])
    failing = GridSearchCV(Scaled(fails=GRID["p"]), GRID, cv=FOLDS)
    assert not hasattr(interrupted(failing, 6), "cv_results_")


def test_in_the_last_fit_all_results_are_there():
    search = interrupted(GridSearchCV(Scaled(), GRID, cv=FOLDS), 10)
    assert search.best_params_ == {"p": 1.0}
    assert len(search.cv_results_["params"]) == 5


def test_function_that_chooses_and_fails_leaves_the_results():
    search = interrupted(GridSearchCV(Scaled(), GRID, cv=FOLDS, refit=lambda results: 1 / 0), 4)
    assert len(search.cv_results_["params"]) == 2
    assert not hasattr(search, "best_index_")


@pytest.mark.parametrize(("after", "n_results"), [(6, 3), (12, 6), (16, 8)])
def test_halving_chooses_among_those_that_had_as_much(after, n_results):
    """In the second iteration the best comes last: until then that of the first one counts."""
    grid = {"p": [0.3, 0.5, 0.7, 0.1, 0.2]}
    search = HalvingGridSearchCV(
        Scaled(), grid, cv=FOLDS, factor=2, resource="size", max_resources=4
    )
    interrupted(search, after)
    assert search.cv_results_["iter"].tolist() == ([0] * 5 + [1] * 3)[:n_results]
    assert search.best_params_["p"] == 0.7


@pytest.mark.parametrize("n_done", [0, 1, 2])
def test_ctrl_c_ends_all_fits_at_once_and_keeps_what_is_done(monkeypatch, n_done):
    """Beside the fit that waits for a task others are done, which are in the results."""
    waits, deadline = Waits(), time.monotonic() + 30
    monkeypatch.setattr(sys.modules[__name__], "WAITS", waits)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt():
        for _ in range(n_done):
            waits.n_done.acquire(timeout=30)
        while waits.task is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)  # for the scores of those that are done to be kept
        if waits.task is not None:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    grid = {"p": [[0.0, -1.0, -2.0], [1.0, 0.0, -1.0], [1.0, 0.5, 0.0]][n_done]}
    split = np.arange(40), np.arange(40, 60)
    search = GridSearchCV(Stuck(), grid, scoring=score_and_release, cv=[split])
    try:
        with pytest.raises(KeyboardInterrupt):
            search.fit(ROWS, y)
        for fit in threading.enumerate():
            if fit.name.startswith("skfleet-local-fit"):
                fit.join(5)
                assert not fit.is_alive()
        assert not waits.gate.is_set()
        assert waits.task.status == "cancelled"
        assert len(getattr(search, "cv_results_", {"params": []})["params"]) == n_done
    finally:
        signal.signal(signal.SIGINT, before)
        waits.gate.set()
        thread.join(30)
