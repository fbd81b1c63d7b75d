"""Searches over pipelines whose rows are on Dask: first steps are fitted once per split."""

import logging
from collections import Counter

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.compose
import sklearn.impute
import sklearn.linear_model as theirs
import sklearn.model_selection as reference
import sklearn.preprocessing
from distributed import Client
from sklearn.model_selection import GroupKFold, ShuffleSplit, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline

from skfleet.engine import counting
from skfleet.estimators.compose import ColumnTransformer
from skfleet.estimators.decomposition import PCA
from skfleet.estimators.impute import SimpleImputer
from skfleet.estimators.linear_model import LogisticRegression, Ridge
from skfleet.estimators.preprocessing import (
    OneHotEncoder,
    QuantileTransformer,
    StandardScaler,
    TargetEncoder,
)
from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV, RandomizedSearchCV

# Dask's reader, on pandas 3.1
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")

NUMBERS, CATEGORIES = ["height", "weight"], ["town"]


@pytest.fixture(scope="module", autouse=True)
def _on_a_fleet():
    with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"):
        yield


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    """Rows of Parquet files, filtered, and the same rows in this process."""
    rng = np.random.default_rng(0)
    n_rows = 1200
    table = pd.DataFrame(
        {
            "id": np.arange(n_rows) * 3 + 7,
            "height": rng.normal(180, 10, n_rows),
            "weight": rng.lognormal(4, 0.3, n_rows),
            "town": rng.choice(["Ulm", "Bonn", "Jena", "Trier"], n_rows, p=[0.5, 0.3, 0.15, 0.05]),
            "ward": rng.integers(0, 9, n_rows),
        }
    )
    score = (table.height - 180) / 10 + (table.town == "Ulm") + rng.normal(size=n_rows)
    table["target"], table["spent"] = (score > 0.5).astype(int), score
    table.loc[rng.random(n_rows) < 0.1, "weight"] = np.nan
    path = tmp_path_factory.mktemp("rows")
    for part, low in enumerate(range(0, n_rows, 250)):
        table[low : low + 250].to_parquet(path / f"part-{part}.parquet", index=False)
    lazy = dd.read_parquet(path)
    lazy = lazy[lazy.height > 165]
    return lazy, lazy.compute()


@pytest.fixture
def passes(caplog):
    """A function that counts the passes so far by name."""
    caplog.set_level(logging.DEBUG, "skfleet.engine")

    def count():
        texts = [record.getMessage() for record in caplog.records]
        return Counter(text.split()[1].rstrip(":") for text in texts if text.startswith("pass "))

    return count


def encoded(ours, *, last=None, **one_hot):
    """Return a pipeline of two levels before a last step, of our classes or of scikit-learn's."""
    room = (SimpleImputer, StandardScaler, OneHotEncoder, ColumnTransformer)
    if not ours:
        room = (
            sklearn.impute.SimpleImputer,
            sklearn.preprocessing.StandardScaler,
            sklearn.preprocessing.OneHotEncoder,
            sklearn.compose.ColumnTransformer,
        )
    imputer, scaler, encoder, transformer = room
    numbers = make_pipeline(imputer(), scaler())
    columns = [("numbers", numbers, NUMBERS), ("town", encoder(**one_hot), CATEGORIES)]
    if last is None:
        last = LogisticRegression if ours else theirs.LogisticRegression
        last = last(tol=1e-10, max_iter=1000)
    return Pipeline([("columns", transformer(columns)), ("last", last)])


def assert_same(search, other, atol):
    assert search.cv_results_["params"] == other.cv_results_["params"]
    for name, expected in other.cv_results_.items():
        if name.startswith("split"):
            np.testing.assert_allclose(search.cv_results_[name], expected, 0, atol, err_msg=name)


GRID = {"last__C": [0.1, 1, 10], "columns__town__drop": [None, "first"]}
PARAMS = {"cv": 3, "scoring": "neg_log_loss", "error_score": "raise"}


@pytest.mark.parametrize("n_penalties", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_all_splits_and_encodings_share_the_passes_of_their_preparation(
    frames, passes, n_penalties
):
    lazy, table = frames
    grid = GRID | {"last__C": GRID["last__C"][:n_penalties]}
    search = GridSearchCV(encoded(True), grid, refit=False, **PARAMS)
    search.fit(lazy[NUMBERS + CATEGORIES], lazy.target)
    # the scaler behind the imputer follows from the sums that this one takes
    assert passes()["fit-first-steps"] == 1
    other = reference.GridSearchCV(encoded(False), grid, refit=False, **PARAMS)
    assert_same(search, other.fit(table[NUMBERS + CATEGORIES], table.target), 1e-6)


def test_fits_take_the_passes_of_single_fits(frames, passes):
    lazy, _ = frames
    X, y = lazy[NUMBERS + CATEGORIES], lazy.target
    grid = {"last__C": [0.1, 10.0]}
    GridSearchCV(encoded(True), grid, refit=False, **PARAMS).fit(X, y)
    in_search = passes()
    table, labels = X.compute(), y.compute()
    with counting() as counts:
        for penalty in grid["last__C"]:
            pipeline = encoded(True).set_params(last__C=penalty)
            for train, _ in StratifiedKFold(3).split(table, labels):
                parts = table.iloc[train], labels.iloc[train]
                pipeline.fit(*(dd.from_pandas(part, npartitions=3) for part in parts))
    n_single = counts.passes
    n_fits = sum(
        n for name, n in in_search.items() if name not in ("fit-first-steps", "count-rows")
    )
    assert n_fits <= n_single


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shuffled", "groups"])
def test_other_splits_and_a_refit_on_rows_of_unknown_lengths(frames, kind):
    lazy, table = frames
    cv = {"shuffled": ShuffleSplit(2, random_state=1), "groups": GroupKFold(3)}[kind]
    params = {"cv": cv, "scoring": ["r2", "neg_mean_absolute_error"], "refit": "r2"}
    params["return_train_score"] = True
    grid = {"last__alpha": [0.1, 10.0], "columns__town__min_frequency": [None, 300]}
    columns = NUMBERS + CATEGORIES
    search = GridSearchCV(encoded(True, last=Ridge()), grid, **params)
    groups = {"groups": lazy.ward} if kind == "groups" else {}
    search.fit(lazy[columns], lazy.spent, **groups)
    groups = {"groups": table.ward} if kind == "groups" else {}
    other = reference.GridSearchCV(encoded(False, last=theirs.Ridge()), grid, **params)
    assert_same(search, other.fit(table[columns], table.spent, **groups), 1e-8)
    assert search.best_params_ == other.best_params_
    assert search.feature_names_in_.tolist() == columns
    np.testing.assert_allclose(
        search.predict(lazy[columns]).compute(), other.predict(table[columns]), 1e-8
    )


def test_steps_that_make_passes_of_their_own_and_steps_in_the_grid():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 6)) @ rng.normal(size=(6, 6)) + 5
    y = X[:, 0] ** 2 + rng.normal(size=500)
    steps = {"scale": StandardScaler(), "pca": PCA(3), "last": Ridge()}
    grid = {
        "pca__n_components": [2, 3],
        "scale": [StandardScaler(), "passthrough", QuantileTransformer(n_quantiles=20)],
    }
    params = {"cv": 3, "scoring": "neg_median_absolute_error", "refit": False}
    rows = da.from_array(X, chunks=((200, 0, 299, 1), (6,)))
    search = GridSearchCV(Pipeline([*steps.items()]), grid, **params)
    search.fit(rows, da.from_array(y, chunks=250))
    other = reference.GridSearchCV(Pipeline([*steps.items()]), grid, **params).fit(X, y)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], other.cv_results_["mean_test_score"], 1e-7
    )


@pytest.mark.slow
def test_encoders_of_targets_are_fitted_split_by_split(frames, passes):
    lazy, table = frames
    encoders = {
        True: TargetEncoder(cv=StratifiedKFold(3)),
        False: sklearn.preprocessing.TargetEncoder(cv=StratifiedKFold(3)),
    }
    grid = {"last__C": [0.1, 10.0]}
    classes = {True: LogisticRegression, False: theirs.LogisticRegression}
    pipelines = {
        ours: Pipeline([("towns", encoders[ours]), ("last", classes[ours](tol=1e-10))])
        for ours in (True, False)
    }
    params = PARAMS | {"return_train_score": True}
    search = GridSearchCV(pipelines[True], grid, **params).fit(lazy[CATEGORIES], lazy.target)
    assert "fit-first-steps" not in passes()
    other = reference.GridSearchCV(pipelines[False], grid, **params)
    assert_same(search, other.fit(table[CATEGORIES], table.target), 1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.FitFailedWarning")
@pytest.mark.filterwarnings("ignore:One or more of the test scores")
def test_a_candidate_that_fails_fails_alone(frames):
    lazy, table = frames
    grid = {"columns__town__drop": [None, "last"], "last__C": [1.0]}
    params = PARAMS | {"error_score": np.nan, "refit": False}
    search = GridSearchCV(encoded(True), grid, **params)
    search.fit(lazy[NUMBERS + CATEGORIES], lazy.target)
    other = reference.GridSearchCV(encoded(False), grid, **params)
    other.fit(table[NUMBERS + CATEGORIES], table.target)
    assert_same(search, other, 1e-6)
    assert np.isnan(search.cv_results_["mean_test_score"][1])
    with pytest.raises(ValueError, match="The 'drop' parameter of OneHotEncoder"):
        GridSearchCV(encoded(True), grid, **PARAMS).fit(lazy[NUMBERS + CATEGORIES], lazy.target)


@pytest.mark.slow
def test_other_searches_and_a_checkpoint(frames, tmp_path, passes):
    lazy, _ = frames
    columns = NUMBERS + CATEGORIES
    params = {"cv": 2, "random_state": 0, "checkpoint": tmp_path / "search"}
    search = RandomizedSearchCV(encoded(True), GRID, n_iter=4, **params)
    search.fit(lazy[columns], lazy.target)
    n_first = passes()["fit-first-steps"]
    again = RandomizedSearchCV(encoded(True), GRID, n_iter=4, **params)
    again.fit(lazy[columns], lazy.target)
    assert passes()["fit-first-steps"] == n_first == 1
    assert_same(again, search, 0)
    grid = {"last__C": GRID["last__C"]}
    halving = HalvingGridSearchCV(encoded(True), grid, cv=2, random_state=0)
    assert halving.fit(lazy[columns], lazy.target).best_params_["last__C"] in GRID["last__C"]


@pytest.mark.slow
def test_weights_of_the_last_step(frames):
    lazy, table = frames
    columns = NUMBERS + CATEGORIES
    grid = {"last__C": [0.1, 1.0]}
    search = GridSearchCV(encoded(True), grid, **PARAMS)
    search.fit(lazy[columns], lazy.target, last__sample_weight=lazy.ward + 1.0)
    other = reference.GridSearchCV(encoded(False), grid, **PARAMS)
    other.fit(table[columns], table.target, last__sample_weight=table.ward + 1.0)
    assert_same(search, other, 1e-6)
