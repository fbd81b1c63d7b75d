"""Metadata: values per row are cut along with the rows, and routing is scikit-learn's."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfleet.estimators import (
    BlockwiseVotingClassifier,
    BlockwiseVotingRegressor,
    Incremental,
    ParallelPostFit,
)

N = 60


class Clerk(ClassifierMixin, BaseEstimator):
    """Writes down what it is told about each row."""

    def partial_fit(self, X, y, classes=None, *, sample_weight=None, origin=None, note=None):
        self.classes_ = np.unique(y) if classes is None else classes
        rows = np.asarray(X)[:, 0]
        for name, values in (("sample_weight", sample_weight), ("origin", origin)):
            if values is not None:
                book = getattr(self, f"{name}_", {})
                assert len(values) == len(rows)
                setattr(self, f"{name}_", book | dict(zip(rows, values, strict=True)))
        self.note_ = note
        return self

    def fit(self, X, y, sample_weight=None, origin=None, note=None):
        return self.partial_fit(X, y, sample_weight=sample_weight, origin=origin, note=note)

    def predict(self, X, flip=False):
        return np.full(len(X), self.classes_[-1 if flip else 0])

    def score(self, X, y, sample_weight=None, origin=None):
        self.scored_with_ = sample_weight, origin
        return 0.5


def _rows():
    X = np.column_stack([np.arange(N), np.arange(N) % 2])
    return X, np.arange(N) % 3, np.arange(N) * 10.0, np.array([f"o{i}" for i in range(N)])


CONTAINERS = {
    "memory": lambda X, y, w, o: (X, y, w, o),
    "array": lambda X, y, w, o: (
        da.from_array(X, chunks=(7, 2)),
        da.from_array(y, chunks=9),
        da.from_array(w, chunks=60),
        da.from_array(o, chunks=13),
    ),
    "array, values in memory": lambda X, y, w, o: (
        da.from_array(X, chunks=(7, 1)),
        y,
        list(w),
        list(o),
    ),
    "frame": lambda X, y, w, o: tuple(
        dd.from_pandas(pd.DataFrame(X) if v is X else pd.Series(v), npartitions=5)
        for v in (X, y, w, o)
    ),
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("shuffle", ["blocks", "rows", False])
def test_values_per_row_stay_with_their_rows(container, shuffle):
    X, y, w, o = CONTAINERS[container](*_rows())
    model = Incremental(Clerk(), shuffle=shuffle, buffer_blocks=2, batch_size=4, random_state=0)
    model.fit(X, y, sample_weight=w, origin=o, note="hello")
    _, _, w, o = _rows()
    assert model.estimator_.sample_weight_ == dict(zip(range(N), w, strict=True))
    assert model.estimator_.origin_ == dict(zip(range(N), o, strict=True))
    assert model.estimator_.note_ == "hello"
    X, y, w, o = CONTAINERS[container](*_rows())
    again = Incremental(Clerk(), shuffle=shuffle, random_state=0).partial_fit(X, y, origin=o)
    assert again.estimator_.origin_ == model.estimator_.origin_
    committee = BlockwiseVotingClassifier(Clerk(), n_blocks=4)
    committee.fit(X, y, sample_weight=w, origin=o, note="hello")
    books = [member.origin_ for member in committee.estimators_]
    assert {k: v for book in books for k, v in book.items()} == model.estimator_.origin_


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("shuffle", ["blocks", "rows"])
def test_values_per_row_reach_a_cluster(held, shuffle, cluster_client):
    X, y, w, o = CONTAINERS["array"](*_rows())
    if held:
        X, y, w, o = cluster_client.persist([X, y.rechunk(7), w.rechunk(7), o.rechunk(7)])
    model = Incremental(Clerk(), shuffle=shuffle, buffer_blocks=3, random_state=0)
    with cluster_client.as_current():
        model.fit(X, y, sample_weight=w, origin=o)
    assert model.estimator_.origin_ == {i: f"o{i}" for i in range(N)}


def test_values_in_memory_for_rows_of_unknown_number():
    X, y, _, o = CONTAINERS["frame"](*_rows())
    with pytest.raises(ValueError, match="origin must be a Dask collection"):
        Incremental(Clerk()).fit(X, y, origin=o.compute())


def test_other_arguments_are_handed_on():
    X, y, w, _ = _rows()
    model = ParallelPostFit(Clerk()).fit(X, y, note="hello")
    assert model.estimator_.note_ == "hello"
    rows = da.from_array(X, chunks=(7, 2))
    np.testing.assert_array_equal(model.predict(X, flip=True), np.full(N, 2))
    np.testing.assert_array_equal(model.predict(rows, flip=True).compute(), np.full(N, 2))
    assert model.score(X, y, sample_weight=w, origin="here") == 0.5
    assert model.estimator_.scored_with_ == (w, "here") or model.estimator_.scored_with_[0] is w


@pytest.fixture
def _routing():
    with config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("_routing")
def test_what_is_requested_is_routed():
    X, y, w, o = _rows()
    clerk = Clerk().set_fit_request(sample_weight=True, origin=False)
    clerk.set_score_request(sample_weight=True, origin=True)
    model = ParallelPostFit(clerk).fit(X, y, sample_weight=w)
    assert model.estimator_.sample_weight_ == dict(zip(range(N), w, strict=True))
    assert model.score(X, y, sample_weight=w, origin="here") == 0.5
    clerk.set_partial_fit_request(origin=True)
    for train in ("fit", "partial_fit"):
        learner = Incremental(clerk)
        getattr(learner, train)(X, y, origin=o, classes=[0, 1, 2])
        assert learner.estimator_.origin_ == dict(zip(range(N), o, strict=True))
    committee = BlockwiseVotingClassifier(clerk, n_blocks=2).fit(X, y, sample_weight=w)
    assert len(committee.estimators_[0].sample_weight_) == N // 2


@pytest.mark.usefixtures("_routing")
@pytest.mark.parametrize("wrapper", [ParallelPostFit, Incremental, BlockwiseVotingClassifier])
def test_what_nobody_decided_on_is_refused(wrapper):
    X, y, w, _ = _rows()
    with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
        wrapper(Clerk()).fit(X, y, sample_weight=w)
    with pytest.raises(TypeError, match="nonsense"):
        wrapper(Clerk()).fit(X, y, nonsense=w)


@pytest.mark.usefixtures("_routing")
def test_routes_lead_through_searches_and_pipelines():
    X, y, w, _ = _rows()
    X = X.astype(float)
    inner = SGDClassifier(random_state=0).set_partial_fit_request(sample_weight=True)
    inner.set_score_request(sample_weight=False)
    around = make_pipeline(
        StandardScaler().set_fit_request(sample_weight=False), Incremental(inner)
    )
    got = around.fit(X, y, sample_weight=w)[-1].estimator_.coef_
    scaled = StandardScaler().fit_transform(X)
    plain = SGDClassifier(random_state=0)
    plain.partial_fit(scaled, y, classes=[0, 1, 2], sample_weight=w)
    np.testing.assert_array_equal(got, plain.coef_)

    inner = LogisticRegression().set_fit_request(sample_weight=True)
    inner.set_score_request(sample_weight=True)
    search = GridSearchCV(ParallelPostFit(inner), {"estimator__C": [0.1, 1.0]}, cv=3)
    search.fit(X, y, sample_weight=w)
    theirs = GridSearchCV(inner, {"C": [0.1, 1.0]}, cv=3).fit(X, y, sample_weight=w)
    np.testing.assert_array_equal(
        search.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"]
    )


@pytest.mark.usefixtures("_routing")
def test_only_what_has_an_effect_can_be_requested():
    for wrapper in (ParallelPostFit, BlockwiseVotingClassifier, BlockwiseVotingRegressor):
        assert not hasattr(wrapper(Clerk()), "set_fit_request")
    Incremental(Clerk()).set_fit_request(classes=True)
    with pytest.raises(TypeError, match="sample_weight"):
        Incremental(Clerk()).set_fit_request(sample_weight=True)
