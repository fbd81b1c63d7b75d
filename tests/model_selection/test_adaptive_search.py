"""Adaptive searches on a fleet: results, refit, time budget, resources and progress."""

import threading
import time

import numpy as np
import pytest
from adaptive_cases import SEARCHES, SPACE, Counter, halving, numbered, sgd
from distributed import get_worker
from sklearn.base import BaseEstimator, clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import make_classification
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import SGDRegressor
from sklearn.metrics import accuracy_score

from clusters import local_client
from skfleet import Fleet
from skfleet._cluster import scheduler_workers
from skfleet.model_selection import (
    ASHASearchCV,
    HyperbandSearchCV,
    IncrementalSearchCV,
    SuccessiveHalvingSearchCV,
)

pytestmark = pytest.mark.usefixtures("on_cluster")


@pytest.mark.parametrize(("kind", "params"), SEARCHES)
def test_search_finds_a_good_model_and_tells_of_it(kind, params, digits):
    search = kind(sgd(), SPACE, random_state=0, **params)
    planned = search.metadata
    assert search.fit(*digits) is search
    assert search.best_score_ > 0.9
    results, history = search.cv_results_, search.history_
    n = planned["n_models"]
    for key in (
        *("mean_fit_time", "std_fit_time", "mean_score_time", "std_score_time", "param_alpha"),
        *("params", "split0_test_score", "mean_test_score", "std_test_score", "rank_test_score"),
        *("candidate", "bracket", "rung", "budget", "partial_fit_calls"),
    ):
        assert len(results[key]) == n, key
    best = search.best_index_
    assert results["rank_test_score"][best] == 1
    assert results["mean_test_score"][best] == search.best_score_ == history.test_score.max()
    assert results["params"][best] == search.best_params_
    assert results["param_alpha"][best] == search.best_params_["alpha"]
    assert search.best_estimator_.get_params()["alpha"] == search.best_params_["alpha"]
    assert search.n_splits_ == 1
    assert search.multimetric_ is False
    if kind is not ASHASearchCV:
        done = {key: search.metadata_[key] for key in planned}
        if kind is IncrementalSearchCV:
            planned["brackets"][0].pop("rungs"), done["brackets"][0].pop("rungs")
        assert done == planned
    assert search.metadata_["partial_fit_calls"] == results["partial_fit_calls"].sum()
    assert search.search_time_ > 0
    X, y = digits
    np.testing.assert_array_equal(search.predict(X), search.best_estimator_.predict(X))
    assert search.score(X, y) == accuracy_score(y, search.predict(X))
    np.testing.assert_array_equal(search.classes_, np.unique(y))
    assert search.n_features_in_ == 64
    with pytest.raises(AttributeError):
        search.predict_proba  # noqa: B018


def test_model_is_what_its_calls_of_partial_fit_make_of_it():
    """Every epoch all training rows are learned once, in another order, and no test row ever."""
    X, y = numbered(40)
    search = halving(Counter(), {"quality": [0.1, 0.4, 0.2, 0.3]}, batch_size=10, max_iter=8)
    search.set_params(n_initial_iter=2).fit(X, y)
    model = search.best_estimator_
    assert search.best_params_ == {"quality": 0.4}
    assert len(model.seen_) == search.cv_results_["budget"][search.best_index_] == 8
    test = set(model.scored_on_)
    assert len(test) == 6
    n_batches = 4  # of 34 rows, at most 10 each
    first, second = np.concatenate(model.seen_[:n_batches]), np.concatenate(model.seen_[n_batches:])
    for epoch in (first, second):
        assert sorted([*epoch, *test]) == list(range(40))
    assert list(first) != list(second) != sorted(second)
    assert max(map(len, model.seen_)) - min(map(len, model.seen_)) <= 1


def test_rows_to_score_on_are_divided_by_class():
    X, y = numbered(100)
    y = np.repeat([0, 1], [80, 20])
    search = halving(Counter(), {"quality": [0.1, 0.4]}, test_size=10, n_initial_parameters=2)
    test = search.fit(X, y).best_estimator_.scored_on_
    assert len(test) == 10
    assert sum(test >= 80) == 2


@pytest.mark.parametrize(("kind", "params"), SEARCHES)
def test_answer_does_not_depend_on_the_number_of_workers(kind, params, digits):
    if kind is ASHASearchCV:
        params = params | {"n_jobs": 1}
    one = kind(sgd(), SPACE, random_state=1, **params | {"n_jobs": 1}).fit(*digits)
    two = kind(sgd(), SPACE, random_state=1, **params).fit(*digits)
    assert one.best_params_ == two.best_params_
    for key in ("mean_test_score", "budget", "partial_fit_calls", "param_alpha"):
        np.testing.assert_array_equal(one.cv_results_[key], two.cv_results_[key])
    np.testing.assert_array_equal(one.best_estimator_.coef_, two.best_estimator_.coef_)


def test_search_waits_for_workers(digits):
    with (
        local_client(0, processes=False) as client,
        client.as_current(),
    ):
        threading.Timer(1.5, lambda: client.cluster.scale(1)).start()
        assert halving().fit(*digits).best_score_ > 0.5


def test_clusters_need_no_labels(digits):
    search = halving(MiniBatchKMeans(random_state=0, n_init=1), {"n_clusters": [2, 5, 10, 20]}).fit(
        digits[0]
    )
    assert search.best_params_ == {"n_clusters": 20}
    assert search.transform(digits[0]).shape == (1797, 20)


def test_regression_and_several_metrics():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 5))
    y = X @ rng.normal(size=5) + 0.1 * rng.normal(size=500)
    search = halving(
        SGDRegressor(random_state=0),
        scoring=["r2", "neg_mean_absolute_error"],
        refit="neg_mean_absolute_error",
        n_initial_iter=5,
    ).fit(X, y)
    assert search.multimetric_
    assert set(search.scorer_) == {"r2", "neg_mean_absolute_error"}
    assert {"test_r2", "test_neg_mean_absolute_error"} <= set(search.history_.columns)
    assert search.best_index_ == search.cv_results_["rank_test_neg_mean_absolute_error"].argmin()
    assert search.score(X, y) == pytest.approx(-np.abs(y - search.predict(X)).mean())
    own = halving(
        SGDRegressor(random_state=0), scoring={"a": "r2", "b": lambda model, X, y: -1.0}, refit="a"
    ).fit(X, y)
    assert set(own.cv_results_["mean_test_b"]) == {-1.0}


def test_refit(digits):
    search = halving(refit=False).fit(*digits)
    assert search.best_score_ > 0.5
    assert not hasattr(search, "best_estimator_")
    with pytest.raises(AttributeError, match="refit must be true"):
        search.predict(digits[0])
    worst = halving(refit=lambda results: int(results["mean_test_score"].argmin())).fit(*digits)
    assert worst.best_index_ == worst.cv_results_["mean_test_score"].argmin()
    assert worst.best_estimator_.alpha == worst.cv_results_["param_alpha"][worst.best_index_]
    assert not hasattr(worst, "best_score_")
    with pytest.raises(IndexError, match="place of a candidate"):
        halving(refit=lambda results: 99).fit(*digits)


def test_held_out_rows_are_learned_in_the_end_on_request():
    X, y = numbered(40)
    search = halving(Counter(), {"quality": [0.1, 0.4]}, refit_on_test=True)
    model = search.set_params(n_initial_parameters=2, max_iter=3).fit(X, y).best_estimator_
    n_calls = search.cv_results_["budget"][search.best_index_]
    assert len(model.seen_) == 2 * n_calls
    assert sorted({*np.concatenate(model.seen_)}) == list(range(40))


def test_time_budget_ends_the_search_with_what_it_has():
    X, y = numbered()
    search = IncrementalSearchCV(
        Counter(seconds=0.05), {"quality": [0.1, 0.2]}, max_iter=1000, time_budget=1.0
    ).set_params(n_initial_parameters="grid")
    search.fit(X, y)
    assert 2 < search.metadata_["partial_fit_calls"] < 60
    assert search.best_params_ == {"quality": 0.2}
    search = halving(Counter(seconds=1.0), {"quality": [0.1]}, time_budget=0.01)
    search.set_params(n_initial_parameters="grid")
    with pytest.raises(ValueError, match="larger time_budget"):
        search.fit(X, y)


def test_nothing_of_a_search_stays_on_the_fleet(digits, cluster_client):
    def tasks():
        return set(cluster_client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.tasks]))

    before = tasks()  # what an earlier test refers to
    halving().fit(*digits)
    deadline = time.monotonic() + 10
    while (left := tasks() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def test_clone_and_repr():
    search = halving()
    assert clone(search).get_params()["aggressiveness"] == 2
    assert "SuccessiveHalvingSearchCV(" in repr(search)


def test_learning_curves_are_drawn(digits):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    search = HyperbandSearchCV(sgd(), SPACE, max_iter=9, random_state=0)
    with pytest.raises(AttributeError, match="must be fitted"):
        search.plot()
    axes = search.fit(*digits).plot()
    assert len(axes.lines) == 17 + 1
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["bracket 2", "bracket 1", "bracket 0", "best"]
    with pytest.raises(ValueError, match="scoring must be one of 'score'"):
        search.plot("f1")
    pyplot.close("all")


def test_estimator_without_fit_and_imbalanced_rows():
    class Only(BaseEstimator):
        def partial_fit(self, X, y):
            self.n_ = getattr(self, "n_", 0) + 1

        def score(self, X, y):
            return float(self.n_)

    X, y = make_classification(60, weights=[0.98], random_state=0)
    search = SuccessiveHalvingSearchCV(Only(), {}, n_initial_parameters=1, max_iter=1)
    assert search.fit(X, y).best_score_ == 1.0


class Placed(Counter):
    """Remembers the workers that trained it."""

    def partial_fit(self, X, y, classes=None):
        self.workers_ = [*getattr(self, "workers_", []), get_worker().name]
        return super().partial_fit(X, y, classes)


def test_resources_decide_who_trains_a_candidate():
    X, y = numbered()
    labels = [{"CPU": 1}, {"GPU": 1}]
    with Fleet(n_workers=2, threads_per_worker=1, processes=False, resources=labels) as client:
        offers = {
            worker["name"]: worker["resources"] for worker in scheduler_workers(client).values()
        }
        search = halving(
            Placed(seconds=0.01),
            {"quality": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]},
            n_initial_parameters="grid",
            resources=lambda params: {"GPU": 1} if params["quality"] > 0.3 else {"CPU": 1},
            refit=lambda results: 1,
        ).fit(X, y)
        of_cpu = search.best_estimator_.workers_
        search.set_params(refit=True).fit(X, y)
        of_gpu = search.best_estimator_.workers_
    assert {tuple(offers[name]) for name in of_cpu} == {("CPU",)}
    assert {tuple(offers[name]) for name in of_gpu} == {("GPU",)}


def test_log_and_bar_tell_how_it_goes(digits, caplog, capsys):
    with caplog.at_level("DEBUG", logger="skfleet.model_selection"):
        halving(verbose=1).fit(*digits)
    told = [record.getMessage() for record in caplog.records]
    assert any("of 8 calls of partial_fit" in line and "best 0." in line for line in told)
    assert sum("candidate" in line for line in told) == 7  # a line per score
    drawn = capsys.readouterr().out
    assert "SGDClassifier: 8 of 8 calls of partial_fit" in drawn
    assert "best 0." in drawn
    with (
        caplog.at_level("WARNING", logger="skfleet.model_selection"),
        pytest.warns(FitFailedWarning),
    ):
        halving(Counter(), {"fail_at": [None, 1]}, n_initial_parameters=2).fit(*numbered())
    assert "failed after 0 calls of partial_fit and is out" in caplog.text
