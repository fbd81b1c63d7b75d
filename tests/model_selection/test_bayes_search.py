"""BayesSearchCV: Optuna's own loop as the oracle, batches, metrics, checkpoints."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import optuna
import pytest
from scipy.stats import loguniform, uniform
from sklearn import model_selection as sk
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from skfleet.model_selection import BayesSearchCV, GridSearchCV, RandomizedSearchCV
from skfleet.model_selection._samplers._optuna_source import OptunaSource

LAST_FIT = "SKFLEET_TEST_LAST_FIT"  # after which the process dies
X, Y = load_iris(return_X_y=True)
SPACE = {"C": loguniform(1e-3, 1e3), "gamma": loguniform(1e-4, 1), "kernel": ["rbf", "sigmoid"]}


def bayes(estimator=None, space=None, **params):
    params = {"n_iter": 16, "random_state": 3, "cv": 3, "batch_size": 1} | params
    return BayesSearchCV(estimator or SVC(), space or SPACE, **params)


def optunas_loop(n_iter, seed):
    """Candidates and scores of a loop that a user of Optuna would write."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    candidates = []

    def objective(trial):
        names = ("C", "gamma")
        params = {name: float(SPACE[name].ppf(trial.suggest_float(name, 0, 1))) for name in names}
        params["kernel"] = SPACE["kernel"][trial.suggest_categorical("kernel", range(2))]
        candidates.append(params)
        return sk.cross_val_score(SVC(**params), X, Y, cv=3).mean()

    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=n_iter)
    return candidates, [trial.value for trial in study.trials]


@pytest.mark.parametrize("params", [{"batch_size": 1}, {"batch_size": None, "n_jobs": 1}])
def test_with_one_slot_it_is_optunas_loop(params, on_cluster):
    search = bayes(n_iter=25, **params).fit(X, Y)
    candidates, scores = optunas_loop(25, 3)
    assert search.cv_results_["params"] == candidates
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], scores)
    assert search.best_score_ == max(scores)
    assert search.best_estimator_.score(X, Y) > 0.9


def test_a_batch_is_as_large_as_the_fleet(on_cluster, cluster_client):
    sizes = []

    class Source:
        def ask(self, order, pending):
            sizes.append(len(pending))
            return {"C": 1.0 + order.candidate}

        def tell(self, order, params, score):
            assert params == {"C": 1.0 + order.candidate}
            assert 0.9 < score <= 1

    n_slots = sum(cluster_client.nthreads().values())
    search = bayes(sampler=Source(), batch_size=None, n_iter=2 * n_slots + 1).fit(X, Y)
    assert sizes == [*range(n_slots), *range(n_slots), 0]
    assert [p["C"] for p in search.cv_results_["params"]] == [1.0 + n for n in range(len(sizes))]


@pytest.mark.parametrize("sampler", ["random", "sobol", "halton"])
def test_draws_are_one_batch(sampler, on_cluster):
    search = bayes(sampler=sampler, n_iter=6).fit(X, Y)
    assert len(search.cv_results_["params"]) == 6
    if sampler == "random":
        other = RandomizedSearchCV(SVC(), SPACE, n_iter=6, random_state=3, cv=3).fit(X, Y)
        assert search.cv_results_["params"] == other.cv_results_["params"]


def test_model_learns_from_the_metric_of_refit(on_cluster):
    scoring = {"loss": "neg_log_loss", "acc": "accuracy"}
    svc = SVC()
    by_accuracy = bayes(svc, scoring={"acc": "accuracy", "f1": "f1_macro"}, refit="acc").fit(X, Y)
    assert by_accuracy.cv_results_["params"] == bayes(svc).fit(X, Y).cv_results_["params"]
    assert {"mean_test_acc", "rank_test_f1"} <= by_accuracy.cv_results_.keys()
    sgd, space = SGDClassifier(loss="log_loss", random_state=0), {"alpha": loguniform(1e-6, 1)}
    with_callable = bayes(sgd, space, scoring=scoring, refit=lambda results: 3).fit(X, Y)
    first = bayes(sgd, space, scoring="neg_log_loss", refit=False).fit(X, Y)
    assert with_callable.best_index_ == 3
    assert with_callable.cv_results_["params"] == first.cv_results_["params"]


def test_past_results_and_points(on_cluster):
    earlier = GridSearchCV(SVC(), {"C": [0.1, 1, 10, 100], "gamma": [0.01, 0.1]}, cv=3).fit(X, Y)
    space = {name: SPACE[name] for name in ("C", "gamma")}
    point = {"C": 7.0, "gamma": 0.02}
    search = bayes(SVC(), space, past_results=earlier.cv_results_, points_to_evaluate=[point])
    assert search.fit(X, Y).cv_results_["params"][0] == pytest.approx(point)
    without = bayes(SVC(), space, points_to_evaluate=[point]).fit(X, Y)
    assert search.cv_results_["params"] != without.cv_results_["params"]


def test_pipelines_and_conditional_spaces(on_cluster):
    space = [
        {"svc__kernel": ["linear"], "svc__C": loguniform(1e-3, 1e3)},
        {
            "svc__kernel": ["poly"],
            "svc__degree": [2, 3],
            "standardscaler__with_mean": [True, False],
        },
    ]
    search = bayes(make_pipeline(StandardScaler(), SVC()), space, n_iter=12).fit(X, Y)
    kernels = {params["svc__kernel"]: len(params) for params in search.cv_results_["params"]}
    assert kernels == {"linear": 2, "poly": 3}


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be"),
        ({"sampler": "bayesian"}, ValueError, "sampler must be"),
        ({"sampler": "random", "past_results": {}}, ValueError, "past_results must be used with"),
        ({"checkpoint": "somewhere", "random_state": None}, ValueError, "random_state must be a"),
        ({"space": {"C": object()}}, TypeError, "C must be a list, or a distribution"),
    ],
)
def test_bad_parameters(params, error, message, on_cluster):
    with pytest.raises(error, match=message):
        bayes(**params).fit(X, Y)


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
@pytest.mark.parametrize("n_jobs", [None, 1])
def test_a_batch_that_fails_is_no_end(n_jobs, on_cluster):
    points = [{"C": -1.0}, {"C": 1.0}, {"C": -2.0}]
    params = {"n_iter": 4, "points_to_evaluate": points, "n_jobs": n_jobs}
    with pytest.warns(FitFailedWarning, match="All the 3 fits of a batch"):
        search = bayes(SVC(), {"C": loguniform(1e-2, 1e2)}, **params).fit(X, Y)
    scores = search.cv_results_["mean_test_score"]
    np.testing.assert_array_equal(np.isnan(scores), [True, False, True, False])
    assert search.best_params_["C"] > 0
    nothing = bayes(SVC(), {"C": [-1, -2, -3]}, n_iter=2, n_jobs=n_jobs)
    batches = pytest.warns(FitFailedWarning, match="All the 3 fits of a batch")
    with batches, pytest.raises(ValueError, match="All the 6 fits failed"):
        nothing.fit(X, Y)


def test_scores_that_are_not_finite_are_told_once(on_cluster):
    points = [{"C": -1.0}, {"C": 1.0}]
    search = bayes(SVC(), {"C": loguniform(1e-2, 1e2)}, points_to_evaluate=points, n_iter=6)
    with pytest.warns() as record:
        search.fit(X, Y)
    texts = [str(warning.message) for warning in record]
    assert sum("non-finite" in text for text in texts) == 1
    assert len(texts) == 2


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_lists_alone_are_a_grid(sampler, on_cluster):
    search = bayes(SVC(), {"C": [0.1, 1], "kernel": ["rbf", "linear"]}, sampler=sampler)
    with pytest.warns(UserWarning, match=r"The total space of parameters 4 is smaller"):
        search.fit(X, Y)
    assert len({tuple(p.values()) for p in search.cv_results_["params"]}) == 4
    assert len(search.cv_results_["params"]) == 4


def test_sampler_hears_of_candidates_that_a_race_drops(on_cluster, monkeypatch):
    heard = []

    def tell(self, order, params, score):
        heard.append((order.n_calls, score))

    monkeypatch.setattr(OptunaSource, "tell", tell)
    space = {"C": loguniform(1e-6, 1e2)}
    search = bayes(SVC(), space, racing="mean", cv=6, n_iter=12, batch_size=6).fit(X, Y)
    results = search.cv_results_
    n_folds = list(results["n_folds"])
    assert min(n_folds) < 6
    assert heard == list(zip(n_folds, results["mean_test_score"], strict=True))


def test_progress_shows_the_best_of_all_batches(on_cluster, capsys):
    points = [{"C": 1.0}, {"C": 1e-6}]
    params = {"points_to_evaluate": points, "n_iter": 2, "verbose": 1}
    bayes(SVC(), {"C": loguniform(1e-6, 1e2)}, **params).fit(X, Y)
    last = capsys.readouterr().out.splitlines()[-1]
    assert "best 0.9" in last


class Logged(ClassifierMixin, BaseEstimator):
    """Writes a line for each fit; its score depends on its parameter alone."""

    def __init__(self, quality=0.5, log=None):
        self.quality = quality
        self.log = log

    def fit(self, X, y):
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"{self.quality} {X[:, 0].sum()}\n")
        if len(Path(self.log).read_text().splitlines()) > float(os.environ.get(LAST_FIT, "inf")):
            os._exit(1)
        self.classes_ = np.unique(y)
        return self

    def score(self, X, y):
        return 1 - (self.quality - 0.3) ** 2


def logged(path, **params):
    params = {"refit": False, "checkpoint": path / "search"} | params
    return bayes(Logged(log=str(path / "log")), {"quality": uniform(0, 1)}, **params)


def test_a_search_goes_on_with_more_candidates(tmp_path, on_cluster):
    for batch_size in (1, 3):
        path = tmp_path / str(batch_size)
        path.mkdir()
        whole = logged(path, n_iter=14, batch_size=batch_size, checkpoint=None).fit(X, Y)
        (path / "log").unlink()
        logged(path, n_iter=7, batch_size=batch_size).fit(X, Y)
        search = logged(path, n_iter=14, batch_size=batch_size).fit(X, Y)
        lines = (path / "log").read_text().splitlines()
        assert len(set(lines)) == len(lines) == 14 * 3
        assert search.n_checkpoint_fits_ == 7 * 3
        if batch_size == 1:
            assert search.cv_results_["params"] == whole.cv_results_["params"]


SCRIPT = """
    from distributed import Client
    from pathlib import Path
    from test_bayes_search import X, Y, logged

    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"):
        logged(Path.cwd(), n_iter=14, batch_size=None).fit(X, Y)
"""


@pytest.mark.slow
@pytest.mark.parametrize("n_fits", [0, 10, 31])
def test_candidates_after_a_kill_are_those_of_an_undisturbed_search(n_fits, tmp_path, one_thread):
    script = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    environment = os.environ | {LAST_FIT: str(n_fits), "PYTHONPATH": os.pathsep.join(sys.path)}
    search = {"n_iter": 14, "batch_size": None}
    with one_thread.as_current():
        whole = logged(tmp_path, checkpoint=None, **search).fit(X, Y)
        (tmp_path / "log").unlink()
        killed = subprocess.run(script, check=False, cwd=tmp_path, env=environment)
        assert killed.returncode == 1
        again = logged(tmp_path, **search).fit(X, Y)
    assert again.cv_results_["params"] == whole.cv_results_["params"]
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) <= 14 * 3 + 2  # those that ran when it died
