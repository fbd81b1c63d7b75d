"""scikit-learn's callbacks, on workers that cannot reach the machine they were made on."""

import copy
import pickle

import joblib
import numpy as np
import pytest
import rich
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.callback._transport import open_listener, send
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV as StockGridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skfleet  # noqa: F401  (registers the backend)
from clusters import local_client
from skfleet._joblib import _callbacks
from skfleet.engine._dask._serialize import Pickled
from skfleet.model_selection import GridSearchCV

X, y = load_iris(return_X_y=True)
X = StandardScaler().fit_transform(X)
GRID = {"C": [0.1, 1.0]}


def cut_off():
    """Make a process unable to reach any listener but its own."""
    from sklearn.callback import _transport

    def refuse(*args, **kwargs):
        raise ConnectionRefusedError("another machine")

    _transport.Client = refuse


@pytest.fixture(
    params=[pytest.param(1, marks=pytest.mark.slow), 2],
    ids=["1 thread", "2 threads"],
    scope="module",
)
def fleet(request):
    with local_client(2, threads_per_worker=request.param) as client:
        client.run(cut_off)
        yield client


def logged(search_type, scoring):
    """Give what a monitor of the estimator, within a search, has logged."""
    monitor = ScoringMonitor(scoring=scoring)
    model = LogisticRegression(max_iter=3, tol=0).set_callbacks(monitor)
    with pytest.warns(Warning, match="converge"):
        search_type(model, GRID, cv=2, refit=False).fit(X, y)
    log = monitor.get_logs()
    return log.estimator_name, log.data


@pytest.mark.slow
@pytest.mark.parametrize("search_type", [GridSearchCV, StockGridSearchCV])
def test_scoring_monitor_logs_what_it_logs_at_home(fleet, search_type):
    with joblib.parallel_config("skfleet"):
        name, ours = logged(search_type, ["accuracy", "neg_log_loss"])
    with joblib.parallel_config("sequential"):
        stock_name, theirs = logged(StockGridSearchCV, ["accuracy", "neg_log_loss"])
    assert name == stock_name
    assert len(ours) == 2 * 2 * (1 + 3)  # candidates, splits, the fit and its iterations
    assert ours == theirs


@pytest.fixture
def wide():
    """A screen on which bars are not cut off."""
    rich.reconfigure(width=200)
    yield
    rich.reconfigure()


def test_progress_bar_gets_to_its_end(fleet, wide, capsys):
    search = GridSearchCV(LogisticRegression(), GRID, cv=3).set_callbacks(ProgressBar())
    search.fit(X, y)
    printed = capsys.readouterr().out
    first = next(line for line in printed.splitlines() if "GridSearchCV - fit" in line)
    assert "100%" in first
    assert printed.count("candidate-split-evaluation") == 6


def test_progress_bar_of_a_pipeline_whose_first_steps_are_shared(fleet, wide, capsys):
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    grid = {"logisticregression__C": [0.1, 1.0, 10.0]}
    search = GridSearchCV(pipeline, grid, cv=2, refit=False)
    search.set_callbacks(ProgressBar(max_propagation_depth=None)).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if "| Pipeline - fit #" in line]
    assert len(shown) == 6
    assert all("100%" in line for line in shown)


class Heard:
    """A callback that sends all it hears to where it was made."""

    def __init__(self):
        self.record = []
        self._listener_handle = open_listener(self.record.append, owner=self)

    def __getstate__(self):
        return {**self.__dict__, "record": []}

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        send(self._listener_handle, ("begin", estimator, context.task_name))

    def on_fit_task_end(self, estimator, context):
        send(self._listener_handle, ("end", estimator, context.task_name))


def test_messages_are_about_the_very_search(fleet):
    heard = Heard()
    search = GridSearchCV(LogisticRegression(), GRID, cv=2).set_callbacks(heard).fit(X, y)
    assert len(heard.record) == 2 * (1 + 1 + 4 + 1)  # fit, search, the fits, the last one
    assert all(estimator is search for _, estimator, _ in heard.record)
    assert not vars(search).keys() & {"_skfleet_token"}


def test_listeners_of_other_parallel_calls_are_heard(fleet):
    heard = []
    handle = open_listener(heard.append)
    with joblib.parallel_config("skfleet"):
        joblib.Parallel()(joblib.delayed(tell)(Teller(handle), i) for i in range(4))
    assert sorted(heard) == [0, 1, 2, 3]


class Teller(Heard):
    def __init__(self, handle):
        self._listener_handle = handle


def tell(teller, i):
    send(teller._listener_handle, i)


def test_contexts_travel_without_the_other_tasks():
    search = StockGridSearchCV(LogisticRegression(), GRID)
    root = search._init_callback_context(max_subtasks=None)
    tasks = [root.subcontext(task_name=f"task {i}") for i in range(100)]
    parcel = _callbacks.pack(tasks[7])
    assert parcel.nbytes < Pickled.dumps(tasks[7]).nbytes / 10
    copied = parcel.loads()
    assert (copied.task_name, copied.task_id, copied.parent.task_name) == ("task 7", 7, "fit")
    assert copied.root_uuid == root.root_uuid


def test_search_at_home_is_itself_and_elsewhere_a_light_copy():
    search = StockGridSearchCV(LogisticRegression(), GRID, cv=(i for i in ())).set_callbacks()
    search.best_estimator_, search.n_splits_ = LogisticRegression(), 3
    with _callbacks.register_search(search):
        parcel = _callbacks.pack(search)
        assert parcel.loads() is search
    there = parcel.loads()  # as in a process that does not know it
    assert isinstance(there, StockGridSearchCV)
    assert there.cv == 3
    assert not hasattr(there, "best_estimator_")
    again = _callbacks.pack(there).loads()
    assert vars(again)["_skfleet_token"] == vars(there)["_skfleet_token"]
    assert search.n_splits_ == 3


def test_objects_without_listeners_travel_as_they_are():
    rows = {"a": np.arange(3), "b": [copy.copy(LogisticRegression())]}
    assert pickle.dumps(_callbacks.pack(rows).loads()) == pickle.dumps(Pickled.dumps(rows).loads())
