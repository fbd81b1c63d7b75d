"""Searches whose fits stop on validation rows, next to the same fits by hand."""

import itertools
from types import SimpleNamespace

import lightgbm
import numpy as np
import pytest
import sklearn
import xgboost
from distributed import Client
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin, clone, is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedKFold,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from stopping_by_hand import (
    DEPTHS,
    FRAME,
    LABELS,
    LGBM,
    MODELS,
    NUMBERS,
    TARGETS,
    assert_as_by_hand,
    by_hand,
    by_split,
    pipeline,
    rounds_by_hand,
    splits_by_hand,
    with_rounds,
)

from skfleet.model_selection import (
    GridSearchCV,
    RandomizedSearchCV,
)
from skfleet.model_selection._dispatch import _pipeline_cache, _scheduler
from skfleet.model_selection._dispatch._routes import _on_workers


@pytest.fixture(scope="module", autouse=True)
def _on_a_fleet(process_cluster):
    """Two worker processes of one thread each: warnings that are errors are not thread-safe."""
    with Client(process_cluster):
        yield


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fraction", [0.25, "test"])
def test_fits_and_refit_are_those_by_hand(name, fraction):
    model, y = MODELS[name], LABELS if is_classifier(MODELS[name]) else TARGETS
    estimator = pipeline(model)
    cv = KFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(
        estimator, DEPTHS, cv=cv, early_stopping=fraction, return_train_score=True
    ).fit(FRAME, y)
    expected = by_hand(estimator, DEPTHS, FRAME, y, cv, fraction)
    assert_as_by_hand(search, expected)
    assert 1 <= expected[0].min() < 50
    n_rounds = int(search.cv_results_["best_iteration"][search.best_index_])
    last = with_rounds(clone(model).set_params(max_depth=[2, 4][search.best_index_]), n_rounds)
    refit = clone(estimator).set_params(model=last).fit(FRAME, y)
    method = "predict_proba" if is_classifier(model) else "predict"
    np.testing.assert_array_equal(getattr(search, method)(FRAME), getattr(refit, method)(FRAME))
    assert type(search.best_estimator_) is Pipeline
    assert type(search.best_estimator_[-1]) is type(model)
    assert search.best_params_ == {"model__max_depth": [2, 4][search.best_index_]}
    assert clone(search).early_stopping == fraction


@pytest.mark.parametrize("name", ["hist classifier", "xgboost", "lightgbm", "our lightgbm"])
def test_weights_are_split_with_the_rows(name):
    model, y = MODELS[name], LABELS if is_classifier(MODELS[name]) else TARGETS
    weight = np.random.default_rng(2).integers(1, 50, size=len(y)) ** 2.0
    estimator, cv = pipeline(model), KFold(2)
    search = GridSearchCV(estimator, DEPTHS, cv=cv, early_stopping=0.3, refit=False)
    expected = by_hand(estimator, DEPTHS, FRAME, y, cv, 0.3, weight)
    assert_as_by_hand(search.fit(FRAME, y, model__sample_weight=weight), expected)
    assert (expected[0] != by_hand(estimator, DEPTHS, FRAME, y, cv, 0.3)[0]).any()


def test_routed_weights_are_split_with_the_rows():
    weight = np.random.default_rng(2).integers(1, 50, size=len(LABELS)) ** 2.0
    cv = KFold(2)
    expected = by_hand(pipeline(MODELS["hist classifier"]), DEPTHS, FRAME, LABELS, cv, 0.3, weight)
    with sklearn.config_context(enable_metadata_routing=True):
        model = clone(MODELS["hist classifier"]).set_fit_request(sample_weight="importance")
        search = GridSearchCV(
            pipeline(model), DEPTHS, cv=cv, early_stopping=0.3, refit=False, scoring="accuracy"
        )
        assert_as_by_hand(search.fit(FRAME, LABELS, importance=weight), expected)


def test_sparse_rows_of_an_estimator_without_steps(capsys):
    X = sparse.csr_array(np.where(NUMBERS > 0, NUMBERS, 0))
    model, grid, cv = MODELS["xgboost"], {"max_depth": [2, 4]}, StratifiedKFold(3)
    search = GridSearchCV(model, grid, cv=cv, early_stopping=0.2).fit(X, LABELS)
    scores = []
    for depth in grid["max_depth"]:
        for fit, val, test in splits_by_hand(LABELS, cv, 0.2, stratify=True):
            one = clone(model).set_params(max_depth=depth)
            n_rounds = rounds_by_hand(one, X[fit], LABELS[fit], X[val], LABELS[val])
            one = with_rounds(one, n_rounds).fit(X[fit], LABELS[fit])
            scores.append(one.score(X[test], LABELS[test]))
    np.testing.assert_allclose(by_split(search, "test_score").ravel(), scores, rtol=1e-12)
    assert type(search.best_estimator_) is xgboost.XGBClassifier
    assert capsys.readouterr().out == ""  # XGBoost would print every round


@pytest.mark.parametrize(
    "callbacks", [[lightgbm.early_stopping(4, verbose=False)], None], ids=["callback", "alias"]
)
def test_lightgbm_stops_by_a_callback_or_an_alias(callbacks):
    params = {"n_estimators": 60, "n_jobs": 1, "verbose": -1}
    params |= {} if callbacks else {"n_iter_no_change": 4}
    estimator = pipeline(lightgbm.LGBMRegressor(**params))
    cv = KFold(2)
    search = GridSearchCV(estimator, DEPTHS, cv=cv, early_stopping=0.2)
    search.fit(FRAME, TARGETS, **({"model__callbacks": callbacks} if callbacks else {}))
    expected = by_hand(pipeline(MODELS["lightgbm"]), DEPTHS, FRAME, TARGETS, cv, 0.2)
    assert_as_by_hand(search, expected)
    assert (
        search.best_estimator_[-1].n_estimators_
        == search.cv_results_["best_iteration"][search.best_index_]
    )


def test_labels_that_lightgbm_encodes():
    labels = np.array(["no", "yes"])[LABELS]
    model = lightgbm.LGBMClassifier(**LGBM)
    estimator, cv = pipeline(model), KFold(2)
    search = GridSearchCV(estimator, DEPTHS, cv=cv, early_stopping=0.2).fit(FRAME, labels)
    assert_as_by_hand(search, by_hand(estimator, DEPTHS, FRAME, LABELS, cv, 0.2))
    assert search.classes_.tolist() == ["no", "yes"]


class Memory(TransformerMixin, BaseEstimator):
    """Learns the targets of its rows by heart, and adds them as a column; others get noise."""

    parts = []  # the rows of each fit and transform: their first column has their numbers

    def fit(self, X, y):
        self.targets_ = dict(zip(X[:, 0], y, strict=True))
        Memory.parts.append(("fit", set(X[:, 0])))
        return self

    def transform(self, X):
        Memory.parts.append(("transform", set(X[:, 0])))
        noise = np.random.default_rng(0).normal(size=len(X))
        known = [self.targets_.get(n, v) for n, v in zip(X[:, 0], noise, strict=True)]
        return np.c_[known, X[:, 1:]]


@pytest.fixture
def parts(one_thread):
    """The rows of the first steps in a search on a worker of this process."""
    Memory.parts = []
    with one_thread.as_current():
        yield Memory.parts
    Memory.parts = []


def test_first_steps_see_neither_validation_nor_test_rows(parts):
    rng = np.random.default_rng(5)
    X, y = np.c_[np.arange(400.0), rng.normal(size=(400, 3))], rng.normal(size=400)
    cv = KFold(2)
    estimator = Pipeline([("lookup", Memory()), ("model", MODELS["hist regressor"])])
    grid = {"model__learning_rate": [0.1, 0.3]}
    search = GridSearchCV(estimator, grid, cv=cv, early_stopping=0.25, refit=False).fit(X, y)
    # with a leak validation scores would get better to the end
    assert by_split(search, "best_iteration").max() <= 3
    assert by_split(search, "test_score").max() < 0.1
    splits = list(splits_by_hand(y, cv, 0.25, 3, stratify=False))
    fits = [rows for name, rows in parts if name == "fit"]
    transforms = [rows for name, rows in parts if name == "transform"]
    assert {frozenset(rows) for rows in fits} == {frozenset(fit) for fit, _, _ in splits}
    assert {frozenset(rows) for rows in transforms} == {
        frozenset(rows) for split in splits for rows in split
    }


def test_equal_first_steps_are_computed_once(parts, monkeypatch):
    monkeypatch.setattr(_on_workers, "SLOW_BATCH_SECONDS", 60.0)
    for name in ("_FIRST_BATCH_SECONDS", "_MIN_BATCH_SECONDS", "_MAX_BATCH_SECONDS"):
        monkeypatch.setattr(_scheduler, name, 60.0)  # a batch for each split
    X = np.c_[np.arange(400.0), NUMBERS[:400]]
    estimator = Pipeline([("lookup", Memory()), ("model", MODELS["hist regressor"])])
    grid = {"model__max_depth": [1, 2, 3, 4]}
    search = GridSearchCV(estimator, grid, cv=2, early_stopping=0.25, refit=False)
    search.fit(X, TARGETS[:400])
    names = [name for name, _ in parts]
    assert names.count("fit") == 2
    assert names.count("transform") == 2 * 3  # of the rows to fit, to validate and to test on
    assert (search.cv_results_["mean_fit_time"] > 0).all()


def test_an_equal_transform_of_validation_rows_counts_in_every_fit_time(monkeypatch):
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)  # a second between two looks
    monkeypatch.setattr(_pipeline_cache, "time", clock)
    cache, saved = _pipeline_cache.PipelineCache(), []
    for _ in range(2):
        model = Pipeline([("scaler", StandardScaler()), ("model", "passthrough")], memory=cache)
        rows, validation = NUMBERS[:50].copy(), NUMBERS[50:].copy()
        cache.start_fit(is_open=True)
        cache.register(rows, "train", 0, _pipeline_cache.CachedRows(rows))
        cache.register(validation, "validation", 0, _pipeline_cache.CachedRows(validation))
        model.fit(rows)[0].transform(validation)
        saved.append((cache.fit_time_saved, cache.score_time_saved))
        cache.end_fit()
    assert saved == [(0, 0), (2, 0)]  # a fit and a transform


def test_groups_are_not_divided(parts):
    groups = np.repeat(np.arange(60), 7)
    X = np.c_[np.arange(420.0), NUMBERS]
    estimator = Pipeline([("lookup", Memory()), ("model", MODELS["hist classifier"])])
    search = GridSearchCV(estimator, {}, cv=GroupKFold(3), early_stopping=0.3, refit=False)
    search.fit(X, LABELS, groups=groups)
    fits = [rows for name, rows in parts if name == "fit"]
    assert len(fits) == 3
    for rows in fits:
        inside = {groups[int(n)] for n in rows}
        assert len(rows) == 7 * len(inside)
        assert len(inside) == 28  # of the 40 groups to train on


def test_fits_of_several_sizes_are_not_shared():
    grid = {"model__max_iter": [2, 8, 60]}
    estimator, cv = pipeline(MODELS["hist classifier"]), KFold(3)
    search = GridSearchCV(estimator, grid, cv=cv, early_stopping=0.2, return_train_score=True)
    search.fit(FRAME, LABELS)
    assert_as_by_hand(search, by_hand(estimator, grid, FRAME, LABELS, cv, 0.2))
    (use,) = search.shared_fits_
    assert (use.parameters, use.n_saved) == (("max_iter",), 0)
    assert "early_stopping must be None" in use.refused


def test_another_last_step_is_a_candidate():
    models = [MODELS["hist classifier"], MODELS["xgboost"], MODELS["our lightgbm"]]
    estimator = pipeline(SVC())  # it takes no validation rows, but is not a candidate
    search = GridSearchCV(estimator, {"model": models}, cv=KFold(2), early_stopping=0.2)
    search.fit(FRAME, LABELS)
    for n, model in enumerate(models):
        n_rounds, scores, _ = by_hand(
            pipeline(clone(model).set_params(random_state=0)), {}, FRAME, LABELS, KFold(2), 0.2
        )
        assert by_split(search, "best_iteration")[n].tolist() == n_rounds[0].tolist()
        np.testing.assert_allclose(by_split(search, "test_score")[n], scores[0], rtol=1e-12)
    assert type(search.best_estimator_[-1]) is type(models[search.best_index_])


def test_a_fit_that_fails_has_no_best_iteration():
    grid = {"model__max_leaf_nodes": [1, 4]}  # the first is invalid
    search = GridSearchCV(pipeline(MODELS["hist regressor"]), grid, cv=2, early_stopping=0.2)
    with (
        pytest.warns(FitFailedWarning),
        pytest.warns(UserWarning, match="non-finite"),
    ):
        search.fit(FRAME, TARGETS)
    assert np.isnan(search.cv_results_["best_iteration"]).tolist() == [True, False]
    assert search.best_estimator_[-1].n_iter_ == search.cv_results_["best_iteration"][1]
    raising = clone(search).set_params(error_score="raise")
    with pytest.raises(ValueError, match="max_leaf_nodes"):
        raising.fit(FRAME, TARGETS)


def test_several_metrics_and_a_callable_refit():
    estimator, cv = pipeline(MODELS["our lightgbm"]), KFold(2)

    def fewest_rounds(results):
        return int(np.argmin(results["best_iteration"]))

    search = GridSearchCV(
        estimator, DEPTHS, cv=cv, early_stopping=0.2, scoring=["accuracy", "roc_auc"],
        refit=fewest_rounds,
    ).fit(FRAME, LABELS)  # fmt: skip
    n_rounds, scores, _ = by_hand(estimator, DEPTHS, FRAME, LABELS, cv, 0.2)
    np.testing.assert_array_equal(by_split(search, "best_iteration"), n_rounds)
    np.testing.assert_allclose(by_split(search, "test_accuracy"), scores, rtol=1e-12)
    assert search.best_index_ == fewest_rounds(search.cv_results_)
    assert search.best_estimator_[-1].n_estimators_ == search.cv_results_["best_iteration"].min()


def test_random_candidates():
    estimator, cv = pipeline(MODELS["xgboost"]), KFold(2)
    search = RandomizedSearchCV(
        estimator, {"model__max_depth": [2, 3, 4, 5]}, n_iter=2, random_state=0, cv=cv,
        early_stopping=0.2,
    ).fit(FRAME, LABELS)  # fmt: skip
    grid = [
        {name: [value]} for params in search.cv_results_["params"] for name, value in params.items()
    ]
    assert_as_by_hand(search, by_hand(estimator, grid, FRAME, LABELS, cv, 0.2))
