"""The memory that a search is estimated to take, and the fits that it lets run at a time."""

import gc
import logging
import threading
import weakref
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from joblib import parallel_config
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfleet import Fleet, estimators
from skfleet._display import format_bytes
from skfleet.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HyperbandSearchCV,
    cross_validate,
)
from skfleet.model_selection._adaptive import _data_memory
from skfleet.model_selection._dispatch import _fit_memory, _pipeline_cache
from skfleet.model_selection._dispatch._memory import (
    IN_PROCESS,
    FitMemory,
    ProcessMemory,
    RowSize,
    adaptive_memory,
    block_memory,
    check_memory,
    describe_memory,
    fit_memory,
    plan_memory,
    refit_bytes,
)
from skfleet.model_selection._dispatch._memory_gate import (
    MemoryAllowance,
    MemoryGate,
    memory_allowance,
)

RNG = np.random.default_rng(0)
X = RNG.random((3000, 60))
y = (X[:, 0] > 0.5).astype(int)


@pytest.fixture
def _without_garbage_collection():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_garbage_collection")
def test_outputs_of_steps_are_freed_with_their_split(monkeypatch):
    rows = []
    init = _pipeline_cache.CachedRows.__init__

    def counted(self, values):
        init(self, values)
        rows.append(weakref.ref(self))

    monkeypatch.setattr(_pipeline_cache.CachedRows, "__init__", counted)
    pipeline = make_pipeline(StandardScaler(), SGDClassifier())
    search = GridSearchCV(pipeline, {"sgdclassifier__alpha": [0.1, 1.0]}, cv=3, refit=False)
    with Fleet(n_workers=1, threads_per_worker=1, processes=False):
        search.fit(X, y)
    assert len(rows) >= 4  # both parts of a split, and their outputs
    assert not any(ref() is not None for ref in rows)


# -- sizes -----------------------------------------------------------------------------------------

ROWS = RowSize(row=800.0, item=8)


@pytest.mark.parametrize(
    ("estimator", "steps", "copies"),
    [
        (SGDClassifier(), 0, 0),
        (make_pipeline(StandardScaler(), SGDClassifier()), 240_000, 0),
        (make_pipeline(StandardScaler(), "passthrough", SGDClassifier()), 240_000, 0),
        (RandomForestClassifier(), 0, 80_000),
        (make_pipeline(StandardScaler(), RandomForestClassifier()), 240_000, 80_000),
        (HistGradientBoostingClassifier(early_stopping=False), 0, 20_000),
        (HistGradientBoostingClassifier(early_stopping=True), 0, 180_000),
        (HistGradientBoostingClassifier(), 0, 20_000),  # few rows
    ],
)
def test_bytes_of_a_fit(estimator, steps, copies):
    assert fit_memory(estimator, ROWS, 200, 100) == FitMemory(240_000, steps, copies)
    # the last fit has its rows in this process already
    last = refit_bytes(estimator, ROWS, 200)
    assert last == (160_000 if steps else 0) + copies


def test_float32_rows_of_trees_are_not_copied():
    assert fit_memory(RandomForestClassifier(), RowSize(400.0, 4), 200, 100).copies == 0


MB = 1_000_000
FIT = FitMemory(100 * MB)


@pytest.mark.parametrize(
    ("limit", "used", "n_slots", "n_fits"),
    [
        (1000, 200, 4, 4),  # 700 - 200 - 100 of X
        (900, 200, 4, 3),
        (750, 200, 4, 2),
        (450, 200, 4, 1),  # above what is planned, below what is refused
        (420, 200, 4, 0),
        (1000, 200, 2, 2),
        (1200, 900, 4, 4),  # what is in use is of earlier work
    ],
)
def test_fits_at_a_time(limit, used, n_slots, n_fits):
    process = ProcessMemory(limit * MB, used * MB, n_slots)
    plan = plan_memory(100 * MB, FIT, {"tcp://a:1": process})
    assert plan.n_fits == {"tcp://a:1": n_fits}
    assert plan.is_bounded is (n_fits < n_slots)
    assert plan.private_bytes("tcp://a:1") == n_fits * 100 * MB
    if n_fits:
        check_memory(plan)


def test_threads_of_this_process_have_the_rows_already():
    process = ProcessMemory(1200 * MB, 600 * MB, 4, holds_rows=True)
    plan = plan_memory(300 * MB, FIT, {IN_PROCESS: process})
    assert plan.n_fits == {IN_PROCESS: 2}
    assert plan.allowed(["inproc://a", "inproc://b", "inproc://c"]) == ["inproc://a", "inproc://b"]
    assert describe_memory("GridSearchCV", plan) == (
        "GridSearchCV: about 800 MB here (limit 1.20 GB): X 300 MB, 2 fits at a time instead of 4, "
        "100 MB each"
    )


def test_bounds_are_those_of_each_worker():
    processes = {"tcp://a:1": ProcessMemory(750 * MB, 200 * MB, 3)}
    processes["tcp://b:1"] = ProcessMemory(2000 * MB, 200 * MB, 3)
    plan = plan_memory(100 * MB, FIT, processes, driver=100 * MB)
    slots = ["tcp://a:1", "tcp://b:1"] * 3
    assert sorted(plan.allowed(slots)) == ["tcp://a:1"] * 2 + ["tcp://b:1"] * 3
    assert plan.allowed(["tcp://new:1"] * 3) == ["tcp://new:1"] * 2  # as the smallest
    assert describe_memory("GridSearchCV", plan) == (
        "GridSearchCV: about 500 MB per worker (limit 750 MB), 100 MB here: X 100 MB, "
        "2 fits at a time instead of 3, 100 MB each"
    )
    assert not plan_memory(100 * MB, FIT, processes, limit=2).is_bounded  # of all workers together


def test_unbounded_slots_are_those_of_the_fleet_as_it_grows():
    plan = plan_memory(MB, FIT, {"tcp://a:1": ProcessMemory(9000 * MB, 0, 4)}, limit=2)
    slots = ["tcp://a:1", "tcp://new:1"] * 4
    assert plan.allowed(slots) == slots


def test_what_cannot_fit_is_refused_with_what_to_do():
    process = ProcessMemory(400 * MB, 230 * MB, 1)
    plan = plan_memory(160 * MB, FitMemory(160 * MB), {"tcp://a:1": process})
    with pytest.raises(ValueError, match=r"X must fit into each worker together") as caught:
        check_memory(plan)
    numbers = "about 550 MB (X 160 MB, one fit 160 MB, Python 230 MB) for a limit of 400 MB on tcp"
    assert numbers in str(caught.value)
    assert "memory_limit=" in str(caught.value)


@pytest.mark.parametrize(("limit", "most"), [(10_000, 770), (1_000, 320)])
def test_bytes_of_blocks(limit, most):
    process = ProcessMemory(limit, 0, 2)
    assert block_memory(100, 0.6, process, 0, 300, 1) == (160, most)
    assert block_memory(100, 0.6, process, 50, 300, 2) == (160, most + 350 * (most > 320))


def test_bytes_of_an_adaptive_search():
    assert adaptive_memory(1000, 10, 0, 4, 2, is_replicated=True) == 1040
    assert adaptive_memory(1000, 10, 200, 4, 2, is_replicated=False) == 740


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(0, "0 MB"), (159.6e6, "160 MB"), (999.6e6, "1.00 GB"), (4e9, "4.00 GB")]
)
def test_bytes_as_text(n_bytes, text):
    assert format_bytes(n_bytes) == text


# -- the gate --------------------------------------------------------------------------------------


def test_gate_admits_what_fits_and_always_one():
    gate, order, entered = MemoryGate(), [], threading.Event()

    def enter(name, n_bytes):
        with gate.inside(n_bytes, 20):
            order.append(name)
            entered.set()

    with gate.inside(30, 20):  # more than the budget, and alone
        late = threading.Thread(target=enter, args=("late", 10))
        late.start()
        assert not entered.wait(0.05)
    late.join()
    with gate.inside(10, 20):
        enter("beside", 10)
    assert order == ["late", "beside"]


def test_share_is_that_of_the_process():
    with memory_allowance(None, "tcp://a:1"), memory_allowance(None, "tcp://a:1"):
        pass
    allowance = MemoryAllowance(10, {"tcp://a:1": 2, "tcp://b:1": 3})
    with memory_allowance(allowance, "tcp://a:1"), memory_allowance(allowance, "tcp://a:1"):
        pass


# -- searches --------------------------------------------------------------------------------------


class Crowd(ClassifierMixin, BaseEstimator):
    """Counts how many fits run at a time in this process."""

    lock, n_running, most = threading.Lock(), 0, 0

    def __init__(self, p=0):
        self.p = p

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        with self.lock:
            Crowd.n_running += 1
            Crowd.most = max(Crowd.most, Crowd.n_running)
        threading.Event().wait(0.02)
        with self.lock:
            Crowd.n_running -= 1
        return self

    def predict(self, X):
        return np.zeros(len(X), dtype=int)


@pytest.fixture(scope="module")
def fleet():
    with Fleet(n_workers=2, threads_per_worker=2, processes=False) as client:
        yield client


def memory_of(monkeypatch, limit, used=0, module=None):
    """Let the workers have so much memory."""

    def processes_of(client, addresses):
        return {IN_PROCESS: ProcessMemory(int(limit), int(used), len(list(addresses)))}

    monkeypatch.setattr(module or _fit_memory, "processes_of", processes_of)


ROW_BYTES = X[0].nbytes + y[0].nbytes


@pytest.mark.parametrize(("n_fits", "most"), [(1, 1), (2, 2), (9, 4)])
def test_fewer_fits_run_at_a_time_where_memory_is_short(fleet, monkeypatch, n_fits, most):
    memory_of(monkeypatch, (len(X) * ROW_BYTES * (n_fits + 1) + 100) / 0.7)
    Crowd.most = 0
    search = GridSearchCV(Crowd(), {"p": range(8)}, cv=3, refit=False).fit(X, y)
    assert Crowd.most == most or (n_fits == 9 and Crowd.most > 2)
    assert len(search.cv_results_["params"]) == 8
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_fits_under_a_time_budget_are_planned_too(fleet, monkeypatch):
    memory_of(monkeypatch, (len(X) * ROW_BYTES * 2 + 100) / 0.7)
    Crowd.most = 0
    GridSearchCV(Crowd(), {"p": range(8)}, cv=3, refit=False, time_budget=60.0).fit(X, y)
    assert Crowd.most == 1


def test_nothing_runs_where_no_fit_fits(fleet, monkeypatch):
    memory_of(monkeypatch, len(X) * ROW_BYTES * 1.5)
    Crowd.most = 0
    search = GridSearchCV(Crowd(), {"p": range(8)}, cv=3)
    with pytest.raises(ValueError, match="X must fit into each worker together with the rows of"):
        search.fit(X, y)
    assert Crowd.most == 0
    monkeypatch.undo()
    assert len(search.fit(X, y).cv_results_["params"]) == 8  # the fleet is as before


def test_halving_is_refused_for_its_last_iteration(fleet, monkeypatch, caplog):
    search = HalvingGridSearchCV(Crowd(), {"p": range(6)}, cv=2, random_state=0)
    with caplog.at_level(logging.INFO, "skfleet"):
        search.fit(X, y)
    # the last iteration has two thirds of the rows; the line is written once
    memory = [text for text in caplog.messages if "at a time" in text]
    assert len(memory) == 1
    size = format_bytes(3000 * ROW_BYTES)
    assert f"X {size}, 4 fits at a time, {size} each" in memory[0]
    memory_of(monkeypatch, len(X) * ROW_BYTES * 1.5)
    with pytest.raises(ValueError, match="X must fit into each worker"):
        search.fit(X, y)


def test_line_names_who_calls(fleet, caplog):
    grid = {"var_smoothing": [1e-9, 1e-8]}
    with caplog.at_level(logging.INFO, "skfleet.model_selection"), parallel_config("skfleet"):
        GridSearchCV(GaussianNB(), grid, cv=2).fit(X, y)
        cross_validate(GaussianNB(), X, y, cv=2)
        HyperbandSearchCV(SGDClassifier(), {"alpha": [0.1]}, max_iter=3, random_state=0).fit(X, y)
    lines = [text.partition(":")[0] for text in caplog.messages if "here (limit" in text]
    assert lines == ["GridSearchCV", "cross_validate", "HyperbandSearchCV"]


def test_data_of_an_adaptive_search_are_refused(fleet, monkeypatch):
    memory_of(monkeypatch, len(X) * ROW_BYTES // 2, module=_data_memory)
    search = HyperbandSearchCV(SGDClassifier(), {"alpha": [0.1]}, max_iter=3, random_state=0)
    with pytest.raises(ValueError, match=r"a batch of X, .* must fit into each worker"):
        search.fit(X, y)


@pytest.mark.parametrize("n_bytes", [1e12, 500_000])
def test_blocks_on_dask(fleet, monkeypatch, caplog, n_bytes):
    rows = da.from_array(X, chunks=1000), da.from_array(y, chunks=1000)
    search = GridSearchCV(estimators.LogisticRegression(), {"C": [1.0, 2.0]}, cv=2, refit=False)
    memory_of(monkeypatch, n_bytes)
    if n_bytes < 1e12:
        with pytest.raises(ValueError, match="a block of X, with the training rows cut from it"):
            search.fit(*rows)
        return
    with caplog.at_level(logging.INFO, "skfleet.model_selection"):
        search.fit(*rows)
    (line,) = [text for text in caplog.messages if "(limit" in text]
    assert line.endswith("X 1 MB, 3 blocks on the workers, 3 fits at a time")


def test_scores_without_fits_on_dask_are_reported_too(fleet, monkeypatch, caplog):
    random, n_rows = da.random.default_rng(0), 1_000_000
    rows = random.random((n_rows, 2), chunks=250_000), random.random(n_rows, chunks=250_000)
    search = GridSearchCV(estimators.Ridge(), {"alpha": [1.0, 2.0]}, cv=2, refit=False)
    memory_of(monkeypatch, 1e12)
    with caplog.at_level(logging.INFO, "skfleet.model_selection"):
        search.fit(*rows)
    (line,) = [text for text in caplog.messages if "(limit" in text]
    assert ", 16 MB here: X 16 MB, 4 blocks on the workers" in line  # two splits of all rows
    assert search.timeline_.empty


def test_rows_that_the_search_gathers_count_here():
    context = SimpleNamespace(gathered_bytes=5 * MB, refits=False, name="")
    context.begin_memory_report = lambda: False
    job = SimpleNamespace(
        X=X, y=y, estimators=[GaussianNB()], folds=[(np.arange(2000), np.arange(2000, 3000))]
    )
    with Fleet(n_workers=1, threads_per_worker=1, processes=False) as client:
        plan = _fit_memory.plan_fits(client, job, context, list(client.nthreads()))
    assert plan.driver == 5 * MB
    assert plan.fit.total == 3000 * ROW_BYTES
