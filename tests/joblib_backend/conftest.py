"""Clients of two kinds, and a count of what is scattered."""

import pytest
from distributed import Client

from clusters import local_client
from skfleet.engine._dask import _scatter


@pytest.fixture(scope="module")
def threads():
    """A fleet of one worker with four threads, in this process."""
    with local_client(1, processes=False, threads_per_worker=4) as client:
        yield client


@pytest.fixture(scope="module")
def processes(process_cluster):
    """A fleet of two worker processes."""
    with Client(process_cluster, set_as_default=False) as client:
        yield client


@pytest.fixture(params=["threads", "processes"])
def client(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def sent(monkeypatch):
    """Count what is sent to the fleet apart from calls."""
    sizes = []
    send = _scatter.ScatteredObject._send

    def counting(self, parcel):
        sizes.append(parcel.nbytes)  # not the parcel: it holds the memory of the object
        return send(self, parcel)

    monkeypatch.setattr(_scatter.ScatteredObject, "_send", counting)
    return sizes
