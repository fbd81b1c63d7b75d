"""Connections to schedulers that run already: by an address, or by a cluster object."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from dask.utils import parse_timedelta
from distributed import Client, Security
from distributed.comm import connect as connect_comm
from distributed.deploy import Cluster

from skfleet._cluster import (
    address_of,
    check_synchronous,
    check_workers,
    has_dashboard,
    n_workers_planned,
    scheduler_workers,
)
from skfleet.exceptions import FleetError
from skfleet.fleet._client import FleetClient, explain_deaths
from skfleet.fleet._credentials import check_credentials, credentials_error

_CONNECT_TIMEOUT_SECONDS = 8.0


def is_cluster(address: object) -> bool:
    """Return whether this is a cluster object: Dask's, or another's that can do as much."""
    methods = ("get_client", "scale")
    return isinstance(address, Cluster) or all(
        callable(getattr(address, name, None)) for name in methods
    )


def connect(
    address: Any, security: Security | bool | None, timeout: float | str | None
) -> tuple[Client, str | None]:
    """Open a client on a running scheduler, whose workers are checked; find its dashboard."""
    if isinstance(security, bool):
        raise conflicting_parameter("security", security, "with an address")
    if not (isinstance(address, str) or is_cluster(address)):
        advice = "A distributed.Client needs no Fleet: the default client is used as it is."
        if isinstance(address, int):
            advice = f"Write Fleet(n_workers={address}) for that many workers on this machine."
        raise TypeError(
            "address must be a scheduler's address or a cluster object, with get_client and scale. "
            f"Got {type(address).__name__} instead. {advice}"
        )
    options: dict[str, Any] = {"security": security, "timeout": timeout}
    options = {name: value for name, value in options.items() if value is not None}
    if not isinstance(address, (str, Cluster)):
        for name, value in options.items():
            raise conflicting_parameter(name, value, "with a cluster that opens clients itself")
        client = address.get_client()
        try:
            dashboard = _check_client(client)
        except BaseException:
            client.close()
            raise
        explain_deaths(client)
        return client, dashboard
    if isinstance(address, str):
        check_credentials(address, security)
        _check_address(address, security, timeout)
    # A client that fails in its constructor stays the default one. So the first is not the default:
    # it only checks the workers.
    with Client(address, set_as_default=False, **options) as trial:
        dashboard = _check_client(trial)
    return FleetClient(address, **options), dashboard


def _check_client(client: Client) -> str | None:
    """Raise unless a client and its workers can be used; return the address of the dashboard."""
    check_synchronous(client)
    check_workers(client)
    dashboard = None
    with suppress(Exception):  # of schedulers of any version, which may not run the question
        dashboard = client.dashboard_link if has_dashboard(client) else None
    if not scheduler_workers(client):
        n = n_workers_planned(client)
        print(
            f"scikit-fleet: {f'none of {n} workers' if n else 'no worker'} is up yet at "
            f"{address_of(client)}. Work waits for a first one as long as "
            "skfleet.config_context(wait_for_workers_timeout=...) says.",
            file=sys.stderr,
        )
    return dashboard or None


def _check_address(address: str, security: Security | None, timeout: float | str | None) -> None:
    """Raise unless a scheduler answers; a client that fails to find one takes a minute to close."""
    if address.startswith("inproc://"):
        return  # an address of this process
    seconds = parse_timedelta(_CONNECT_TIMEOUT_SECONDS if timeout is None else timeout)
    arguments = (security or Security()).get_connection_args("client")

    async def connect_once() -> None:
        comm = await asyncio.wait_for(connect_comm(address, timeout=seconds, **arguments), seconds)
        await comm.close()

    begin = time.monotonic()
    try:
        with ThreadPoolExecutor(1) as pool:  # a notebook's own thread has a loop that runs
            pool.submit(asyncio.run, connect_once()).result()
    except Exception as error:  # any other service may listen there
        if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            got = f"ones that its certificate does not fit ({error.__cause__.verify_message})"
            raise credentials_error(address, got) from error
        waited = "" if time.monotonic() - begin < seconds else f" in {seconds:g} seconds"
        reason = str(error) or str(error.__cause__ or "") or type(error).__name__
        raise FleetError(
            f"address must be that of a running scheduler. Got {address!r} instead, with which no "
            f"connection was made{waited}: {reason}. Start one with `dask scheduler`; one that "
            "uses TLS has an address of tls:// and needs its `security`."
        ) from error


def conflicting_parameter(name: str, value: object, situation: str) -> ValueError:
    """Return the error for a parameter that has no meaning with the others."""
    return ValueError(
        f"{name} must not be given {situation}. Got {value!r} instead. "
        f"Leave {name} out, or give it where the workers are started."
    )
