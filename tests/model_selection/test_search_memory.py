"""How much memory a search takes besides the rows that its caller has."""

import contextlib
import threading

import numpy as np
import psutil
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

pytestmark = pytest.mark.slow


class Reader(ClassifierMixin, BaseEstimator):
    """Reads all rows and copies none."""

    def __init__(self, p=0):
        self.p = p

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.total_ = sum(float(X[start : start + 1000].sum()) for start in range(0, len(X), 1000))
        return self

    def score(self, X, y):
        return sum(float(X[start : start + 1000].sum()) for start in range(0, len(X), 1000))


def proportional_memory():
    """Add up the memory of this process and its children, shared pages once."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


@contextlib.contextmanager
def peak_memory(peaks):
    """Put the most memory that is in use meanwhile, above that at the start, into a list."""
    before, stop = proportional_memory(), threading.Event()
    peaks.append(0)

    def watch():
        while not stop.wait(0.01):
            peaks[-1] = max(peaks[-1], proportional_memory() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(not psutil.LINUX, reason="memory is counted by what Linux tells")
@pytest.mark.parametrize(
    ("fleet", "most"),
    [({"n_workers": 2}, 4.0), ({"n_workers": 1, "threads_per_worker": 2, "processes": False}, 2.2)],
    ids=["two processes", "two threads"],
)
@pytest.mark.parametrize("n_candidates", [4, 20])
def test_memory_is_that_of_the_splits_in_work(fleet, most, n_candidates):
    X = np.random.default_rng(0).random((100_000, 100))
    y = np.random.default_rng(1).integers(0, 2, len(X))
    search = GridSearchCV(Reader(), {"p": list(range(n_candidates))}, cv=5, refit=False)
    peaks = []
    with Fleet(**fleet):
        search.fit(X[:1000], y[:1000])  # what is imported on the way does not count
        with peak_memory(peaks):
            search.fit(X, y)
    assert 0.5 < peaks[0] / X.nbytes < most
