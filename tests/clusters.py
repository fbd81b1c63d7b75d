"""Dask clusters of this machine for tests, each with its client."""

import importlib
import time
from contextlib import contextmanager
from itertools import cycle

import dask
import dask.array as da
from distributed import Client, LocalCluster, wait


@contextmanager
def local_client(n_workers, *, set_as_default=True, directory=None, **options):
    """Yield a client of a LocalCluster, with scratch space in a directory, and close both."""
    config = {} if directory is None else {"temporary-directory": str(directory)}
    with (
        dask.config.set(config),
        LocalCluster(n_workers=n_workers, dashboard_address=":0", **options) as cluster,
        Client(cluster, set_as_default=set_as_default) as client,
    ):
        yield client


def persist_in_turn(client, collections):
    """Return arrays whose blocks the workers have in turn; Dask may give one all of them."""
    workers = sorted(client.nthreads())
    persisted = []
    for values in collections:
        places = zip(values.blocks, cycle(workers), strict=False)
        # where a worker dies, another one may make its blocks again
        options = {"allow_other_workers": True}
        parts = [client.persist(block, workers=[w], **options) for block, w in places]
        persisted.append(client.persist(da.concatenate(parts)))
    wait(persisted)
    return persisted


def wait_for_idle_workers(client, seconds=20):
    """Wait for tasks on threads, also cancelled ones: at their end they may restore old filters."""
    end = time.monotonic() + seconds
    while any(client.run(_n_running).values()) and time.monotonic() < end:
        time.sleep(0.01)


def _n_running(dask_worker):
    return dask_worker.state.executing_count + len(dask_worker.state.long_running)


def can_show_dashboards():
    """Tell whether Bokeh is there, in a version that distributed can use."""
    try:
        importlib.import_module("distributed.dashboard.scheduler")
    except ImportError:
        return False
    return True
