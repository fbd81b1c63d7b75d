"""Adaptive searches on a fleet: what they train, what they tell, and what may go wrong."""

from __future__ import annotations

import math
import threading
import time
import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn
from distributed import Client, LocalCluster, get_worker
from scipy import sparse
from scipy.stats import loguniform, uniform
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits, make_classification
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.exceptions import FleetError, PlacementError
from skfleet.model_selection import (
    ASHASearchCV,
    HyperbandSearchCV,
    IncrementalSearchCV,
    InverseDecaySearchCV,
    SuccessiveHalvingSearchCV,
)
from skfleet.model_selection._adaptive import _loop

SEARCHES = [
    (HyperbandSearchCV, {"max_iter": 9}),
    (SuccessiveHalvingSearchCV, {"n_initial_parameters": 9}),
    (ASHASearchCV, {"n_initial_parameters": 9, "max_iter": 9}),
    (IncrementalSearchCV, {"n_initial_parameters": 3, "max_iter": 6, "fits_per_score": 2}),
    (InverseDecaySearchCV, {"n_initial_parameters": 5, "max_iter": 8}),
]
SPACE = {"alpha": loguniform(1e-6, 1e-1)}


@pytest.fixture(autouse=True)
def _on_a_fleet(cluster_client):
    with cluster_client.as_current():
        yield


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X / 16, y


def sgd(**params):
    return SGDClassifier(random_state=0, **params)


def halving(estimator=None, parameters=None, **params):
    params = {"n_initial_parameters": 4, "aggressiveness": 2, "random_state": 0} | params
    return SuccessiveHalvingSearchCV(estimator or sgd(), parameters or SPACE, **params)


class Counter(ClassifierMixin, BaseEstimator):
    """Remembers how often, and on which rows, it was trained."""

    def __init__(self, quality=0.5, fail_at=None, die=False, seconds=0.0):
        self.quality = quality
        self.fail_at = fail_at
        self.die = die
        self.seconds = seconds

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        self.classes_ = np.unique(y) if classes is None else classes
        self.seen_ = [*getattr(self, "seen_", []), np.asarray(X)[:, 0].copy()]
        self.weights_ = [*getattr(self, "weights_", []), sample_weight]
        if self.fail_at is not None and len(self.seen_) >= self.fail_at:
            raise ValueError("cannot go on")
        time.sleep(self.seconds)
        return self

    def predict(self, X):
        return np.full(len(X), self.classes_[0])

    def score(self, X, y):
        self.scored_on_ = np.asarray(X)[:, 0].copy()
        return self.quality * (1 - 0.5 ** len(self.seen_))


def numbered(n=40):
    """Rows that say which one they are."""
    return np.arange(n, dtype=float)[:, None] * [1.0, 0.0], np.arange(n) % 2


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


def as_frame(X):
    return pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])


CONTAINERS = {
    "array": (lambda X: X, lambda y: y),
    "csr": (sparse.csr_array, lambda y: y),
    "frame": (as_frame, pd.Series),
    "dask array": (lambda X: da.from_array(X, chunks=(500, 64)), lambda y: da.from_array(y, 400)),
    "dask frame": (
        lambda X: dd.from_pandas(as_frame(X), npartitions=4),
        lambda y: dd.from_pandas(pd.Series(y), npartitions=4),
    ),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_rows_of_any_kind(container, digits):
    X, y = digits
    make_X, make_y = CONTAINERS[container]
    search = halving(n_initial_iter=4).fit(make_X(X), make_y(y))
    assert search.best_score_ > 0.85
    answer = search.predict(make_X(X))
    if "dask" in container:
        assert not isinstance(answer, np.ndarray)
        answer = np.asarray(answer)
        assert search.score(make_X(X), make_y(y)) == pytest.approx(accuracy_score(y, answer))
    assert accuracy_score(y, answer) > 0.85
    assert hasattr(search, "feature_names_in_") == ("frame" in container)


@pytest.mark.parametrize("lazy", [False, True])
def test_frames_stay_frames_in_a_pipeline(lazy):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=600),
            "kind": rng.choice(["a", "b", "c"], 600),
            "n": np.arange(600),
        }
    )
    y = ((frame["kind"] == "a") ^ (frame["size"] > 1)).astype(int)
    pipeline = make_pipeline(
        make_column_transformer(
            (StandardScaler(), ["size"]), (OneHotEncoder(handle_unknown="ignore"), ["kind"])
        ),
        sgd(),
    )
    parameters = {
        "sgdclassifier__alpha": loguniform(1e-5, 1e-2),
        "columntransformer__standardscaler__with_mean": [True, False],
    }
    rows, labels = (
        (frame, y)
        if not lazy
        else (dd.from_pandas(frame, npartitions=3), dd.from_pandas(y, npartitions=3))
    )
    search = halving(pipeline, parameters, n_initial_iter=5).fit(rows, labels)
    assert search.best_score_ > 0.8
    model = search.best_estimator_
    scaler = model[0].named_transformers_["standardscaler"]
    assert scaler.with_mean == search.best_params_["columntransformer__standardscaler__with_mean"]
    assert list(search.predict(frame.head())) == list(model.predict(frame.head()))


def test_steps_before_the_last_are_fitted_once_for_all_that_share_them(digits):
    pipeline = make_pipeline(StandardScaler(), sgd())
    parameters = {"sgdclassifier__alpha": SPACE["alpha"]}
    X, y = digits
    search = halving(pipeline, parameters).fit(X, y)
    assert search.best_score_ > 0.85
    # on all training rows, and only on these
    assert search.best_estimator_[0].n_samples_seen_ == len(X) - math.ceil(0.15 * len(X))


def test_step_that_cannot_be_fitted_is_an_error_of_its_candidates(digits):
    X, y = digits
    pipeline = make_pipeline(SelectKBest(), sgd())
    search = halving(pipeline, {"selectkbest__score_func": [f_classif, bad_score]})
    search.set_params(n_initial_parameters="grid")
    X = X[:, X.var(axis=0) > 0.01]
    with pytest.warns(FitFailedWarning, match=r"(?s)1 of 2 candidates.*no such score"):
        search.fit(X, y)
    assert search.best_params_ == {"selectkbest__score_func": f_classif}
    with pytest.raises(RuntimeError, match="no such score"):
        search.set_params(error_score="raise").fit(X, y)


def bad_score(X, y):
    raise RuntimeError("no such score")


def test_search_waits_for_workers(digits):
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        client.as_current(),
    ):
        threading.Timer(1.5, lambda: cluster.scale(1)).start()
        assert halving().fit(*digits).best_score_ > 0.5


def test_text_in_a_list():
    words = [f"{'good fine' if i % 2 else 'bad poor'} w{i % 7}" for i in range(200)]
    y = [i % 2 for i in range(200)]
    search = halving(
        make_pipeline(TfidfVectorizer(), sgd()), {"sgdclassifier__alpha": SPACE["alpha"]}
    ).fit(words, y)
    assert search.best_score_ == 1.0
    assert search.predict(["good w1", "poor w2"]).tolist() == [1, 0]


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
        SGDRegressor(random_state=0),
        scoring={"a": "r2", "b": lambda model, X, y: -1.0},
        refit="a",
    ).fit(X, y)
    assert set(own.cv_results_["mean_test_b"]) == {-1.0}


@pytest.mark.parametrize("lazy", [False, True])
def test_weights_go_with_their_rows(lazy):
    X, y = numbered(60)
    weight = X[:, 0] + 0.5
    rows = (X, y, weight)
    if lazy:
        rows = (da.from_array(X, (20, 2)), da.from_array(y, 20), da.from_array(weight, 15))
    search = halving(Counter(), {"quality": [0.2, 0.4]}, n_initial_parameters=2, batch_size=7)
    model = search.fit(rows[0], rows[1], sample_weight=rows[2]).best_estimator_
    for seen, weights in zip(model.seen_, model.weights_, strict=True):
        np.testing.assert_array_equal(weights, seen + 0.5)


def test_metadata_is_routed(digits):
    X, y = digits
    weight = np.where(y < 5, 1.0, 0.0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = (
            sgd().set_partial_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        )
        search = halving(model, n_initial_iter=3).fit(X, y, sample_weight=weight)
        assert set(search.predict(X)) <= {0, 1, 2, 3, 4}  # the others weigh nothing
        assert search.best_score_ > 0.85  # nor do they in the score
        with pytest.raises(TypeError, match="unexpected"):
            halving(sgd()).fit(X, y, nonsense=weight)


@pytest.mark.filterwarnings("ignore:.*candidates failed:sklearn.exceptions.FitFailedWarning")
def test_failing_candidates_are_out_and_told_of():
    X, y = numbered()
    parameters = {"quality": [0.9, 0.5, 0.4, 0.3, 0.2, 0.1], "fail_at": [None]}
    space = [{"quality": [0.9], "fail_at": [2]}, {"quality": [0.5, 0.4, 0.3], "fail_at": [None]}]
    search = halving(Counter(), space, n_initial_parameters="grid")
    with pytest.warns(FitFailedWarning, match=r"(?s)1 of 4 candidates failed.*cannot go on"):
        search.fit(X, y)
    assert search.best_params_ == {"quality": 0.5, "fail_at": None}
    results = search.cv_results_
    failed = [p["fail_at"] == 2 for p in results["params"]]
    # its first score counts, as it was had: it failed when it was trained on
    assert results["partial_fit_calls"][failed] == 1
    assert len(parameters) == 2
    search = halving(Counter(), {"quality": [0.9], "fail_at": [1, 2, 5]}, error_score=-1.0)
    search.set_params(n_initial_parameters="grid").fit(X, y)
    assert search.cv_results_["mean_test_score"][0] == -1.0
    search.set_params(error_score="raise")
    with pytest.raises(ValueError, match="cannot go on") as error:
        search.fit(X, y)
    assert "candidate 0" in error.value.__notes__[0]
    search.set_params(error_score=np.nan, parameters={"fail_at": [1]})
    before = {name: value for name, value in vars(search).items() if name.endswith("_")}
    with pytest.raises(ValueError, match="All the 1 candidates failed"):
        search.fit(X, y)
    after = {name: value for name, value in vars(search).items() if name.endswith("_")}
    assert all(after[name] is before[name] for name in before | after)


class Sometimes(Counter):
    """Fails in every other process-wide call."""

    n_calls = 0

    def partial_fit(self, X, y, classes=None):
        Sometimes.n_calls += 1
        if Sometimes.n_calls % 2:
            raise OSError("the network was down")
        return super().partial_fit(X, y, classes)


def test_retries_go_on_from_where_it_failed():
    X, y = numbered()
    search = halving(Sometimes(), {"quality": [0.1, 0.2]}, n_initial_parameters=2, retries=1)
    search.set_params(n_jobs=1, max_iter=4).fit(X, y)
    assert not search.history_.test_score.isna().any()
    assert len(search.best_estimator_.seen_) == 2


class Diverges(Counter):
    """Has no score from its second call on."""

    def score(self, X, y):
        return math.nan if self.quality > 0.5 and len(self.seen_) > 1 else super().score(X, y)


def test_nan_is_no_score():
    X, y = numbered()
    search = halving(Diverges(), {"quality": [0.9, 0.8, 0.2, 0.1]}, n_initial_parameters="grid")
    search.fit(X, y)
    # they were best after one call, and that is the model that is kept
    assert search.best_params_ == {"quality": 0.9}
    assert len(search.best_estimator_.seen_) == 1
    assert search.cv_results_["budget"].tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="a candidate must be scored"):
        halving(sgd(), scoring=lambda model, X, y: math.nan).fit(*load_digits(return_X_y=True))
    with pytest.raises(ValueError, match="scoring must return a number"):
        halving(sgd(), scoring=lambda model, X, y: "good", error_score="raise").fit(
            *load_digits(return_X_y=True)
        )


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


def test_search_whose_workers_stay_away_ends_with_an_error(monkeypatch):
    monkeypatch.setattr(_loop, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(_loop, "NO_WORKER_TIMEOUT", 0.2)
    labels = [{"CPU": 1}, {"GPU": 1}]
    with Fleet(threads_per_worker=1, processes=False, resources=labels) as client:
        search = halving(
            Counter(seconds=2.0), {"quality": [0.1, 0.2, 0.3, 0.4]}, resources={"GPU": 1}
        )
        gone = threading.Timer(0.5, client.retire_workers, kwargs={"names": [1]})
        gone.start()
        with pytest.raises(FleetError, match=r"Got none that offer GPU=1 for 0 s\. Start"):
            search.fit(*numbered())
        gone.join()


def test_time_budget_ends_the_search_with_what_it_has():
    X, y = numbered()
    search = IncrementalSearchCV(
        Counter(seconds=0.05), {"quality": [0.1, 0.2]}, max_iter=1000, time_budget=1.0
    ).set_params(n_initial_parameters="grid")
    began = time.monotonic()
    search.fit(X, y)
    assert time.monotonic() - began < 5
    assert 2 < search.metadata_["partial_fit_calls"] < 60
    assert search.best_params_ == {"quality": 0.2}
    search = halving(Counter(seconds=1.0), {"quality": [0.1]}, time_budget=0.01)
    search.set_params(n_initial_parameters="grid")
    with pytest.raises(ValueError, match="larger time_budget"):
        search.fit(X, y)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"estimator": LogisticRegression()}, TypeError, "estimator must have partial_fit"),
        ({"n_initial_parameters": 0}, ValueError, "n_initial_parameters must be"),
        ({"max_iter": 0}, ValueError, "max_iter must be"),
        ({"aggressiveness": 1}, ValueError, "aggressiveness must be"),
        ({"patience": -1}, ValueError, "patience must be"),
        ({"tol": math.nan}, ValueError, "tol must be"),
        ({"test_size": 1.5}, ValueError, "test_size must be"),
        ({"batch_size": 0.5}, ValueError, "batch_size must be"),
        ({"sampler": "best"}, ValueError, "sampler must be one of 'random'"),
        ({"n_jobs": -2}, ValueError, "n_jobs must be"),
        ({"retries": -1}, ValueError, "retries must be"),
        ({"error_score": "ignore"}, ValueError, "error_score must be"),
        ({"refit_on_test": "no"}, ValueError, "refit_on_test must be"),
        ({"time_budget": 0}, ValueError, "time_budget must be"),
        ({"scoring": ["accuracy", "f1"]}, ValueError, "refit must name the metric"),
        ({"scoring": "nonsense"}, ValueError, "nonsense"),
        ({"parameters": {"nonsense": [1, 2, 3, 4]}}, ValueError, "nonsense"),
        ({"checkpoint": "x", "random_state": None}, ValueError, "random_state must be a number"),
        ({"resources": {"GPU": 1}}, PlacementError, "GPU=1"),
        ({"resources": lambda params: {"TPU": 1}}, PlacementError, "TPU=1"),
    ],
)
def test_errors_come_before_any_work(params, error, message, digits):
    search = halving(Counter() if "resources" in params else None).set_params(**params)
    if "resources" in params:
        search.set_params(parameters={"quality": [0.1, 0.2, 0.3, 0.4]})
    with counting() as counts, pytest.raises(error, match=message):
        search.fit(*digits)
    assert counts.tasks == 0
    assert not hasattr(search, "cv_results_")


def test_rows_must_have_labels(digits):
    with pytest.raises(ValueError, match="requires y to be passed"):
        halving().fit(digits[0])
    with pytest.raises(NotFittedError):
        halving().predict(digits[0])


@pytest.mark.parametrize("sampler", ["sobol", "halton"])
def test_even_samples(sampler, digits):
    space = {
        "alpha": loguniform(1e-6, 1e-1),
        "l1_ratio": uniform(0, 1),
        "loss": ["hinge", "log_loss"],
    }
    search = halving(parameters=space, sampler=sampler, n_initial_parameters=16).fit(*digits)
    drawn = pd.DataFrame(search.cv_results_["params"])
    assert min(drawn["loss"].value_counts()) >= 7
    counts = np.histogram(np.log10(drawn["alpha"].astype(float)), bins=5, range=(-6, -1))[0]
    assert counts.min() >= 2
    again = halving(parameters=space, sampler=sampler, n_initial_parameters=16).fit(*digits)
    assert again.cv_results_["params"] == search.cv_results_["params"]

    class Odd:
        def rvs(self, random_state=None):
            return 0.5

    with pytest.raises(ValueError, match="alpha must be a list or a distribution with ppf"):
        halving(parameters={"alpha": Odd()}, sampler=sampler).fit(*digits)


def test_known_points_come_first(digits):
    points = [{"alpha": 1e-3}, {"penalty": "l1"}]
    space = SPACE | {"penalty": ["l2"]}
    search = halving(parameters=space, points_to_evaluate=points).fit(*digits)
    first, second, *others = search.cv_results_["params"]
    assert first == {"alpha": 1e-3, "penalty": "l2"}
    assert second["penalty"] == "l1"
    assert len(others) == 2


class Ascending:
    """Asks for qualities one after the other, and remembers what it hears."""

    def __init__(self):
        self.asked, self.told, self.pending = [], [], []

    def ask(self, order, pending):
        self.asked.append(order)
        self.pending.append(dict(pending))
        return {"quality": 0.1 * order.candidate}

    def tell(self, order, params, score):
        self.told.append((order, dict(params), score))


def test_sampler_of_ones_own_is_asked_and_told():
    X, y = numbered()
    sampler = Ascending()
    search = HyperbandSearchCV(Counter(), {}, max_iter=9, sampler=sampler, random_state=0)
    search.fit(X, y)
    assert sorted(order.candidate for order in sampler.asked) == list(range(17))
    assert len(sampler.told) == len(search.history_)
    for order, params, score in sampler.told:
        assert params == {"quality": 0.1 * order.candidate}
        row = search.history_.query(f"candidate == {order.candidate} and rung == {order.rung}")
        assert row.test_score.item() == score
    assert max(map(len, sampler.pending)) >= 1  # those under way are visible
    assert search.best_params_["quality"] == pytest.approx(0.1 * 16)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_initial_parameters": "grid"}, "n_initial_parameters must be a number"),
        ({"points_to_evaluate": [{"quality": 1.0}]}, "points_to_evaluate must not be given"),
    ],
)
def test_sampler_of_ones_own_decides_alone(params, message):
    with pytest.raises(ValueError, match=message):
        halving(Counter(), {}, sampler=Ascending(), **params).fit(*numbered())


def test_small_grid_is_taken_whole(digits):
    grid = {"alpha": [1e-4, 1e-3]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        search = halving(parameters=grid, n_initial_parameters=10)
        assert search.metadata["n_models"] == 2
        assert len(search.fit(*digits).cv_results_["params"]) == 2
    many = HyperbandSearchCV(sgd(), grid, max_iter=4, aggressiveness=2, random_state=0).fit(*digits)
    assert len(many.cv_results_["params"]) == many.metadata["n_models"] > 2


def test_nothing_of_a_search_stays_on_the_fleet(digits, cluster_client):
    halving().fit(*digits)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = cluster_client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(left)


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
            worker["name"]: worker["resources"]
            for worker in client.scheduler_info(n_workers=-1)["workers"].values()
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
