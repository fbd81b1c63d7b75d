"""Failures in adaptive searches: of candidates, of parameters, of the fleet."""

import math
import threading

import numpy as np
import pytest
from adaptive_cases import Counter, halving, numbered, sgd
from sklearn.datasets import load_digits
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.exceptions import FleetError, PlacementError
from skfleet.model_selection._adaptive import _loop

pytestmark = pytest.mark.usefixtures("on_cluster")


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
