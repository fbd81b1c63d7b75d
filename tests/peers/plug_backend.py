"""A pytest plugin that puts our backend in the place of joblib's Dask backend, under its name."""

import joblib._dask
import pytest
from distributed import Client
from distributed.utils_test import (  # noqa: F401  (fixtures that joblib's tests ask for)
    cleanup,
    cluster,
    loop,
    loop_in_thread,
)

from skfleet.joblib_backend import FleetBackend


class DaskDistributedBackend(FleetBackend):
    """Our backend, with the name that joblib's tests look for."""


joblib._dask.DaskDistributedBackend = DaskDistributedBackend


@pytest.fixture(scope="session", autouse=True)
def callback_thread():
    """Start Dask's thread for callbacks, which lives as long as the process.

    To the first test that brings it up it would look like a leaked thread.
    """
    with Client(processes=False, n_workers=1, dashboard_address=":0") as client:
        future = client.submit(int)
        future.add_done_callback(id)
        future.result()
