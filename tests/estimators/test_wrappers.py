"""ParallelPostFit: the estimator's answers, in the caller's container, known before any work."""

from __future__ import annotations

import os
import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet import Fleet
from skfleet.estimators import Incremental, ParallelPostFit
from skfleet.estimators import Ridge as FleetRidge


@parametrize_with_checks([ParallelPostFit(LogisticRegression()), ParallelPostFit(Ridge())])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    return make_classification(120, 6, n_informative=4, n_classes=3, random_state=0)


def _frame(X):
    return pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])], index=range(100, 220))


CUTS = (50, 0, 1, 69)

LAZY = {
    "rows": lambda X: da.from_array(X, chunks=(CUTS, 6)),
    "rows and columns": lambda X: da.from_array(X, chunks=(CUTS, 4)),
    "unknown": lambda X: da.from_array(X, chunks=(CUTS, 6))[
        da.ones(120, chunks=(CUTS,), dtype=bool)
    ],
    "frame": lambda X: dd.from_pandas(_frame(X), npartitions=3),
    "frame with an empty part": lambda X: dd.concat(
        [
            dd.from_pandas(_frame(X).iloc[a:b], npartitions=1)
            for a, b in ((0, 60), (60, 60), (60, 120))
        ],
        interleave_partitions=True,
    ),
}


def _is_frame(X):
    return hasattr(X, "npartitions") and hasattr(X, "index")


def _compare(announced, want, X):
    """What was announced is what comes, and that is the wrapped estimator's answer."""
    got = announced.compute(scheduler="synchronous")
    values = want.toarray() if sparse.issparse(want) else np.asarray(want)
    if _is_frame(X):
        assert isinstance(got, pd.Series if values.ndim == 1 else pd.DataFrame)
        pd.testing.assert_index_equal(got.index, X.index.compute(), check_names=False)
        if values.ndim == 2:
            assert list(announced.columns) == list(got.columns)
            assert set(announced.dtypes) == set(got.dtypes)
        else:
            assert announced.dtype == got.dtype
    else:
        assert isinstance(announced, da.Array)
        assert sparse.issparse(got) == sparse.issparse(want)
        assert announced.dtype == got.dtype
        assert announced.ndim == values.ndim
        assert announced.chunks[0] == X.chunks[0] or np.isnan(X.shape[0])
        if values.ndim == 2:
            assert announced.shape[1] == got.shape[1]
        for block in announced.blocks:
            part = block.compute(scheduler="synchronous")
            assert part.dtype == announced.dtype
    got = got.toarray() if sparse.issparse(got) else np.asarray(got)
    if values.dtype.kind == "f":
        np.testing.assert_allclose(got, values, rtol=1e-10, atol=1e-12)
    else:
        np.testing.assert_array_equal(got, values)


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
    trained_on = _frame(X) if _is_frame(rows) else X
    model = ParallelPostFit(estimator).fit(trained_on, y)
    for method in methods:
        want = getattr(model.estimator_, method)(trained_on)
        _compare(getattr(model, method)(rows), want, rows)
        np.testing.assert_array_equal(getattr(model, method)(trained_on), want)


@pytest.mark.parametrize("labels", [["no", "yes", "perhaps"], [True, False, True], [1.5, 2.5, 7.0]])
def test_labels_keep_their_type(labels, data):
    X, y = data
    y = np.array(labels)[y]
    if y.dtype.kind == "f":
        y = y.astype(object).astype(str)
    model = ParallelPostFit(LogisticRegression()).fit(X, y)
    _compare(model.predict(LAZY["rows"](X)), model.estimator_.predict(X), LAZY["rows"](X))
    np.testing.assert_array_equal(model.classes_, np.unique(y))


def test_sparse_answers_stay_sparse(data):
    X = np.round(data[0])
    encoder = ParallelPostFit(OneHotEncoder()).fit(X)
    # a row made up of ones may hold categories that the encoder does not know
    rows = LAZY["rows"](X)
    _compare(encoder.transform(rows), encoder.estimator_.transform(X), rows)


def test_several_outputs(data):
    X, y = data
    Y = np.column_stack([y, y == 1])
    model = ParallelPostFit(MultiOutputClassifier(LogisticRegression())).fit(X, Y)
    for container in ("rows", "frame"):
        rows = LAZY[container](X)
        model.fit(_frame(X) if container == "frame" else X, Y)
        X = _frame(X) if container == "frame" else X
        _compare(model.predict(rows), model.estimator_.predict(X), rows)
        answers = model.predict_proba(rows)
        assert isinstance(answers, list)
        for got, want in zip(answers, model.estimator_.predict_proba(X), strict=True):
            _compare(got, want, rows)
    X, _ = data
    regression = ParallelPostFit(LinearRegression()).fit(X, X[:, :2])
    _compare(regression.predict(LAZY["rows"](X)), X[:, :2], LAZY["rows"](X))


def test_output_as_pandas_is_honoured(data):
    X, _ = data
    scaler = ParallelPostFit(StandardScaler().set_output(transform="pandas")).fit(_frame(X))
    got = scaler.transform(LAZY["frame"](X)).compute()
    assert list(got.columns) == list(_frame(X).columns)
    np.testing.assert_array_equal(scaler.get_feature_names_out(), got.columns)
    # an array's blocks are arrays, whatever the estimator makes of them
    plain = ParallelPostFit(StandardScaler().set_output(transform="pandas")).fit(X)
    assert isinstance(plain.transform(LAZY["rows"](X)).compute(), np.ndarray)


def test_frames_reach_the_estimator_as_frames(data):
    X, y = data
    frame = _frame(X)
    frame["kind"] = np.where(X[:, 0] > 0, "a", "b")
    columns = make_column_transformer((OneHotEncoder(), ["kind"]), (StandardScaler(), ["c0", "c1"]))
    model = ParallelPostFit(make_pipeline(columns, LogisticRegression())).fit(frame, y)
    got = model.predict(dd.from_pandas(frame, npartitions=3)).compute()
    np.testing.assert_array_equal(got, model.estimator_.predict(frame))


class Particular(BaseEstimator):
    """Refuses to run on anything but tens."""

    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        if (np.asarray(X) % 10).any():
            raise ValueError("no tens")
        return np.asarray(X)[:, :2].astype(np.int16)


def test_an_estimator_that_refuses_made_up_rows_is_asked_a_real_one():
    rows = da.full((20, 3), 10.0, chunks=((0, 20), 3))
    model = ParallelPostFit(Particular()).fit(None)
    answer = model.transform(rows)
    assert (answer.shape, answer.dtype) == ((20, 2), np.int16)
    told = ParallelPostFit(Particular(), transform_meta=np.empty((0, 2), np.int16)).fit(None)
    with dask.config.set(scheduler=lambda *args, **kwargs: pytest.fail("work before it is due")):
        assert told.transform(rows).dtype == np.int16


def test_methods_are_offered_when_the_estimator_has_them():
    assert not hasattr(ParallelPostFit(LinearRegression()), "predict_proba")
    assert not hasattr(ParallelPostFit(LinearRegression()), "transform")
    assert hasattr(ParallelPostFit(SVC(probability=False)), "decision_function")
    assert hasattr(ParallelPostFit(PCA()), "inverse_transform")
    assert not hasattr(ParallelPostFit(PCA()), "predict")
    assert not hasattr(ParallelPostFit(SGDClassifier(loss="hinge")), "predict_proba")
    assert hasattr(ParallelPostFit(SGDClassifier(loss="log_loss")), "predict_proba")


def test_inverse_transform(data):
    X, _ = data
    model = ParallelPostFit(PCA(6)).fit(X)
    rows = LAZY["rows"](X)
    _compare(model.inverse_transform(model.transform(rows)), X, rows)


def test_what_it_is_shows_through():
    assert is_classifier(ParallelPostFit(LogisticRegression()))
    assert is_classifier(Incremental(SGDClassifier()))
    assert is_classifier(ParallelPostFit(make_pipeline(StandardScaler(), SVC())))
    assert is_regressor(ParallelPostFit(Ridge()))
    assert not is_classifier(ParallelPostFit(PCA()))


def test_the_users_estimator_is_never_changed(data):
    X, y = data
    mine = LogisticRegression()
    ParallelPostFit(mine).fit(X, y)
    assert not hasattr(mine, "coef_")
    mine.fit(X, y)
    coef = mine.coef_.copy()
    wrapper = ParallelPostFit(mine)
    np.testing.assert_array_equal(wrapper.predict(X), mine.predict(X))
    wrapper.fit(X, y == 0)
    np.testing.assert_array_equal(mine.coef_, coef)


def test_it_lives_among_scikit_learns(data):
    X, y = data
    wrapper = ParallelPostFit(make_pipeline(StandardScaler(), LogisticRegression()))
    assert wrapper.get_params()["estimator__logisticregression__C"] == 1.0
    assert clone(wrapper).set_params(estimator__logisticregression__C=3.0) is not wrapper
    scores = cross_val_score(wrapper, X, y)
    np.testing.assert_array_equal(scores, cross_val_score(wrapper.estimator, X, y))
    search = GridSearchCV(wrapper, {"estimator__logisticregression__C": [0.1, 1]}).fit(X, y)
    around = ParallelPostFit(search.best_estimator_)
    np.testing.assert_array_equal(around.predict(LAZY["rows"](X)).compute(), search.predict(X))
    again = pickle.loads(pickle.dumps(around))
    np.testing.assert_array_equal(again.predict(X), search.predict(X))
    assert "LogisticRegression" in repr(wrapper)


def test_scores_without_gathering(data):
    X, y = data
    model = ParallelPostFit(LogisticRegression()).fit(X, y)
    rows, labels = LAZY["rows"](X), da.from_array(y, chunks=33)
    assert model.score(rows, labels) == model.score(X, y) == model.estimator_.score(X, y)
    weight = np.arange(120.0)
    np.testing.assert_allclose(
        model.score(rows, labels, sample_weight=weight),
        model.estimator_.score(X, y, sample_weight=weight),
    )
    regression = ParallelPostFit(Ridge()).fit(X, y)
    np.testing.assert_allclose(regression.score(rows, labels), regression.score(X, y))
    with pytest.raises(TypeError, match="classifier or a regressor"):
        ParallelPostFit(PCA(2)).fit(X).score(rows)


def test_bad_use(data):
    X, y = data
    with pytest.raises(NotFittedError):
        ParallelPostFit(LogisticRegression()).predict(LAZY["rows"](X))
    with pytest.raises(TypeError, match="must be in this process"):
        ParallelPostFit(LogisticRegression()).fit(LAZY["rows"](X), y)
    ParallelPostFit(FleetRidge()).fit(LAZY["rows"](X), y)  # this one trains on blocks
    model = ParallelPostFit(LogisticRegression()).fit(X, y)
    with pytest.raises(ValueError, match="5 features"):
        model.predict(da.from_array(X[:, :5], chunks=(50, 5)))


class Heavy(DummyClassifier):
    """A model of ten megabytes that counts how often a process unpacks it."""

    def fit(self, X, y):
        self.weights_ = np.random.default_rng(0).bytes(10 * 2**20)
        return super().fit(X, y)

    def __setstate__(self, state):
        super().__setstate__(state)
        os.environ["HEAVY"] = str(int(os.environ.get("HEAVY", 0)) + 1)


@pytest.fixture
def heavy_answer():
    rows = da.zeros((5000, 3), chunks=(100, 3))
    return ParallelPostFit(Heavy()).fit(np.zeros((4, 3)), [0, 1, 0, 1]).predict(rows)


# Dask warns of what is meant here: the model travels with the graph, in one piece.
@pytest.mark.filterwarnings("ignore:Sending large graph")
def test_a_worker_unpacks_the_model_once(heavy_answer):
    with Fleet(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        assert heavy_answer.compute().shape == (5000,)
        assert set(client.run(os.environ.get, "HEAVY").values()) == {"1"}


def _bytes_received():
    """What went over the loopback interface so far, in models."""
    return psutil.net_io_counters(pernic=True)["lo"].bytes_recv / (10 * 2**20)


@pytest.mark.slow  # it needs a machine on which nothing else talks to itself
@pytest.mark.filterwarnings("ignore:Sending large graph")
@pytest.mark.skipif("lo" not in psutil.net_io_counters(pernic=True), reason="no Linux loopback")
def test_the_model_crosses_to_a_worker_once(heavy_answer):
    with Fleet(n_workers=2, threads_per_worker=1, dashboard_address=None):
        before = _bytes_received()
        assert heavy_answer.compute().shape == (5000,)
        received = _bytes_received() - before
    received -= 1  # by the scheduler, from this process
    assert 0.9 <= received / 2 <= 1.2
