"""What a search says of fits that contain others, and how it is asked to share them."""

import numpy as np
import pytest
from sklearn.datasets import make_regression
from sklearn.ensemble import (
    BaggingRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.metrics import check_scoring
from sklearn.model_selection._validation import _fit_and_score
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from skfleet.engine._dask._serialize import Pickled
from skfleet.model_selection import GridSearchCV, SharedFit, SharedFitUse, register_shared_fit
from skfleet.model_selection._dispatch._fit_tasks import FitCall, JobSpec, run_fits
from skfleet.model_selection._paths import _registry
from skfleet.model_selection._paths._registry import member_of, register_default

X, y = make_regression(120, 5, noise=5, random_state=0)


pytestmark = pytest.mark.usefixtures("one_thread")


def use(search):
    """Return the one shared fit that a search used or refused."""
    (one,) = search.shared_fits_
    return one


@pytest.mark.parametrize("value", ["yes", 1, None, ["approximate"]])
def test_sharing_is_asked_for_in_one_of_three_ways(value):
    search = GridSearchCV(KNeighborsRegressor(), {"n_neighbors": [2, 4]}, cv=2, share_fits=value)
    with pytest.raises(ValueError, match=r"share_fits must be True, False or 'approximate'\. Got"):
        search.fit(X, y)
    assert not hasattr(search, "cv_results_")


@pytest.mark.parametrize("value", [True, np.True_, "approximate"])
def test_what_is_exact_is_shared_either_way(value):
    search = GridSearchCV(KNeighborsRegressor(), {"n_neighbors": [2, 4]}, cv=2, share_fits=value)
    assert use(search.fit(X, y)).n_saved == 2


@pytest.mark.parametrize(
    "model",
    [
        RandomForestRegressor(random_state=0, verbose=1),
        BaggingRegressor(random_state=0, verbose=1),
        GradientBoostingRegressor(random_state=0, verbose=1),
        HistGradientBoostingRegressor(random_state=0, verbose=1, early_stopping=False),
    ],
)
def test_what_is_printed_is_no_reason_against(model, capsys):
    size = "max_iter" if hasattr(model, "max_iter") else "n_estimators"
    search = GridSearchCV(model, {size: [2, 4]}, cv=2, refit=False)
    search.fit(X, y)
    assert (use(search).n_saved, use(search).refused) == (2, None)
    assert capsys.readouterr()


def test_candidates_that_differ_in_more_say_so():
    grid = [{"n_neighbors": [n], "p": [n]} for n in (1, 2)]
    search = GridSearchCV(KNeighborsRegressor(), grid, cv=2, refit=False).fit(X, y)
    refused = "other candidates must differ in n_neighbors or weights alone"
    assert use(search) == ("KNeighborsRegressor", ("n_neighbors", "weights"), 4, 0, refused)


@pytest.mark.parametrize(
    ("grid", "n_fits"),
    [
        ({"m": [RandomForestRegressor(3, random_state=0), KNeighborsRegressor()]}, 0),
        (
            {
                "steps": [[("m", RandomForestRegressor(3, random_state=0))]],
                "m__n_estimators": [2, 3],
            },
            4,
        ),
        ({"s": ["passthrough", StandardScaler()], "m__n_estimators": [2, 3]}, 8),
    ],
)
def test_grids_over_steps_are_left_alone(grid, n_fits):
    model = Pipeline([("s", StandardScaler()), ("m", RandomForestRegressor(random_state=0))])
    search = GridSearchCV(model, grid, cv=2, refit=False)
    search.fit(X, y)
    refused = "the pipeline must be the same for all candidates, but for parameters"
    expected = SharedFitUse("RandomForestRegressor", ("n_estimators",), n_fits, 0, refused)
    assert search.shared_fits_ == ((expected,) if n_fits else ())


def test_arrays_of_another_library_say_so():
    model, values = KNeighborsRegressor(), [{"n_neighbors": 2}, {"n_neighbors": 4}]
    options = {
        "scorer": check_scoring(model),
        "fit_params": {},
        "score_params": {},
        "error_score": "raise",
        "verbose": 0,
    }
    calls = [FitCall(0, 0, {"parameters": one}, (1,), member_of(model, one)) for one in values]
    folds = {0: (np.arange(60), np.arange(60, 120))}
    for is_shared in (True, False):
        job = JobSpec(_fit_and_score, (Pickled.dumps(model),), options, True, is_shared)
        came = [one.origin for one in run_fits(job, calls, X, y, folds)]
        refused = None if is_shared else "rows must be NumPy's where they are fitted"
        assert came == [(False, refused), (is_shared, refused)]


class Copies(SharedFit):
    """Shares nothing: each candidate is a copy."""

    parameters, known = (), frozenset()

    def fit(self, estimator, candidates, X, y, **fit_params):
        return [estimator.fit(X, y) for _ in candidates]


def test_a_shared_fit_of_the_users_stays_where_ours_is_loaded_later(monkeypatch):
    monkeypatch.setattr(_registry, "_by_name", {})
    own, default = Copies(), Copies()
    register_shared_fit("sklearn.pipeline.Pipeline", own)
    register_default("sklearn.pipeline.Pipeline", default)
    register_default("sklearn.preprocessing.StandardScaler", default)
    assert _registry.inherited_shared_fit(Pipeline([])) is own
    assert _registry.inherited_shared_fit(StandardScaler()) is default
