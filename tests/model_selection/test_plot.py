"""Pictures of searches, and what they are drawn from."""

import io
import itertools
import sys

import joblib
import matplotlib
import numpy as np
import pytest
from distributed import Client
from matplotlib import pyplot
from sklearn.datasets import load_iris
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import Ridge
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV
from skfleet.model_selection._dispatch._call_progress import SearchProgress

matplotlib.use("Agg")

X, y = load_iris(return_X_y=True)


@pytest.fixture(scope="module", autouse=True)
def client():
    with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as one:
        yield one


@pytest.fixture(autouse=True)
def _no_figures_stay():
    yield
    pyplot.close("all")


def lines_of(axes):
    """Give x and y of the lines with markers, by their label."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        handles, labels = axes.containers, [""]
    return {
        label: np.transpose(handle.lines[0].get_data())
        for handle, label in zip(handles, labels, strict=True)
    }


def test_scores_over_the_parameter_with_most_values():
    grid = {"C": [0.01, 1, 100], "kernel": ["rbf", "linear"]}
    search = GridSearchCV(SVC(), grid, cv=3).fit(X, y)
    scores, _ = search.plot()
    assert (scores.get_xlabel(), scores.get_ylabel()) == ("C", "score")
    assert scores.get_xscale() == "log"
    lines = lines_of(scores)
    assert set(lines) == {"kernel=rbf", "kernel=linear"}
    mean = search.cv_results_["mean_test_score"]
    np.testing.assert_array_equal(lines["kernel=rbf"], np.c_[[0.01, 1, 100], mean[[0, 2, 4]]])
    (star,) = [line for line in scores.lines if line.get_marker() == "*"]
    best = search.best_params_["C"], search.best_score_
    np.testing.assert_allclose(np.ravel(star.get_data()), best)
    search.plot()[0].figure.savefig(io.BytesIO())


def test_fits_over_time(client):
    search = GridSearchCV(SVC(), {"C": [1, 2, 3]}, cv=4).fit(X, y)
    assert len(search.timeline_) == 12
    workers = client.nthreads()
    assert list(search.timeline_.columns) == ["worker", "begin", "end"]
    fits = [*search.timeline_.itertuples(index=False)]
    assert {one.worker for one in fits} <= set(workers)
    for worker in workers:
        own = sorted(one for one in fits if one.worker == worker)
        assert all(one.end <= other.begin + 1e-3 for one, other in itertools.pairwise(own))
    assert all(0 <= one.begin <= one.end < 60 for one in fits)
    _, times = search.plot()
    assert sum(len(bars.get_paths()) for bars in times.collections) == 12
    assert times.get_title() == "12 fits over time, per worker"
    names = [label.get_text() for label in times.get_yticklabels()]
    assert names == sorted({one.worker.partition("://")[2] for one in fits})


def test_many_kinds_of_candidates():
    grid = {"max_depth": [1, 2, 3], "min_samples_leaf": [1, 2, 3], "splitter": ["best", "random"]}
    model = DecisionTreeClassifier(random_state=0)
    scores, _ = GridSearchCV(model, {**grid, "max_features": [1, 2]}, cv=2).fit(X, y).plot()
    (points,) = scores.containers
    assert len(points.lines[0].get_xdata()) == 36
    assert scores.get_legend() is None
    assert scores.get_xscale() == "linear"


def test_candidates_without_numbers():
    grid = [{"strategy": ["prior", "stratified"]}, {"strategy": ["uniform"], "random_state": [0]}]
    scores, _ = GridSearchCV(DummyClassifier(), grid, cv=2).fit(X, y).plot()
    assert scores.get_xlabel() == "candidate"
    assert len(scores.containers[0].lines[0].get_xdata()) == 3


def test_several_scores():
    params = {"scoring": ["f1_macro", "accuracy"], "cv": 2}
    search = GridSearchCV(SVC(), {"C": [1, 2]}, refit="accuracy", **params).fit(X, y)
    assert search.plot()[0].get_ylabel() == "accuracy"
    assert search.plot(scoring="f1_macro")[0].get_ylabel() == "f1_macro"
    with pytest.raises(ValueError, match=r"must be one of 'f1_macro', 'accuracy'\. Got 'r2'"):
        search.plot(scoring="r2")
    assert GridSearchCV(SVC(), {"C": [1]}, refit=False, **params).fit(X, y).plot()[0].get_ylabel()


def test_halving_and_fits_that_nobody_made():
    params = {"random_state": 0, "cv": 2}
    HalvingGridSearchCV(SVC(), {"C": [1, 2, 3, 4]}, **params).fit(X, y).plot()
    search = GridSearchCV(Ridge(), {"alpha": [1.0, 2.0]}, cv=2).fit(X, y)
    assert search.timeline_.empty
    search.plot()


def test_what_is_missing_is_told(monkeypatch):
    with pytest.raises(AttributeError, match="GridSearchCV must be fitted to be drawn"):
        GridSearchCV(SVC(), {"C": [1]}).plot()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"plot\(\) needs matplotlib: pip install .*\[plot\]"):
        GridSearchCV(SVC(), {"C": [1]}).plot()


def test_progress_tells_of_saved_fits_and_the_best(capsys):
    with joblib.parallel_config("skfleet", progress=True):
        search = GridSearchCV(
            DecisionTreeClassifier(random_state=0), {"max_depth": [1, 3, 5]}, cv=2
        ).fit(X, y)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"best {search.best_score_:.4g}" in shown
    assert "DecisionTreeClassifier: 6 of 6 fits" in shown


def test_tally():
    tally = SearchProgress()
    assert str(tally) == ""
    for candidate, score in [
        ("n", np.nan),
        ("n", 1.0),
        ("a", 0.5),
        ("b", 0.9),
        ("a", 0.75),
        ("c", 0.1),
        ("c", np.float64(0.2)),
    ]:
        tally.add(candidate, score, 2, was_reused=candidate == "c")
    assert str(tally) == "2 saved, best 0.625"  # the other half of b is not known
    tally.add("d", {"several": 1}, 1, was_reused=False)
    assert str(tally) == "2 saved, best 0.625"
