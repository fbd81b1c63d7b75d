"""Predictions of pipelines of a Dask DataFrame: in the container that a model alone gives."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn import linear_model
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from random_examples import n_examples
from skfleet.estimators import (
    PCA,
    ColumnTransformer,
    GaussianMixture,
    GaussianNB,
    KMeans,
    KNeighborsClassifier,
    LogisticRegression,
    OneHotEncoder,
    ParallelPostFit,
    Ridge,
    RidgeClassifier,
    SimpleImputer,
    StandardScaler,
)
from skfleet.model_selection import GridSearchCV, cross_val_score, train_test_split

LOADED = []


def part(frame, i):
    LOADED.append(i)
    return frame.iloc[20 * i : 20 * i + 20]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    frame["town"] = rng.choice(["Rome", "Oslo", None], 60)
    frame["sold"] = np.where(frame["a"] + rng.normal(size=60) > 0, "yes", "no")
    return frame.set_index(pd.Index([f"row{i}" for i in range(60)], name="id"))


@pytest.fixture(scope="module")
def lazy(frame):
    return dd.from_map(part, [frame] * 3, range(3), meta=frame.iloc[:0])


def columns(threshold):
    encoder = OneHotEncoder(sparse_output=threshold > 0)
    text = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder)
    parts = [("text", text, ["town"]), ("numbers", StandardScaler(), ["a", "b"])]
    return ColumnTransformer(parts, sparse_threshold=threshold)


PREPARATIONS = {
    "columns": lambda: columns(0.0),
    "sparse columns": lambda: columns(1.0),
    "columns and a scaler": lambda: make_pipeline(columns(0.0), StandardScaler()),
    "columns and components": lambda: make_pipeline(columns(0.0), PCA(2)),
    "frame": lambda: columns(0.0).set_output(transform="pandas"),
}
MODELS = [
    LogisticRegression(),
    RidgeClassifier(),
    Ridge(),
    KNeighborsClassifier(3),
    GaussianNB(),
    GaussianMixture(2, random_state=0),
    KMeans(2, random_state=0),
    ParallelPostFit(LogisticRegression()),
]
METHODS = ["predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples"]


@settings(max_examples=n_examples(5, 40), deadline=None)
@given(
    name=st.sampled_from(sorted(PREPARATIONS)),
    model=st.sampled_from(MODELS),
    method=st.sampled_from(METHODS),
    is_split=st.booleans(),
)
@example(name="sparse columns", model=LogisticRegression(), method="predict_proba", is_split=False)
def test_container_of_a_model_alone(name, model, method, is_split, frame, lazy):
    if not hasattr(model, method) or (
        name.startswith("sparse")
        and type(model) in (GaussianNB, GaussianMixture, KNeighborsClassifier)
    ):
        return
    X = lazy[["a", "b", "town"]]
    y = lazy["a"] if isinstance(model, Ridge) else lazy["sold"]
    pipeline = make_pipeline(PREPARATIONS[name](), clone(model)).fit(X, y)
    alone = clone(model).fit(X[["a", "b"]], y)
    if is_split:
        X, _ = train_test_split(X, random_state=0)
    LOADED.clear()
    like, got = getattr(alone, method)(X[["a", "b"]]), getattr(pipeline, method)(X)
    assert not LOADED
    assert isinstance(got, dd.Series if like.ndim == 1 else dd.DataFrame)
    assert got.divisions == X.divisions
    rows, values = X.compute(), got.compute()
    pd.testing.assert_index_equal(values.index, rows.index)
    if like.ndim == 2:
        assert list(got.columns) == list(values.columns) == list(like.columns)
        assert list(got.dtypes) == list(values.dtypes)
    else:
        assert got.dtype == values.dtype
    if not isinstance(model, KNeighborsClassifier):  # whose training rows are loaded too
        LOADED.clear()
        got.compute()
        assert sorted(LOADED) == sorted(set(LOADED))  # no partition twice
    want = getattr(pipeline, method)(frame.loc[rows.index, ["a", "b", "town"]])
    if np.asarray(want).dtype.kind in "OU":  # text of any width
        np.testing.assert_array_equal(values, want)
    else:
        np.testing.assert_allclose(values, want, atol=1e-9)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        RidgeClassifier(),
        KNeighborsClassifier(3),
        GaussianNB(),
        ParallelPostFit(linear_model.LogisticRegression()),
        make_pipeline(columns(1.0), LogisticRegression()),
        GridSearchCV(linear_model.LogisticRegression(), {"C": [1.0]}, cv=2),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # by Dask's writer
def test_labels_of_text_are_written_to_parquet(model, frame, lazy, tmp_path):
    X = lazy[["a", "b", "town"]] if hasattr(model, "steps") else lazy[["a", "b"]]
    y = lazy["sold"].compute() if isinstance(model, ParallelPostFit) else lazy["sold"]
    model.fit(X.compute() if isinstance(model, ParallelPostFit) else X, y)
    answer = model.predict(X)
    assert answer.dtype == lazy["sold"].dtype == answer.compute().dtype
    X.assign(answer=answer).to_parquet(tmp_path)
    written = dd.read_parquet(tmp_path)["answer"].compute()
    assert list(written) == list(answer.compute())
    assert set(written) <= {"yes", "no"}


def test_transforms_stay_arrays_and_changed_ones_have_no_index(lazy):
    X = lazy[["a", "b", "town"]]
    pipeline = make_pipeline(columns(0.0), PCA(2), LogisticRegression()).fit(X, lazy["sold"])
    rows = pipeline[:-1].transform(X)
    assert isinstance(rows, da.Array)
    assert isinstance(pipeline[-1].predict(rows), dd.Series)
    assert isinstance(pipeline[-1].predict(rows * 1.0), da.Array)
    assert isinstance(pipeline[-1].predict(rows[:, ::-1]), da.Array)


def test_scores_load_each_partition_once(frame, lazy):
    X, y = lazy[["a", "b", "town"]], lazy["sold"]
    pipeline = make_pipeline(columns(0.0), LogisticRegression()).fit(X, y)
    LOADED.clear()
    score = pipeline.score(X, y)
    assert sorted(LOADED) == [0, 1, 2]
    assert score == pipeline.score(frame[["a", "b", "town"]], frame["sold"])


@pytest.mark.parametrize("scoring", ["neg_log_loss", "neg_brier_score"])
def test_scores_of_probabilities(scoring, frame):
    frame = frame[["a", "b"]].assign(sold=(frame["sold"] == "yes") * 1)
    lazy, names = dd.from_pandas(frame, npartitions=3, sort=False), ["a", "b"]
    options = {"cv": 3, "scoring": scoring, "error_score": "raise"}
    alone = LogisticRegression(tol=1e-8)
    for model in (make_pipeline(StandardScaler(), alone), alone):
        X, y = lazy[names], lazy["sold"]
        want = cross_val_score(model, frame[names], frame["sold"], **options)
        np.testing.assert_allclose(cross_val_score(model, X, y, **options), want, atol=1e-6)


@pytest.mark.parametrize("is_frame", [True, False])
def test_a_search_with_a_wrapper_behind_first_steps(is_frame, frame):
    names = ["a", "b"]
    lazy = dd.from_pandas(frame, npartitions=3, sort=False)
    X, y = lazy[names], lazy["sold"]
    if not is_frame:
        X, y = (da.from_array(x.to_numpy(), chunks=25) for x in (frame[names], frame["sold"]))
    last = ParallelPostFit(linear_model.LogisticRegression())
    grid = {"parallelpostfit__estimator__C": [0.01, 1.0]}
    options = {"cv": 3, "error_score": "raise"}
    search = GridSearchCV(make_pipeline(StandardScaler(), last), grid, **options).fit(X, y)
    local = GridSearchCV(make_pipeline(StandardScaler(), last), grid, **options)
    local.fit(frame[names], frame["sold"])
    for name in ("mean_test_score", "rank_test_score"):
        np.testing.assert_allclose(search.cv_results_[name], local.cv_results_[name])
    predictions = search.predict(X)
    assert isinstance(predictions, dd.Series if is_frame else da.Array)
    np.testing.assert_array_equal(predictions, local.predict(frame[names]))
