"""Models on the same splits have the scores of scikit-learn's cross-validation of each of them."""

import dask.array as da
import numpy as np
import pytest
import sklearn
from sklearn import model_selection as reference
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LinearRegression
from sklearn.linear_model import LogisticRegression as PlainLogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler as PlainStandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from skfleet import config_context
from skfleet.estimators import Ridge, StandardScaler
from skfleet.model_selection import GridSearchCV, KFold, compare_models

pytestmark = pytest.mark.usefixtures("on_cluster")

X, y = load_iris(return_X_y=True)
MODELS = {
    "nearest": make_pipeline(PlainStandardScaler(), KNeighborsClassifier()),
    "search": GridSearchCV(DecisionTreeClassifier(random_state=0), {"max_depth": [1, 3]}, cv=3),
    "naive": GaussianNB(),
}
rng = np.random.default_rng(0)
ROWS = rng.normal(size=(240, 3))
TARGET = ROWS.sum(axis=1) + rng.normal(size=240)
GROUPS, WEIGHTS = rng.integers(0, 9, 240), rng.random(240)
REGRESSORS = {
    "ours": make_pipeline(StandardScaler(), Ridge()),
    "last step of scikit-learn": make_pipeline(
        StandardScaler(), DecisionTreeRegressor(max_depth=3)
    ),
    "scikit-learn": LinearRegression(),
}


def scores_of(comparison, name, metric="score"):
    """Return the scores of a model on all splits."""
    frame = comparison.splits
    return frame.score[(frame.model == name) & (frame.metric == metric)].to_numpy()


def assert_scores(comparison, models, X, y, **options):
    """Compare all scores with those of scikit-learn's cross-validation."""
    for name, model in models.items():
        expected = reference.cross_validate(clone(model), X, y, **options)
        for metric in comparison.splits.metric.unique():
            actual = scores_of(comparison, name, metric)
            np.testing.assert_allclose(actual, expected[f"test_{metric}"], rtol=1e-12)
            row = comparison.results.loc[name]
            assert row[f"mean_test_{metric}"] == pytest.approx(actual.mean())
            assert row[f"std_test_{metric}"] == pytest.approx(actual.std())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scoring": "balanced_accuracy", "cv": 3},
        {"scoring": ["accuracy", "f1_macro"], "cv": reference.ShuffleSplit(3, random_state=0)},
        {"scoring": {"a": "accuracy", "b": "f1_macro"}, "n_jobs": 1},
        {"params": {"sample_weight": np.arange(150.0)}, "models": ["naive", "naive"]},
    ],
)
def test_scores(options):
    options = dict(options)
    models = {name: MODELS[name] for name in options.pop("models", MODELS)}
    comparison = compare_models(models, X, y, **options)
    assert_scores(comparison, models, X, y, **options)
    decides = comparison.results.iloc[:, 0]
    assert list(decides) == sorted(decides, reverse=True)
    assert comparison.best_name == comparison.results.index[0]
    assert comparison.best_model is models[comparison.best_name]


def test_splits_are_drawn_once():
    drawn = list(reference.ShuffleSplit(4, test_size=0.3).split(X, y))
    models = {"a": GaussianNB(), "b": GaussianNB()}
    assert_scores(compare_models(models, X, y, cv=iter(drawn)), models, X, y, cv=drawn)
    comparison = compare_models(models, X, y, cv=reference.ShuffleSplit(5, test_size=0.3))
    np.testing.assert_array_equal(scores_of(comparison, "a"), scores_of(comparison, "b"))


def test_one_classifier_makes_the_splits_stratified():
    models = {"dummy": DummyClassifier(), "other": LinearRegression()}
    comparison = compare_models(models, X, y, cv=3, scoring="neg_mean_squared_error")
    cv = reference.StratifiedKFold(3)
    assert_scores(comparison, models, X, y, cv=cv, scoring="neg_mean_squared_error")


def test_each_model_is_scored_by_its_own_method():
    class Halved(GaussianNB):
        def score(self, X, y, sample_weight=None):
            return super().score(X, y) / 2

    models = {"whole": GaussianNB(), "half": Halved()}
    comparison = compare_models(models, X, y)
    np.testing.assert_array_equal(scores_of(comparison, "half") * 2, scores_of(comparison, "whole"))


class CountedScaler(PlainStandardScaler):
    """A scaler that counts its fits."""

    n_fits = 0

    def fit(self, X, y=None, sample_weight=None):
        CountedScaler.n_fits += 1
        return super().fit(X, y, sample_weight)


@pytest.mark.parametrize("scoring", [None, "accuracy", ["accuracy", "f1_macro"]])
def test_models_share_equal_first_steps(one_thread, scoring):
    lasts = GaussianNB(), KNeighborsClassifier(), DecisionTreeClassifier(random_state=0)
    models = {str(last): make_pipeline(CountedScaler(), last) for last in lasts}
    with one_thread.as_current():
        CountedScaler.n_fits = 0
        comparison = compare_models(models, X, y, scoring=scoring, cv=4)
    assert 4 <= CountedScaler.n_fits < 12  # on a busy machine a batch may end early
    assert_scores(comparison, models, X, y, scoring=scoring, cv=4)


def test_the_best_is_fitted_on_all_rows():
    comparison = compare_models(MODELS, X, y, refit=True)
    expected = clone(comparison.best_model).fit(X, y)
    np.testing.assert_array_equal(comparison.best_estimator_.predict(X), expected.predict(X))
    assert not hasattr(compare_models({"naive": GaussianNB()}, X, y), "best_estimator_")


def test_refit_names_the_metric_that_decides():
    models = {"even": DummyClassifier(strategy="uniform", random_state=0), "naive": GaussianNB()}

    def scoring(model, X, y):
        score = accuracy_score(y, model.predict(X))
        return {"gain": score, "loss": -score}

    for metric, best in {"gain": "naive", "loss": "even"}.items():
        comparison = compare_models(models, X, y, scoring=scoring, refit=metric)
        assert (comparison.metric, comparison.best_name) == (metric, best)
        assert type(comparison.best_estimator_) is type(models[best])
    assert compare_models(models, X, y, scoring=scoring).best_name == "naive"


def test_models_of_all_splits_come_with_the_parameters_that_searches_chose():
    comparison = compare_models(MODELS, X, y, cv=3, return_estimator=True)
    assert list(comparison.estimators) == list(MODELS)
    searches = comparison.estimators["search"]
    rows = comparison.splits[comparison.splits.model == "search"]
    assert list(rows.best_params) == [search.best_params_ for search in searches]
    assert comparison.splits.best_params[0] is None


def test_models_that_fail_are_last_and_named():
    models = {"bad": KNeighborsClassifier(-1), "naive": GaussianNB()}
    with pytest.warns(FitFailedWarning, match="bad: 5 of 5 fits, .*InvalidParameterError"):
        comparison = compare_models(models, X, y)
    assert list(comparison.results.index) == ["naive", "bad"]
    assert list(comparison.results.n_failed) == [0, 5]
    assert comparison.results.mean_test_score.isna().tolist() == [False, True]
    assert comparison.p_values.p_value_holm.isna().all()
    with pytest.warns(FitFailedWarning):
        assert (scores_of(compare_models(models, X, y, error_score=0), "bad") == 0).all()
    with pytest.raises(ValueError, match="n_neighbors"):
        compare_models(models, X, y, error_score="raise")
    with pytest.raises(ValueError, match="Got errors in all fits instead"):
        compare_models({"bad": models["bad"]}, X, y)


def test_failed_fits_have_all_metrics_of_a_callable():
    models = {"bad": KNeighborsClassifier(-1), "naive": GaussianNB()}
    with pytest.warns(FitFailedWarning):
        comparison = compare_models(models, X, y, scoring=lambda *_: {"a": 1.0, "b": 2.0})
    assert comparison.results.loc["bad", ["mean_test_a", "mean_test_b"]].isna().all()


def test_no_best_model_where_none_is_scored_on_all_splits():
    splits = [([0, 1, 50, 51], [2, 52]), ([0, 1], [2, 3])]  # one class is too few
    models = {"a": PlainLogisticRegression(), "b": PlainLogisticRegression(C=2)}
    with pytest.warns(FitFailedWarning):
        comparison = compare_models(models, X, y, cv=splits, refit=True)
    assert comparison.best_name is None
    assert comparison.best_model is None
    assert not hasattr(comparison, "best_estimator_")


@pytest.mark.parametrize("cv", [3, KFold(3), reference.ShuffleSplit(3, random_state=0)])
@pytest.mark.parametrize("single_task_below", [0, "auto"])
def test_models_of_both_kinds_on_dask_rows(cv, single_task_below):
    rows = [da.from_array(a, chunks=(100, *a.shape[1:])) for a in (ROWS, TARGET)]
    expected = list(cv.split(ROWS, TARGET)) if hasattr(cv, "split") else cv
    with config_context(single_task_below=single_task_below):
        comparison = compare_models(REGRESSORS, *rows, cv=cv, refit=True, return_estimator=True)
        assert_scores(comparison, REGRESSORS, ROWS, TARGET, cv=expected)
        models = [comparison.best_estimator_, *(m[0] for m in comparison.estimators.values())]
        for model in models:
            assert isinstance(model.predict(rows[0]), da.Array)


@pytest.mark.parametrize("best", REGRESSORS)
def test_refit_on_dask_rows(best):
    rows = [da.from_array(a, chunks=(100, *a.shape[1:])) for a in (ROWS, TARGET)]
    with config_context(single_task_below=0):
        comparison = compare_models({best: REGRESSORS[best]}, *rows, cv=2, refit=True)
        predicted = comparison.best_estimator_.predict(rows[0]).compute()
    expected = clone(REGRESSORS[best]).fit(ROWS, TARGET).predict(ROWS)
    np.testing.assert_allclose(predicted, expected, rtol=1e-9)


@pytest.mark.parametrize("is_lazy", [False, True])
def test_groups(is_lazy):
    rows = ROWS, TARGET, GROUPS
    if is_lazy:
        rows = [da.from_array(a, chunks=(100, *a.shape[1:])) for a in rows]
    options = {"cv": reference.GroupKFold(3)}
    comparison = compare_models(REGRESSORS, *rows[:2], groups=rows[2], **options)
    assert_scores(comparison, REGRESSORS, ROWS, TARGET, groups=GROUPS, **options)


@sklearn.config_context(enable_metadata_routing=True)
def test_metadata_goes_to_those_that_request_it():
    models = {
        name: LinearRegression().set_fit_request(sample_weight=fit).set_score_request(
            sample_weight=score
        )
        for name, fit, score in (("a", True, False), ("b", False, True), ("c", False, False))
    }  # fmt: skip
    params = {"groups": GROUPS, "sample_weight": WEIGHTS}
    cv = reference.GroupKFold(3)
    comparison = compare_models(models, ROWS, TARGET, cv=cv, params=params, refit=True)
    for name in ("a", "b"):
        assert_scores(comparison, {name: models[name]}, ROWS, TARGET, cv=cv, params=params)
    weights = {"sample_weight": WEIGHTS} if comparison.best_name == "a" else {}
    expected = LinearRegression().fit(ROWS, TARGET, **weights)
    np.testing.assert_allclose(comparison.best_estimator_.coef_, expected.coef_)
    with pytest.raises(ValueError, match="groups must be among params"):
        compare_models(models, ROWS, TARGET, groups=GROUPS)
    with pytest.raises(TypeError, match="not routed to any object"):
        compare_models(models, ROWS, TARGET, params={"unknown": WEIGHTS})


@pytest.mark.parametrize(
    ("error", "changed", "message"),
    [
        (TypeError, {"models": [GaussianNB()]}, "models must be a dict"),
        (ValueError, {"models": {}}, "at least one model"),
        (TypeError, {"models": {1: GaussianNB()}}, "must be str. Got 1"),
        (TypeError, {"models": {"a": GaussianNB}}, "must be an estimator with fit"),
        (TypeError, {"models": {"a": "naive"}}, "must be an estimator with fit"),
        (ValueError, {"refit": "accuracy"}, "refit must be one of 'score'"),
        (ValueError, {"refit": None}, "refit must be True, False or"),
        (ValueError, {"scoring": ["accuracy"], "refit": True}, "must be the name of the metric"),
        (ValueError, {"scoring": ["accuracy"], "refit": "r2"}, "one of 'accuracy'"),
        (ValueError, {"scoring": accuracy_score}, "metric function accuracy_score"),
        (ValueError, {"error_score": "nan"}, "error_score must be 'raise' or a number"),
        (ValueError, {"y": None}, "requires y"),
        (ValueError, {"cv": []}, "cv must have at least one split"),
    ],
)
def test_errors_come_before_any_fit(error, changed, message):
    class Unfit(GaussianNB):
        def fit(self, X, y):
            raise AssertionError("a fit")

    arguments = {"models": {"model": Unfit()}, "y": y, "error_score": "raise", **changed}
    with pytest.raises(error, match=message):
        compare_models(X=X, **arguments)
