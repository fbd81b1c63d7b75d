"""Rows and fleets for the tests of boosting."""

from contextlib import contextmanager
from importlib.util import find_spec

import dask
import numpy as np
import pytest

from clusters import local_client

# machines with a GPU may lack a library
if find_spec("xgboost") is None or find_spec("lightgbm") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def small_rows_on_ranks():
    """A context manager within which small rows are trained on ranks, as large ones are.

    Each worker has one, as if it was on a machine of its own.
    """

    @contextmanager
    def patched():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("skfleet.estimators.boosting._boosted_estimator.ONE_WORKER_BYTES", 0)
            patch.setattr("skfleet.engine._dask._process_group.machine_of", str)
            yield

    return patched


@pytest.fixture
def on_ranks(small_rows_on_ranks):
    """Small rows are trained on ranks in a test."""
    with small_rows_on_ranks():
        yield


@pytest.fixture
def cluster(cluster_client):
    """A client of two workers in this process, the current one."""
    with cluster_client.as_current():
        yield cluster_client


@pytest.fixture(scope="module")
def process_client():
    """A client of two worker processes."""
    # A worker that is not there at a fixed time after a death is given up by Dask's own cluster.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"}),
        local_client(2, threads_per_worker=1) as client,
    ):
        yield client


@pytest.fixture
def processes(process_client):
    """The client of two worker processes, once both are there after the test before."""
    try:
        process_client.wait_for_workers(2, timeout=60)
    except TimeoutError:  # Dask gives up a worker that dies while it starts
        process_client.cluster.scale(0)
        process_client.cluster.scale(2)
        process_client.wait_for_workers(2, timeout=60)
    return process_client


@pytest.fixture(scope="session")
def rows():
    """Rows of few distinct values with gaps, targets of three kinds, weights and queries."""
    rng = np.random.default_rng(0)
    n = 1200
    X = rng.integers(0, 50, (n, 6)).astype(np.float32)
    score = X @ rng.normal(size=6)
    X[rng.random(X.shape) < 0.05] = np.nan
    return {
        "X": X,
        "y": score + rng.normal(size=n) * 10,
        "noise": rng.permutation(score),
        "labels": np.array(["low", "mid", "top"])[
            np.digitize(score, np.quantile(score, [0.3, 0.6]))
        ],
        "weight": rng.integers(1, 4, n).astype(float),
        "margin": rng.normal(size=n),
        "relevance": rng.integers(0, 4, n),
        "qid": np.sort(rng.integers(0, 60, n)),
    }
