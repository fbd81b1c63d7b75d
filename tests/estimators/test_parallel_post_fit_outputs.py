"""Output of ParallelPostFit: containers, dtypes, sparse blocks, names of columns."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from lazy_containers import LAZY, compare, is_frame, make_frame
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neighbors import KernelDensity, KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from skfleet.estimators import ParallelPostFit


@pytest.fixture(scope="module")
def data():
    return make_classification(120, 6, n_informative=4, n_classes=3, random_state=0)


@pytest.mark.parametrize("container", LAZY)
@pytest.mark.parametrize(
    ("estimator", "methods"),
    [
        (
            LogisticRegression(),
            ["predict", "predict_proba", "predict_log_proba", "decision_function"],
        ),
        (LinearRegression(), ["predict"]),
        (make_pipeline(StandardScaler(), SVC()), ["predict", "decision_function"]),
        (PCA(2), ["transform", "score_samples"]),
        (make_pipeline(StandardScaler(), PCA(3)), ["transform"]),
        (KMeans(3, random_state=0), ["predict", "transform"]),
        (KernelDensity(), ["score_samples"]),
        (RandomForestClassifier(5, random_state=0), ["predict", "predict_proba"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseEstimator) else "",
)
def test_answers_are_announced_as_they_are(container, estimator, methods, data):
    X, y = data
    rows = LAZY[container](X)
    trained_on = make_frame(X) if is_frame(rows) else X
    model = ParallelPostFit(estimator).fit(trained_on, y)
    for method in methods:
        want = getattr(model.estimator_, method)(trained_on)
        compare(getattr(model, method)(rows), want, rows)
        np.testing.assert_array_equal(getattr(model, method)(trained_on), want)


@pytest.mark.parametrize("labels", [["no", "yes", "perhaps"], [True, False, True], [1.5, 2.5, 7.0]])
def test_labels_keep_their_type(labels, data):
    X, y = data
    y = np.array(labels)[y]
    if y.dtype.kind == "f":
        y = y.astype(object).astype(str)
    model = ParallelPostFit(LogisticRegression()).fit(X, y)
    compare(model.predict(LAZY["rows"](X)), model.estimator_.predict(X), LAZY["rows"](X))
    np.testing.assert_array_equal(model.classes_, np.unique(y))


def test_sparse_answers_stay_sparse(data):
    X = np.round(data[0])
    encoder = ParallelPostFit(OneHotEncoder()).fit(X)
    # a row made up of ones may hold categories that the encoder does not know
    rows = LAZY["rows"](X)
    compare(encoder.transform(rows), encoder.estimator_.transform(X), rows)


def test_several_outputs(data):
    X, y = data
    Y = np.column_stack([y, y == 1])
    model = ParallelPostFit(MultiOutputClassifier(LogisticRegression())).fit(X, Y)
    for container in ("rows", "frame"):
        rows = LAZY[container](X)
        model.fit(make_frame(X) if container == "frame" else X, Y)
        X = make_frame(X) if container == "frame" else X
        compare(model.predict(rows), model.estimator_.predict(X), rows)
        answers = model.predict_proba(rows)
        assert isinstance(answers, list)
        for got, want in zip(answers, model.estimator_.predict_proba(X), strict=True):
            compare(got, want, rows)
    X, _ = data
    regression = ParallelPostFit(LinearRegression()).fit(X, X[:, :2])
    compare(regression.predict(LAZY["rows"](X)), X[:, :2], LAZY["rows"](X))


def test_output_as_pandas_is_honoured(data):
    X, _ = data
    scaler = ParallelPostFit(StandardScaler().set_output(transform="pandas")).fit(make_frame(X))
    got = scaler.transform(LAZY["frame"](X)).compute()
    assert list(got.columns) == list(make_frame(X).columns)
    np.testing.assert_array_equal(scaler.get_feature_names_out(), got.columns)
    # an array's blocks are arrays, whatever the estimator makes of them
    plain = ParallelPostFit(StandardScaler().set_output(transform="pandas")).fit(X)
    assert isinstance(plain.transform(LAZY["rows"](X)).compute(), np.ndarray)


def test_frames_reach_the_estimator_as_frames(data):
    X, y = data
    frame = make_frame(X)
    frame["kind"] = np.where(X[:, 0] > 0, "a", "b")
    columns = make_column_transformer((OneHotEncoder(), ["kind"]), (StandardScaler(), ["c0", "c1"]))
    model = ParallelPostFit(make_pipeline(columns, LogisticRegression())).fit(frame, y)
    got = model.predict(dd.from_pandas(frame, npartitions=3)).compute()
    np.testing.assert_array_equal(got, model.estimator_.predict(frame))


@pytest.mark.parametrize("container", LAZY)
def test_neighbours(container, data):
    X, y = data
    rows = LAZY[container](X)
    model = ParallelPostFit(KNeighborsClassifier(4)).fit(make_frame(X) if is_frame(rows) else X, y)
    trained_on = make_frame(X) if is_frame(rows) else X
    got = model.kneighbors(rows)
    want = model.estimator_.kneighbors(trained_on)
    assert isinstance(got, tuple)
    for one, wanted in zip(got, want, strict=True):
        compare(one, wanted, rows)
    alone = model.kneighbors(rows, n_neighbors=2, return_distance=False)
    compare(alone, model.estimator_.kneighbors(trained_on, 2, return_distance=False), rows)
    np.testing.assert_array_equal(model.kneighbors()[1], model.estimator_.kneighbors()[1])
    assert not hasattr(ParallelPostFit(SVC()), "kneighbors")


def test_columns_of_frames_are_named(data):
    X, y = data
    rows = LAZY["frame"](X)
    labels = np.array(["no", "yes", "perhaps"])[y]
    model = ParallelPostFit(LogisticRegression()).fit(make_frame(X), labels)
    assert list(model.predict_proba(rows).columns) == ["no", "perhaps", "yes"]
    scaler = ParallelPostFit(StandardScaler()).fit(make_frame(X))
    assert list(scaler.transform(rows).columns) == list(rows.columns)
    reduced = ParallelPostFit(PCA(2)).fit(make_frame(X))
    assert list(reduced.transform(rows).columns) == ["pca0", "pca1"]
    back = reduced.inverse_transform(reduced.transform(rows).to_dask_array())
    assert back.shape[1] == 6
    several = ParallelPostFit(RandomForestClassifier(3)).fit(
        make_frame(X), np.column_stack([labels, y == 1])
    )
    assert list(several.predict_proba(rows)[0].columns) == ["no", "perhaps", "yes"]


def test_labels_of_pandas_stay_objects(data):
    X, y = data
    frame, labels = make_frame(X), pd.Series(np.array(["no", "yes", "perhaps"], dtype=object)[y])
    model = ParallelPostFit(LogisticRegression()).fit(frame, labels)
    compare(model.predict(LAZY["frame"](X)), model.estimator_.predict(frame), LAZY["frame"](X))


def test_several_labels_and_missing_values(data):
    X, y = data
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
    Y = np.column_stack([y == 0, y > 0])
    model = ParallelPostFit(RandomForestClassifier(5, random_state=0)).fit(X, Y)
    rows = LAZY["rows"](X)
    compare(model.predict(rows), model.estimator_.predict(X), rows)
    neural = ParallelPostFit(MLPClassifier((3,), max_iter=5000, random_state=0)).fit(data[0], Y)
    rows = LAZY["rows"](data[0])
    compare(neural.predict(rows), neural.estimator_.predict(data[0]), rows)
    compare(neural.predict_proba(rows), neural.estimator_.predict_proba(data[0]), rows)


def test_sparse_rows(data):
    X, y = data
    X = np.where(np.abs(X) > 1, X, 0)
    model = ParallelPostFit(LogisticRegression()).fit(sparse.csr_matrix(X), y)
    rows = LAZY["rows"](X).map_blocks(sparse.csr_matrix)
    for method in ("predict", "decision_function"):
        want = getattr(model.estimator_, method)(X)
        compare(getattr(model, method)(rows), want, rows)
    scaler = ParallelPostFit(MaxAbsScaler()).fit(sparse.csr_matrix(X))
    compare(scaler.transform(rows), scaler.estimator_.transform(sparse.csr_matrix(X)), rows)
    frame = pd.DataFrame({"a": list("xyz" * 40)})
    encoder = ParallelPostFit(OneHotEncoder()).fit(frame)
    coded = encoder.transform(dd.from_pandas(frame, npartitions=4))
    assert isinstance(coded, da.Array)
    assert sparse.issparse(coded._meta)
    want = encoder.estimator_.transform(frame)
    assert (coded.compute(scheduler="synchronous") != want).nnz == 0
