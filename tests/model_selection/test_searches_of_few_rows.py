"""Searches of few Dask rows, which are brought to this process, and their answers."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import wait
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import Pipeline

from skfleet import config_context
from skfleet.engine import _single_task, counting
from skfleet.estimators import (
    Incremental,
    IncrementalPCA,
    KMeans,
    LogisticRegression,
    StandardScaler,
)
from skfleet.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    cross_val_predict,
    cross_validate,
)

pytestmark = pytest.mark.usefixtures("single_task", "current_client")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4))
Y = (X[:, 0] + RNG.normal(size=200) > 0).astype(int)
GRID = {"C": [0.1, 1.0, 10.0]}


@pytest.fixture
def rows(current_client):
    """Return X and Y in the memory of the workers."""
    collections = current_client.persist(
        [da.from_array(v, chunks=(50, *v.shape[1:])) for v in (X, Y)]
    )
    wait(collections)
    return collections


@pytest.fixture
def seen():
    """Return the types of the rows that a search scores by `note`."""
    return []


@pytest.mark.parametrize("cls", [GridSearchCV, HalvingGridSearchCV])
def test_results_are_those_of_rows_in_this_process(cls, rows):
    options = {"random_state": 0} if cls is HalvingGridSearchCV else {}
    want = cls(LogisticRegression(), GRID, cv=3, **options).fit(X, Y)
    with counting() as counts:
        search = cls(LogisticRegression(), GRID, cv=3, **options).fit(*rows)
    with config_context(single_task_below=0), counting() as on_blocks:
        cls(LogisticRegression(), GRID, cv=3, **options).fit(*rows)
    np.testing.assert_array_equal(
        search.cv_results_["mean_test_score"], want.cv_results_["mean_test_score"]
    )
    np.testing.assert_array_equal(search.best_estimator_.coef_, want.best_estimator_.coef_)
    assert counts.tasks < on_blocks.tasks / 4


def test_answers_for_dask_rows_are_lazy(rows):
    search = GridSearchCV(KMeans(random_state=0), {"n_clusters": [2, 3]}, cv=2).fit(rows[0])
    labels = search.best_estimator_.labels_
    for answer in (search.predict(rows[0]), labels, cross_val_predict(KMeans(2), rows[0], cv=2)):
        assert isinstance(answer, da.Array)
    np.testing.assert_array_equal(labels, search.best_estimator_.predict(X))


def test_frames_of_unknown_lengths(tmp_path):
    frame = pd.DataFrame(X, columns=[*"abcd"]).assign(y=Y)
    for i in range(2):
        frame[i * 100 : (i + 1) * 100].to_parquet(tmp_path / f"{i}.parquet")
    ddf = dd.read_parquet(tmp_path)
    ddf = ddf[ddf.a > -1]
    kept = frame[frame.a > -1]
    model = Pipeline([("scale", StandardScaler()), ("model", LogisticRegression())])
    search = GridSearchCV(model, {"model__C": [0.1, 1.0]}, cv=3).fit(ddf[[*"abcd"]], ddf.y)
    want = GridSearchCV(model, {"model__C": [0.1, 1.0]}, cv=3).fit(kept[[*"abcd"]], kept.y)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], want.cv_results_["mean_test_score"]
    )
    assert [*search.feature_names_in_] == [*"abcd"]
    answer = search.predict(ddf[[*"abcd"]])
    assert answer.index.compute().equals(kept.index)


@pytest.mark.parametrize(
    "settings",
    [{"keep_blocks": True}, {"block_bytes": 2**20}, {"single_task_below": X.nbytes - 1}],
    ids=str,
)
def test_rows_stay_on_dask_by_the_config(settings, rows):
    with config_context(**settings), counting() as counts:
        GridSearchCV(LogisticRegression(), GRID, cv=2).fit(*rows)
    assert counts.passes > 4


@pytest.mark.parametrize(
    "model",
    [
        Incremental(SGDClassifier(random_state=0), random_state=0),
        Pipeline([("reduce", IncrementalPCA(2)), ("model", LogisticRegression())]),
    ],
    ids=lambda model: type(model).__name__,
)
def test_models_of_blocks_are_fitted_on_blocks(model, rows):
    want = None
    for limit in ("auto", 0):
        with config_context(single_task_below=limit):
            scores = cross_validate(model, *rows, cv=2)["test_score"]
        want = scores if want is None else want
    np.testing.assert_array_equal(scores, want)


@pytest.fixture
def many_rows(monkeypatch):
    """Let the rows be more than those of a single task, and half of them fewer."""
    monkeypatch.setattr(_single_task, "SMALL_BYTES", X.nbytes // 2)


@pytest.mark.usefixtures("many_rows")
@pytest.mark.parametrize(
    "model",
    [LogisticRegression(), Pipeline([("scale", StandardScaler()), ("m", LogisticRegression())])],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("kind", ["arrays", "files"])
def test_splits_of_few_rows_come_to_this_process(model, kind, rows, tmp_path):
    """The first iterations of a halving search over many rows."""
    if kind == "files":
        pd.DataFrame(X, columns=[*"abcd"]).assign(y=Y).to_parquet(tmp_path / "0.parquet")
        frame = dd.read_parquet(tmp_path)
        rows = frame[[*"abcd"]], frame.y
    prefix = "m__" if isinstance(model, Pipeline) else ""
    grid = {f"{prefix}C": [0.1, 1.0, 10.0]}
    options = {"cv": 3, "random_state": 0, "min_resources": 30, "return_train_score": True}
    want = HalvingGridSearchCV(model, grid, **options).fit(X, Y)
    with counting() as counts:
        search = HalvingGridSearchCV(model, grid, **options).fit(*rows)
    with config_context(single_task_below=0), counting() as on_blocks:
        HalvingGridSearchCV(model, grid, **options).fit(*rows)
    for name in ("mean_test_score", "mean_train_score", "n_resources", "iter"):
        np.testing.assert_allclose(search.cv_results_[name], want.cv_results_[name])
    coef = (search.best_estimator_[-1] if prefix else search.best_estimator_).coef_
    want_coef = (want.best_estimator_[-1] if prefix else want.best_estimator_).coef_
    np.testing.assert_allclose(coef, want_coef, rtol=1e-6)
    assert counts.passes < on_blocks.passes / 3


@pytest.mark.usefixtures("many_rows")
def test_splits_of_few_rows_stay_where_a_callable_scores(rows, seen):
    def score(model, X, y):
        seen.append(type(X))
        return 0.0

    options = {"cv": 3, "random_state": 0, "min_resources": 30, "refit": False}
    HalvingGridSearchCV(LogisticRegression(), GRID, scoring=score, **options).fit(*rows)
    assert {*seen} == {da.Array}


def test_rows_of_many_fits_are_loaded_once(tmp_path):
    frame = pd.DataFrame(X, columns=[*"abcd"]).assign(y=Y)
    for i in range(4):
        frame[i * 50 : (i + 1) * 50].to_parquet(tmp_path / f"{i}.parquet")
    ddf, names, log = dd.read_parquet(tmp_path), [*"abcd"], tmp_path / "log.txt"

    def note(part):
        with log.open("a") as file:
            file.write("x")
        return part

    X_lazy = ddf[names].map_partitions(note, meta=frame[names])
    with config_context(single_task_below=0):
        search = GridSearchCV(LogisticRegression(), GRID, cv=3).fit(X_lazy, ddf.y)
    want = GridSearchCV(LogisticRegression(), GRID, cv=3).fit(X, Y)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], want.cv_results_["mean_test_score"]
    )
    # by the count of the rows, the look at their size, and for all fits together
    assert 4 <= len(log.read_text()) <= 4 + 4 + 4


def test_callable_scorers_get_rows_as_they_came(rows, seen):
    def score(model, X, y):
        seen.append(type(X))
        return 0.0

    GridSearchCV(LogisticRegression(), GRID, cv=2, scoring=score).fit(*rows)
    cross_validate(LogisticRegression(), *rows, cv=2, scoring={"own": score})
    assert {*seen} == {da.Array}
