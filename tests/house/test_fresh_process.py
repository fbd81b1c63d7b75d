"""What was fitted on a fleet is used again in a process that has none."""

from __future__ import annotations

import pickle
import subprocess
import sys

import dask.array as da
import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.svm import SVC

from skfleet.estimators import Incremental, KMeans, LogisticRegression, ParallelPostFit, Ridge
from skfleet.model_selection import GridSearchCV

CODE = """
import pickle, sys
import numpy as np
with open("model.pkl", "rb") as file:
    model = pickle.load(file)
np.save("answer.npy", model.predict(np.load("X.npy")))
assert "distributed" not in sys.modules, "a cluster was needed"
"""


@pytest.mark.parametrize(
    "model",
    [
        Ridge(),
        LogisticRegression(),
        KMeans(3, random_state=0),
        ParallelPostFit(SVC()),
        Incremental(SGDClassifier(random_state=0)),
        GridSearchCV(SVC(), {"C": [0.1, 1.0]}, cv=2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_predicts_without_a_cluster(model, tmp_path, cluster_client):
    X = np.random.default_rng(0).normal(size=(90, 4))
    y = (X[:, 0] > 0).astype(int)
    in_memory = isinstance(model, ParallelPostFit) and not isinstance(model, Incremental)
    with cluster_client.as_current():
        if in_memory or isinstance(model, GridSearchCV):
            model.fit(X, y)
        else:
            model.fit(da.from_array(X, chunks=(30, 4)).persist(), da.from_array(y, chunks=45))
    np.save(tmp_path / "X.npy", X)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "answer.npy"), model.predict(X))
