"""Delayed values, Futures and bags: every entry takes them, or refuses them in a sentence."""

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression as PlainLogisticRegression
from sklearn.linear_model import SGDClassifier as PlainSGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier

from skfleet.blocks import fetch
from skfleet.estimators import (
    PCA,
    BlockwiseVotingClassifier,
    GaussianMixture,
    Incremental,
    IncrementalPCA,
    KMeans,
    LogisticRegression,
    ParallelPostFit,
    RandomForestClassifier,
    Ridge,
    SGDClassifier,
)
from skfleet.metrics import accuracy_score, check_scoring, log_loss, r2_score, roc_auc_score
from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV, IncrementalSearchCV

X = np.random.default_rng(0).normal(size=(20, 2))
Y = (X[:, 0] > 0).astype(int)
ALPHAS = {"alpha": [1e-4, 1e-3]}


def _fitted(model):
    return model.fit(X, Y)


FITS = {
    "any": lambda X, y: ParallelPostFit(PlainLogisticRegression()).fit(X, y),
    "incremental": lambda X, y: Incremental(PlainSGDClassifier()).fit(X, y),
    "partly": lambda X, y: Incremental(PlainSGDClassifier()).partial_fit(X, y, classes=[0, 1]),
    "committee": lambda X, y: BlockwiseVotingClassifier(DecisionTreeClassifier()).fit(X, y),
    "logistic": lambda X, y: LogisticRegression().fit(X, y),
    "ridge": lambda X, y: Ridge().fit(X, y),
    "forest": lambda X, y: RandomForestClassifier(2).fit(X, y),
    "descent": lambda X, y: SGDClassifier().fit(X, y),
    "descent partly": lambda X, y: SGDClassifier().partial_fit(X, y, classes=[0, 1]),
    "grid": lambda X, y: GridSearchCV(PlainSGDClassifier(), ALPHAS).fit(X, y),
    "halving": lambda X, y: HalvingGridSearchCV(PlainSGDClassifier(), ALPHAS).fit(X, y),
    "adaptive": lambda X, y: IncrementalSearchCV(PlainSGDClassifier(), ALPHAS).fit(X, y),
    "score of any": lambda X, y: _fitted(ParallelPostFit(PlainLogisticRegression())).score(X, y),
    "score": lambda X, y: _fitted(LogisticRegression()).score(X, y),
    "scorer": lambda X, y: check_scoring(scoring="accuracy")(_fitted(Ridge()), X, y),
}
ANSWERS = {
    "any": lambda X: _fitted(ParallelPostFit(PlainLogisticRegression())).predict(X),
    "committee": lambda X: _fitted(BlockwiseVotingClassifier(DecisionTreeClassifier())).predict(X),
    "labels": lambda X: _fitted(LogisticRegression()).predict_proba(X),
    "clusters": lambda X: _fitted(KMeans(2)).transform(X),
    "densities": lambda X: _fitted(GaussianMixture(2)).score_samples(X),
    "components": lambda X: _fitted(PCA(2)).transform(X),
    "rows again": lambda X: _fitted(PCA(2)).inverse_transform(X),
    "partly": lambda X: IncrementalPCA().partial_fit(X),
    "metric of labels": lambda y: accuracy_score(y, Y),
    "metric of predictions": lambda y: r2_score(Y, y),
    "metric of probabilities": lambda y: log_loss(y, X[:, 0]),
    "metric of ranks": lambda y: roc_auc_score(Y, y),
}


@pytest.mark.parametrize("kind", ["Delayed", "Future"])
@pytest.mark.parametrize("name", FITS)
def test_promises_are_no_rows_to_fit(name, kind, cluster_client):
    with cluster_client.as_current():
        odd = dask.delayed if kind == "Delayed" else cluster_client.scatter
        for args in ((odd(X), Y), (X, odd(Y)), (da.from_array(X, chunks=10), odd(Y))):
            subject = "X" if args[1] is Y else "y(_true)?"
            with pytest.raises(TypeError, match=f"{subject} must be .* Got {kind} instead"):
                FITS[name](*args)


@pytest.mark.parametrize("kind", ["Delayed", "Future"])
@pytest.mark.parametrize("name", ANSWERS)
def test_promises_are_no_rows_to_answer(name, kind, cluster_client):
    odd = dask.delayed if kind == "Delayed" else cluster_client.scatter
    with pytest.raises(TypeError, match=f"must be a Dask array.* Got {kind} instead"):
        ANSWERS[name](odd(Y if name.startswith("metric") else X))


@pytest.mark.parametrize("name", FITS)
def test_a_bag_is_no_column(name):
    with pytest.raises(TypeError, match=r"y(_true)? must be a Dask array.* Got a bag instead"):
        FITS[name](X, db.from_sequence(Y.tolist(), npartitions=2))


@pytest.mark.parametrize("name", [name for name in ANSWERS if "metric" not in name])
def test_a_bag_of_numbers_is_no_matrix(name):
    bag = db.from_sequence(X.tolist(), npartitions=2)
    if name == "committee":  # lists may be what its members take
        bag = db.from_sequence([1], npartitions=1)
    with pytest.raises((TypeError, ValueError)) as caught:
        dask.compute(ANSWERS[name](bag))
    assert "Bag" not in str(caught.value)


def test_a_bag_of_text_is_answered():
    words, labels = ["good day", "bad day"] * 20, np.arange(40) % 2
    text = make_pipeline(HashingVectorizer(n_features=64), PlainSGDClassifier(random_state=0))
    model = ParallelPostFit(text).fit(words, labels)
    bag = db.from_sequence(words, npartitions=4)
    np.testing.assert_array_equal(model.predict(bag).compute(), labels)


def test_small_values_are_fetched(cluster_client):
    for value in (dask.delayed([1, 2]), cluster_client.submit(list, (1, 2)), [1, 2]):
        assert fetch(value) == [1, 2]
    np.testing.assert_array_equal(fetch(da.unique(da.from_array([2, 1, 2], chunks=2))), [1, 2])
