"""Pipelines on Dask rows whose last steps take rows of this process: prepared rows come here."""

import logging
from collections import Counter

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn.linear_model
import sklearn.model_selection as reference
import sklearn.preprocessing
from distributed import Client
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.svm import SVC

from clusters import local_client
from skfleet.engine import NarrowRows, gather_rows, joined_blocks
from skfleet.estimators import LogisticRegression as BlockwiseLogisticRegression
from skfleet.estimators import Ridge
from skfleet.estimators.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from skfleet.model_selection import GridSearchCV
from skfleet.model_selection._dispatch import _gathered_rows

rng = np.random.default_rng(0)
N_ROWS = 400
TABLE = pd.DataFrame({"size": rng.normal(10, 3, N_ROWS), "town": rng.choice(list("abcd"), N_ROWS)})
TARGET = pd.Series((TABLE["size"] + 3 * (TABLE.town == "a") + rng.normal(size=N_ROWS) > 11) * 1)
X, y = rng.normal(5, [1, 20, 3], (N_ROWS, 3)), rng.normal(size=N_ROWS)
LAZY_X, LAZY_Y = da.from_array(X, chunks=((150, 0, 250), 3)), da.from_array(y, chunks=200)


@pytest.fixture(scope="module", autouse=True)
def _on_a_fleet():
    with Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"):
        yield


@pytest.fixture
def messages(caplog):
    """A function that returns the log's messages so far."""
    caplog.set_level(logging.DEBUG, "skfleet.engine")
    return lambda: [record.getMessage() for record in caplog.records]


def frames():
    rows = pd.concat([TABLE, TARGET.rename("target")], axis=1)
    rows.index = rows.index * 2 + 5
    lazy = dd.from_pandas(rows, npartitions=3)
    lazy = lazy[lazy["size"] > 4]
    return lazy, lazy.compute()


def pipeline(encoder, last):
    return Pipeline([("encode", encoder), ("last", last)])


def compare(ours, theirs, grid, rows, **params):
    lazy, table = rows
    params = {"cv": 3, "error_score": "raise", **params}
    search = GridSearchCV(ours, grid, **params).fit(*lazy)
    other = reference.GridSearchCV(theirs, grid, **params).fit(*table)
    assert search.cv_results_["params"] == other.cv_results_["params"]
    for name, expected in other.cv_results_.items():
        if name.startswith("split"):
            np.testing.assert_allclose(search.cv_results_[name], expected, 0, 1e-9, err_msg=name)
    return search, other


def test_prepared_rows_come_once_for_each_split_and_encoding(messages):
    lazy, table = frames()
    columns = ["town"]
    forest = RandomForestClassifier(random_state=0, n_estimators=5)
    grid = {"encode__drop": [None, "first"], "last__max_depth": [1, 2, 3]}
    search, other = compare(
        pipeline(OneHotEncoder(), forest),
        pipeline(sklearn.preprocessing.OneHotEncoder(), forest),
        grid,
        ((lazy[columns], lazy.target), (table[columns], table.target)),
        scoring=["accuracy", "neg_log_loss"],
        refit="neg_log_loss",
        return_train_score=True,
    )
    passes = Counter(m.split()[1].rstrip(":") for m in messages() if m.startswith("pass "))
    # the fit of the encoders of all splits, the rows of each, and both again for the refit
    assert passes["fit-first-steps"] == 1
    assert passes["gather-rows"] == 3 * 2 + 1
    assert any(m.endswith(" MB of prepared rows for RandomForestClassifier") for m in messages())
    assert search.best_params_ == other.best_params_
    model = search.best_estimator_
    assert type(model) is Pipeline
    assert [type(step) for _, step in model.steps] == [OneHotEncoder, RandomForestClassifier]
    np.testing.assert_array_equal(search.predict(table[columns]), other.predict(table[columns]))
    assert search.feature_names_in_.tolist() == columns


def test_all_kinds_of_last_steps_and_targets():
    rows = (LAZY_X, LAZY_Y), (X, y)
    ours = make_pipeline(StandardScaler(), KNeighborsRegressor())
    theirs = make_pipeline(sklearn.preprocessing.StandardScaler(), KNeighborsRegressor())
    compare(ours, theirs, {"kneighborsregressor__n_neighbors": [1, 5, 9]}, rows)
    # steps between, a grid over steps, and rows in this process as targets
    two = sklearn.preprocessing.PolynomialFeatures(2)
    ours = Pipeline([("a", StandardScaler()), ("b", two), ("c", KNeighborsRegressor())])
    theirs = Pipeline([("a", StandardScaler()), ("b", two), ("c", KNeighborsRegressor())])
    grid = {"a": [StandardScaler(), "passthrough"], "b__degree": [1, 2], "c__n_neighbors": [2, 4]}
    compare(ours, theirs, grid, ((LAZY_X, y), (X, y)))


def test_one_grid_with_last_steps_of_both_kinds():
    labels = (X[:, 0] + y > 5).astype(int)
    ours = pipeline(StandardScaler(), SVC())
    models = [SVC(), LogisticRegression(tol=1e-10)]
    rows = (LAZY_X, da.from_array(labels, chunks=100)), (X, labels)
    compare(ours, clone_of(ours), {"last": models}, rows, scoring="accuracy")
    grid = {"last": [BlockwiseLogisticRegression(tol=1e-10), models[1]]}
    search, _ = compare(ours, clone_of(ours), grid, rows, scoring="accuracy")
    scores = search.cv_results_["mean_test_score"]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-3)


def clone_of(model):
    return Pipeline([("encode", sklearn.preprocessing.StandardScaler()), model.steps[-1]])


def test_fits_on_prepared_rows_share_work():
    labels = (X[:, 0] + y > 5).astype(int)
    boosting = HistGradientBoostingClassifier(random_state=0, early_stopping=False)
    grid = {"last__max_iter": [2, 4, 8]}
    rows = (LAZY_X, da.from_array(labels, chunks=100)), (X, labels)
    ours = pipeline(StandardScaler(), boosting)
    search, _ = compare(ours, clone_of(ours), grid, rows)
    (use,) = search.shared_fits_
    assert (use.estimator, use.n_fits, use.refused) == ("HistGradientBoostingClassifier", 9, None)
    assert use.n_saved > 0


def test_frames_parameters_per_row_and_output(capfd):
    lazy, table = frames()
    columns, weights = ["size"], table["size"].to_numpy()
    model = LogisticRegression(tol=1e-10)
    ours = pipeline(StandardScaler().set_output(transform="pandas"), model)
    theirs = pipeline(sklearn.preprocessing.StandardScaler().set_output(transform="pandas"), model)
    params = {"cv": 3, "scoring": "accuracy", "verbose": 2}
    grid = {"encode__with_mean": [True], "last__C": [1.0]}
    search = GridSearchCV(ours, grid, **params)
    search.fit(lazy[columns], lazy.target, last__sample_weight=lazy["size"])
    assert "encode__with_mean=True, last__C=1.0; total time=" in capfd.readouterr().out
    assert search.best_estimator_[-1].feature_names_in_.tolist() == columns
    other = reference.GridSearchCV(theirs, grid, cv=3, scoring="accuracy")
    other.fit(table[columns], table.target, last__sample_weight=weights)
    name = "mean_test_score"
    np.testing.assert_allclose(search.cv_results_[name], other.cv_results_[name])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.FitFailedWarning")
@pytest.mark.filterwarnings("ignore:One or more of the test scores")
def test_candidates_that_fail(tmp_path):
    labels = da.from_array((X[:, 0] > 5).astype(int), chunks=100)
    ours = pipeline(StandardScaler(), SVC())
    grid = {"encode__with_mean": [True, "no"], "last__C": [1.0, -1.0]}
    search = GridSearchCV(ours, grid, cv=2, checkpoint=tmp_path / "search")
    search.fit(LAZY_X, labels)
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True, True, True]
    again = GridSearchCV(ours, grid, cv=2, checkpoint=tmp_path / "search").fit(LAZY_X, labels)
    assert again.n_checkpoint_fits_ == 2  # those that failed are made again
    for error in ("The 'with_mean' parameter of StandardScaler", "The 'C' parameter of SVC"):
        chosen = {k: v[::-1] for k, v in grid.items() if ("C" in k) == ("SVC" in error)}
        with pytest.raises(ValueError, match=error):
            GridSearchCV(ours, chosen, cv=2, error_score="raise").fit(LAZY_X, labels)


def test_rows_that_do_not_fit_are_refused():
    with local_client(1, threads_per_worker=1, memory_limit=300_000_000):
        rows = da.zeros((1_000_000, 20), chunks=(100_000, 20))
        model = make_pipeline(FunctionTransformer(), KNeighborsRegressor())
        with pytest.raises(ValueError, match="160 MB of rows for 300 MB"):
            GridSearchCV(model, {}, cv=2).fit(rows, rows[:, 0])


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0.0, 1.0, 255.0], "uint8"),
        ([0.0, -1.0], "int8"),
        ([0.5, np.nan], "float32"),
        ([0.1], "float64"),
        ([-0.0, 0.5], "float32"),
        ([70_000.0], "float32"),
        ([np.inf], "float32"),
    ],
)
def test_rows_travel_in_the_narrowest_type_of_their_values(values, dtype):
    expected = np.array(values)[:, None]
    lazy_rows = da.from_array(expected, chunks=expected.shape)
    for lazy in (lazy_rows, lazy_rows.map_blocks(sp.csr_array)):
        gathered = gather_rows(joined_blocks(lazy), "a model")
        assert gathered._values.dtype == dtype
        part = gathered[np.arange(len(values))]
        assert part.dtype == np.float64
        if sp.issparse(part):
            part = part.toarray()
        else:
            np.testing.assert_array_equal(np.signbit(part), np.signbit(expected))
        np.testing.assert_array_equal(part, expected)


def test_types_of_blocks_are_joined():
    rows = np.array([[1.0], [0.5], [-3.0], [0.1]])
    gathered = gather_rows(
        joined_blocks(da.from_array(rows, chunks=1), da.zeros((0, 1))), "a model"
    )
    assert type(gathered) is NarrowRows
    np.testing.assert_array_equal(gathered[:], rows)


def test_time_budgets_and_interruptions(monkeypatch, tmp_path):
    labels = da.from_array((X[:, 0] > 5).astype(int), chunks=100)
    ours, grid = pipeline(StandardScaler(), SVC()), {"last__C": [1.0, 2.0, 3.0]}
    with pytest.raises(ValueError, match="time_budget=1e-09 s was over"):
        GridSearchCV(ours, grid, cv=2, time_budget=1e-9).fit(LAZY_X, labels)
    gather, n_calls = gather_rows, 0

    def interrupt(rows, estimator):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            raise KeyboardInterrupt
        return gather(rows, estimator)

    monkeypatch.setattr(_gathered_rows, "gather_rows", interrupt)
    search = GridSearchCV(ours, grid, cv=2, checkpoint=tmp_path / "search")
    with pytest.raises(KeyboardInterrupt):
        search.fit(LAZY_X, labels)
    monkeypatch.undo()
    assert search.fit(LAZY_X, labels).n_checkpoint_fits_ == 3  # those of the first split


def test_a_fit_that_raises_ends_the_search_and_nothing_stays():
    labels = da.from_array((X[:, 0] > 5).astype(int), chunks=100)
    grid = {"last__C": [-1.0, 1.0, 2.0], "encode__with_mean": [True, False]}
    search = GridSearchCV(pipeline(StandardScaler(), SVC()), grid, cv=3, error_score="raise")
    with pytest.raises(ValueError, match="The 'C' parameter of SVC"):
        search.fit(LAZY_X, labels)


@pytest.mark.parametrize("early_stopping", [0.25, "test"])
def test_prepared_rows_to_validate_on(early_stopping):
    labels = (X[:, 0] + y > 5).astype(int)
    boosting = HistGradientBoostingClassifier(random_state=0, max_iter=30, learning_rate=0.5)
    grid, params = {"last__max_depth": [1, 2]}, {"cv": 3, "early_stopping": early_stopping}
    search = GridSearchCV(pipeline(StandardScaler(), boosting), grid, **params)
    search.fit(LAZY_X, da.from_array(labels, chunks=100))
    scaler = sklearn.preprocessing.StandardScaler()
    other = GridSearchCV(pipeline(scaler, boosting), grid, **params).fit(LAZY_X, labels)
    for name in ("mean_test_score", "best_iteration", "split2_best_iteration"):
        np.testing.assert_allclose(search.cv_results_[name], other.cv_results_[name])
    assert search.best_estimator_[-1].max_iter == other.best_estimator_[-1].max_iter < 30


@pytest.mark.parametrize("rows", [(X, y), (LAZY_X, LAZY_Y)], ids=["here", "on Dask"])
def test_a_class_that_is_derived_from_one_of_ours_prepares_rows_itself(rows):
    """Whatever its name is, and on the rows that its methods take."""

    def search_of(base, ridge, search):
        def transform(self, X, copy=None):
            return base.transform(self, X) * np.array([10.0, 1.0, 0.1])

        scaler = type("StandardScaler", (base,), {"transform": transform, "__module__": __name__})
        return search(make_pipeline(scaler(), ridge()), {"ridge__alpha": [0.1, 10, 1000]}, cv=3)

    found = search_of(StandardScaler, Ridge, GridSearchCV).fit(*rows)
    expected = search_of(
        sklearn.preprocessing.StandardScaler, sklearn.linear_model.Ridge, reference.GridSearchCV
    ).fit(X, y)
    name = "mean_test_score"
    np.testing.assert_allclose(found.cv_results_[name], expected.cv_results_[name], atol=1e-9)
