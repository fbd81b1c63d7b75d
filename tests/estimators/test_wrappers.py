"""ParallelPostFit: the estimator's answers, in the caller's container, known before any work."""

from __future__ import annotations

import gc
import os
import pickle
import time

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
from sklearn.neighbors import KernelDensity, KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet import Fleet
from skfleet.estimators import BlockwiseVotingClassifier, Incremental, ParallelPostFit
from skfleet.estimators import Ridge as FleetRidge
from skfleet.model_selection import GridSearchCV as FleetGridSearchCV


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


@pytest.mark.parametrize("container", LAZY)
def test_neighbours(container, data):
    X, y = data
    rows = LAZY[container](X)
    model = ParallelPostFit(KNeighborsClassifier(4)).fit(_frame(X) if _is_frame(rows) else X, y)
    trained_on = _frame(X) if _is_frame(rows) else X
    got = model.kneighbors(rows)
    want = model.estimator_.kneighbors(trained_on)
    assert isinstance(got, tuple)
    for one, wanted in zip(got, want, strict=True):
        _compare(one, wanted, rows)
    alone = model.kneighbors(rows, n_neighbors=2, return_distance=False)
    _compare(alone, model.estimator_.kneighbors(trained_on, 2, return_distance=False), rows)
    np.testing.assert_array_equal(model.kneighbors()[1], model.estimator_.kneighbors()[1])
    assert not hasattr(ParallelPostFit(SVC()), "kneighbors")


def test_columns_of_frames_are_named(data):
    X, y = data
    rows = LAZY["frame"](X)
    labels = np.array(["no", "yes", "perhaps"])[y]
    model = ParallelPostFit(LogisticRegression()).fit(_frame(X), labels)
    assert list(model.predict_proba(rows).columns) == ["no", "perhaps", "yes"]
    scaler = ParallelPostFit(StandardScaler()).fit(_frame(X))
    assert list(scaler.transform(rows).columns) == list(rows.columns)
    reduced = ParallelPostFit(PCA(2)).fit(_frame(X))
    assert list(reduced.transform(rows).columns) == ["pca0", "pca1"]
    back = reduced.inverse_transform(reduced.transform(rows).to_dask_array())
    assert back.shape[1] == 6
    several = ParallelPostFit(RandomForestClassifier(3)).fit(
        _frame(X), np.column_stack([labels, y == 1])
    )
    assert list(several.predict_proba(rows)[0].columns) == ["no", "perhaps", "yes"]


def test_labels_of_pandas_stay_objects(data):
    X, y = data
    frame, labels = _frame(X), pd.Series(np.array(["no", "yes", "perhaps"], dtype=object)[y])
    model = ParallelPostFit(LogisticRegression()).fit(frame, labels)
    _compare(model.predict(LAZY["frame"](X)), model.estimator_.predict(frame), LAZY["frame"](X))


def test_several_labels_and_missing_values(data):
    X, y = data
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
    Y = np.column_stack([y == 0, y > 0])
    model = ParallelPostFit(RandomForestClassifier(5, random_state=0)).fit(X, Y)
    rows = LAZY["rows"](X)
    _compare(model.predict(rows), model.estimator_.predict(X), rows)
    neural = ParallelPostFit(MLPClassifier((3,), max_iter=5000, random_state=0)).fit(data[0], Y)
    rows = LAZY["rows"](data[0])
    _compare(neural.predict(rows), neural.estimator_.predict(data[0]), rows)
    _compare(neural.predict_proba(rows), neural.estimator_.predict_proba(data[0]), rows)


def test_sparse_rows(data):
    X, y = data
    X = np.where(np.abs(X) > 1, X, 0)
    model = ParallelPostFit(LogisticRegression()).fit(sparse.csr_matrix(X), y)
    rows = LAZY["rows"](X).map_blocks(sparse.csr_matrix)
    for method in ("predict", "decision_function"):
        want = getattr(model.estimator_, method)(X)
        _compare(getattr(model, method)(rows), want, rows)
    scaler = ParallelPostFit(MaxAbsScaler()).fit(sparse.csr_matrix(X))
    _compare(scaler.transform(rows), scaler.estimator_.transform(sparse.csr_matrix(X)), rows)
    frame = pd.DataFrame({"a": list("xyz" * 40)})
    encoder = ParallelPostFit(OneHotEncoder()).fit(frame)
    coded = encoder.transform(dd.from_pandas(frame, npartitions=4))
    assert isinstance(coded, da.Array)
    assert sparse.issparse(coded._meta)
    want = encoder.estimator_.transform(frame)
    assert (coded.compute(scheduler="synchronous") != want).nnz == 0


class Elsewhere(np.ndarray):
    """Stands for the arrays of another library, on a device."""


class Doubler(BaseEstimator):
    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        return 2 * X[:, :1] if len(X) else X[:, :1]

    def predict(self, X):
        return X[:, 0]


def test_answers_stay_in_the_library_of_the_rows(data):
    rows = LAZY["rows"](data[0]).map_blocks(lambda block: block.view(Elsewhere))
    model = ParallelPostFit(Doubler()).fit(None)
    for answer in (model.transform(rows), model.predict(rows)):
        assert type(answer._meta) is Elsewhere
        assert {type(block.compute(scheduler="synchronous")) for block in answer.blocks} == {
            Elsewhere
        }


def test_only_the_first_rows_are_looked_at():
    looked = []

    def load(i):
        looked.append(i)
        return pd.DataFrame({"kind": ["a", "b"] * 50})

    frame = dd.from_map(load, range(5), meta=pd.DataFrame({"kind": ["a"]}).iloc[:0])
    model = make_pipeline(OneHotEncoder(), LogisticRegression())
    model.fit(pd.DataFrame({"kind": ["a", "b"]}), [0, 1])
    ParallelPostFit(model).predict(frame)
    assert looked == [0]


class ListMaker(BaseEstimator):
    """Predicts lists, and words of the length of the row's number."""

    def fit(self, X, y=None):
        self.classes_ = np.array(["a", "aaaa"])
        return self

    def predict(self, X):
        return ["aaaa" if row[0] > 1 else "a" for row in X]

    def score_samples(self, X):
        return [float(row[0]) for row in X]


class Oracle:
    """Predicts, and that is all."""

    def predict(self, X):
        return np.asarray(X)[:, 0]


class Pupil(BaseEstimator):
    """Learns, but not by fit."""

    def partial_fit(self, X, y=None):
        self.seen_ = len(X)
        return self

    predict = Oracle.predict


def test_estimators_without_fit(data):
    rows = LAZY["rows"](data[0])
    _compare(ParallelPostFit(Oracle()).predict(rows), data[0][:, 0], rows)
    assert not is_classifier(ParallelPostFit(Oracle()))
    with pytest.raises(NotFittedError, match="This ParallelPostFit instance is not fitted"):
        ParallelPostFit(Pupil()).predict(rows)
    with pytest.raises(NotFittedError):
        Incremental(Pupil()).predict(rows)
    for model in (ParallelPostFit(Pupil().partial_fit([])), Incremental(Pupil()).fit(rows)):
        _compare(model.predict(rows), data[0][:, 0], rows)


def test_lists_become_arrays():
    rows = da.from_array(np.arange(10.0)[:, None], chunks=3)
    model = ParallelPostFit(ListMaker()).fit(None)
    assert model.predict(rows).compute().tolist() == ["a"] * 2 + ["aaaa"] * 8
    scores = model.score_samples(rows)
    assert scores.dtype == np.float64
    np.testing.assert_array_equal(scores, np.arange(10.0))


def test_set_output(data):
    X, _ = data
    model = ParallelPostFit(StandardScaler()).set_output(transform="pandas").fit(_frame(X))
    assert isinstance(model.transform(_frame(X)), pd.DataFrame)
    assert model.set_output(transform="default") is model
    assert isinstance(model.transform(_frame(X)), np.ndarray)
    assert not hasattr(ParallelPostFit(SVC()), "set_output")


@pytest.mark.parametrize(
    "wrapper",
    [ParallelPostFit, Incremental, BlockwiseVotingClassifier],
)
def test_how_it_looks(wrapper):
    model = wrapper(SGDClassifier(alpha=0.5))
    assert repr(model) == f"{wrapper.__name__}(estimator=SGDClassifier(alpha=0.5))"
    html = model._repr_html_()
    assert wrapper.__name__ in html
    assert "SGDClassifier" in html


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


def test_pipelines_of_wrappers_stay_lazy(data):
    X, y = data
    wrapped = make_pipeline(
        ParallelPostFit(StandardScaler()), ParallelPostFit(PCA(3)), ParallelPostFit(SVC())
    ).fit(X, y)
    plain = make_pipeline(StandardScaler(), PCA(3), SVC()).fit(X, y)
    for container in ("rows", "unknown"):
        rows = LAZY[container](X)
        _compare(wrapped.predict(rows), plain.predict(X), rows)


@pytest.mark.parametrize("search", [GridSearchCV, FleetGridSearchCV])
def test_searches_around_and_inside(search, data):
    X, y = data
    for wrapper, inner in (
        (ParallelPostFit, LogisticRegression()),
        (Incremental, SGDClassifier(random_state=0)),
        (BlockwiseVotingClassifier, SVC()),
    ):
        name = "estimator__C" if hasattr(inner, "C") else "estimator__alpha"
        found = search(wrapper(inner), {name: [1e-3, 1.0]}, cv=3).fit(X, y)
        assert np.isfinite(found.cv_results_["mean_test_score"]).all()
        assert found.best_estimator_.predict(X).shape == y.shape
    around = ParallelPostFit(search(SVC(), {"C": [0.1, 1.0]}, cv=3)).fit(X, y)
    rows = LAZY["rows"](X)
    _compare(around.predict(rows), around.estimator_.predict(X), rows)


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
    with dask.config.set(scheduler=lambda *args, **kwargs: pytest.fail("work before it is due")):
        with pytest.raises(ValueError, match="5 features"):
            model.predict(da.from_array(X[:, :5], chunks=(50, 5)))
        model.fit(_frame(X), y)
        with pytest.raises(ValueError, match="unseen at fit time"):
            model.predict(dd.from_pandas(_frame(X).rename(columns={"c1": "d"}), npartitions=2))


class Heavy(DummyClassifier):
    """A model of ten megabytes that counts how often a process unpacks it."""

    def fit(self, X, y):
        self.weights_ = np.random.default_rng(0).bytes(10 * 2**20)
        return super().fit(X, y)

    def __setstate__(self, state):
        super().__setstate__(state)
        os.environ["HEAVY"] = str(int(os.environ.get("HEAVY", 0)) + 1)


@pytest.fixture
def heavy():
    return ParallelPostFit(Heavy()).fit(np.zeros((4, 3)), [0, 1, 0, 1])


@pytest.fixture
def heavy_answer(heavy):
    return heavy.predict(da.zeros((5000, 3), chunks=(100, 3)))


def _unpacked(client):
    return sorted(int(n or 0) for n in client.run(os.getenv, "HEAVY").values())


def test_a_worker_unpacks_the_model_once(heavy):
    rows = da.zeros((5000, 3), chunks=(100, 3))
    with Fleet(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        client.amm.stop()  # every two seconds it takes copies back that no task waits for
        for _ in range(2):
            assert heavy.predict(rows).compute().shape == (5000,)
            assert heavy.predict_proba(rows).compute().shape == (5000, 2)
            assert _unpacked(client) == [1, 1]
        heavy.estimator_.weights_ = b"".join([heavy.estimator_.weights_[:-1], b"x"])
        heavy.predict(rows).compute()
        assert _unpacked(client) == [2, 2]


def test_a_model_that_was_lent_goes_with_its_owner(cluster_client):
    rows = da.zeros((100, 3), chunks=(50, 3))
    model = ParallelPostFit(Heavy()).fit(np.zeros((4, 3)), [0, 1, 0, 1])
    with cluster_client.as_current():
        model.predict(rows).compute()
        held = [key for key in cluster_client.who_has() if "model-of-Heavy" in str(key)]
        assert len(held) == 1
        frame = dd.from_pandas(pd.DataFrame(np.zeros((10, 3))), npartitions=2)
        assert len(model.predict(frame).compute()) == 10
        assert model.score(rows, da.zeros(100, chunks=30, dtype=int)) == 1.0
        again = pickle.loads(pickle.dumps(model))
        del model
        gc.collect()
        deadline = time.monotonic() + 10
        while held[0] in cluster_client.who_has() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert held[0] not in cluster_client.who_has()
        assert again.predict(rows).compute().shape == (100,)


def test_answers_without_a_cluster_hold_the_model(heavy_answer):
    assert heavy_answer.compute(scheduler="threads").shape == (5000,)


@pytest.mark.slow  # it needs a machine on which nothing else talks to itself
@pytest.mark.skipif("lo" not in psutil.net_io_counters(pernic=True), reason="no Linux loopback")
def test_the_model_crosses_to_a_worker_once():
    rng = np.random.default_rng(0)
    forest = RandomForestClassifier(130, random_state=0)
    forest.fit(rng.normal(size=(2000, 6)), rng.integers(0, 3, 2000))
    size = len(pickle.dumps(forest))
    assert 10e6 < size < 20e6

    def received():
        """What went over the loopback interface so far, in models."""
        return psutil.net_io_counters(pernic=True)["lo"].bytes_recv / size

    model, rows = ParallelPostFit(forest), da.zeros((1000, 6), chunks=(10, 6))
    with Fleet(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        client.amm.stop()
        before = received()
        model.predict(rows).compute()
        once = received()
        model.predict_proba(rows).compute()
        again = received()
    once_each = once - before - 1  # one by the scheduler, from this process
    assert 0.9 <= once_each / 2 <= 1.2
    assert again - once < 0.2
