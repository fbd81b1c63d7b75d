"""Workers that are ended for their memory are named in the error of whatever ran on them."""

import dask.array as da
import joblib
import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from skfleet import Fleet
from skfleet.estimators import Incremental
from skfleet.exceptions import FleetError
from skfleet.fleet import _worker_memory
from skfleet.model_selection import GridSearchCV, IncrementalSearchCV

pytestmark = pytest.mark.slow

X = np.random.default_rng(0).normal(size=(40, 3))
y = (X[:, 0] > 0).astype(int)


def eat():
    """Take memory until the worker is ended."""
    import time

    kept = []
    for _ in range(60):
        kept.append(np.ones(2**22))
        time.sleep(0.05)
    return len(kept)


class Eater(ClassifierMixin, BaseEstimator):
    """Takes more memory than a worker has."""

    def __init__(self, size=1):
        self.size = size

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        eat()
        return self

    def partial_fit(self, X, y, classes=None):
        return self.fit(X, y)

    def predict(self, X):
        return np.zeros(len(X))


def call():
    with joblib.parallel_config("skfleet"):
        joblib.Parallel()(joblib.delayed(eat)() for _ in range(2))


def search():
    GridSearchCV(Eater(), {}, cv=2).fit(X, y)


def fit():
    blocks = da.from_array(X, chunks=(20, 3)), da.from_array(y, chunks=20)
    Incremental(Eater()).fit(*blocks, classes=[0, 1])


@pytest.mark.parametrize("work", [call, search, fit])
def test_memory_is_named(work):
    with Fleet(n_workers=1, memory_limit="700 MB") as client:
        with pytest.raises(FleetError, match=r"must fit into the memory of a worker.*memory_limit"):
            work()
        # a task is tried twice, and a bundle of fits then one by one
        assert 1 <= len(client.get_events("worker-restart-memory")) <= 3


def test_a_limit_that_leaves_nothing_for_work_is_refused(monkeypatch):
    monkeypatch.setattr(_worker_memory, "SPARE_BYTES", 200_000_000)
    with pytest.raises(ValueError, match=r"memory_limit must be at least [45]\d\d MB .* imports"):
        Fleet(n_workers=2, memory_limit="390 MB", dashboard_address=None)


def test_memory_is_named_by_an_adaptive_search():
    search = IncrementalSearchCV(Eater(), {"size": [1, 2]}, n_initial_parameters=2, max_iter=1)
    with Fleet(n_workers=1, memory_limit="700 MB") as client:
        with pytest.raises(FleetError, match=r"All the 2.*must fit into the memory of a worker"):
            search.fit(X, y, classes=[0, 1])
        # together, which tells nothing of which, and then each alone
        assert len(client.get_events("worker-restart-memory")) <= 6
    assert not hasattr(search, "cv_results_")
