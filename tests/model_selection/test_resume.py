"""Searches that are resumed, that end in time, and that are interrupted."""

import functools
import json
import os
import signal
import threading
import time
import warnings

import dask.array as da
import fsspec
import joblib
import numpy as np
import pytest
from distributed import Client
from scipy.stats import loguniform
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.neighbors import KNeighborsClassifier

from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV, RandomizedSearchCV
from skfleet.model_selection._dispatch._routes import _on_workers

X = np.random.RandomState(0).randn(120, 4)
y = (X[:, 0] > 0).astype(int)


@pytest.fixture(scope="module")
def client():
    with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as one:
        yield one


@pytest.fixture(autouse=True)
def _on_a_fleet(client, monkeypatch):
    # What a slow machine shares out anew may be made twice, and fits are counted here.
    monkeypatch.setattr(_on_workers, "SLOW_BATCH_SECONDS", 60.0)
    return client


class Counted(ClassifierMixin, BaseEstimator):
    """Leaves a file for each fit."""

    def __init__(self, folder, p=0, seconds=0.0, fails=""):
        self.folder = folder
        self.p = p
        self.seconds = seconds
        self.fails = fails

    def fit(self, X, y):
        (self.folder / f"{time.time_ns()}-{id(self)}").touch()
        self.classes_ = np.unique(y)
        time.sleep(self.seconds)
        if self.fails and os.path.exists(self.fails):
            raise RuntimeError("no luck")
        return self

    def predict(self, X):
        return (X[:, 0] > self.p / 10).astype(int)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "fits").mkdir()
    return tmp_path / "fits"


def count(folder):
    n = 0
    for path in folder.iterdir():
        path.unlink()
        n += 1
    return n


GRID = {"p": list(range(6))}


def search(folder, where, estimator=None, grid=GRID, **params):
    params = {"cv": 3, "refit": False, "checkpoint": where, **params}
    return GridSearchCV(estimator or Counted(folder), grid, **params)


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        if not name.endswith("_time"):
            np.testing.assert_array_equal(values, other[name], err_msg=name)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"scoring": ["accuracy", "f1"], "return_train_score": True},
        {"scoring": lambda model, X, y: {"a": 1, "b": np.float32(model.p)}},
        {"cv": ShuffleSplit(2, random_state=0), "refit": True},
    ],
)
def test_finished_fits_are_not_made_again(folder, tmp_path, params):
    plain = search(folder, None, **params).fit(X, y)
    n_fits = count(folder)
    where = str(tmp_path / "deep" / "checkpoint")
    first = search(folder, where, **params).fit(X, y)
    assert count(folder) == n_fits
    again = search(folder, where, **params).fit(X, y)
    assert count(folder) == bool(params.get("refit"))
    assert_same(plain.cv_results_, first.cv_results_)
    assert_same(plain.cv_results_, again.cv_results_)
    np.testing.assert_array_equal(
        first.cv_results_["mean_fit_time"], again.cv_results_["mean_fit_time"]
    )


def test_only_what_is_missing_is_made(folder, tmp_path):
    where = tmp_path / "checkpoint"
    plain = search(folder, None).fit(X, y)
    search(folder, where).fit(X, y)
    count(folder)
    lines = [line for path in where.glob("*.fits") for line in path.read_bytes().splitlines()]
    assert len(lines) == 18
    for path in where.glob("*.fits"):
        path.unlink()
    damaged = [lines[3][:-1], lines[4].replace(b"1", b"2"), b"", b"no record", lines[5][:20]]
    (where / "some.fits").write_bytes(b"\n".join([*lines[:3], *damaged, *lines[6:9]]))
    again = search(folder, where).fit(X, y)
    assert count(folder) == 18 - 6
    assert_same(plain.cv_results_, again.cv_results_)
    search(folder, where).fit(X, y)
    assert count(folder) == 0


def test_a_damaged_description_is_written_anew(folder, tmp_path):
    search(folder, tmp_path / "there").fit(X, y)
    count(folder)
    path = tmp_path / "there" / "search.json"
    whole = path.read_text()
    path.write_text(whole[:50])
    search(folder, tmp_path / "there").fit(X, y)
    assert count(folder) == 0
    assert path.read_text() == whole
    path.write_text(whole[:50])
    search(folder, tmp_path / "there", grid={"p": [1, 2]}).fit(X, y)  # of another search
    assert count(folder) == 6


def test_any_location(folder):
    where = f"memory://{id(folder)}/checkpoint"
    search(folder, where).fit(X, y)
    assert count(folder) == 18
    search(folder, where).fit(X, y)
    assert count(folder) == 0
    assert fsspec.filesystem("memory").exists(f"/{id(folder)}/checkpoint/search.json")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"grid": {"p": [1, 2]}}, r"another param_grid.*was \{'p': \[0, 1.*is \{'p': \[1, 2\]"),
        ({"seconds": 0.001}, "another estimator"),
        ({"X": X + 1}, "another X instead .X has other contents"),
        ({"X": X[:100], "y": y[:100]}, r"another X and another y.*\(120, 4\).*\(100, 4\)"),
        ({"cv": KFold(3)}, "another cv"),
        ({"scoring": "f1"}, "another scoring instead .scoring was None, is 'f1'"),
        ({"return_train_score": True}, "another return_train_score"),
        ({"share_fits": "approximate"}, "share_fits was True, is .approximate."),
    ],
)
def test_another_search_is_refused(folder, tmp_path, change, word):
    search(folder, tmp_path / "there").fit(X, y)
    count(folder)
    change = dict(change)
    rows, targets = change.pop("X", X), change.pop("y", y)
    model = Counted(folder, seconds=change.pop("seconds", 0.0))
    with pytest.raises(ValueError, match=word):
        search(folder, tmp_path / "there", model, **change).fit(rows, targets)
    assert count(folder) == 0
    search(folder, tmp_path / "there", n_jobs=2, verbose=1).fit(X, y)
    assert count(folder) == 0


def test_what_failed_is_made_again(folder, tmp_path):
    bad_luck = tmp_path / "bad luck"
    bad_luck.touch()
    model = Counted(folder, fails=str(bad_luck))
    with pytest.raises(ValueError, match="All the 18 fits failed"):
        search(folder, tmp_path / "there", model).fit(X, y)
    bad_luck.unlink()
    search(folder, tmp_path / "there", model).fit(X, y)
    assert count(folder) == 36


def refuse(*_):
    raise AssertionError


def test_shared_fits_are_recorded(tmp_path, monkeypatch):
    grids = [
        (Ridge(), {"alpha": [0.1, 1.0, 10.0]}),
        (KNeighborsClassifier(), {"n_neighbors": [1, 3, 5]}),
    ]
    for n, (model, grid) in enumerate(grids):
        params = {"cv": 3, "refit": False, "checkpoint": tmp_path / str(n)}
        first = GridSearchCV(model, grid, **params).fit(X, y)
        monkeypatch.setattr(type(model), "fit", refuse)
        again = GridSearchCV(model, grid, **params).fit(X, y)
        assert_same(first.cv_results_, again.cv_results_)
        assert first.shared_fits_[0].n_saved == 6


def test_halving_goes_on(folder, tmp_path):
    params = {"cv": 2, "random_state": 0, "refit": False, "min_resources": 30}
    plain = HalvingGridSearchCV(Counted(folder), GRID, **params).fit(X, y)
    n_fits = count(folder)
    params["checkpoint"] = tmp_path / "there"
    HalvingGridSearchCV(Counted(folder), GRID, **params).fit(X, y)
    assert count(folder) == n_fits
    again = HalvingGridSearchCV(Counted(folder), GRID, **params).fit(X, y)
    assert count(folder) == 0
    assert_same(plain.cv_results_, again.cv_results_)


def test_candidates_that_nobody_asks_for_again_are_told_of(folder, tmp_path):
    params = {"n_iter": 2, "cv": 2, "refit": False, "checkpoint": tmp_path / "there"}
    grid = {"p": list(range(10_000))}
    RandomizedSearchCV(Counted(folder), grid, **params).fit(X, y)
    with pytest.warns(UserWarning, match="Give random_state a number"):
        RandomizedSearchCV(Counted(folder), grid, **params).fit(X, y)
    assert count(folder) == 8


@pytest.mark.parametrize("params", [{"checkpoint": "/nowhere"}, {"time_budget": 3}])
def test_what_only_a_fleet_can_do_is_refused_without_one(folder, params):
    with pytest.raises(ValueError, match=f"{next(iter(params))} must be used with fits that a"):
        GridSearchCV(Counted(folder), GRID, n_jobs=1, **params).fit(X, y)
    with joblib.parallel_config("threading"), pytest.raises(ValueError, match="another backend"):
        GridSearchCV(Counted(folder), GRID, **params).fit(X, y)
    assert count(folder) == 0


@pytest.mark.parametrize("budget", [0, -1, "an hour", True])
def test_a_budget_is_a_time(folder, budget):
    with pytest.raises(ValueError, match="time_budget must be a number above 0"):
        GridSearchCV(Counted(folder), GRID, time_budget=budget).fit(X, y)


def test_no_fit_is_begun_when_the_time_is_over(folder, tmp_path):
    grid = {"p": list(range(40))}
    model = Counted(folder, seconds=0.1)
    budget = {"cv": 2, "refit": True, "time_budget": 1.0, "checkpoint": tmp_path / "there"}
    start = time.time()
    with (
        pytest.warns(FitFailedWarning, match=r"Not made, because time_budget=1.0 s was over"),
        pytest.warns(UserWarning, match="non-finite"),
    ):
        found = GridSearchCV(model, grid, **budget).fit(X, y)
    begun = [int(path.name.split("-")[0]) / 1e9 for path in folder.iterdir()]
    assert sorted(begun)[-2] < start + 1.0 + 0.5  # the last one is of the best, on all rows
    complete = np.isfinite(found.cv_results_["mean_test_score"])
    assert 3 <= complete.sum() < 40
    assert complete[:3].all()  # one candidate after the other
    assert found.best_params_ in [{"p": p} for p in np.flatnonzero(complete)]
    assert found.predict(X).shape == y.shape
    n_made = count(folder) - 1
    assert len(found.cv_results_["params"]) == 40
    # what is left is made another time
    whole = GridSearchCV(model, grid, **(budget | {"time_budget": None})).fit(X, y)
    assert count(folder) == 80 - n_made + 1
    assert np.isfinite(whole.cv_results_["mean_test_score"]).all()


def test_several_scores_of_fits_that_are_not_made(folder):
    def scoring(model, X, y):
        return {"a": 1.0, "b": 2.0}

    for scores in (scoring, ["accuracy", "f1"]):
        model = Counted(folder, seconds=0.2)
        found = GridSearchCV(
            model, {"p": list(range(20))}, cv=2, time_budget=0.5, scoring=scores, refit=False,
            return_train_score=True,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.fit(X, y)
        name = "a" if scores is scoring else "f1"
        complete = np.isfinite(found.cv_results_[f"mean_test_{name}"])
        assert 0 < complete.sum() < 20


@pytest.fixture
def listening():
    """Ctrl-C is listened to, even where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_after(seconds, folder=None, n_fits=0):
    """Send Ctrl-C so long after a number of fits."""

    def interrupt():
        while n_fits and len(list(folder.iterdir())) < n_fits:
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def test_what_was_found_is_kept_when_a_search_is_interrupted(folder, client, listening):
    found = GridSearchCV(Counted(folder, seconds=0.2), {"p": list(range(30))}, cv=2)
    interrupt_after(0.1, folder, 6)
    with pytest.raises(KeyboardInterrupt) as error:
        found.fit(X, y)
    # one short traceback: the line of the caller, and where the search gave up
    assert error.value.__suppress_context__
    assert len(error.traceback) == 2
    scores = [found.cv_results_[f"split{k}_test_score"] for k in range(2)]
    assert 1 <= len(scores[0]) < 15
    assert np.isfinite(scores).all()
    assert found.best_params_ == found.cv_results_["params"][found.best_index_]
    assert found.best_score_ == found.cv_results_["mean_test_score"].max()
    assert not hasattr(found, "best_estimator_")
    time.sleep(0.3)
    assert not any(client.processing().values())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    n_made = count(folder)
    time.sleep(0.5)
    assert count(folder) == 0
    assert n_made < 30
    found.set_params(estimator__seconds=0.0).fit(X, y)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()


def test_nothing_found_before_an_interruption(folder, listening):
    found = GridSearchCV(Counted(folder, seconds=1.0), GRID, cv=2)
    interrupt_after(0.3)
    with pytest.raises(KeyboardInterrupt):
        found.fit(X, y)
    assert not hasattr(found, "cv_results_")


def test_an_interruption_of_the_last_fit_is_one(folder, listening):
    class Slow(Counted):
        def fit(self, X, y):
            time.sleep(5.0 if len(X) == 120 else 0.0)
            return super().fit(X, y)

    interrupt_after(0.5, folder, 12)
    found = GridSearchCV(Slow(folder), GRID, cv=2)
    with pytest.raises(KeyboardInterrupt):
        found.fit(X, y)
    assert count(folder) == 12  # the fit on all rows had not come to its end
    assert found.best_params_ == {"p": 0}
    assert len(found.cv_results_["params"]) == 6
    assert not hasattr(found, "best_estimator_")


def test_records_can_be_read(folder, tmp_path):
    search(folder, tmp_path / "there").fit(X, y)
    described = json.loads((tmp_path / "there" / "search.json").read_text())
    assert described["param_grid"]["is"] == "{'p': [0, 1, 2, 3, 4, 5]}"
    line = next((tmp_path / "there").glob("*.fits")).read_text().splitlines()[0]
    assert json.loads(line.split(" ", 1)[1])["result"].keys() >= {"test_scores", "fit_time"}


def test_fits_in_this_process_are_interrupted_at_once(folder, listening):
    class Own(Counted):
        __module__ = "skfleet.of_this_test"

        def fit(self, X, y):
            time.sleep(5.0 if self.p == 2 else 0.0)
            return super().fit(np.asarray(X), y)

        def predict(self, X):
            return super().predict(np.asarray(X))

    rows = da.from_array(X, chunks=50)
    found = GridSearchCV(Own(folder), GRID, cv=2)
    interrupt_after(0.5, folder, 4)
    with pytest.raises(KeyboardInterrupt):
        found.fit(rows, y)
    assert found.cv_results_["params"] == [{"p": 0}, {"p": 1}]
    assert count(folder) == 4


def test_how_much_came_from_the_checkpoint_is_told(folder, tmp_path, capsys, caplog):
    """In the output, the log and an attribute; the bar counts what remains."""
    where = tmp_path / "there"
    first = search(folder, where, verbose=1).fit(X, y)
    assert first.n_checkpoint_fits_ == 0
    assert "checkpoint" not in capsys.readouterr().out
    lines = [line for path in where.glob("*.fits") for line in path.read_bytes().splitlines()]
    for path in where.glob("*.fits"):
        path.unlink()
    (where / "some.fits").write_bytes(b"\n".join(lines[:11]))
    with (
        joblib.parallel_config("skfleet", progress=True),
        caplog.at_level("INFO", "skfleet.model_selection"),
    ):
        again = search(folder, where, verbose=1).fit(X, y)
    told = "checkpoint: 11 of 18 fits were made before, 7 remain"
    out = capsys.readouterr().out
    assert told in out
    assert "7 of 7 fits" in out
    assert "18 of 18" not in out
    assert told in caplog.messages
    assert again.n_checkpoint_fits_ == 11
    silent = search(folder, where).fit(X, y)
    assert silent.n_checkpoint_fits_ == 18
    assert capsys.readouterr().out == ""


def test_fits_in_this_process_are_told_of_too(tmp_path, capsys):
    class Own(Ridge):
        __module__ = "skfleet.of_this_test"

        def fit(self, X, y):
            return super().fit(np.asarray(X), np.asarray(y))

        def predict(self, X):
            return super().predict(np.asarray(X))

    rows = da.from_array(X, chunks=50)
    for n_known in (0, 9):
        found = search(None, tmp_path / "there", Own(), {"alpha": [0.1, 1, 3]}, verbose=1)
        assert found.fit(rows, y.astype(float)).n_checkpoint_fits_ == n_known
    assert "checkpoint: 9 of 9 fits were made before, 0 remain" in capsys.readouterr().out


def test_what_cannot_be_told_apart_is_refused_before_work(folder, tmp_path):
    scoring = functools.partial(lambda lock, model, X, y: 1.0, threading.Lock())
    with pytest.raises(TypeError, match="must be picklable") as caught:
        search(folder, tmp_path / "there", scoring=scoring).fit(X, y)
    assert caught.value.__notes__ == ["That is part of scoring."]
    assert count(folder) == 0
    assert not (tmp_path / "there").exists()


def test_another_distribution_is_named(folder, tmp_path):
    params = {"n_iter": 2, "random_state": 0, "checkpoint": tmp_path / "there", "cv": 2}
    RandomizedSearchCV(Counted(folder), {"p": loguniform(1, 10)}, **params).fit(X, y)
    other = RandomizedSearchCV(Counted(folder), {"p": loguniform(1, b=20)}, **params)
    told = r"was {'p': loguniform\(1, 10\)}, is {'p': loguniform\(1, b=20\)}"
    with pytest.raises(ValueError, match=told):
        other.fit(X, y)


def test_time_that_is_over_before_a_candidate_is_complete(folder, tmp_path):
    params = {"cv": 4, "n_jobs": 2, "time_budget": 1.0, "checkpoint": tmp_path / "there"}
    search = GridSearchCV(Counted(folder, seconds=1.1), {"p": [0, 1]}, **params)
    with (
        pytest.warns(FitFailedWarning, match="Not made"),
        pytest.warns(UserWarning, match="non-finite"),
        pytest.raises(ValueError, match=r"time_budget=1.0 s was over before any candidate"),
    ):
        search.fit(X, y)
    assert not hasattr(search, "cv_results_")
    n_made = count(folder)
    assert 1 <= n_made < 4
    assert search.set_params(time_budget=None).fit(X, y).n_checkpoint_fits_ == n_made


def test_scores_that_fail_are_not_taken_for_fits_that_were_not_made(folder):
    def scoring(model, X, y):
        raise ValueError("no luck")

    search = GridSearchCV(Counted(folder, seconds=1.1), {"p": [0]}, cv=2, scoring=scoring)
    search.set_params(time_budget=1.0, refit=False)  # both fits begin at once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X, y)
    assert np.isnan(search.cv_results_["mean_test_score"]).all()
    assert count(folder) == 2
