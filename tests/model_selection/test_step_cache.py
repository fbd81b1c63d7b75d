"""A search in batches fits equal preprocessing steps once in a process, and only those."""

import gc
import os
import signal
import threading
from collections import Counter

import numpy as np
import pytest
from distributed import Client
from scipy.stats import loguniform
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import BayesSearchCV
from skfleet.model_selection._dispatch import _memory
from skfleet.model_selection._dispatch._step_cache import CachedRows, CachedStep, StepCache

X, Y = load_iris(return_X_y=True)
SPACE = {"scaled__factor": [1, 2, 3], "svc__C": loguniform(0.1, 10)}
N_SPLITS = 3


class Scaled(TransformerMixin, BaseEstimator):
    """Multiplies, and writes a line for each fit and transform; `change` writes into its rows."""

    def __init__(self, log=None, factor=1, change=False):
        self.log, self.factor, self.change = log, factor, change

    def _note(self, what):
        with open(self.log, "a") as file:
            file.write(f"{what} {self.factor}\n")

    def fit(self, X, y=None):
        self._note("fit")
        self.mean_ = X.mean(axis=0)
        return self

    def transform(self, X):
        self._note("transform")
        if self.change:
            X -= self.mean_
            return X * self.factor
        return (X - self.mean_) * self.factor


class Heavy(Scaled):
    """Kills its process in its third fit, once."""

    def fit(self, X, y=None):
        super().fit(X)
        with open(self.log) as file:
            is_third = sum(line.startswith("fit") for line in file) == 3
        if is_third:
            os.kill(os.getpid(), signal.SIGKILL)
        return self


@pytest.fixture
def log(tmp_path):
    return str(tmp_path / "log")


def counts(log):
    """Fits and transforms, by factor."""
    with open(log) as file:
        return Counter(tuple(line.split()) for line in file)


def bayes(log, kind=Scaled, space=SPACE, **params):
    pipeline = Pipeline([("scaled", kind(log)), ("svc", SVC())])
    params = {"n_iter": 12, "random_state": 0, "cv": N_SPLITS, "refit": False} | params
    return BayesSearchCV(pipeline, space, **params).fit(X, Y)


def assert_scores_are_those_of_separate_fits(search):
    results = search.cv_results_
    for params, mean in zip(results["params"], results["mean_test_score"], strict=True):
        model = search.estimator.set_params(**params)
        expected = cross_validate(model, X, Y, cv=N_SPLITS)["test_score"].mean()
        assert mean == pytest.approx(expected)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_equal_steps_are_fitted_once_for_each_split(batch_size, log, one_thread):
    search = bayes(log, batch_size=batch_size)
    factors = {str(params["scaled__factor"]) for params in search.cv_results_["params"]}
    assert len(factors) > 1
    assert counts(log) == Counter(
        {(what, f): N_SPLITS * n for f in factors for what, n in (("fit", 1), ("transform", 2))}
    )
    assert_scores_are_those_of_separate_fits(search)


def test_times_are_those_of_fits_that_share_nothing(log, one_thread):
    class Slow(Scaled):
        def fit(self, X, y=None):
            import time

            time.sleep(0.05)
            return super().fit(X)

    search = bayes(log, Slow, batch_size=1)
    assert (search.cv_results_["mean_fit_time"] > 0.05).all()


def test_nothing_is_stored_of_rows_that_a_step_writes_into(log, one_thread):
    search = bayes(log, batch_size=1, space=SPACE | {"scaled__change": [True]})
    assert sum(n for (what, _), n in counts(log).items() if what == "fit") == 12 * N_SPLITS
    assert_scores_are_those_of_separate_fits(search)


def test_nothing_is_stored_where_memory_is_short(log, one_thread, monkeypatch):
    monkeypatch.setattr(_memory.MemoryPlan, "spare_bytes", lambda self: 0)
    bayes(log, batch_size=1)
    assert sum(n for (what, _), n in counts(log).items() if what == "fit") == 12 * N_SPLITS


def test_one_batch_stores_nothing(log, one_thread, monkeypatch):
    monkeypatch.setattr(StepCache, "add", lambda *args: pytest.fail("a step was stored"))
    bayes(log, batch_size=12)


def test_components_of_a_shared_fit_are_not_those_of_a_fit_alone(one_thread):
    X, y = load_breast_cancer(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), PCA(), LogisticRegression(max_iter=1000))
    space = {"pca__n_components": [2, 5, 9], "logisticregression__C": loguniform(1e-3, 1)}
    search = BayesSearchCV(pipeline, space, n_iter=9, batch_size=3, random_state=0, cv=3)
    search.fit(X, y)
    results = search.cv_results_
    for params, mean in zip(results["params"], results["mean_test_score"], strict=True):
        alone = cross_validate(pipeline.set_params(**params), X, y, cv=3)["test_score"].mean()
        assert mean == pytest.approx(alone, abs=0.01)


def test_texts_in_a_list(one_thread):
    texts = [f"word{n % 7} kind{n % 3} other{n % 11}" for n in range(60)]
    y = np.arange(60) % 3
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())
    space = {"tfidfvectorizer__min_df": [1, 3], "logisticregression__C": loguniform(0.1, 10)}
    search = BayesSearchCV(pipeline, space, n_iter=6, batch_size=1, random_state=0, cv=3)
    assert search.fit(texts, y).best_score_ == 1
    assert search.best_estimator_.predict(texts[:3]).tolist() == [0, 1, 2]


def test_threads_of_a_process_share_steps(log):
    with Fleet(n_workers=1, threads_per_worker=4, processes=False):
        search = bayes(log, n_iter=24)
    fits = [n for (what, _), n in counts(log).items() if what == "fit"]
    assert sum(fits) <= 4 * N_SPLITS * len(fits) < 24 * N_SPLITS
    assert_scores_are_those_of_separate_fits(search)


def n_caches():
    gc.collect()
    return len(StepCache.of_process())


def test_worker_processes_free_the_steps_with_the_search(log, process_cluster):
    with Client(process_cluster) as client:
        search = bayes(log, batch_size=2, n_iter=16)
        fits = [n for (what, _), n in counts(log).items() if what == "fit"]
        assert sum(fits) < 16 * N_SPLITS
        del search
        for _ in range(100):
            if not any(client.run(n_caches).values()):
                break
        else:
            pytest.fail(f"steps remain: {client.run(n_caches)}")
    assert n_caches() == 0


@pytest.mark.slow
def test_steps_of_a_worker_that_dies_are_fitted_again(log):
    with Fleet(n_workers=2):
        search = bayes(log, Heavy, batch_size=2)
    assert_scores_are_those_of_separate_fits(search)


# -- the cache alone -------------------------------------------------------------------------------


def step(n_values=1000, fitted=None):
    return CachedStep(b"", fitted or StandardScaler(), CachedRows(np.zeros(n_values)), 0.1)


def test_the_least_recently_used_steps_are_dropped():
    cache = StepCache()
    limit = 3 * 8000 + 3 * 2000
    for n in "abc":
        cache.add(n, step(), limit)
    assert cache.get("a").seconds == 0.1
    cache.add("d", step(), limit)
    assert [n for n in "abcd" if cache.get(n)] == ["a", "c", "d"]


def test_a_step_that_is_too_large_drops_none():
    cache = StepCache()
    cache.add("a", step(), 20_000)
    cache.add("b", step(100_000), 20_000)
    assert [n for n in "ab" if cache.get(n)] == ["a"]


def test_later_outputs_count():
    cache = StepCache()
    steps = cache.on_split([np.arange(3), np.arange(2)], 20_000)
    first = step()
    steps.add(("a",), first)
    steps.add(("b",), step(10))
    first.transformed["test"] = CachedRows(np.zeros(3000)), 0.1
    steps.trim()
    assert steps.get(("a",)) is None
    assert steps.get(("b",)) is not None


def test_splits_have_steps_of_their_own():
    cache = StepCache()
    one = cache.on_split([np.arange(3), np.arange(3, 5)], 20_000)
    one.add(("a",), step())
    equal = cache.on_split([np.arange(3), np.arange(3, 5)], 20_000)
    other = cache.on_split([np.arange(3), np.arange(3, 6)], 20_000)
    assert equal.get(("a",)) is not None
    assert other.get(("a",)) is None


def test_what_cannot_be_pickled_or_measured_is_not_stored():
    cache = StepCache()
    unpicklable = StandardScaler()
    unpicklable.lock = threading.Lock()
    cache.add("a", step(fitted=unpicklable), 1e9)
    cache.add("b", CachedStep(b"", StandardScaler(), CachedRows(["a list"]), 0.1), 1e9)
    assert [n for n in "ab" if cache.get(n)] == []


def test_a_fit_gets_a_step_of_its_own():
    cache = StepCache()
    cache.add("a", step(fitted=StandardScaler().fit(X)), 1e9)
    cache.get("a").fitted.mean_[:] = 0
    assert cache.get("a").fitted.mean_[0] == pytest.approx(X[:, 0].mean())
