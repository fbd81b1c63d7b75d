"""Scorers, steps and fits that write into their rows: what follows in the same fit sees it."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn import linear_model, model_selection, neighbors
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.metrics import make_scorer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PolynomialFeatures, StandardScaler

from random_examples import n_examples
from skfleet.engine import Pickled
from skfleet.model_selection import GridSearchCV, SuccessiveHalvingSearchCV
from skfleet.model_selection._dispatch._pipeline_cache import CachedRows

pytestmark = pytest.mark.usefixtures("on_cluster")

_rng = np.random.default_rng(0)
ROWS = _rng.normal(size=(150, 4)) + 1
LABELS = (ROWS[:, 0] + ROWS[:, 1] + _rng.normal(size=150) > 2).astype(int)


def plain(estimator, X, y):
    return estimator.score(X, y)


def without_column(estimator, X, y):
    if hasattr(X, "iloc"):
        X["a"] = 0.0
    else:
        X[:, 0] = 0.0
    return estimator.score(X, y)


def in_place(estimator, X, y):
    if hasattr(X, "iloc"):
        X.iloc[:, 1] = 5.0
    else:
        X *= -1
    return estimator.score(X, y)


def other_labels(estimator, X, y):
    y[:] = 1 - y
    return estimator.score(X, y)


SCORERS = {"a": plain, "b": without_column, "c": in_place, "d": other_labels, "e": plain}
MODELS = {
    "scaled": make_pipeline(StandardScaler(), linear_model.LogisticRegression()),
    "in place": make_pipeline(
        SimpleImputer(copy=False),
        MinMaxScaler(copy=False),
        PCA(copy=False),
        linear_model.RidgeClassifier(copy_X=False),
    ),
    "polynomials": make_pipeline(
        PolynomialFeatures(2), MaxAbsScaler(), neighbors.KNeighborsClassifier()
    ),
    "neighbors": neighbors.KNeighborsClassifier(),
    "ridge": linear_model.RidgeClassifier(copy_X=False),
}
GRIDS = {
    "scaled": {"logisticregression__C": [0.01, 1.0]},
    "in place": {"ridgeclassifier__alpha": [0.01, 100.0], "pca__n_components": [1, 3]},
    "polynomials": {"kneighborsclassifier__n_neighbors": [1, 5]},
    "neighbors": {"n_neighbors": [1, 5]},
    "ridge": {"alpha": [0.01, 100.0]},
}


def compare(model, scoring, *, is_frame, return_train_score):
    """Compare the scores of a search with those of scikit-learn's."""
    options = {"cv": 3, "scoring": scoring, "refit": False}
    options["return_train_score"] = return_train_score
    searches = []
    for kind in (model_selection.GridSearchCV, GridSearchCV):
        X = pd.DataFrame(ROWS, columns=list("abcd")) if is_frame else ROWS.copy()
        searches.append(kind(MODELS[model], GRIDS[model], **options).fit(X, LABELS.copy()))
    want, got = (search.cv_results_ for search in searches)
    for name in [name for name in want if name.startswith("split")]:
        np.testing.assert_allclose(got[name], want[name], err_msg=name)


@settings(
    max_examples=n_examples(2, 40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    model=st.sampled_from(list(MODELS)),
    names=st.lists(st.sampled_from(list(SCORERS)), min_size=1, unique=True),
    is_frame=st.booleans(),
    return_train_score=st.booleans(),
)
def test_scores_after_a_scorer_see_what_it_wrote(model, names, is_frame, return_train_score):
    scoring = {name: SCORERS[name] for name in names} | {"accuracy": "accuracy"}
    compare(model, scoring, is_frame=is_frame, return_train_score=return_train_score)


@pytest.mark.parametrize("is_frame", [False, True])
def test_scores_after_another_are_of_the_changed_rows(is_frame):
    scoring = {"plain": plain, "without": without_column}
    compare("scaled", scoring, is_frame=is_frame, return_train_score=False)


@pytest.mark.parametrize("model", [pytest.param("in place", marks=pytest.mark.slow), "ridge"])
def test_fits_in_place_change_the_rows_that_are_scored(model):
    compare(model, "accuracy", is_frame=False, return_train_score=True)


def test_models_that_refer_to_their_rows_are_not_shared_with_scorers_that_write():
    compare("neighbors", {"b": without_column}, is_frame=False, return_train_score=True)


def test_equal_steps_are_still_fitted_once_with_scorers_of_the_user():
    fitted = []

    class Counted(StandardScaler):
        def fit(self, X, y=None, sample_weight=None):
            fitted.append(len(X))
            return super().fit(X, y)

    pipeline = make_pipeline(Counted(), linear_model.LogisticRegression())
    grid = {"logisticregression__C": [0.01, 0.1, 1.0]}
    scoring = {"plain": plain, "without": without_column}
    GridSearchCV(pipeline, grid, cv=3, scoring=scoring, refit=False).fit(ROWS, LABELS)
    assert len(fitted) <= 3 * 2  # a worker's batches of a split; nine without the cache


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        np.asfortranarray(ROWS),
        ROWS[::2, ::2],
        pd.DataFrame({"a": [1.0, np.nan], "b": ["x", None]}),
        ["one", "two"],
        np.empty((0, 3)),
    ],
    ids=["C", "Fortran", "strided", "frame", "list", "empty"],
)
def test_cached_rows_know_their_content(rows):
    cached = CachedRows(rows)
    copy = cached.copy()
    assert cached.is_content_of(copy)
    if isinstance(copy, list):
        copy[0] = "three"
    elif hasattr(copy, "iloc"):
        copy.loc[0, "b"] = "y"
    elif copy.size:
        copy[0, 0] += 1
    else:
        copy = np.ones((1, 3))
    assert not cached.is_content_of(copy)
    assert cached.is_content_of(cached.copy())


def test_bytes_of_the_same_memory_are_equal():
    assert Pickled.dumps(ROWS).is_equal(Pickled.dumps(ROWS))
    assert not Pickled.dumps(ROWS).is_equal(Pickled.dumps(ROWS[:1]))


class WritingSGD(linear_model.SGDClassifier):
    """Classifier that writes into the rows that it has learned, and knows what they were."""

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        self.sums_ = {*getattr(self, "sums_", ()), round(float(np.abs(X).to_numpy().sum()), 6)}
        super().partial_fit(X, y, classes=classes, sample_weight=sample_weight)
        X.iloc[:] = 0.0
        return self


def total(estimator, X, y):
    """Score the rows themselves, and write into them."""
    value = float(np.abs(X).to_numpy().sum())
    X.iloc[:] = 0.0
    return value


def inverted(y_true, y_pred):
    value = float(np.sum(y_true))
    y_true[:] = 1 - y_true
    return value


@pytest.mark.parametrize("estimator", [linear_model.SGDClassifier(), WritingSGD()])
def test_candidates_of_adaptive_searches_have_rows_of_their_own(estimator):
    X, y = pd.DataFrame(ROWS, columns=list("abcd")), LABELS.copy()
    labels = make_scorer(inverted)
    search = SuccessiveHalvingSearchCV(
        estimator,
        {"alpha": [1e-4, 1e-3, 1e-2, 1e-1]},
        n_initial_parameters=4,
        scoring={"total": total, "total again": total, "labels": labels, "labels again": labels},
        refit="labels",
        random_state=0,
    ).fit(X, y)
    np.testing.assert_array_equal(X, ROWS)
    np.testing.assert_array_equal(y, LABELS)
    scores = {name: search.cv_results_[f"mean_test_{name}"] for name in search.scorer_}
    assert np.ptp(scores["total"]) == 0 < scores["total"].min()
    assert not scores["total again"].any()
    assert np.ptp(scores["labels"]) == 0 < scores["labels"].min()
    assert set(scores["labels"] + scores["labels again"]) == {np.ceil(0.15 * len(y))}
    assert len(getattr(search.best_estimator_, "sums_", {0})) == 1
