"""Rows of several axes: pictures, and answers that are pictures."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone

from random_examples import n_examples
from skfleet.estimators import BlockwiseVotingClassifier, Incremental, ParallelPostFit
from skfleet.model_selection import cross_val_predict


class Pictures(ClassifierMixin, TransformerMixin, BaseEstimator):
    """A classifier by brightness, that answers in one to five axes."""

    def fit(self, X, y):
        return self.partial_fit(X, y, np.unique(y))

    def partial_fit(self, X, y, classes=None):
        if not hasattr(self, "sums_"):
            self.classes_ = np.asarray(classes)
            self.sums_, self.sizes_ = np.zeros(len(classes)), np.zeros(len(classes))
        for i, label in enumerate(self.classes_):
            self.sums_[i] += X[y == label].sum(dtype=float)
            self.sizes_[i] += X[y == label].size
        return self

    def predict_proba(self, X):
        means = self.sums_ / self.sizes_
        close = np.exp(-np.abs(X.reshape(len(X), -1).mean(axis=1, dtype=float)[:, None] - means))
        return close / close.sum(axis=1, keepdims=True)

    def predict(self, X):
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]

    def transform(self, X):
        return X[:, :1] * 2

    def decision_function(self, X):
        return X[..., None] * np.arange(2.0)


@settings(max_examples=n_examples(5, 60), deadline=None)
@given(data=st.data())
def test_answers_of_pictures(data):
    n_axes = data.draw(st.integers(2, 4))
    shape = (30, *(data.draw(st.integers(1, 4)) for _ in range(n_axes - 1)))
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 30)
    dtype = data.draw(st.sampled_from([np.float64, np.float32, np.uint8]))
    X = (100 * (rng.random(shape) + y.reshape(-1, *[1] * (n_axes - 1)))).astype(dtype)
    chunks = ((11, 0, 19), *(data.draw(st.integers(1, n)) for n in shape[1:]))
    rows, labels = da.from_array(X, chunks=chunks), da.from_array(y, chunks=10)
    if data.draw(st.booleans()):  # of unknown length
        rows = rows[da.ones(30, chunks=((11, 0, 19),), dtype=bool)]
    model = Pictures().fit(X, y)
    incremental = Incremental(Pictures(), shuffle=False).fit(rows, labels)
    for fitted in (ParallelPostFit(model), incremental):
        for method in ("predict", "predict_proba", "transform", "decision_function"):
            want, got = getattr(model, method)(X), getattr(fitted, method)(rows)
            assert got.ndim == want.ndim
            assert got.shape[1:] == want.shape[1:]
            assert len(got.chunks[0]) == 3
            values = got.compute()
            assert got.dtype == values.dtype == want.dtype
            np.testing.assert_allclose(values, want, rtol=1e-5)


@pytest.mark.parametrize("shape", [(30, 4, 5), (30, 4, 3, 2)])
def test_pictures_as_targets_in_members_and_splits(shape):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 30)
    X = rng.random(shape) + y.reshape(-1, *[1] * (len(shape) - 1))
    rows = da.from_array(X, chunks=(10, *([2] * (len(shape) - 1))))
    labels = da.from_array(y, chunks=10)

    class Mean(TransformerMixin, BaseEstimator):
        def partial_fit(self, X, y):
            assert X.shape == y.shape
            self.sum_ = getattr(self, "sum_", 0) + y.sum(axis=0)
            return self

        def transform(self, X):
            return X - self.sum_ / 30

    restored = Incremental(Mean(), random_state=0).fit(rows, rows)
    np.testing.assert_allclose(restored.transform(rows), X - X.mean(axis=0))
    members = BlockwiseVotingClassifier(Pictures(), classes=[0, 1]).fit(rows, labels)
    np.testing.assert_array_equal(members.predict(rows), members.predict(X))
    model, options = Incremental(Pictures(), shuffle=False), {"cv": 3, "method": "predict_proba"}
    got = cross_val_predict(clone(model), rows, labels, **options)
    np.testing.assert_allclose(got, cross_val_predict(model, X, y, **options))
