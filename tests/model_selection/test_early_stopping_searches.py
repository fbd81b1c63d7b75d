"""Searches of every kind, resumed and on any rows, whose fits stop on validation rows."""

import os
import signal

import dask.array as da
import dask.dataframe as dd
import joblib
import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from distributed import Client
from sklearn.base import BaseEstimator, RegressorMixin, clone, is_classifier
from sklearn.datasets import make_regression
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import (
    KFold,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from stopping_by_hand import (
    DEPTHS,
    FRAME,
    LABELS,
    LGBM,
    MODELS,
    NUMBERS,
    TARGETS,
    XGB,
    assert_as_by_hand,
    by_hand,
    by_split,
    pipeline,
    rounds_by_hand,
    splits_by_hand,
)

from clusters import local_client
from skfleet.estimators.preprocessing import StandardScaler as LazyScaler
from skfleet.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
)
from skfleet.model_selection._dispatch._search_context import SearchContext


@pytest.fixture(scope="module", autouse=True)
def _on_a_fleet(process_cluster):
    """Two worker processes of one thread each: warnings that are errors are not thread-safe."""
    with Client(process_cluster):
        yield


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


@pytest.mark.parametrize("fraction", [0.25, "test"])
@pytest.mark.parametrize("backend", ["skfleet", "threading"])
def test_the_calling_process_makes_the_same_fits(fraction, backend):
    estimator, cv = pipeline(MODELS["xgboost"]), KFold(2)
    options = {"cv": cv, "early_stopping": fraction, "n_jobs": 1, "return_train_score": True}
    with joblib.parallel_config(backend):
        search = GridSearchCV(estimator, DEPTHS, **options).fit(FRAME, LABELS)
    assert_as_by_hand(search, by_hand(estimator, DEPTHS, FRAME, LABELS, cv, fraction))
    n_rounds = search.cv_results_["best_iteration"][search.best_index_]
    assert search.best_estimator_[-1].n_estimators == n_rounds
    assert search.timeline_.empty
    assert search.shared_fits_ == ()


class Scored(StandardScaler):
    """Cross-validates another estimator in its fit."""

    def fit(self, X, y):
        self.score_ = cross_val_score(DummyClassifier(), X, y, cv=2).mean()
        return super().fit(X, y)


def test_fits_within_a_fit_have_no_validation_rows():
    estimator, cv = pipeline(MODELS["hist classifier"]), KFold(2)
    expected = by_hand(estimator, DEPTHS, FRAME, LABELS, cv, 0.25)
    estimator.set_params(scaler=Scored())
    for n_jobs in (1, None):
        search = GridSearchCV(estimator, DEPTHS, cv=cv, early_stopping=0.25, n_jobs=n_jobs)
        assert_as_by_hand(search.fit(FRAME, LABELS), expected)
        assert search.best_estimator_["scaler"].score_ > 0


def test_a_search_within_the_fits_of_another():
    estimator, cv = pipeline(MODELS["hist classifier"]), KFold(2)
    search = GridSearchCV(estimator, DEPTHS, cv=cv, early_stopping=0.25)
    with joblib.parallel_config("skfleet"):  # all workers are busy with the outer fits
        outer = cross_validate(search, FRAME, LABELS, cv=KFold(3), return_estimator=True)
    for (train, _), inner in zip(KFold(3).split(FRAME), outer["estimator"], strict=True):
        assert_as_by_hand(
            inner, by_hand(estimator, DEPTHS, FRAME.iloc[train], LABELS[train], cv, 0.25)
        )


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


class Patient(RegressorMixin, BaseEstimator):
    """Takes validation rows as scikit-learn names them; fitted here, as it seems to be ours."""

    __module__ = "skfleet.of_this_test"
    n_left = np.inf  # fits until Ctrl-C

    def __init__(self, max_iter=9, rounds=5):
        self.max_iter = max_iter
        self.rounds = rounds

    def fit(self, X, y, X_val=None, y_val=None):
        if Patient.n_left <= 0:
            raise KeyboardInterrupt
        Patient.n_left -= 1
        assert X_val is None or len(X_val) == len(y_val) == 12
        self.n_iter_ = self.max_iter if X_val is None else self.rounds
        return self

    def predict(self, X):
        return self.n_iter_ * np.asarray(X)[:, 0]


def test_any_estimator_that_takes_validation_rows_and_an_interrupted_search():
    X = np.random.default_rng(0).normal(size=(120, 3))
    lazy = da.from_array(X, chunks=50), X[:, 0]
    # one fit after the other, so that the first five end
    search = GridSearchCV(Patient(), {"rounds": [2, 3, 4]}, cv=2, early_stopping=0.2, n_jobs=1)
    search.fit(*lazy)
    assert search.cv_results_["best_iteration"].tolist() == [2, 3, 4]
    assert search.best_estimator_.get_params() == {"max_iter": 2, "rounds": 2}
    Patient.n_left = 5
    try:
        with pytest.raises(KeyboardInterrupt):
            search.fit(*lazy)
    finally:
        Patient.n_left = np.inf
    assert search.cv_results_["best_iteration"].tolist() == [2, 3]
    assert search.cv_results_["split1_best_iteration"].tolist() == [2, 3]
    assert search.best_params_ == {"rounds": 2}


class Listener:
    """The least that scikit-learn takes for a callback."""

    fits = []

    def setup(self, *args, **kwargs):
        pass

    def teardown(self, *args, **kwargs):
        pass

    def on_fit_task_begin(self, estimator, context, **kwargs):
        pass

    def on_fit_task_end(self, estimator, context, *, X=None, **kwargs):
        self.fits.append(type(estimator).__name__)


def test_callbacks_hear_of_fits_that_stop_early():
    estimator, cv = pipeline(MODELS["hist classifier"]), KFold(2)
    search = GridSearchCV(estimator, DEPTHS, cv=cv, early_stopping=0.25, n_jobs=1)
    search.set_callbacks(Listener()).fit(FRAME, LABELS)
    assert Listener.fits.count("GridSearchCV") >= 4
    expected = by_hand(estimator, DEPTHS, FRAME, LABELS, cv, 0.25)
    assert_as_by_hand(search, expected)
    assert_as_by_hand(search.set_params(n_jobs=None).fit(FRAME, LABELS), expected)


class Deadly(StandardScaler):
    """Kills its worker in the first fit of all."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def fit(self, X, y=None):
        try:
            os.open(os.path.join(self.folder, "killed"), os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return super().fit(X, y)
        os.kill(os.getpid(), signal.SIGKILL)
        return None


@pytest.mark.slow
def test_a_worker_that_dies_costs_its_own_fits_only(tmp_path):
    estimator = pipeline(MODELS["hist classifier"])
    expected = by_hand(estimator, DEPTHS, FRAME, LABELS, KFold(3), 0.25)
    estimator.set_params(scaler=Deadly(str(tmp_path)))
    with local_client(2, threads_per_worker=1):
        search = GridSearchCV(estimator, DEPTHS, cv=KFold(3), early_stopping=0.25)
        assert_as_by_hand(search.fit(FRAME, LABELS), expected)
    assert (tmp_path / "killed").exists()


# -- rows on Dask ---------------------------------------------------------------------------------


@pytest.mark.sampled(2)
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


def test_weights_of_rows_on_dask():
    X, y = make_regression(600, 5, noise=40, random_state=0)
    weight = np.random.default_rng(2).integers(1, 50, size=600) ** 2.0
    frame = pd.DataFrame(X, columns=list("abcde")).assign(y=y, weight=weight)
    lazy = dd.from_pandas(frame, npartitions=4)
    search = GridSearchCV(MODELS["our xgboost"], {}, cv=KFold(2), early_stopping=0.25, refit=False)
    search.fit(lazy[list("abcde")], lazy["y"], sample_weight=lazy["weight"])
    n_rounds = []
    for rows in splits_by_hand(y, KFold(2), 0.25, stratify=False):
        fit, val = map(np.sort, rows[:2])
        parts = X[fit], y[fit], X[val], y[val], weight[fit], weight[val]
        n_rounds.append(rounds_by_hand(xgboost.XGBRegressor(**XGB), *parts))
        assert n_rounds[-1] != rounds_by_hand(xgboost.XGBRegressor(**XGB), *parts[:5])
    assert by_split(search, "best_iteration")[0].tolist() == n_rounds


def test_rows_on_dask_of_an_estimator_in_memory():
    estimator, cv = (
        Pipeline([("scaler", StandardScaler()), ("model", MODELS["lightgbm"])]),
        KFold(2),
    )
    lazy = da.from_array(NUMBERS, chunks=(150, 5)), da.from_array(TARGETS, chunks=150)
    search = GridSearchCV(estimator, DEPTHS, cv=cv, early_stopping=0.2).fit(*lazy)
    assert_as_by_hand(search, by_hand(estimator, DEPTHS, NUMBERS, TARGETS, cv, 0.2))
