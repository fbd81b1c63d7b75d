"""A pytest plugin that runs scikit-learn's tests of its searches on ours, in worker processes."""

import os

import pytest
import sklearn.model_selection
from distributed import Client

from skfleet import model_selection

for name in os.environ["SKFLEET_TEST_SEARCHES"].split(","):
    setattr(sklearn.model_selection, name, getattr(model_selection, name))


@pytest.fixture(scope="session", autouse=True)
def fleet():
    threads = int(os.environ["SKFLEET_TEST_THREADS"])
    with Client(n_workers=2, threads_per_worker=threads, dashboard_address=":0") as client:
        yield client
