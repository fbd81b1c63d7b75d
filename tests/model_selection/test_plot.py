"""Pictures of searches, and what they are drawn from."""

import io
import itertools
import sys

import joblib
import matplotlib
import numpy as np
import optuna
import pytest
from distributed import Client, get_worker
from matplotlib import pyplot
from scipy.stats import loguniform
from sklearn import model_selection as sk
from sklearn.datasets import load_iris
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import Ridge, SGDClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from skfleet.model_selection import (
    BayesSearchCV,
    GridSearchCV,
    HalvingGridSearchCV,
    HyperbandSearchCV,
    IncrementalSearchCV,
)
from skfleet.model_selection._dispatch._call_progress import SearchProgress
from skfleet.model_selection._plot import FitTime, timeline_of
from skfleet.model_selection._samplers._importances import param_importances

matplotlib.use("Agg")

X, y = load_iris(return_X_y=True)
SPACE = {"C": loguniform(1e-3, 1e3), "gamma": loguniform(1e-4, 1), "kernel": ["rbf", "sigmoid"]}


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
    assert list(search.timeline_.columns) == ["worker", "begin", "end", "candidate", "split"]
    pairs = zip(search.timeline_["candidate"], search.timeline_["split"], strict=True)
    assert sorted(pairs) == [*itertools.product(range(3), range(4))]
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


def test_fits_over_time_have_candidates():
    made = []

    def noted_score(fitted, X, y):
        made.append((get_worker().address, fitted.C, len(X)))
        return fitted.score(X, y)

    cv = [(np.arange(0, 150, 2), np.arange(1, n, 2)) for n in (50, 70, 90)]  # of 25, 35, 45 rows
    grid = {"C": [1.0, 2.0, 3.0], "kernel": ["linear", "rbf"], "random_state": [0, 0]}
    params = {"scoring": noted_score, "cv": cv, "refit": False, "share_fits": False}
    search = GridSearchCV(SVC(), grid, **params).fit(X, y)
    assert len(made) == len(search.timeline_) == 18  # equal candidates are fitted once
    for worker, rows in search.timeline_.groupby("worker"):
        rows = rows.sort_values("begin")
        c = [search.cv_results_["params"][number]["C"] for number in rows["candidate"]]
        n_rows = [len(cv[number][1]) for number in rows["split"]]
        assert [*zip(c, n_rows, strict=True)] == [note[1:] for note in made if note[0] == worker]


def test_fits_over_time_of_candidates_alone():
    inner = sk.GridSearchCV(SVC(), {"C": [1, 2, 3]}, cv=2)
    search = GridSearchCV(inner, {"cv": [2, 3]}, cv=2).fit(X, y)  # whose refit makes fits too
    assert len(search.timeline_) == 4
    times = [FitTime("", 0, 1, candidate, 0) for candidate in (0, 1, 2)]
    assert timeline_of(times, [0, 2])["candidate"].tolist() == [0, -1, 1]


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


@pytest.mark.parametrize("n_gammas", [1, 6])
def test_lines_are_of_one_iteration(n_gammas):
    grid = {"C": [1e-3, 1e-2, 1e-1, 1, 10, 100, 1000], "gamma": np.geomspace(0.01, 1, n_gammas)}
    params = {"random_state": 0, "cv": 2, "min_resources": 20}
    search = HalvingGridSearchCV(SVC(), grid, **params).fit(X, y)
    results = search.cv_results_
    scores, _ = search.plot()
    lines = lines_of(scores)
    assert list(lines) == [f"iteration {number}" for number in range(search.n_iterations_)]
    for number, line in enumerate(lines.values()):
        rows = np.flatnonzero(results["iter"] == number)
        rows = rows[np.argsort(results["param_C"][rows].astype(float), kind="stable")]
        mean = results["mean_test_score"][rows]
        np.testing.assert_array_equal(line, np.c_[results["param_C"][rows].astype(float), mean])
    joined = [container.lines[0].get_linestyle() for container in scores.containers]
    assert set(joined) == {"-" if n_gammas == 1 else "None"}
    (star,) = [line for line in scores.lines if line.get_marker() == "*"]
    np.testing.assert_allclose(
        np.ravel(star.get_data()), [search.best_params_["C"], search.best_score_]
    )
    fits = search.timeline_.groupby("candidate")["split"].apply(sorted)
    assert fits.tolist() == [[0, 1]] * len(results["params"])


def test_fits_that_nobody_made():
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


@pytest.fixture(scope="module")
def search(client):
    params = {"scoring": ["accuracy", "f1_macro"], "refit": "accuracy", "random_state": 0}
    return BayesSearchCV(SVC(), SPACE, n_iter=12, cv=3, **params).fit(X, y)


@pytest.fixture(scope="module")
def hyperband(client):
    space = {"alpha": loguniform(1e-6, 1), "penalty": ["l1", "l2"]}
    model = SGDClassifier(random_state=0)
    return HyperbandSearchCV(model, space, max_iter=9, random_state=0).fit(X, y)


def points_of(axes):
    """Give x and y of the dots, by their label, and of the line of the best."""
    lines = {line.get_label(): np.transpose(line.get_data()) for line in axes.lines}
    return lines, lines.pop("best so far")


def bars_of(axes):
    """Give the widths of the bars, by the names at the axis."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    return dict(zip(names, [bar.get_width() for bar in axes.patches], strict=True))


def shares_by_hand(results, metric):
    """Compute what a user of Optuna would: on logarithms in place of quantiles."""
    distributions = {
        "C": optuna.distributions.FloatDistribution(-3, 3),
        "gamma": optuna.distributions.FloatDistribution(-4, 0),
        "kernel": optuna.distributions.CategoricalDistribution(["rbf", "sigmoid"]),
    }
    study = optuna.create_study(direction="maximize")
    for params, score in zip(results["params"], results[f"mean_test_{metric}"], strict=True):
        params = {n: v if n == "kernel" else np.log10(v) for n, v in params.items()}
        trial = {"params": params, "distributions": distributions, "value": score}
        study.add_trial(optuna.trial.create_trial(**trial))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


@pytest.mark.parametrize("metric", ["accuracy", "f1_macro"])
def test_scores_over_time_and_importances(search, metric):
    history, importances = search.plot(scoring=None if metric == "accuracy" else metric)
    mean = search.cv_results_[f"mean_test_{metric}"]
    ends = search.timeline_.groupby("candidate")["end"].max()
    dots, best = points_of(history)
    np.testing.assert_array_equal(dots["candidates"], np.c_[ends, mean])
    assert history.get_xlabel() == "seconds since the search began"
    assert history.get_ylabel() == metric
    order = np.argsort(ends.to_numpy(), kind="stable")
    np.testing.assert_array_equal(best[:, 0], ends.to_numpy()[order])
    np.testing.assert_array_equal(best[:, 1], np.maximum.accumulate(mean[order]))
    shares = bars_of(importances)
    expected = shares_by_hand(search.cv_results_, metric)
    assert list(shares) == list(expected)
    np.testing.assert_allclose(list(shares.values()), list(expected.values()), atol=0.02)
    assert sum(shares.values()) == pytest.approx(1)
    assert importances.get_legend() is None


def test_candidates_of_unknown_times():
    space = {"alpha": loguniform(1e-3, 1e3), "copy_X": [True]}
    search = BayesSearchCV(Ridge(), space, n_iter=4, cv=2, random_state=0).fit(X, y)
    assert search.timeline_.empty  # scored without fits
    history, importances = search.plot()
    assert history.get_xlabel() == "candidate"
    dots, best = points_of(history)
    np.testing.assert_array_equal(
        dots["candidates"], np.c_[range(4), search.cv_results_["mean_test_score"]]
    )
    assert best[-1, 1] == search.best_score_
    assert bars_of(importances) == {"alpha": 1}


def test_dropped_candidates_are_not_the_best():
    params = {"cv": 10, "racing": "mean", "random_state": 0}
    search = BayesSearchCV(SVC(), SPACE, n_iter=10, **params).fit(X, y)
    dots, best = points_of(search.plot()[0])
    assert len(dots["dropped candidates"]) == search.n_dropped_candidates_ > 0
    assert len(dots["candidates"]) == 10 - search.n_dropped_candidates_
    assert best[-1, 1] == search.best_score_


def test_each_dict_has_its_importances():
    space = [
        {"kernel": ["linear"], "C": loguniform(1e-3, 1e3)},
        {"kernel": ["rbf"], "C": loguniform(1e-3, 1e3), "gamma": [0.01, 0.1, 1]},
        {"kernel": ["poly"], "degree": [2]},
    ]
    search = BayesSearchCV(SVC(), space, sampler="sobol", n_iter=12, cv=2).fit(X, y)
    _, importances = search.plot()
    names = [label.get_text() for label in importances.get_yticklabels()]
    assert (names[0], sorted(names[1:])) == ("C", ["C", "gamma"])
    first, *second = [bar.get_width() for bar in importances.patches]
    assert first == pytest.approx(1)
    assert sum(second) == pytest.approx(1)
    assert [t.get_text() for t in importances.get_legend().get_texts()] == ["dict 0", "dict 1"]


class Numbers:
    """A distribution that has no quantiles."""

    def rvs(self, random_state=None):
        return float(random_state.random() + 0.1)


def test_parameters_and_candidates_that_optuna_cannot_compare():
    space = {"C": Numbers(), "gamma": loguniform(1e-4, 1)}
    points = [{"gamma": 2.0}]  # beyond the distribution
    params = {"sampler": "random", "n_iter": 6, "cv": 2, "random_state": 0}
    search = BayesSearchCV(SVC(), space, points_to_evaluate=points, **params).fit(X, y)
    assert bars_of(search.plot()[1]) == {"gamma": 1}
    same = {"cache_size": loguniform(100, 200)}
    note = BayesSearchCV(SVC(), same, **params).fit(X, y).plot()[1]
    assert "two candidates with different scores" in note.texts[0].get_text()
    assert param_importances({"C": [1, 2]}, [{"C": 1}, {"C": 2}], [0.5, 0.5 + 1e-16]) == [{}]


def test_scores_of_calls_over_time(hyperband):
    axes = hyperband.plot(kind="history")
    table = hyperband.history_
    dots, best = points_of(axes)
    assert list(dots) == ["bracket 2", "bracket 1", "bracket 0"]
    for bracket, label in enumerate(reversed(dots)):
        own = table[table["bracket"] == bracket]
        np.testing.assert_array_equal(dots[label], own[["elapsed", "test_score"]])
    np.testing.assert_array_equal(best[:, 1], np.maximum.accumulate(table["test_score"]))
    assert best[-1, 1] == hyperband.best_score_
    assert axes.get_ylabel() == "score on the rows held out"


def test_kinds_of_an_adaptive_search(hyperband):
    assert hyperband.plot().get_xlabel() == "calls of partial_fit"
    assert bars_of(hyperband.plot(kind="importances")).keys() == {"alpha", "penalty"}
    with pytest.raises(ValueError, match=r"kind must be one of 'curves', .* Got 'lines' instead"):
        hyperband.plot(kind="lines")
    params = {"scoring": ["f1_macro", "accuracy"], "refit": "f1_macro"}
    sizes = {"n_initial_parameters": "grid", "max_iter": 2}
    other = IncrementalSearchCV(SGDClassifier(), {"alpha": [1e-4, 1e-2]}, **sizes, **params)
    assert other.fit(X, y).plot(kind="history").get_ylabel() == "f1_macro"
    dots, _ = points_of(other.plot("accuracy", "history"))
    assert list(dots) == ["scores"]


def test_a_missing_optuna_is_told(search, hyperband, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    needed = r"needs optuna: pip install 'scikit-fleet\[optuna\]'"
    history, note = search.plot()
    assert len(history.lines) == 2
    assert note.texts[0].get_text().startswith("Importance of parameters needs optuna: pip ")
    with pytest.raises(ImportError, match='kind="importances" ' + needed):
        hyperband.plot(kind="importances")
    assert len(hyperband.plot(kind="history").lines) == 4
