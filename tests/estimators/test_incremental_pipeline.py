"""Incremental around a pipeline: the last step learns, the others stay as they are."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, PolynomialFeatures
from sklearn.preprocessing import StandardScaler as PlainScaler

from skfleet.estimators import Incremental

X = np.random.default_rng(0).normal(2, 3, size=(120, 4))
Y = (X[:, 0] > 2).astype(int)


@pytest.mark.parametrize("on_cluster", [False, True])
@pytest.mark.parametrize(
    "head",
    [
        PlainScaler().fit(X),
        make_pipeline(PlainScaler(), PolynomialFeatures(2)).fit(X),
        Normalizer(),
        FunctionTransformer(np.abs),
        "passthrough",
    ],
    ids=["scaler", "two", "normalizer", "function", "nothing"],
)
def test_the_last_step_learns_what_the_others_make(head, on_cluster, cluster_client):
    want = SGDClassifier(random_state=0)
    prepared = X if head == "passthrough" else head.transform(X)
    for _ in range(2):
        for low in (0, 40, 80):
            want.partial_fit(prepared[low : low + 40], Y[low : low + 40], classes=[0, 1])
    mine = make_pipeline(head, SGDClassifier(random_state=0))
    model = Incremental(mine, shuffle=False, epochs=2)
    rows = da.from_array(X, chunks=(40, 4)), da.from_array(Y, chunks=40)
    with cluster_client.as_current(), config_context():
        model.fit(*rows) if on_cluster else model.set_params(batch_size=40).fit(X, Y)
        assert isinstance(model.estimator_, Pipeline)
        np.testing.assert_array_equal(model.estimator_[-1].coef_, want.coef_)
        np.testing.assert_array_equal(model.predict(rows[0]).compute(), want.predict(prepared))
        np.testing.assert_array_equal(model.classes_, [0, 1])
        before = model.estimator_[-1].coef_
        assert model.partial_fit(*rows).n_samples_seen_ == 360
    assert not np.array_equal(model.estimator_[-1].coef_, before)
    assert not hasattr(mine[-1], "coef_")
    assert model.estimator_[0] is not head or head == "passthrough"


def test_steps_that_are_not_fitted_are_refused_before_any_work():
    rows = da.from_array(X, chunks=40).map_blocks(_fail, dtype=float, meta=X[:0])
    match = "Got the step 'standardscaler', StandardScaler, that is not fitted"
    for method in ("fit", "partial_fit"):
        model = Incremental(make_pipeline(PlainScaler(), SGDClassifier()))
        with pytest.raises(NotFittedError, match=match):
            getattr(model, method)(rows, Y)
    with pytest.raises(TypeError, match=r"must have partial_fit. Got LogisticRegression instead"):
        Incremental(make_pipeline(PlainScaler().fit(X), LogisticRegression())).fit(rows, Y)


def _fail(block):
    pytest.fail("work before it is due")


def test_text_in_a_frame():
    words = pd.Series(["good day", "bad day"] * 20, name="words")
    text = make_pipeline(HashingVectorizer(n_features=64), SGDClassifier(random_state=0))
    lazy = dd.from_pandas(words, npartitions=4)
    model = Incremental(text, epochs=3, random_state=0).fit(lazy, np.arange(40) % 2)
    assert model.score(words, np.arange(40) % 2) == 1


def test_early_stopping_and_loss_of_a_pipeline(capsys):
    scaler = PlainScaler().fit(X)
    clusters = make_pipeline(scaler, MiniBatchKMeans(2, random_state=0, n_init=1))
    model = Incremental(clusters, epochs=2, verbose=1).fit(da.from_array(X, chunks=(40, 4)))
    assert model.history_.loss.notna().all()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("epoch 1: 120 rows, ")
    assert second.startswith("epoch 2: 120 rows, ")
    assert " rows/s, loss " in second
    stopped = Incremental(
        make_pipeline(scaler, SGDClassifier(random_state=0)),
        epochs=30,
        early_stopping=True,
        n_iter_no_change=2,
        verbose=1,
        random_state=0,
    ).fit(X, Y)
    assert stopped.n_iter_ < 30
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .endswith(f"score {stopped.history_.score.iloc[-1]:.6g}")
    )


def test_metadata_reaches_the_last_step():
    weight = np.where(Y == 1, 2.0, 0.5)
    scaler = PlainScaler().fit(X)
    want = SGDClassifier(random_state=0)
    want.partial_fit(scaler.transform(X), Y, classes=[0, 1], sample_weight=weight)
    with config_context(enable_metadata_routing=True):
        learner = SGDClassifier(random_state=0).set_partial_fit_request(sample_weight=True)
        model = Incremental(make_pipeline(scaler, learner)).fit(X, Y, sample_weight=weight)
    np.testing.assert_array_equal(model.estimator_[-1].coef_, want.coef_)
    plain = Incremental(make_pipeline(scaler, SGDClassifier(random_state=0)))
    plain.fit(X, Y, sample_weight=weight)
    np.testing.assert_array_equal(plain.estimator_[-1].coef_, want.coef_)
