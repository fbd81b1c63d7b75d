"""Dask clusters of this machine for tests, each with its client."""

from contextlib import contextmanager

from distributed import Client, LocalCluster


@contextmanager
def local_client(n_workers, *, set_as_default=True, **options):
    """Give a client of a LocalCluster, with the dashboard on a free port, and close both."""
    with (
        LocalCluster(n_workers=n_workers, dashboard_address=":0", **options) as cluster,
        Client(cluster, set_as_default=set_as_default) as client,
    ):
        yield client
