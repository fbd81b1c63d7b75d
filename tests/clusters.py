"""Dask clusters of this machine for tests, each with its client."""

import importlib
from contextlib import contextmanager

import dask
from distributed import Client, LocalCluster

# Tasks of a fit in one task: two workers with rows have one each, which passes them on.
ONE_TASK = 1, 3


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


def can_show_dashboards():
    """Tell whether Bokeh is there, in a version that distributed can use."""
    try:
        importlib.import_module("distributed.dashboard.scheduler")
    except ImportError:
        return False
    return True
