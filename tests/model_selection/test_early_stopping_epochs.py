"""Searches whose fits stop epochs of gradient descent and of Incremental on validation rows."""

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn import linear_model as reference
from sklearn.base import clone, is_classifier
from sklearn.cluster import MiniBatchKMeans
from sklearn.model_selection import KFold, ParameterGrid
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from stopping_by_hand import (
    FRAME,
    LABELS,
    NUMBERS,
    TARGETS,
    assert_as_by_hand,
    by_split,
    pipeline,
    splits_by_hand,
    take,
)

from skfleet.estimators import Incremental, SGDClassifier, SGDRegressor
from skfleet.estimators.preprocessing import StandardScaler as LazyScaler
from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV
from skfleet.model_selection._early_stopping._libraries import booster_of

STOPS = {"n_iter_no_change": 4, "random_state": 3}
PLAIN = {"random_state": 0, "alpha": 0.01}
# Batches, whose epochs are the same with and without a score after each.
MODELS = {
    "classifier": SGDClassifier(loss="log_loss", batch_size=8, **STOPS),
    "regressor": SGDRegressor(batch_size=8, **STOPS, early_stopping=True),
    "incremental": Incremental(
        reference.SGDClassifier(loss="log_loss", **PLAIN),
        epochs=40,
        batch_size=50,
        scoring="neg_log_loss",
        **STOPS,
    ),
    "incremental regressor": Incremental(
        SGDRegressor(**PLAIN), epochs=40, batch_size=50, shuffle="rows", **STOPS
    ),
}
# one of the slow ones in `make test`
EACH_MODEL = pytest.mark.parametrize(
    "name", [*list(MODELS)[:3], pytest.param("incremental regressor", marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module", autouse=True)
def _on_a_fleet(process_cluster):
    with Client(process_cluster):
        yield


def _grid(model):
    name = "estimator__eta0" if isinstance(model, Incremental) else "eta0"
    prefix = "estimator__" if isinstance(model, Incremental) else ""
    rates = {f"model__{name}": [0.001, 0.1]}
    return rates | {f"model__{prefix}learning_rate": ["invscaling"]}


def _y(model):
    return LABELS if is_classifier(model) else TARGETS


def _with_epochs(model, n_epochs):
    """Return a clone that makes so many epochs, whatever the scores."""
    if isinstance(model, Incremental):
        return clone(model).set_params(epochs=n_epochs, early_stopping=False)
    return clone(model).set_params(max_iter=n_epochs, early_stopping=False, tol=None)


def _epochs_by_hand(model, X, y, X_val, y_val, **weights):
    model = clone(model).set_params(early_stopping=True)
    model.fit(X, y, X_val=X_val, y_val=y_val, **weights)
    return int(np.argmax(model.history_.score)) + 1


def _by_hand(estimator, X, y, cv, fraction, weight=None):
    """Return the epochs, test scores and train scores of shape (n_candidates, n_splits)."""
    rows = []
    for params in ParameterGrid(_grid(estimator[-1])):
        candidate = clone(estimator).set_params(**params)
        splits = splits_by_hand(y, cv, fraction, 3, stratify=is_classifier(estimator))
        for fit, val, test in splits:
            steps, model = clone(candidate[:-1]), candidate[-1]
            fitted = steps.fit_transform(take(X, fit), y[fit])
            fit_weight, weights = {}, {}
            if weight is not None:
                fit_weight = {"sample_weight": weight[fit]}
                weights = {**fit_weight, "sample_weight_val": weight[val]}
            validation = steps.transform(take(X, val)), y[val]
            n_epochs = _epochs_by_hand(model, fitted, y[fit], *validation, **weights)
            model = _with_epochs(model, n_epochs).fit(fitted, y[fit], **fit_weight)
            tested = steps.transform(take(X, test))
            rows.append((n_epochs, model.score(tested, y[test]), model.score(fitted, y[fit])))
    return [np.reshape(values, (-1, cv.get_n_splits())) for values in zip(*rows, strict=True)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fraction", [0.25, "test"])
@EACH_MODEL
def test_fits_stop_as_by_hand(name, fraction):
    model, cv = MODELS[name], KFold(2)
    estimator = pipeline(model)
    expected = _by_hand(estimator, FRAME, _y(model), cv, fraction)
    assert len(np.unique(expected[0])) > 1
    search = GridSearchCV(
        estimator, _grid(model), cv=cv, early_stopping=fraction, return_train_score=True
    ).fit(FRAME, _y(model))
    assert_as_by_hand(search, expected)
    best = search.best_estimator_[-1]
    n_epochs = search.cv_results_["best_iteration"][search.best_index_]
    assert best.n_iter_ == n_epochs
    refit = clone(estimator).set_params(**search.best_params_)
    refit.set_params(model=_with_epochs(refit[-1], n_epochs)).fit(FRAME, _y(model))
    np.testing.assert_array_equal(search.predict(FRAME), refit.predict(FRAME))
    assert best.get_params()["early_stopping"] is False
    assert estimator[-1].get_params() == MODELS[name].get_params()


@EACH_MODEL
def test_weights_of_validation_rows(name):
    model, cv = MODELS[name], KFold(2)
    weight = np.random.default_rng(2).integers(1, 30, size=420) ** 2.0
    estimator = Pipeline([("scaler", StandardScaler()), ("model", model)])
    expected = _by_hand(estimator, NUMBERS, _y(model), cv, 0.25, weight)
    assert np.any(expected[0] != _by_hand(estimator, NUMBERS, _y(model), cv, 0.25)[0])
    search = GridSearchCV(estimator, _grid(model), cv=cv, early_stopping=0.25, n_jobs=1)
    search.fit(NUMBERS, _y(model), model__sample_weight=weight)
    np.testing.assert_array_equal(by_split(search, "best_iteration"), expected[0])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if "incremental" in name else [])
        for name in MODELS
    ],
)
def test_rows_on_dask(name):
    # batches of one row in their order do not depend on how the rows of a split are cut
    model = clone(MODELS[name]).set_params(shuffle=False, batch_size=1)
    if isinstance(model, Incremental):
        model.set_params(epochs=8)
    cv, X, y = KFold(2), NUMBERS[:120], _y(model)[:120]
    lazy = da.from_array(X, chunks=(40, 5)), da.from_array(y, chunks=40)
    estimator = Pipeline([("scaler", LazyScaler()), ("model", model)])
    grid = {name: values[-1:] for name, values in _grid(model).items()}
    search = GridSearchCV(estimator, grid, cv=cv, early_stopping=0.25).fit(*lazy)
    n_epochs = []
    for params in ParameterGrid(grid):
        candidate = clone(estimator).set_params(**params)
        for rows in splits_by_hand(y, cv, 0.25, 3, stratify=is_classifier(model)):
            fit, val = map(np.sort, rows[:2])
            scaled = candidate[:-1].fit_transform(lazy[0][fit])
            # validation rows of this process say the same as lazy ones
            validation = candidate[:-1].transform(X[val]), y[val]
            n_epochs.append(_epochs_by_hand(candidate[-1], scaled, lazy[1][fit], *validation))
    np.testing.assert_array_equal(by_split(search, "best_iteration").ravel(), n_epochs)
    best = search.cv_results_["best_iteration"][search.best_index_]
    assert search.best_estimator_[-1].n_iter_ == best


def test_halving_over_epochs():
    model = clone(MODELS["classifier"]).set_params(learning_rate="constant")
    grid = {"eta0": [1e-4, 1e-3, 1e-2, 1e-1]}
    search = HalvingGridSearchCV(
        model, grid, resource="max_iter", min_resources=2, max_resources=8, factor=2, cv=2,
        early_stopping=0.25,
    )  # fmt: skip
    with pytest.warns(Warning, match="The loss still fell"):
        search.fit(NUMBERS, LABELS)
    results = search.cv_results_
    assert (results["best_iteration"] <= results["n_resources"]).all()
    assert search.best_estimator_.n_iter_ == results["best_iteration"][search.best_index_]


def test_a_refit_without_a_best_iteration_runs_to_the_end():
    for name, limit in (("regressor", 7), ("incremental regressor", 40)):
        model = clone(MODELS[name])
        if name == "regressor":
            model.set_params(max_iter=limit, tol=10.0)
        booster_of(model).set_iterations(None)
        assert model.fit(NUMBERS, TARGETS).n_iter_ == limit


@pytest.mark.parametrize(
    ("model", "grid", "match"),
    [
        (SGDClassifier(tol=None), {}, "tol of SGDClassifier must be a number"),
        (SGDRegressor(), {"tol": [1e-3, None]}, "tol of SGDRegressor must be a number"),
        (SGDClassifier(learning_rate="adaptive"), {}, "must not be 'adaptive'"),
        (SGDRegressor(), {"learning_rate": ["optimal", "adaptive"]}, "must not be 'adaptive'"),
        (Incremental(MiniBatchKMeans()), {}, "must be None for an estimator without X_val"),
        (Incremental(SGDClassifier(), tol=None), {}, "tol of Incremental must be a number"),
    ],
    ids=str,
)
def test_refused_before_any_fit(model, grid, match):
    search = GridSearchCV(model, grid, early_stopping=0.25)
    with pytest.raises(ValueError, match=match):
        search.fit(NUMBERS, LABELS)
    assert not hasattr(search, "cv_results_")
