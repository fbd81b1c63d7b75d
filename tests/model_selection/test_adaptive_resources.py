"""Adaptive searches that give candidates rows, trees, rounds, iterations or folds."""

import warnings

import dask.array as da
import numpy as np
import pytest
from adaptive_cases import SEARCHES
from scipy.stats import loguniform, randint
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.model_selection import HalvingGridSearchCV, KFold, ShuffleSplit, StratifiedKFold
from sklearn.model_selection import cross_val_score as stock_cross_val_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from skfleet.model_selection import IncrementalSearchCV, SuccessiveHalvingSearchCV
from skfleet.model_selection._adaptive._whole_rows import nested_order

SPACE = {"C": loguniform(1e-2, 1e2)}


@pytest.fixture(scope="module")
def few(digits):
    """Two hundred digits."""
    return digits[0][:200], digits[1][:200]


def search(estimator, parameters, **params):
    how = {"n_initial_parameters": "grid", "n_jobs": 1, "random_state": 0} | params
    return SuccessiveHalvingSearchCV(estimator, parameters, **how)


class Rows(SVC):
    """Remembers the rows of its fit."""

    def fit(self, X, y, sample_weight=None):
        self.rows_, self.weight_ = {*map(bytes, np.asarray(X))}, sample_weight
        return super().fit(X, y, sample_weight)

    def score(self, X, y):
        self.tested_ = {*map(bytes, np.asarray(X))}
        return super().score(X, y)


@pytest.mark.parametrize("on_dask", [False, True])
def test_shares_of_rows_are_nested_stratified_and_the_same_for_all(on_dask, few, cluster_client):
    X, y = few
    rows, labels = (da.from_array(X, (60, -1)), da.from_array(y, 60)) if on_dask else few
    models = []
    for best in range(3):
        made = search(
            Rows(), {"C": [0.1, 1.0, 10.0]}, resource="n_samples", n_initial_iter=1 + best,
            max_iter=9, refit=lambda results, best=best: best,
        )  # fmt: skip
        if on_dask:
            with cluster_client.as_current():
                made.set_params(n_jobs=None).fit(rows, labels)
        else:
            made.fit(rows, labels)
        model = made.best_estimator_
        n_train = len({*map(bytes, X)} - model.tested_)
        assert len(model.rows_) == -(-n_train * made.n_iter_ // 9)
        assert not model.rows_ & model.tested_
        models.append((made.n_iter_, model))
    assert len({frozenset(model.tested_) for _, model in models}) == 1
    by_size = sorted(models, key=lambda pair: pair[0])
    assert all(a.rows_ <= b.rows_ for (_, a), (_, b) in zip(by_size, by_size[1:], strict=False))


def test_every_part_of_a_nested_order_is_stratified():
    labels = np.repeat([0, 1, 2], [300, 90, 10])
    order = nested_order(np.arange(400), labels, 0)
    assert sorted(order) == list(range(400))
    for n in (3, 40, 133, 399):
        counts = np.bincount(labels[order[:n]], minlength=3)
        assert (np.abs(counts - np.array([0.75, 0.225, 0.025]) * n) <= 2).all()
        assert counts.min() >= 1
    assert not np.array_equal(order, nested_order(np.arange(400), labels, 1))


def test_the_last_rung_is_a_fit_on_all_training_rows(few):
    made = search(SVC(), {"C": [0.01, 1.0, 100.0]}, resource="n_samples")
    made.fit(*few)
    assert made.metadata["brackets"][0]["rungs"] == [(3, 1), (1, 3)]
    assert made.metadata_ == made.metadata
    assert made.metadata_["n_resources"] == 5
    history = made.history_
    assert history.n_samples_seen.tolist() == [57, 57, 57, 170]
    assert sorted(made.cv_results_["n_resources"]) == [1, 1, 3]
    assert "partial_fit_calls" not in history


@pytest.mark.parametrize(("kind", "params"), SEARCHES)
@pytest.mark.parametrize("resource", ["n_samples", "max_depth", "n_estimators", "folds"])
def test_every_search_takes_every_resource(kind, params, resource, few, on_cluster):
    params = {name: value for name, value in params.items() if resource != "folds" or "n_i" in name}
    if resource == "folds":
        params["cv"] = 3
    forest = RandomForestClassifier(2, max_depth=3, random_state=0)
    made = kind(forest, {"min_samples_leaf": randint(1, 4)}, resource=resource, random_state=0)
    made.set_params(**params).fit(*few)
    assert made.best_score_ > 0.5
    assert made.metadata_["n_resources"] == made.cv_results_["n_resources"].sum()
    if resource in made.best_estimator_.get_params():
        assert getattr(made.best_estimator_, resource) == made.n_iter_


class Level:
    """A scorer by which the model of the last level is best."""

    def __init__(self, resource):
        self.resource = resource

    def __call__(self, model, X, y):
        return float(model.get_params()[self.resource])


def _in_stages_and_at_once(estimator, resource, rows, **params):
    """Models that were trained on from 9 to 18 and 27, and at once."""
    models = []
    for step, n_scores in ((9, 3), (27, 1)):
        made = IncrementalSearchCV(
            estimator, {}, n_initial_parameters=1, max_iter=27, fits_per_score=step, n_jobs=1,
            resource=resource, random_state=0, scoring=Level(resource),
        ).set_params(**params).fit(*rows)  # fmt: skip
        assert len(made.history_) == n_scores
        models.append(made.best_estimator_)
    return models


@pytest.mark.parametrize(
    ("estimator", "resource"),
    [
        (RandomForestClassifier(random_state=0, class_weight="balanced"), "n_estimators"),
        (BaggingClassifier(DecisionTreeClassifier(max_depth=3), random_state=0), "n_estimators"),
        (GradientBoostingClassifier(random_state=0, max_depth=2), "n_estimators"),
        (HistGradientBoostingClassifier(random_state=0, max_depth=2), "max_iter"),
        (make_pipeline(StandardScaler(), RandomForestClassifier(random_state=0)),
         "randomforestclassifier__n_estimators"),
        (LogisticRegression(solver="liblinear", random_state=0), "max_iter"),
    ],
    ids=lambda value: getattr(type(value), "__name__", value),
)  # fmt: skip
def test_model_that_is_trained_on_is_that_of_one_fit(estimator, resource, few):
    rows = few[0], few[1] % 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        staged, whole = _in_stages_and_at_once(estimator, resource, rows)
    np.testing.assert_array_equal(staged.predict_proba(rows[0]), whole.predict_proba(rows[0]))
    assert staged.get_params()[resource] == whole.get_params()[resource]
    assert not staged.get_params().get("warm_start", False)
