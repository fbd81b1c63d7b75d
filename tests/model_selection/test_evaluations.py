"""What a search leaves behind when Ctrl-C ends it before all candidates have been scored."""

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn import model_selection
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score

from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV

X = np.random.default_rng(0).normal(size=(60, 3))
y = X[:, 0]
ROWS = da.from_array(X, chunks=20)
FOLDS = model_selection.KFold(2)
GRID = {"p": [1.0, 0.5, 0.7, 0.1, 0.2]}


@pytest.fixture(scope="module", autouse=True)
def _client():
    with Client(n_workers=1, processes=False, dashboard_address=":0"):
        yield


class Scaled(RegressorMixin, BaseEstimator):
    """Fitted in the driver, as it seems to be ours; one of its fits is interrupted, others fail."""

    __module__ = "skfleet.of_this_test"
    n_left = np.inf

    def __init__(self, p=1.0, fails=(), size=1):
        self.p = p
        self.fails = fails
        self.size = size

    def fit(self, X, y):
        if Scaled.n_left <= 0:
            raise KeyboardInterrupt
        Scaled.n_left -= 1
        if self.p in self.fails:
            raise ValueError("no luck")
        return self

    def predict(self, X):
        return self.p * np.asarray(X)[:, 0]


def interrupted(search, after):
    """Fit a search; Ctrl-C is pressed in the fit after so many."""
    Scaled.n_left = after
    try:
        with pytest.raises(KeyboardInterrupt):
            search.fit(ROWS, y)
    finally:
        Scaled.n_left = np.inf
    return search


def several(estimator, X, y):
    return {"a": 1.0, "r2": r2_score(y, estimator.predict(X))}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"refit": False},
        {"scoring": ["r2", "neg_max_error"], "refit": "r2"},
        {"scoring": ["r2", "neg_max_error"], "refit": False},
        {"scoring": several, "refit": "r2"},
        {"refit": lambda results: 1},
    ],
)
def test_all_but_the_last_fit_is_as_in_a_search_of_what_was_scored(how):
    """Seven fits, so three candidates and half of one: scikit-learn's answer for these three."""
    ours = interrupted(GridSearchCV(Scaled(), GRID, cv=FOLDS, **how), 7)
    theirs = model_selection.GridSearchCV(Scaled(), {"p": GRID["p"][:3]}, cv=FOLDS, **how)
    theirs.fit(X, y)
    assert set(vars(theirs)) - set(vars(ours)) <= {"best_estimator_", "refit_time_"}
    assert ours.cv_results_.keys() == theirs.cv_results_.keys()
    for name, values in theirs.cv_results_.items():
        if "time" not in name:
            np.testing.assert_array_equal(ours.cv_results_[name], values)
    for name in ("best_index_", "best_params_", "best_score_", "multimetric_"):
        assert getattr(ours, name, None) == getattr(theirs, name, None)


def test_of_no_candidate_there_is_nothing():
    assert not hasattr(interrupted(GridSearchCV(Scaled(), GRID, cv=FOLDS), 1), "cv_results_")


def test_what_an_earlier_fit_left_stays_until_there_is_something_else():
    search = GridSearchCV(Scaled(), GRID, cv=FOLDS).fit(ROWS, y)
    interrupted(search, 1)
    assert len(search.cv_results_["params"]) == 5
    assert search.predict(X).shape == (60,)
    interrupted(search, 2)
    assert len(search.cv_results_["params"]) == 1
    assert not hasattr(search, "best_estimator_")


def test_failed_fits_are_in_the_results_and_no_warning_tells_of_them():
    search = GridSearchCV(Scaled(fails=(0.5,)), GRID, cv=FOLDS, scoring=several, refit="r2")
    interrupted(search, 6)
    np.testing.assert_array_equal(search.cv_results_["mean_test_r2"] > 0, [True, False, True])
    failing = GridSearchCV(Scaled(fails=GRID["p"]), GRID, cv=FOLDS)
    assert not hasattr(interrupted(failing, 6), "cv_results_")


def test_in_the_last_fit_all_results_are_there():
    search = interrupted(GridSearchCV(Scaled(), GRID, cv=FOLDS), 10)
    assert search.best_params_ == {"p": 1.0}
    assert len(search.cv_results_["params"]) == 5


def test_function_that_chooses_and_fails_leaves_the_results():
    search = interrupted(GridSearchCV(Scaled(), GRID, cv=FOLDS, refit=lambda results: 1 / 0), 4)
    assert len(search.cv_results_["params"]) == 2
    assert not hasattr(search, "best_index_")


@pytest.mark.parametrize(("after", "n_results"), [(6, 3), (12, 6), (16, 8)])
def test_halving_chooses_among_those_that_had_as_much(after, n_results):
    """In the second iteration the best comes last: until then that of the first one counts."""
    grid = {"p": [0.3, 0.5, 0.7, 0.1, 0.2]}
    search = HalvingGridSearchCV(
        Scaled(), grid, cv=FOLDS, factor=2, resource="size", max_resources=4
    )
    interrupted(search, after)
    assert search.cv_results_["iter"].tolist() == ([0] * 5 + [1] * 3)[:n_results]
    assert search.best_params_["p"] == 0.7
