"""The client of a fleet: distributed's, with errors that explain why workers died."""

from __future__ import annotations

from typing import Any

from distributed import Client

from skfleet._cluster import explained_deaths
from skfleet._method_override import override_method


class FleetClient(Client):
    """distributed's client, which names the memory that ended the workers of a computation.

    Dask gathers the results of ``collection.compute()`` and ``to_parquet`` by this method.
    """

    def gather(self, futures: Any, *args: Any, **kwargs: Any) -> Any:
        with explained_deaths(self):
            return super().gather(futures, *args, **kwargs)


def explain_deaths(client: Client) -> None:
    """Make a client that another library has opened name that memory too."""
    gather = client.gather

    def explained_gather(futures: Any, *args: Any, **kwargs: Any) -> Any:
        with explained_deaths(client):
            return gather(futures, *args, **kwargs)

    override_method(client, "gather", explained_gather)
