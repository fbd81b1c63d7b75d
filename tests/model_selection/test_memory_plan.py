"""The memory that a search is estimated to take, and the fits that it lets run at a time."""

import gc
import weakref

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV
from skfleet.model_selection._dispatch import _pipeline_cache

RNG = np.random.default_rng(0)
X = RNG.random((3000, 60))
y = (X[:, 0] > 0.5).astype(int)


@pytest.fixture
def _without_garbage_collection():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_garbage_collection")
def test_outputs_of_steps_are_freed_with_their_split(monkeypatch):
    rows = []
    init = _pipeline_cache.CachedRows.__init__

    def counted(self, values):
        init(self, values)
        rows.append(weakref.ref(self))

    monkeypatch.setattr(_pipeline_cache.CachedRows, "__init__", counted)
    pipeline = make_pipeline(StandardScaler(), SGDClassifier())
    search = GridSearchCV(pipeline, {"sgdclassifier__alpha": [0.1, 1.0]}, cv=3, refit=False)
    with Fleet(n_workers=1, threads_per_worker=1, processes=False):
        search.fit(X, y)
    assert len(rows) >= 12  # both parts of three splits, and of their outputs
    assert not any(ref() is not None for ref in rows)
