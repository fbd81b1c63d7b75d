"""Searches whose fits stop on validation rows, next to the same fits by hand."""

import dask.array as da
import lightgbm
import numpy as np
import pandas as pd
import pytest
import sklearn
import xgboost
from distributed import Client
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin, clone, is_classifier
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification, make_regression
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    ParameterGrid,
    StratifiedKFold,
    train_test_split,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

import skfleet.estimators as ours
from skfleet.estimators.preprocessing import StandardScaler as LazyScaler
from skfleet.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
)
from skfleet.model_selection._dispatch import _dispatcher, _scheduler
from skfleet.model_selection._dispatch._context import SearchContext


@pytest.fixture(scope="module", autouse=True)
def _on_a_fleet(process_cluster):
    """Two worker processes of one thread each: warnings that are errors are not thread-safe."""
    with Client(process_cluster):
        yield


NUMBERS, LABELS = make_classification(420, 5, flip_y=0.3, random_state=1)
TARGETS = NUMBERS[:, 0] * 3 + np.random.default_rng(0).normal(size=420) * 2
FRAME = pd.DataFrame(NUMBERS, columns=list("abcde")).assign(
    kind=np.array(["x", "y", "z"])[np.random.default_rng(1).integers(3, size=420)]
)

XGB = {"n_estimators": 60, "early_stopping_rounds": 4, "n_jobs": 1}
LGBM = {"n_estimators": 60, "early_stopping_round": 4, "n_jobs": 1, "verbose": -1}
HIST = {"max_iter": 60, "n_iter_no_change": 4, "random_state": 3}
MODELS = {
    "hist classifier": HistGradientBoostingClassifier(**HIST),
    "hist regressor": HistGradientBoostingRegressor(**HIST),
    "hist, scored": HistGradientBoostingClassifier(**HIST, scoring="roc_auc"),
    "xgboost": xgboost.XGBClassifier(**XGB),
    "lightgbm": lightgbm.LGBMRegressor(**LGBM),
    "our xgboost": ours.XGBRegressor(**XGB),
    "our lightgbm": ours.LGBMClassifier(**LGBM),
}
DEPTHS = {"model__max_depth": [2, 4]}


def is_lightgbm(model):
    return isinstance(model, lightgbm.LGBMModel)


def pipeline(model):
    columns = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["kind"]), remainder="passthrough"
    )
    scaler = StandardScaler()
    return Pipeline([("columns", columns), ("scaler", scaler), ("model", model)])


def with_rounds(model, n_rounds):
    """Return a clone that boosts so many times, without early stopping."""
    if isinstance(model, xgboost.XGBModel):
        params = {"n_estimators": n_rounds, "early_stopping_rounds": None}
    elif is_lightgbm(model):
        params = {"n_estimators": n_rounds, "early_stopping_round": None}
    else:
        params = {"max_iter": n_rounds, "early_stopping": False}
    return clone(model).set_params(**params)


def rounds_by_hand(model, X, y, X_val, y_val, weight=None, weight_val=None):
    """Return the number of rounds up to the best validation score, by the library's own fit."""
    model = clone(model)
    if isinstance(model, xgboost.XGBModel):
        weights = {} if weight_val is None else {"sample_weight_eval_set": [weight_val]}
        evals = {"eval_set": [(X_val, y_val)], "verbose": False}
        model.fit(X, y, sample_weight=weight, **evals, **weights)
        return model.best_iteration + 1
    if is_lightgbm(model):
        weights = {} if weight_val is None else {"eval_sample_weight": [weight_val]}
        model.fit(X, y, sample_weight=weight, eval_X=X_val, eval_y=y_val, **weights)
        return model.best_iteration_
    model.set_params(early_stopping=True)
    weights = {"sample_weight_val": weight_val}
    model.fit(X, y, sample_weight=weight, X_val=X_val, y_val=y_val, **weights)
    return max(1, np.argmax(model.validation_score_))


def take(X, rows):
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def splits_by_hand(y, cv, fraction, seed=0, *, stratify):
    for train, test in cv.split(np.empty((len(y), 0)), y):
        labels = y[train] if stratify else None
        fit, val = train, test
        if fraction != "test":
            fit, val = train_test_split(
                train, test_size=fraction, random_state=seed, stratify=labels
            )
        yield fit, val, test


def by_hand(estimator, grid, X, y, cv, fraction, weight=None):
    """Return the rounds, test scores and train scores of shape (n_candidates, n_splits)."""
    rows = []
    seed = estimator[-1].get_params()["random_state"] or 0
    for params in ParameterGrid(grid):
        candidate = clone(estimator).set_params(**params)
        for fit, val, test in splits_by_hand(
            y, cv, fraction, seed, stratify=is_classifier(estimator)
        ):
            steps, model = clone(candidate[:-1]), clone(candidate[-1])
            fitted = steps.fit_transform(take(X, fit), y[fit])
            weights = (None, None) if weight is None else (weight[fit], weight[val])
            validation = steps.transform(take(X, val)), y[val]
            n_rounds = rounds_by_hand(model, fitted, y[fit], *validation, *weights)
            model = with_rounds(model, n_rounds).fit(fitted, y[fit], sample_weight=weights[0])
            scores = (
                model.score(steps.transform(take(X, test)), y[test]),
                model.score(fitted, y[fit]),
            )
            rows.append((n_rounds, *scores))
    n_splits = cv.get_n_splits()
    return [np.reshape(values, (-1, n_splits)) for values in zip(*rows, strict=True)]


def by_split(search, name):
    columns = [search.cv_results_[f"split{n}_{name}"] for n in range(search.n_splits_)]
    return np.transpose(columns)


def assert_as_by_hand(search, expected):
    n_rounds, test, train = expected
    np.testing.assert_array_equal(by_split(search, "best_iteration"), n_rounds)
    np.testing.assert_allclose(by_split(search, "test_score"), test, rtol=1e-12)
    if search.return_train_score:
        np.testing.assert_allclose(by_split(search, "train_score"), train, rtol=1e-12)
    medians = np.rint(np.median(n_rounds, axis=1))
    np.testing.assert_array_equal(search.cv_results_["best_iteration"], medians)


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
    np.testing.assert_array_equal(search.predict(FRAME), refit.predict(FRAME))
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


def test_sparse_rows_of_an_estimator_without_steps():
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
    monkeypatch.setattr(_dispatcher, "SLOW_BATCH_SECONDS", 60.0)
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


def test_halving_over_rounds_and_over_rows():
    estimator, cv = pipeline(MODELS["xgboost"]), KFold(2)
    search = HalvingGridSearchCV(
        estimator, DEPTHS, resource="model__n_estimators", max_resources=60, min_resources=10,
        factor=6, cv=cv, early_stopping=0.2, random_state=0,
    ).fit(FRAME, LABELS)  # fmt: skip
    last = search.cv_results_["iter"] == search.n_iterations_ - 1
    params = [p for p, is_last in zip(search.cv_results_["params"], last, strict=True) if is_last]
    grid = [{name: [value] for name, value in one.items()} for one in params]
    expected = by_hand(estimator, grid, FRAME, LABELS, cv, 0.2)
    np.testing.assert_array_equal(by_split(search, "best_iteration")[last], expected[0])
    assert search.best_estimator_[-1].n_estimators == np.rint(np.median(expected[0]))
    search = HalvingRandomSearchCV(
        estimator, {"model__max_depth": [1, 2, 3, 4]}, n_candidates=4, factor=2, cv=2,
        min_resources=100, early_stopping="test", random_state=0,
    ).fit(FRAME, LABELS)  # fmt: skip
    results = search.cv_results_
    assert len(results["best_iteration"]) == len(results["params"]) > 4
    n_rounds = search.best_estimator_[-1].n_estimators
    assert n_rounds == results["best_iteration"][search.best_index_]
    assert results["iter"][search.best_index_] == search.n_iterations_ - 1


# -- checkpoints, time budgets --------------------------------------------------------------------


def test_a_resumed_search_ends_the_same(tmp_path):
    estimator = pipeline(MODELS["hist classifier"])
    options = {"cv": 2, "checkpoint": tmp_path / "fits"}
    search = GridSearchCV(estimator, DEPTHS, early_stopping=0.2, **options).fit(FRAME, LABELS)
    file = next((tmp_path / "fits").glob("*.fits"))
    file.unlink()
    again = clone(search).fit(FRAME, LABELS)
    assert again.n_checkpoint_fits_ < 4
    complete = clone(search).fit(FRAME, LABELS)
    assert complete.n_checkpoint_fits_ == 4
    for other in (again, complete):
        for name in ("split0_best_iteration", "split1_best_iteration", "best_iteration"):
            np.testing.assert_array_equal(other.cv_results_[name], search.cv_results_[name])
        np.testing.assert_array_equal(by_split(other, "test_score"), by_split(search, "test_score"))
        assert other.best_estimator_[-1].n_iter_ == search.best_estimator_[-1].n_iter_
    for value in (0.3, "test", None):
        with pytest.raises(ValueError, match="another early_stopping instead"):
            GridSearchCV(estimator, DEPTHS, early_stopping=value, **options).fit(FRAME, LABELS)
    seeded = clone(estimator).set_params(model__random_state=4)
    with pytest.raises(ValueError, match="another estimator instead"):
        GridSearchCV(seeded, DEPTHS, early_stopping=0.2, **options).fit(FRAME, LABELS)


def test_fits_that_are_not_made_in_time_have_no_best_iteration(monkeypatch):
    def stop_reason(context):
        return "it was over" if len(context.timeline) >= 2 else None

    monkeypatch.setattr(SearchContext, "stop_reason", property(stop_reason))
    grid = {"model__max_depth": list(range(1, 9))}
    search = GridSearchCV(
        pipeline(MODELS["hist regressor"]), grid, cv=2, early_stopping=0.2, time_budget=1e6
    )
    with (
        pytest.warns(FitFailedWarning, match="it was over"),
        pytest.warns(UserWarning, match="non-finite"),
    ):
        search.fit(FRAME, TARGETS)
    is_made = np.isfinite(by_split(search, "test_score"))
    assert 2 <= is_made.sum() < 16
    np.testing.assert_array_equal(np.isfinite(by_split(search, "best_iteration")), is_made)


# -- rows on Dask ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.25, "test"])
@pytest.mark.parametrize("name", ["our xgboost", "our lightgbm"])
def test_rows_on_dask(name, fraction):
    X, y = make_regression(600, 5, noise=40, random_state=0)
    model, plain = MODELS[name], xgboost.XGBRegressor(**XGB)
    if name == "our lightgbm":
        y, plain = np.where(y > 20, "high", "low"), lightgbm.LGBMClassifier(**LGBM)
    lazy = da.from_array(X, chunks=(140, 5)), da.from_array(y, chunks=200)
    cv = KFold(2, shuffle=True, random_state=0)
    estimator = Pipeline([("scaler", LazyScaler()), ("model", model)])
    search = GridSearchCV(estimator, DEPTHS, cv=cv, early_stopping=fraction).fit(*lazy)
    n_rounds, numbers = [], y == "low" if is_classifier(model) else y
    for depth in DEPTHS["model__max_depth"]:
        for rows in splits_by_hand(y, cv, fraction, stratify=is_classifier(model)):
            fit, val = map(np.sort, rows[:2])
            scaler = StandardScaler().fit(X[fit])
            one = clone(plain).set_params(max_depth=depth)
            scaled = scaler.transform(X[fit]), numbers[fit], scaler.transform(X[val]), numbers[val]
            n_rounds.append(rounds_by_hand(one, *scaled))
    np.testing.assert_array_equal(by_split(search, "best_iteration").ravel(), n_rounds)
    assert (
        search.best_estimator_[-1].n_estimators
        == search.cv_results_["best_iteration"][search.best_index_]
    )


def test_rows_on_dask_of_an_estimator_in_memory():
    estimator, cv = (
        Pipeline([("scaler", StandardScaler()), ("model", MODELS["lightgbm"])]),
        KFold(2),
    )
    lazy = da.from_array(NUMBERS, chunks=(150, 5)), da.from_array(TARGETS, chunks=150)
    search = GridSearchCV(estimator, DEPTHS, cv=cv, early_stopping=0.2).fit(*lazy)
    assert_as_by_hand(search, by_hand(estimator, DEPTHS, NUMBERS, TARGETS, cv, 0.2))
