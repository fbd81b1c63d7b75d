"""Searches that cannot stop early are refused before any work."""

import joblib
import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import make_classification
from sklearn.decomposition import KernelPCA
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import SGDClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from skfleet.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
)
from skfleet.model_selection._dispatch._routes import _on_workers
from skfleet.model_selection._early_stopping._libraries import booster_of
from skfleet.model_selection._early_stopping._validation_rows import ValidationRows

X, y = make_classification(120, 4, n_informative=3, n_redundant=0, random_state=0)
HIST = HistGradientBoostingClassifier(max_iter=5)
LEAVES = {"max_leaf_nodes": [3, 4]}


@pytest.fixture(autouse=True)
def _no_fits(on_cluster, monkeypatch):
    def send(*args):
        raise AssertionError("fits are sent")

    monkeypatch.setattr(_on_workers, "_batch_call", send)


def assert_refused(search, message, rows=X, targets=y, **params):
    with pytest.raises(ValueError, match=message):
        search.fit(rows, targets, **params)
    assert not hasattr(search, "cv_results_")


@pytest.mark.parametrize("value", [0, 0.0, 1, 1.0, 1.5, -0.1, np.nan, True, "tests", [0.1]])
def test_values(value):
    assert_refused(GridSearchCV(HIST, LEAVES, early_stopping=value), "early_stopping must be a")


NO_VALIDATION_ROWS = {
    "SVC": SVC(),
    "SGDClassifier": SGDClassifier(early_stopping=True),
    "TransformedTargetRegressor": TransformedTargetRegressor(HistGradientBoostingRegressor()),
    "MultiOutputClassifier": MultiOutputClassifier(HIST),
    "XGBRanker": xgboost.XGBRanker(early_stopping_rounds=3),
    "LGBMRanker": lightgbm.LGBMRanker(early_stopping_round=3),
    "Pipeline": make_pipeline(StandardScaler(), HIST),
    "'passthrough'": "passthrough",
}


@pytest.mark.parametrize("name", NO_VALIDATION_ROWS)
def test_estimators_without_validation_rows(name):
    estimator = make_pipeline(StandardScaler(), NO_VALIDATION_ROWS[name])
    message = f"must be None for an estimator without X_val. Got 0.2 for {name} instead"
    assert_refused(GridSearchCV(estimator, {}, early_stopping=0.2), message)
    if name not in ("Pipeline", "'passthrough'"):
        search = RandomizedSearchCV(
            estimator[-1], {"random_state": [0]}, n_iter=1, early_stopping=0.2
        )
        assert_refused(search, message)


def test_a_last_step_without_validation_rows_among_the_candidates():
    estimator = make_pipeline(StandardScaler(), HIST)
    grid = {"histgradientboostingclassifier": [HIST, SVC()]}
    for kind in (GridSearchCV, HalvingGridSearchCV):
        search = kind(estimator, grid, early_stopping="test")
        assert_refused(search, "without X_val. Got 'test' for SVC instead")


NO_ROUNDS = {
    "xgboost": (xgboost.XGBClassifier(), {}),
    "xgboost, one of them": (
        xgboost.XGBClassifier(early_stopping_rounds=3),
        {"early_stopping_rounds": [3, None]},
    ),
    "lightgbm": (lightgbm.LGBMClassifier(), {}),
    "lightgbm, off": (lightgbm.LGBMClassifier(early_stopping_round=0), {}),
    "lightgbm, one of them": (
        lightgbm.LGBMClassifier(early_stopping_round=3),
        {"early_stopping_round": [3, -1]},
    ),
}


@pytest.mark.parametrize("name", NO_ROUNDS)
def test_boosters_that_would_not_stop(name):
    model, grid = NO_ROUNDS[name]
    message = "early_stopping_rounds? of .* must be a number of rounds"
    assert_refused(GridSearchCV(model, grid, early_stopping=0.2), message)
    step = type(model).__name__.lower()
    search = HalvingRandomSearchCV(
        make_pipeline(StandardScaler(), model),
        {f"{step}__{name}": values for name, values in (grid or {"random_state": [0, 1]}).items()},
        n_candidates=2,
        early_stopping=0.2,
    )
    assert_refused(search, message)


def test_early_stopping_that_is_off():
    for estimator, grid in [
        (HistGradientBoostingClassifier(early_stopping=False), {}),
        (HIST, {"early_stopping": ["auto", False]}),
    ]:
        search = GridSearchCV(estimator, grid, early_stopping=0.2)
        assert_refused(search, "must be 'auto' or True")


@pytest.mark.parametrize("name", ["X_val", "histgradientboostingclassifier__y_val", "eval_set"])
def test_validation_rows_of_the_users(name):
    search = GridSearchCV(make_pipeline(StandardScaler(), HIST), {}, early_stopping=0.2)
    assert_refused(search, f"{name} must be left out", **{name: X})


def test_rows_that_have_no_fraction():
    rare = np.r_[0, np.ones(119, int)]
    search = GridSearchCV(
        HIST, LEAVES, early_stopping=0.2, cv=[(np.arange(80), np.arange(80, 120))]
    )
    assert_refused(search, "The least populated class", targets=rare)
    few = GridSearchCV(HIST, LEAVES, early_stopping=0.001, cv=2)
    assert_refused(few, "Choose another fraction, or fewer splits")


def test_kernels_and_targets():
    estimator = make_pipeline(KernelPCA(kernel="precomputed"), HIST)
    assert_refused(GridSearchCV(estimator, {}, early_stopping=0.2), "distances or kernels", X @ X.T)

    class Unsupervised(HistGradientBoostingClassifier):
        def __sklearn_tags__(self):
            tags = super().__sklearn_tags__()
            tags.target_tags.required = False
            return tags

    search = GridSearchCV(Unsupervised(), {}, early_stopping=0.2)
    assert_refused(search, "must be None without targets", targets=None)


def test_fits_of_another_backend():
    search = GridSearchCV(HIST, LEAVES, early_stopping=0.2, n_jobs=2)
    with joblib.parallel_config("loky"):
        assert_refused(search, "Got n_jobs=2 with joblib's LokyBackend instead. Set n_jobs=1")


def test_rows_on_dask_stay_in_order():
    train, test = np.arange(100, 300), np.arange(100)
    parts = [
        ValidationRows(0.2, 0, False, keeps_order, {}).split(train, test, None)
        for keeps_order in (False, True)
    ]
    for drawn, ordered in zip(*parts, strict=True):
        assert sorted(drawn) == ordered.tolist()
    assert parts[0][0].tolist() != parts[1][0].tolist()
    mask = np.r_[np.zeros(100, bool), np.ones(200, bool)]
    masked = ValidationRows(0.2, 0, False, True, {}).split(mask, test, None)
    np.testing.assert_array_equal(masked[2], parts[1][2])


def test_iterations_of_a_booster_that_cannot_stop():
    model = lightgbm.LGBMClassifier(
        n_estimators=5, boosting_type="dart", early_stopping_round=1, verbose=-1
    )
    booster = booster_of(model)
    with pytest.warns(UserWarning, match="not available in dart mode"):
        booster.fit(X, y, X, y, None, {})
    assert booster.best_iteration == 5
