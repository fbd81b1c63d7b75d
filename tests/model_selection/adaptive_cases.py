"""Searches, an estimator that counts its calls, and data for the tests of adaptive searches."""

import time

import numpy as np
from scipy.stats import loguniform
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import SGDClassifier

from skfleet.model_selection import (
    ASHASearchCV,
    HyperbandSearchCV,
    IncrementalSearchCV,
    InverseDecaySearchCV,
    SuccessiveHalvingSearchCV,
)

SEARCHES = [
    (HyperbandSearchCV, {"max_iter": 9}),
    (SuccessiveHalvingSearchCV, {"n_initial_parameters": 9}),
    (ASHASearchCV, {"n_initial_parameters": 9, "max_iter": 9}),
    (IncrementalSearchCV, {"n_initial_parameters": 3, "max_iter": 6, "fits_per_score": 2}),
    (InverseDecaySearchCV, {"n_initial_parameters": 5, "max_iter": 8}),
]


SPACE = {"alpha": loguniform(1e-6, 1e-1)}


def sgd(**params):
    return SGDClassifier(random_state=0, **params)


def halving(estimator=None, parameters=None, **params):
    params = {"n_initial_parameters": 4, "aggressiveness": 2, "random_state": 0} | params
    return SuccessiveHalvingSearchCV(estimator or sgd(), parameters or SPACE, **params)


class Counter(ClassifierMixin, BaseEstimator):
    """Remembers how often, and on which rows, it was trained."""

    def __init__(self, quality=0.5, fail_at=None, die=False, seconds=0.0):
        self.quality = quality
        self.fail_at = fail_at
        self.die = die
        self.seconds = seconds

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        self.classes_ = np.unique(y) if classes is None else classes
        self.seen_ = [*getattr(self, "seen_", []), np.asarray(X)[:, 0].copy()]
        self.weights_ = [*getattr(self, "weights_", []), sample_weight]
        if self.fail_at is not None and len(self.seen_) >= self.fail_at:
            raise ValueError("cannot go on")
        time.sleep(self.seconds)
        return self

    def predict(self, X):
        return np.full(len(X), self.classes_[0])

    def score(self, X, y):
        self.scored_on_ = np.asarray(X)[:, 0].copy()
        return self.quality * (1 - 0.5 ** len(self.seen_))


def numbered(n=40):
    """Rows that say which one they are."""
    return np.arange(n, dtype=float)[:, None] * [1.0, 0.0], np.arange(n) % 2
