"""Rows on Dask stay there, or somebody says that they do not."""

import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.linear_model import LogisticRegression as TheirLogisticRegression
from sklearn.linear_model import Ridge as TheirRidge
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfleet.estimators import (
    PCA,
    BlockwiseVotingClassifier,
    Incremental,
    KMeans,
    KNeighborsClassifier,
    LogisticRegression,
    MiniBatchKMeans,
    ParallelPostFit,
    RandomForestClassifier,
    Ridge,
    TruncatedSVD,
)

_rng = np.random.default_rng(0)
X = _rng.normal(size=(90, 3))
y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(X, columns=list("abc"))
LAZY_X, LAZY_Y = da.from_array(X, chunks=(30, 3)), da.from_array(y, chunks=30)


@pytest.fixture
def no_computing():
    """Fail where anything lazy is computed."""

    def refuse(*args, **kwargs):
        raise AssertionError("something was computed")

    with dask.config.set(scheduler=refuse):
        yield


TRANSFORMERS = [PCA(2), TruncatedSVD(2), KMeans(2, random_state=0), MiniBatchKMeans(2)]


@pytest.mark.parametrize("model", TRANSFORMERS, ids=lambda model: type(model).__name__)
def test_set_output_gives_lazy_frames_for_dask_rows(model, no_computing):
    model = sklearn.clone(model).set_output(transform="pandas").fit(X)
    want = model.transform(X)
    got = model.transform(LAZY_X)
    assert isinstance(got, dd.DataFrame)
    assert list(got.columns) == list(want.columns)
    pd.testing.assert_frame_equal(got.compute(scheduler="synchronous"), want)


def test_what_the_configuration_asks_for_is_lazy_too(no_computing):
    model = PCA(2).fit(FRAME)
    rows = dd.from_pandas(FRAME.set_axis(range(5, 95)), npartitions=3)
    with sklearn.config_context(transform_output="pandas"):
        got = model.transform(rows)
    assert isinstance(got, dd.DataFrame)
    got = got.compute(scheduler="synchronous")
    assert list(got.index) == list(range(5, 95))
    assert list(got.columns) == ["pca0", "pca1"]


def test_fitting_and_transforming_answers_lazily():
    got = KMeans(2, random_state=0).set_output(transform="pandas").fit_transform(LAZY_X)
    assert isinstance(got, dd.DataFrame)
    assert list(got.columns) == ["kmeans0", "kmeans1"]


def test_no_block_is_a_polars_frame():
    model = PCA(2).fit(X)
    model._sklearn_output_config = {"transform": "polars"}
    with pytest.raises(ValueError, match=r"set_output must be 'default' or 'pandas' for Dask rows"):
        model.transform(LAZY_X)


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        Incremental(SGDClassifier()),
        BlockwiseVotingClassifier(TheirLogisticRegression()),
    ],
    ids=lambda model: type(model).__name__,
)
def test_rows_that_a_transformer_has_computed_are_told_of_once(model):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        make_pipeline(StandardScaler(), model).fit(LAZY_X, LAZY_Y)
    (ours,) = (w for w in told if "X is in this process" in str(w.message))
    assert "0.0 MB" in str(ours.message)
    assert ours.filename == __file__


def trips(call):
    """Call, and return the warnings of rows that were brought home."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call()
    return [w for w in told if "its Pipeline was given a Dask collection" in str(w.message)]


@pytest.mark.parametrize(
    "model", [KMeans(2, random_state=0), PCA(2)], ids=lambda m: type(m).__name__
)
def test_unsupervised_fits_behind_a_transformer_tell_of_the_trip(model):
    (ours,) = trips(lambda: make_pipeline(StandardScaler(), model).fit(LAZY_X))
    assert ours.filename == __file__
    assert "0.0 MB" in str(ours.message)
    assert not trips(lambda: make_pipeline(StandardScaler(), model).fit(X))


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (LogisticRegression(), "predict"),
        (PCA(2), "transform"),
        (ParallelPostFit(TheirLogisticRegression()), "predict_proba"),
        (Incremental(SGDClassifier()), "decision_function"),
        (BlockwiseVotingClassifier(TheirLogisticRegression()), "predict"),
    ],
)
def test_answers_behind_a_transformer_tell_of_the_trip(model, method):
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y)
    (ours,) = trips(lambda: getattr(pipeline, method)(LAZY_X))
    assert ours.filename == __file__
    assert not trips(lambda: getattr(pipeline, method)(X))


@pytest.mark.parametrize("scoring", [None, "accuracy"])
def test_scores_of_a_wrapped_estimator_tell_of_the_trip(scoring):
    model = ParallelPostFit(TheirLogisticRegression(), scoring=scoring)
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y)
    assert len(trips(lambda: pipeline.score(LAZY_X, y))) == 1
    assert not trips(lambda: pipeline.score(X, y))


def test_blocks_that_a_scheduler_gives_are_no_trip():
    inner = make_pipeline(Incremental(StandardScaler()), ParallelPostFit(Ridge()))
    with dask.config.set(scheduler="synchronous"):
        inner.fit(X, y)
        assert not trips(lambda: inner.predict(LAZY_X).compute())
        assert not trips(lambda: inner.score(LAZY_X, LAZY_Y))


def test_what_the_warning_advises_leaves_rows_where_they_are():
    model = make_pipeline(Incremental(StandardScaler()), LogisticRegression())
    with dask.config.set(scheduler="synchronous"):
        model.fit(LAZY_X, LAZY_Y)
    assert isinstance(model.predict(LAZY_X), da.Array)
    want = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    np.testing.assert_allclose(model[-1].coef_, want[-1].coef_, rtol=1e-4)


def test_rows_of_this_process_are_no_reason_to_warn():
    LogisticRegression().fit(X, y)
    Ridge().fit(LAZY_X, LAZY_Y)
    Ridge().fit(LAZY_X, y)


NAMED = [
    LogisticRegression(),
    KMeans(2, random_state=0),
    KNeighborsClassifier(algorithm="brute"),  # its trees set filters of warnings in threads too
    RandomForestClassifier(3),
    ParallelPostFit(TheirRidge()),
    BlockwiseVotingClassifier(TheirLogisticRegression()),
]


@pytest.mark.parametrize("model", NAMED, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("on_cluster", [False, True])
def test_arrays_for_a_model_that_knows_names_warn_once(model, on_cluster, cluster_client):
    model = sklearn.clone(model).fit(FRAME, y)
    place = cluster_client.as_current() if on_cluster else dask.config.set(scheduler="threads")
    with place, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        model.score(LAZY_X, LAZY_Y)
        if not isinstance(model, RandomForestClassifier):  # trees set filters in threads
            assert warnings.filters == filters
    (warning,) = (w for w in told if "feature names" in str(w.message))
    assert str(warning.message).startswith("X does not have valid feature names, but ")
    assert warning.filename == __file__


def test_names_for_a_model_that_knows_none_warn_once():
    rows = dd.from_pandas(FRAME, npartitions=3)
    for model in (Ridge().fit(X, y), ParallelPostFit(TheirRidge()).fit(X, y)):
        with pytest.warns(UserWarning, match="X has feature names, but") as told:
            model.predict(rows).compute(scheduler="threads")
        assert [w.filename for w in told] == [__file__]
