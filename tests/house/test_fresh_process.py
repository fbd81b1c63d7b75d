"""What was fitted on a fleet is used again in a process that has none."""

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
with open("models.pkl", "rb") as file:
    models = pickle.load(file)
X = np.load("X.npy")
np.save("answers.npy", [model.predict(X) for model in models])
assert "distributed" not in sys.modules, "a cluster was needed"
"""


@pytest.mark.slow
def test_predicts_without_a_cluster(tmp_path, cluster_client):
    X = np.random.default_rng(0).normal(size=(90, 4))
    y = (X[:, 0] > 0).astype(int)
    rows, labels = da.from_array(X, chunks=(30, 4)), da.from_array(y, chunks=45)
    with cluster_client.as_current():
        rows = rows.persist()
        models = [
            Ridge().fit(rows, labels),
            LogisticRegression().fit(rows, labels),
            KMeans(3, random_state=0).fit(rows),
            Incremental(SGDClassifier(random_state=0)).fit(rows, labels),
            ParallelPostFit(SVC()).fit(X, y),
            GridSearchCV(SVC(), {"C": [0.1, 1.0]}, cv=2).fit(X, y),
        ]
    np.save(tmp_path / "X.npy", X)
    (tmp_path / "models.pkl").write_bytes(pickle.dumps(models))
    subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, check=True)
    answers = [model.predict(X) for model in models]
    np.testing.assert_array_equal(np.load(tmp_path / "answers.npy"), answers)
