"""A pytest plugin that adds our backend to those which joblib's tests of Parallel go through."""

import joblib.parallel
import pytest
from distributed import Client

from skfleet.joblib_backend import FleetBackend

# The tests read this list while they are collected.
joblib.parallel.BACKENDS["skfleet"] = FleetBackend


@pytest.fixture(scope="session", autouse=True)
def fleet():
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        yield client
