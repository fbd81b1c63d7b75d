"""Models that cannot leave the process that trained them: an error, not a wait without end."""

import threading

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn.base import BaseEstimator, ClassifierMixin

from skfleet.estimators import Incremental
from skfleet.model_selection import HyperbandSearchCV

X, y = np.random.default_rng(0).normal(size=(400, 3)), np.arange(400) % 2
rows, labels = da.from_array(X, chunks=(50, 3)), da.from_array(y, chunks=50)


class Locked(ClassifierMixin, BaseEstimator):
    """Has learned a lock, which a copy shares."""

    def __init__(self, alpha=1.0):
        self.alpha = alpha

    def partial_fit(self, X, y, classes=None):
        self.classes_, self.lock_ = classes, threading.Lock()
        return self

    def fit(self, X, y):
        return self.partial_fit(X, y, np.unique(y))

    def predict(self, X):
        return np.zeros(len(X), dtype=int)

    def __deepcopy__(self, memo):
        copied = type(self)(self.alpha)
        vars(copied).update(vars(self))
        return copied


@pytest.fixture(scope="module")
def fleet(process_cluster):
    with Client(process_cluster) as client:
        yield client


def test_incremental(fleet):
    with pytest.raises(TypeError, match="Got Locked instead: cannot pickle"):
        Incremental(Locked()).fit(rows, labels)


def test_adaptive_searches(fleet):
    search = HyperbandSearchCV(Locked(), {"alpha": [0.1, 1.0]}, max_iter=3, random_state=0)
    with pytest.raises(ValueError, match="Got Locked instead: cannot pickle"):
        search.fit(rows, labels)


def test_threads_of_one_process_send_nothing(cluster_client):
    with cluster_client.as_current():
        model = Incremental(Locked()).fit(rows, labels)
    assert model.n_samples_seen_ == 400
