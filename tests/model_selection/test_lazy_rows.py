"""Searches over rows on Dask: our estimators are fitted where the rows are, others' at home."""

import importlib
import time
from threading import Barrier, Lock

import dask.array as da
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model as theirs
import sklearn.model_selection as reference
from distributed import Client, wait
from sklearn.datasets import make_regression
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from clusters import local_client
from skfleet import Fleet
from skfleet.engine import _select, counting
from skfleet.engine._dask._engine import DaskEngine
from skfleet.estimators import PCA, ElasticNet, KMeans, Lasso, LinearRegression, Ridge
from skfleet.estimators import LogisticRegression as OurLogisticRegression
from skfleet.estimators.preprocessing import StandardScaler as OurStandardScaler
from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV, RandomizedSearchCV

X, y = make_regression(600, 8, noise=4, random_state=0)
labels = (y > 0).astype(int)
LAZY_X = da.from_array(X, chunks=((100, 0, 250, 150, 100), (8,)))
LAZY_Y = da.from_array(y, chunks=200)
GRID = {"alpha": [0.1, 1.0, 10.0]}


@pytest.fixture(scope="module", autouse=True)
def _on_a_fleet():
    with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"):
        yield


def assert_same(ours, other, rtol=1e-9):
    for name, expected in other.cv_results_.items():
        if name.startswith("split"):
            np.testing.assert_allclose(ours.cv_results_[name], expected, rtol, rtol, err_msg=name)


@pytest.mark.parametrize(
    ("model", "other", "grid"),
    [
        (Ridge(), theirs.Ridge(), GRID),
        (Ridge(solver="svd"), theirs.Ridge(), {**GRID, "fit_intercept": [True, False]}),
        (LinearRegression(), theirs.LinearRegression(), {"fit_intercept": [True, False]}),
        (Lasso(tol=1e-10), theirs.Lasso(tol=1e-10), GRID),
        (ElasticNet(tol=1e-10), theirs.ElasticNet(tol=1e-10), {**GRID, "l1_ratio": [0.2, 0.8]}),
    ],
    ids=["ridge", "ridge, two grids", "ols", "lasso", "elastic net"],
)
@pytest.mark.parametrize("cv", [4, KFold(3, shuffle=True, random_state=0)], ids=["runs", "mixed"])
@pytest.mark.parametrize("scoring", [None, ["r2", "neg_mean_squared_error"]], ids=["own", "two"])
def test_one_pass_for_all_penalties_and_splits(model, other, grid, cv, scoring):
    params = {"cv": cv, "scoring": scoring, "refit": False, "return_train_score": True}
    with counting() as counts:
        ours = GridSearchCV(model, grid, **params).fit(LAZY_X, LAZY_Y)
    assert counts.passes == 1
    assert_same(ours, reference.GridSearchCV(other, grid, **params).fit(X, y), 1e-7)


@pytest.mark.parametrize("cv", [4, KFold(3, shuffle=True, random_state=0)], ids=["runs", "mixed"])
def test_one_more_pass_where_a_metric_needs_the_errors(cv):
    params = {"cv": cv, "scoring": ["r2", "neg_mean_absolute_error"], "refit": False}
    with counting() as counts:
        ours = GridSearchCV(Ridge(), GRID, **params).fit(LAZY_X, LAZY_Y)
    assert counts.passes == 2
    assert_same(ours, reference.GridSearchCV(theirs.Ridge(), GRID, **params).fit(X, y))


def test_fits_are_made_where_the_rows_are_if_sums_do_not_tell_enough():
    collinear = np.c_[X, X[:, :1]]
    rows = da.from_array(collinear, chunks=(200, 9))
    grid = {"alpha": [1e-6, 1.0]}
    with counting() as counts:
        ours = GridSearchCV(Ridge(), grid, cv=3, refit=False).fit(rows, LAZY_Y)
    assert counts.passes > 1
    (use,) = ours.shared_fits_
    assert (use.n_fits, use.n_saved) == (6, 0)
    assert use.refused == "rows must be better conditioned, or the penalty larger"
    other = reference.GridSearchCV(theirs.Ridge(), grid, cv=3, refit=False).fit(collinear, y)
    assert_same(ours, other, 1e-7)


@pytest.mark.parametrize("kind", ["unknown", "frame", "mixed", "here"])
def test_any_collection(kind):
    columns = list("abcdefgh")
    rows, targets = {
        "unknown": (LAZY_X[LAZY_X[:, 0] > -1e9], LAZY_Y[LAZY_Y > -1e9]),
        "frame": (
            dd.from_pandas(pd.DataFrame(X, columns=columns), npartitions=4),
            dd.from_pandas(pd.Series(y), npartitions=4),
        ),
        "mixed": (LAZY_X, y),
        "here": (X, LAZY_Y),
    }[kind]
    ours = GridSearchCV(Ridge(), GRID, cv=3).fit(rows, targets)
    assert_same(ours, reference.GridSearchCV(theirs.Ridge(), GRID, cv=3).fit(X, y))
    assert len(ours.predict(rows if kind == "frame" else X)) == 600
    if kind == "frame":
        assert ours.best_estimator_.feature_names_in_.tolist() == columns
    if kind == "unknown":
        assert np.isnan(rows.shape[0])  # the user's own is as it was


def test_fits_are_made_where_the_rows_are(monkeypatch):
    seen = []
    fit = OurLogisticRegression.fit

    def look(self, X, y, **params):
        seen.append(type(X))
        return fit(self, X, y, **params)

    monkeypatch.setattr(OurLogisticRegression, "fit", look)
    params = {"cv": 3, "scoring": ["accuracy", "neg_log_loss"], "refit": "accuracy"}
    grid = {"C": [0.1, 1.0]}
    ours = GridSearchCV(OurLogisticRegression(tol=1e-10), grid, **params)
    ours.fit(LAZY_X, da.from_array(labels, chunks=300))
    other = reference.GridSearchCV(theirs.LogisticRegression(tol=1e-10), grid, **params)
    assert_same(ours, other.fit(X, labels), 1e-5)
    assert seen == [da.Array] * 7
    assert type(ours.predict(LAZY_X)) is da.Array


def test_metrics_that_need_predictions_and_splits_in_any_order():
    params = {"cv": ShuffleSplit(3, random_state=0), "scoring": "neg_median_absolute_error"}
    for rows, targets in [(LAZY_X, LAZY_Y), (LAZY_X, y)]:
        ours = RandomizedSearchCV(Ridge(), GRID, n_iter=3, **params).fit(rows, targets)
        other = reference.RandomizedSearchCV(theirs.Ridge(), GRID, n_iter=3, **params).fit(X, y)
        np.testing.assert_allclose(
            np.sort(ours.cv_results_["mean_test_score"]),
            np.sort(other.cv_results_["mean_test_score"]),
        )


def test_without_targets_and_with_first_steps():
    GridSearchCV(KMeans(random_state=0), {"n_clusters": [2, 3]}, cv=2).fit(LAZY_X)
    search = GridSearchCV(make_pipeline(PCA(), Ridge()), {"pca__n_components": [2, 8]}, cv=2)
    search.fit(LAZY_X, LAZY_Y)
    assert search.best_params_ == {"pca__n_components": 8}
    halving = HalvingGridSearchCV(Ridge(), GRID, cv=2, random_state=0).fit(LAZY_X, LAZY_Y)
    assert halving.best_params_ == {"alpha": 0.1}


@pytest.mark.parametrize(
    "model", [theirs.Ridge(), make_pipeline(StandardScaler(), Ridge()), DecisionTreeRegressor()]
)
def test_rows_of_other_estimators_come_home(model):
    ours = GridSearchCV(model, {}, cv=3).fit(LAZY_X, LAZY_Y)
    assert type(ours.predict(X)) is np.ndarray
    if not isinstance(model, DecisionTreeRegressor):
        assert_same(ours, reference.GridSearchCV(model, {}, cv=3).fit(X, y))


def test_rows_that_do_not_fit_home_are_refused():
    with local_client(1, threads_per_worker=1, memory_limit=300_000_000):
        rows = da.zeros((1_000_000, 20), chunks=(100_000, 20))
        with pytest.raises(ValueError, match=r"160 MB of rows for 300 MB.*Incremental\(Decision"):
            GridSearchCV(DecisionTreeRegressor(), {}).fit(rows, rows[:, 0])


def test_another_backend_cannot_fit_where_the_rows_are():
    with (
        joblib.parallel_config("threading"),
        pytest.raises(ValueError, match="X must be in this process under another backend"),
    ):
        GridSearchCV(Ridge(), GRID).fit(LAZY_X, LAZY_Y)


def test_searches_on_dask_are_recorded(tmp_path):
    params = {"cv": 3, "refit": False, "scoring": "neg_median_absolute_error"}
    params["checkpoint"] = tmp_path / "there"
    first = GridSearchCV(Ridge(), GRID, **params).fit(LAZY_X, LAZY_Y)
    with counting() as counts:
        again = GridSearchCV(Ridge(), GRID, **params).fit(LAZY_X, LAZY_Y)
    assert counts.passes == 0
    assert_same(first, again)
    with pytest.raises(ValueError, match="another X"):
        GridSearchCV(Ridge(), GRID, **params).fit(LAZY_X + 1, LAZY_Y)


@pytest.mark.parametrize("early_stopping", [None, 0.25])
def test_with_one_job_the_callers_objects_need_not_be_picklable(early_stopping):
    lock, n_scored = Lock(), [0]

    def score(model, X, y):
        with lock:
            n_scored[0] += 1
        return model.score(X, y)

    params = {"cv": 2, "n_jobs": 1, "refit": False, "scoring": score}
    if early_stopping is None:
        GridSearchCV(Ridge(), GRID, **params).fit(LAZY_X, LAZY_Y)
    else:
        params |= {"early_stopping": early_stopping}
        model = HistGradientBoostingRegressor(max_iter=5, random_state=0)
        GridSearchCV(model, {"max_depth": [1, 2, 3]}, **params).fit(X, y)
    assert n_scored == [6]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["array", "frame"])
@pytest.mark.parametrize("last", [OurLogisticRegression(tol=1e-10), theirs.LogisticRegression()])
def test_one_job_fits_in_this_process(kind, last):
    columns = list("abcdefgh")
    frame = dd.from_pandas(pd.DataFrame(X, columns=columns), npartitions=3)
    rows = {"array": LAZY_X, "frame": frame}[kind]
    params = {"cv": ShuffleSplit(2, random_state=0), "n_jobs": 1}
    steps = [("scale", OurStandardScaler()), ("last", last)]
    ours = GridSearchCV(Pipeline(steps), {"last__C": [0.1, 1.0]}, **params)
    ours.fit(rows, da.from_array(labels, chunks=200))
    steps = [("scale", StandardScaler()), ("last", theirs.LogisticRegression())]
    other = reference.GridSearchCV(Pipeline(steps), {"last__C": [0.1, 1.0]}, **params)
    assert_same(ours, other.fit(X, labels), 1e-9)
    assert ours.best_estimator_.n_features_in_ == 8


@pytest.mark.parametrize(
    ("n_blocks", "n_jobs", "mebibytes", "n_at_once"),
    [(1, None, 0, 2), (2, None, 0, 1), (2, None, 1, 3), (2, 2, 1, 2)],
    ids=["one block", "two blocks", "short passes", "two jobs"],
)
@pytest.mark.parametrize("in_pipeline", [True, False], ids=["pipeline", "alone"])
def test_fits_that_leave_workers_idle_are_made_at_once(
    monkeypatch, n_blocks, n_jobs, mebibytes, n_at_once, in_pipeline
):
    monkeypatch.setattr(_select, "SHORT_PASS_BYTES", mebibytes * 2**20)
    running, most, lock, fit = 0, 0, Lock(), OurLogisticRegression.fit
    meeting = Barrier(n_at_once)

    def count(self, X, y, **params):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meeting.wait(timeout=30)
        fitted = fit(self, X, y, **params)
        with lock:
            running -= 1
        return fitted

    monkeypatch.setattr(OurLogisticRegression, "fit", count)
    model = Pipeline([("model", OurLogisticRegression(tol=1e-10))])
    if in_pipeline:
        model.steps.insert(0, ("scale", OurStandardScaler()))
    grid, params = {"model__C": [0.01, 0.1, 1.0, 2.0, 3.0, 10.0]}, {"cv": 2, "refit": False}
    rows = da.from_array(X, chunks=(600 // n_blocks, 8))
    with counting() as counts:
        ours = GridSearchCV(model, grid, n_jobs=n_jobs, **params).fit(rows, labels)
    assert most == n_at_once
    assert counts.passes > 4
    other = reference.GridSearchCV(
        theirs.LogisticRegression(tol=1e-10), {"C": grid["model__C"]}, **params
    )
    scaled = StandardScaler().fit_transform(X) if in_pipeline else X
    np.testing.assert_allclose(
        ours.cv_results_["mean_test_score"],
        other.fit(scaled, labels).cv_results_["mean_test_score"],
        atol=0.01,  # the reference is scaled once for all splits
    )


def test_boosters_are_given_all_threads_one_fit_at_a_time(monkeypatch):
    boosting = pytest.importorskip("xgboost") and importlib.import_module("skfleet.estimators")
    running, most, lock = 0, 0, Lock()

    def count(self, X, y, **params):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        raise ValueError("no fit is needed")

    monkeypatch.setattr(boosting.XGBRegressor, "fit", count)
    model, grid = boosting.XGBRegressor(), {"max_depth": [1, 2, 3]}
    rows = da.from_array(X, chunks=(600, 8))
    with pytest.raises(ValueError, match="All the 6 fits failed"):
        GridSearchCV(model, grid, cv=2, refit=False).fit(rows, da.from_array(y, chunks=600))
    assert most == 1


@pytest.mark.parametrize(("n_copies", "have"), [(3.5, True), (2.5, False)])
def test_fits_overlap_only_where_there_is_room_for_their_rows(monkeypatch, n_copies, have):
    rows = LAZY_X.persist()
    wait(rows)
    monkeypatch.setattr(DaskEngine, "free_bytes", lambda self: n_copies * X.nbytes)
    assert _select.have_short_passes(rows, 3) == have
    assert not _select.have_short_passes(LAZY_X, 3)  # no worker holds it


def test_a_search_inside_a_task_leaves_the_only_thread_to_its_own_tasks():
    def search():
        from skfleet import config_context
        from skfleet.estimators import LogisticRegression
        from skfleet.model_selection import GridSearchCV

        rows, targets = da.random.default_rng(0).normal(size=(2, 300, 4), chunks=(1, 100, 4))
        labels = (rows[:, 0] + targets[:, 0] > 0).astype(int)
        with config_context(single_task_below=0):
            search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0, 10.0]}, cv=2)
            return search.fit(rows, labels).best_score_

    with Fleet(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        assert client.submit(search).result(timeout=60) > 0.5
