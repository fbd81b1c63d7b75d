"""Clusters and rows that the tests of searches share."""

import pytest
from distributed import Client
from sklearn.datasets import load_digits


@pytest.fixture(scope="module")
def one_thread():
    """The current client, of one worker with one thread, on which fits are counted."""
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as it:
        yield it


@pytest.fixture
def on_cluster(cluster_client):
    """Make the cluster of all tests the current one."""
    with cluster_client.as_current():
        yield


@pytest.fixture(scope="module")
def digits():
    """Digits with values from 0 to 1, and their labels."""
    X, y = load_digits(return_X_y=True)
    return X / 16, y
