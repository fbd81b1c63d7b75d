"""What is done with Dask arrays alone: nothing imports Dask's frames, which takes long."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import dask.array as da
import numpy as np
from distributed import Client
from sklearn.linear_model import SGDClassifier
from skfleet import config_context
from skfleet.estimators import Incremental, KMeans, LogisticRegression, PCA, StandardScaler

if {has_client}:
    Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None)
X = da.random.default_rng(0).normal(size=(100, 4), chunks=(20, 4)).persist()
y = (X[:, 0] > 0).astype(int)
for limit in ("auto", 0):
    with config_context(single_task_below=limit):
        rows = StandardScaler().fit(X).transform(X)
        model = LogisticRegression().fit(rows, y)
        assert model.score(rows, y) > 0.9
        Incremental(SGDClassifier()).fit(X, y).predict(X).compute()
        KMeans(2, n_init=1).fit(X).labels_.compute()
        PCA(2).fit(X)
print("dask.dataframe" in sys.modules)
"""


@pytest.mark.parametrize("has_client", [True, False], ids=["client", "this process"])
def test_arrays_import_no_frames(has_client):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT.format(has_client=has_client)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.stdout.strip() == "False", run.stderr
