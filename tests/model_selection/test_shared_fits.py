"""Fits that contain others give the scores of separate fits, or are not used."""

import warnings

import joblib
import numpy as np
import pytest
import sklearn.model_selection as reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_classification, make_regression
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from clusters import local_client
from random_examples import n_examples
from skfleet.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
    SharedFit,
    SharedFitUse,
    register_shared_fit,
)
from skfleet.model_selection._dispatch import _requests
from skfleet.model_selection._paths import _registry
from skfleet.model_selection._paths._execution import SharedFitRun

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.FitFailedWarning")

X, y = make_classification(240, 8, n_informative=5, n_classes=3, random_state=0)
Xr, yr = make_regression(240, 8, noise=5, random_state=0)

GROWING = [
    (AdaBoostClassifier, "n_estimators"),
    (AdaBoostRegressor, "n_estimators"),
    (BaggingClassifier, "n_estimators"),
    (BaggingRegressor, "n_estimators"),
    (ExtraTreesClassifier, "n_estimators"),
    (ExtraTreesRegressor, "n_estimators"),
    (GradientBoostingClassifier, "n_estimators"),
    (GradientBoostingRegressor, "n_estimators"),
    (HistGradientBoostingClassifier, "max_iter"),
    (HistGradientBoostingRegressor, "max_iter"),
    (RandomForestClassifier, "n_estimators"),
    (RandomForestRegressor, "n_estimators"),
]
NEIGHBORS = [KNeighborsClassifier, KNeighborsRegressor]


@pytest.fixture(scope="module", autouse=True)
def fleet():
    """Make a fleet of two workers the default."""
    with local_client(2, threads_per_worker=1, processes=False) as client:
        yield client


def rows_for(kind):
    """Give rows and targets for a class of estimators."""
    return (Xr, yr) if issubclass(kind, RegressorMixin) else (X, y)


def assert_same_scores(search, data, *, rtol=0.0):
    """Compare a search with scikit-learn's own, which makes every fit by itself."""
    params = search.get_params(deep=False)
    for own in ("share_fits", "checkpoint", "time_budget", "racing", "early_stopping"):
        params.pop(own, None)
    theirs = next(kind for kind in type(search).__mro__ if kind.__module__.startswith("sklearn"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(*data)
        other = theirs(**params).fit(*data)
    assert search.cv_results_.keys() == other.cv_results_.keys()
    for name, expected in other.cv_results_.items():
        found = search.cv_results_[name]
        if name.endswith("_time"):
            assert (found >= 0).all()
        elif "score" in name and not name.startswith("rank"):
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol, err_msg=name)
        elif not (name.startswith("rank") and rtol):
            np.testing.assert_array_equal(found, expected, err_msg=name)


def use(search):
    """Return the one shared fit that a search used or refused."""
    (found,) = search.shared_fits_
    return found


def assert_saved(search, estimator, parameters, n_fits, most):
    """Check the report of a shared fit. (Batches that take long leave members to others.)"""
    found = use(search)
    assert found == SharedFitUse(estimator, parameters, n_fits, found.n_saved, None)
    assert most / 2 < found.n_saved <= most


# -- the same scores -----------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("kind", "size"), GROWING)
def test_ensembles_are_cut_from_the_largest(kind, size):
    model = kind(random_state=0)
    if size == "max_iter":
        model.set_params(early_stopping=False)
    search = GridSearchCV(model, {size: [7, 2, 4, 1]}, cv=3, return_train_score=True)
    assert_same_scores(search, rows_for(kind))
    assert_saved(search, kind.__name__, (size,), 12, 9)


@settings(
    max_examples=n_examples(5, 12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    which=st.sampled_from(GROWING),
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    cv=st.integers(2, 4),
    seed=st.integers(0, 2**31 - 1),
    in_pipeline=st.booleans(),
    scale=st.sampled_from([1.0, 1e-4, 1e6]),
    draws=st.booleans(),
)
def test_ensembles_at_random(which, sizes, cv, seed, in_pipeline, scale, draws):
    kind, size = which
    model = kind(random_state=seed)
    if size == "max_iter":
        model.set_params(early_stopping=False, max_features=0.5 if draws else 1.0)
    elif "max_samples" in model.get_params() and model.get_params().get("bootstrap"):
        model.set_params(max_samples=0.6 if draws else None)
    elif "subsample" in model.get_params():
        model.set_params(subsample=0.5 if draws else 1.0)
    grid = {size: sizes}
    rows, targets = rows_for(kind)
    rows = rows * np.logspace(0, np.log10(scale), rows.shape[1])
    if in_pipeline:
        model = make_pipeline(StandardScaler(), model)
        grid = {f"{model.steps[-1][0]}__{size}": sizes, "standardscaler__with_std": [True, False]}
    search = GridSearchCV(model, grid, cv=cv, refit=False)
    assert_same_scores(search, (rows, targets))
    n_distinct = len(set(sizes)) * (2 if in_pipeline else 1)
    assert (use(search).refused is None) == (len(set(sizes)) > 1)
    n_blocks = 2 if in_pipeline else 1
    assert 0 <= use(search).n_saved <= cv * (n_distinct - n_blocks)


@pytest.mark.parametrize("kind", NEIGHBORS)
@pytest.mark.parametrize(
    ("algorithm", "ties"),
    [
        ("auto", False),
        ("brute", True),
        ("kd_tree", False),
        ("ball_tree", True),
        pytest.param("auto", True, marks=pytest.mark.slow),
        pytest.param("brute", False, marks=pytest.mark.slow),
        pytest.param("kd_tree", True, marks=pytest.mark.slow),
        pytest.param("ball_tree", False, marks=pytest.mark.slow),
    ],
)
def test_neighbors_are_found_once(kind, algorithm, ties):
    rows, targets = rows_for(kind)
    rows = np.round(rows) if ties else rows
    grid = {"n_neighbors": [1, 2, 5, 30, 80], "weights": ["uniform", "distance", _halved]}
    search = GridSearchCV(kind(algorithm=algorithm), grid, cv=3)
    assert_same_scores(search, (rows, targets), rtol=1e-12)
    assert_saved(search, kind.__name__, ("n_neighbors", "weights"), 45, 42)


def _halved(distances):
    return 0.5 / (1 + distances)


def test_neighbors_are_asked_for_once_for_all_scores(monkeypatch):
    asked = []
    plain = KNeighborsClassifier.kneighbors

    def counting(self, X=None, n_neighbors=None, return_distance=True):
        asked.append(len(X))
        return plain(self, X, n_neighbors, return_distance)

    monkeypatch.setattr(KNeighborsClassifier, "kneighbors", counting)
    grid = {"n_neighbors": range(1, 11)}
    search = GridSearchCV(
        KNeighborsClassifier(weights="distance"),
        grid,
        scoring=["accuracy", "neg_log_loss", "roc_auc_ovr"],
        refit=False,
        cv=3,
    )
    search.fit(X, y)
    assert sum(asked) < 15 * len(X) / 3


@pytest.mark.parametrize("kind", NEIGHBORS)
def test_too_many_neighbors_fail_as_they_do(kind):
    search = GridSearchCV(kind(), {"n_neighbors": [1, 500, 3]}, cv=3, error_score=-7, refit=False)
    assert_same_scores(search, rows_for(kind), rtol=1e-12)
    assert (search.cv_results_["split0_test_score"] == -7).sum() == 1


def test_sample_weights_and_scores_of_all_kinds():
    weights = np.random.RandomState(0).rand(len(X))
    params = {
        "scoring": ["accuracy", "neg_log_loss"],
        "refit": "neg_log_loss",
        "return_train_score": True,
        "cv": 3,
    }
    grid = {"n_estimators": [3, 9, 6]}
    model = GradientBoostingClassifier(random_state=0)
    ours = GridSearchCV(model, grid, **params).fit(X, y, sample_weight=weights)
    theirs = reference.GridSearchCV(model, grid, **params).fit(X, y, sample_weight=weights)
    for name, expected in theirs.cv_results_.items():
        if "score" in name and not name.endswith("_time"):
            np.testing.assert_array_equal(ours.cv_results_[name], expected)
    assert 3 < use(ours).n_saved <= 6
    np.testing.assert_array_equal(ours.predict_proba(X), theirs.predict_proba(X))


def test_randomized_and_halving_searches_share():
    model = RandomForestClassifier(random_state=0)
    search = RandomizedSearchCV(
        model, {"n_estimators": range(1, 9), "max_depth": [2, 4]}, n_iter=10, random_state=1, cv=2
    )
    assert_same_scores(search, (X, y))
    assert 8 < use(search).n_saved <= 2 * (10 - 2)
    halving = HalvingGridSearchCV(model, {"n_estimators": [2, 4, 6, 8]}, cv=2, random_state=0)
    assert_same_scores(halving, (X, y))
    assert use(halving).n_saved > 0


def test_one_fit_counts_in_equal_parts():
    grid = {"n_estimators": [1, 40]}
    model = RandomForestRegressor(random_state=0)
    search = GridSearchCV(model, grid, cv=2, refit=False).fit(Xr, yr)
    few, many = search.cv_results_["mean_fit_time"]
    assert 0.3 < few / many < 3


# -- refusals ------------------------------------------------------------------------------------


class Forest(RandomForestRegressor):
    """Might do anything."""


class More(KNeighborsRegressor):
    """Has a parameter that no shared fit knows."""

    def __init__(self, n_neighbors=5, extra=None, **_):
        super().__init__(n_neighbors)
        self.extra = extra


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (RandomForestRegressor(), "random_state must be an integer"),
        (RandomForestRegressor(random_state=np.random.RandomState(0)), "random_state"),
        (RandomForestRegressor(random_state=0, warm_start=True), "warm_start must be False"),
        (RandomForestRegressor(random_state=0, oob_score=True), "oob_score must be False"),
        (GradientBoostingRegressor(random_state=0, n_iter_no_change=2), "n_iter_no_change"),
        (GradientBoostingRegressor(random_state=0, init="zero"), "init must be None"),
        (HistGradientBoostingRegressor(random_state=0), "early_stopping must be False"),
        (HistGradientBoostingRegressor(random_state=0, early_stopping=True), "early_stopping"),
    ],
)
@pytest.mark.filterwarnings("ignore:Some inputs do not have OOB scores")
def test_what_might_differ_is_fitted_by_itself(model, word):
    size = "max_iter" if hasattr(model, "max_iter") else "n_estimators"
    search = GridSearchCV(model, {size: [2, 4]}, cv=2, refit=False).fit(Xr, yr)
    found = use(search)
    assert word in found.refused
    assert (found.n_fits, found.n_saved) == (4, 0)


@pytest.mark.parametrize("values", [[2, -1], [2, 2.5], [2, True]])
def test_sizes_that_are_none_are_refused_one_by_one(values):
    model = RandomForestRegressor(random_state=0)
    search = GridSearchCV(model, {"n_estimators": values}, cv=2, refit=False, error_score=-1)
    assert_same_scores(search, (Xr, yr))
    refused = [found.refused.partition(" must ")[0] for found in search.shared_fits_]
    assert refused == ["other candidates", "n_estimators"]
    assert sum(found.n_saved for found in search.shared_fits_) == 0


def test_parameters_that_are_searched_over_may_refuse():
    model = HistGradientBoostingRegressor(random_state=0)
    grid = {"max_iter": [2, 4], "early_stopping": [False, True]}
    search = GridSearchCV(model, grid, cv=2, refit=False)
    assert_same_scores(search, (Xr, yr))
    assert {(found.refused is None, found.n_saved > 0) for found in search.shared_fits_} == {
        (True, True),
        (False, False),
    }


def test_subclasses_share_no_fits():
    search = GridSearchCV(Forest(random_state=0), {"n_estimators": [2, 4]}, cv=2)
    assert_same_scores(search, (Xr, yr))
    assert use(search)[:4] == ("Forest", ("n_estimators",), 4, 0)
    assert "subclass" in use(search).refused


def test_unknown_parameters_are_refused(monkeypatch):
    monkeypatch.setitem(_registry._by_type, More, _registry._shared_fit_of(KNeighborsRegressor))
    search = GridSearchCV(More(), {"n_neighbors": [2, 4]}, cv=2, refit=False).fit(Xr, yr)
    assert "extra" in use(search).refused


class Listener:
    """The least that scikit-learn takes for a callback."""

    def setup(self, *args, **kwargs):
        pass

    def teardown(self, *args, **kwargs):
        pass

    def on_fit_task_begin(self, *args, **kwargs):
        pass

    def on_fit_task_end(self, *args, **kwargs):
        pass


def test_callbacks_are_to_hear_of_every_fit():
    search = GridSearchCV(RandomForestRegressor(random_state=0), {"n_estimators": [2, 4]}, cv=2)
    search.set_callbacks(Listener()).fit(Xr, yr)
    assert "callbacks" in use(search).refused
    assert use(search).n_saved == 0


def test_it_can_be_turned_off():
    model, grid = RandomForestRegressor(random_state=0), {"n_estimators": [2, 4]}
    search = GridSearchCV(model, grid, cv=2, share_fits=False).fit(Xr, yr)
    assert search.shared_fits_ == ()


def test_plain_searches_share_no_fits(monkeypatch):
    made = []
    monkeypatch.setattr(_requests, "member_of", lambda *args, **kwargs: made.append(args))
    with joblib.parallel_config("skfleet"):
        reference.GridSearchCV(
            RandomForestRegressor(random_state=0), {"n_estimators": [2, 4]}, cv=2
        ).fit(Xr, yr)
    assert made == []


def test_nested_steps_are_shared_before_shared_fits():
    columns = ColumnTransformer([("a", StandardScaler(), [0, 1]), ("b", "passthrough", [2, 3])])
    model = Pipeline([("c", columns), ("m", KNeighborsRegressor())])
    grid = {"c__a__with_mean": [True, False], "m__n_neighbors": [2, 4, 8]}
    search = GridSearchCV(model, grid, cv=3)
    assert_same_scores(search, (Xr, yr), rtol=1e-12)
    assert 6 < use(search).n_saved <= 3 * 2 * 2


# -- shared fits of users -------------------------------------------------------------------------


class Shifted(RegressorMixin, BaseEstimator):
    """Predicts the mean and a shift."""

    n_fitted = 0

    def __init__(self, shift=0.0, fails=False):
        self.shift = shift
        self.fails = fails

    def fit(self, X, y):
        if self.fails:
            raise ValueError("as told")
        type(self).n_fitted += 1
        self.mean_ = np.mean(y)
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_ + self.shift)


class Shifts(SharedFit):
    """Fits once for all shifts, or fails."""

    parameters = ("shift",)
    known = frozenset({"shift", "fails"})

    def __init__(self, *, fails=False):
        self.fails = fails

    def fit(self, estimator, candidates, X, y, **fit_params):
        if self.fails:
            raise RuntimeError("no luck")
        mean = estimator.fit(X, y, **fit_params).mean_
        models = [Shifted(**values) for values in candidates]
        for model in models:
            model.mean_ = mean
        return models


@pytest.fixture
def shifts():
    """Register a shared fit, for a while."""
    register_shared_fit(Shifted, Shifts())
    yield
    del _registry._by_type[Shifted]


def test_users_can_register_shared_fits(shifts):
    Shifted.n_fitted = 0
    search = GridSearchCV(Shifted(), {"shift": [0.0, 1.0, -1.0, 50.0]}, cv=3, refit=False)
    search.fit(Xr, yr)
    assert_saved(search, "Shifted", ("shift",), 12, 9)
    assert Shifted.n_fitted == 12 - use(search).n_saved
    plain = reference.GridSearchCV(Shifted(), {"shift": [0.0, 1.0, -1.0, 50.0]}, cv=3).fit(Xr, yr)
    np.testing.assert_array_equal(
        search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"]
    )


def test_shared_fit_that_fails_is_not_used():
    register_shared_fit(Shifted, Shifts(fails=True))
    try:
        search = GridSearchCV(Shifted(), {"shift": [0.0, 1.0]}, cv=3, refit=False)
        assert_same_scores(search, (Xr, yr))
    finally:
        del _registry._by_type[Shifted]
    assert use(search).n_saved == 0


def test_fits_that_fail_say_why_themselves(shifts):
    search = GridSearchCV(
        Shifted(), {"shift": [0.0, 1.0], "fails": [True, False]}, cv=2, refit=False, error_score=-1
    )
    assert_same_scores(search, (Xr, yr))
    found = {use.refused is None: use for use in search.shared_fits_}
    assert found[True][2:4] == (4, 2)
    assert found[False][2:4] == (4, 0)
    assert "ValueError: as told" in found[False].refused


def test_estimators_are_fitted_anew_after(shifts):
    model = Shifted()
    shared = SharedFitRun(Shifts(), [{"shift": 0.0}, {"shift": 1.0}])
    shared.install(model, {"shift": 0.0})
    model.fit(Xr, yr)
    assert vars(model) == {"shift": 0.0, "fails": False, "mean_": np.mean(yr)}
    model.fit(Xr, yr + 1)
    assert model.mean_ == np.mean(yr + 1)


def test_names_in_two_modules_are_two():
    plain = _registry._shared_fit_of(RandomForestRegressor)
    register_shared_fit("elsewhere.RandomForestRegressor", Shifts())
    try:
        assert _registry._shared_fit_of(RandomForestRegressor) is plain
        assert _registry._shared_fit_of(type("RandomForestRegressor", (), {})) is None
    finally:
        del _registry._by_name["RandomForestRegressor"]["elsewhere"]


def test_only_shared_fits_are_registered():
    with pytest.raises(TypeError, match="shared_fit must be a SharedFit"):
        register_shared_fit(Shifted, Shifts)
