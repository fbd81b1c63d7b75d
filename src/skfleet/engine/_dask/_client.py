"""How to find the distributed client that a call belongs to, and what its workers are."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

import dask.config
from distributed import Client, get_client, get_worker, rejoin, secede
from distributed import client as dask_client

from skfleet._config import get_config
from skfleet.exceptions import FleetError, FleetVersionError, NoWorkersError

__all__ = [
    "address_of",
    "all_workers_on_this_host",
    "check_running",
    "check_synchronous",
    "check_workers",
    "current_client",
    "has_dashboard",
    "is_cancelled",
    "n_workers_planned",
    "register_client",
    "scheduler_for_values",
    "scheduler_workers",
    "seceded",
    "wait_for_workers",
]

# Clients of this process that are nobody's default, but that tasks on their workers may use.
_registered: WeakSet[Client] = WeakSet()

# Addresses of the workers of each client whose versions have been found right.
_checked: WeakKeyDictionary[Client, frozenset[str]] = WeakKeyDictionary()

# Those of them that are processes of this machine and user.
_here: WeakKeyDictionary[Client, frozenset[str]] = WeakKeyDictionary()

_waiting = threading.local()

# Default clients that do not run, of which that was said.
_reported: WeakSet[Client] = WeakSet()


def current_client(*, is_required: bool = True) -> Client | None:
    """Find the client that work started here belongs to.

    Inside a task it is the client of the worker that runs the task, so that nested work goes to
    the same scheduler. Elsewhere it is distributed's default client. One that never started, or is
    closed, is passed over for the one before it, and a line on the standard error stream says so.

    Parameters
    ----------
    is_required : bool, default=True
        Without that, what does not run is passed over at once and without a word.

    Returns
    -------
    distributed.Client or None
        None where no client is open.

    Raises
    ------
    TypeError
        When the client is asynchronous.
    FleetError
        When its scheduler does not answer as long as ``wait_for_workers_timeout`` says.

    Notes
    -----
    A task that waits for other tasks holds one of the slots that they need: wait under
    :func:`seceded`.
    """
    worker = _worker()
    if worker is not None:
        client: Client = _client_for_scheduler(worker.scheduler.address) or get_client()
        check_synchronous(client)
        return client
    for client in _default_clients():
        if client.status not in ("closing", "closed"):
            check_synchronous(client)
        if is_required and _may_come_back(client):
            check_running(client)
        if client.status == "running":
            return client
        if is_required and client not in _reported:
            _reported.add(client)
            never = client.status in _BEFORE_START
            print(
                f"scikit-fleet: the default client {client.id} "
                f"{'never started' if never else 'is closed'} and is passed over. "
                + ("Close it with distributed.default_client().close()" if never else "Leave it")
                + ", or open another.",
                file=sys.stderr,
            )
    return None


_BEFORE_START = ("newly-created", "connecting")


def _default_clients() -> Iterator[Client]:
    """Yield the clients that distributed would take by default, the first choice first.

    Its own functions stop at the first that is not closed, though it may never have started.
    """
    context = dask_client._current_client.get()
    if context is not None:
        yield context
    for _, client in sorted(dask_client._global_clients.items(), reverse=True):
        if client is not context:
            yield client


def _may_come_back(client: Client) -> bool:
    """Tell whether a client has lost its scheduler and looks for it, or has not found it yet."""
    return client.status == "connecting" and client.scheduler is not None


def check_running(client: Client) -> None:
    """Raise unless a client runs, after waiting for a scheduler that does not answer.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.

    Raises
    ------
    FleetError
        When it never started or is closed, or its scheduler does not answer as long as
        ``wait_for_workers_timeout`` says.
    """
    address, timeout = address_of(client), get_config().wait_for_workers_timeout
    deadline = time.monotonic() + timeout
    while _may_come_back(client) and time.monotonic() < deadline:
        time.sleep(0.02)
    if client.status == "running":
        return
    if address:
        problem = f"one whose scheduler at {address} has not answered for {timeout:g} seconds"
    else:
        problem = "one that never started" if client.status in _BEFORE_START else "a closed one"
    raise FleetError(
        f"client {client.id} must be connected to its scheduler. Got {problem} instead. Close it, "
        "and open a Fleet or a distributed.Client on a scheduler that runs."
    )


def wait_for_workers(
    client: Client, timeout: float | None = None, *, setting: str = "skfleet.config_context("
) -> dict[str, Any]:
    """Return the workers of a client, after waiting for a first one where there is none.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    timeout : float, optional
        Seconds to wait. By default what :func:`skfleet.config_context` says.
    setting : str, optional
        The call by which to ask for more, up to that argument.

    Returns
    -------
    dict of str to dict
        What the scheduler knows of them, by address.

    Raises
    ------
    NoWorkersError
        When none has come in time.
    """
    workers = scheduler_workers(client)
    if workers:
        return workers
    timeout = get_config().wait_for_workers_timeout if timeout is None else timeout
    # An adaptive cluster starts a worker only where there is a task.
    probe = client.submit(_probe, pure=False)
    try:
        with seceded():
            probe.result(timeout=max(timeout, 1e-3))
    except (TimeoutError, CancelledError) as error:
        n_planned = n_workers_planned(client)
        of = f" of the {n_planned} that its cluster was asked for" if n_planned else ""
        raise NoWorkersError(
            f"scheduler {address_of(client)} must have a worker. Got none{of} after {timeout:g} "
            f"seconds instead. Start workers, or wait longer: {setting}"
            f"wait_for_workers_timeout={max(10, 2 * timeout):g})."
        ) from error
    finally:
        probe.release()
    return scheduler_workers(client)


def _probe() -> None:
    """Do nothing, on the first worker that comes."""


def n_workers_planned(client: Client) -> int:
    """Count the workers that a client's cluster was asked for; 0 where it cannot be known."""
    cluster: Any = client.cluster
    with suppress(Exception):  # clusters are written by many hands
        return len(cluster.plan)
    return 0


def has_dashboard(client: Client) -> bool:
    """Ask the scheduler whether it shows a dashboard: without Bokeh its port answers nothing."""

    # Made here to travel by value: a scheduler may lack scikit-fleet.
    def is_shown(dask_scheduler: Any) -> bool:
        import sys

        pages = getattr(dask_scheduler.http_application, "applications", ())
        return "bokeh" in sys.modules and bool(pages) and "dashboard" in dask_scheduler.services

    return bool(client.run_on_scheduler(is_shown))


def scheduler_for_values() -> Any:
    """Return what computes the values of collections here: a client, or a scheduler of Dask's.

    None leaves the choice to Dask: where there is no client, or another scheduler was asked for.
    """
    if dask.config.get("scheduler", None) not in (None, "distributed", "dask.distributed"):
        return None
    client = current_client()
    if client is not None:
        wait_for_workers(client)
        return client
    # Dask would take a default client that does not run.
    return "threads" if next(_default_clients(), None) is not None else None


def check_synchronous(client: Client) -> None:
    """Raise TypeError for a client whose calls would return awaitables instead of answers."""
    if client.asynchronous:
        raise TypeError(
            "client must be synchronous. Got an asynchronous distributed.Client instead. "
            "Make a Client without asynchronous=True, or call this in asyncio.to_thread."
        )


def register_client(client: Client) -> None:
    """Let tasks on this client's workers find it, without making it anybody's default.

    distributed would open another client for them, and make that one the default of the process.
    """
    _registered.add(client)


@contextmanager
def seceded() -> Iterator[None]:
    """Give the slot of the running task back to its worker while the task waits for others.

    Outside a task, and inside another ``seceded``, this does nothing.
    """
    if _worker() is None or getattr(_waiting, "inside", False):
        yield
        return
    secede()
    _waiting.inside = True
    try:
        yield
    finally:
        _waiting.inside = False
        rejoin()


def is_cancelled() -> bool:
    """Tell whether nobody waits for the running task any more; False outside a task."""
    worker = _worker()
    if worker is None:
        return False
    task = worker.state.tasks.get(worker.get_current_task())
    return task is None or task.state == "cancelled"


def current_worker_address() -> str:
    """Give the address of the worker that runs the task; nothing outside one."""
    worker = _worker()
    return "" if worker is None else str(worker.address)


def worker_resources() -> dict[str, float]:
    """Give what the worker that runs the task offers; nothing outside one."""
    worker = _worker()
    return {} if worker is None else dict(worker.state.total_resources)


def scheduler_workers(client: Client) -> dict[str, dict[str, Any]]:
    """Ask the scheduler which workers there are now, and what it knows of them.

    ``Client.scheduler_info`` gives what was heard last, which now and then is the answer to the
    client's own question of every other second, and that has no workers in it.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.

    Returns
    -------
    dict of str to dict
        By address; empty where no scheduler answers.
    """
    if client.scheduler is None:
        return {}
    try:
        found = client.sync(client.scheduler.identity, n_workers=-1)
    except OSError:
        return {}
    return dict(found["workers"])


def check_workers(client: Client, present: Iterable[str] | None = None) -> None:
    """Raise unless every worker runs scikit-fleet, scikit-learn and Python as the caller does.

    Each worker is asked once, when it is first seen. Workers in this very process are not asked.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client.
    present : iterable of str, optional
        The addresses of its workers. By default the scheduler is asked for them.

    Raises
    ------
    FleetVersionError
        When a worker has no scikit-fleet, or another version of it, of scikit-learn or of Python
        (major and minor).
    """
    if address_of(client).startswith("inproc://"):
        return
    addresses = frozenset(client.nthreads() if present is None else present)
    known = _checked.get(client, frozenset()) & addresses
    unknown = addresses - known
    if unknown:
        versions = _versions_lookup()
        # A worker may leave while it is asked; what takes its place is asked in its turn.
        answers = client.run(versions, workers=sorted(unknown), on_error="return")
        answers = {address: got for address, got in answers.items() if isinstance(got, dict)}
        ours = versions()
        here = ours.pop("machine")
        _refuse_mismatch(ours, answers)
        known |= frozenset(answers)
        _here[client] = _here.get(client, frozenset()) | {
            address
            for address, got in answers.items()
            if here is not None and got.get("machine") == here
        }
    _checked[client] = known


def all_workers_on_this_host(client: Client) -> bool:
    """Tell whether all workers are, and will be, processes of this machine and user.

    Of workers that came after :func:`check_workers` this knows only that no other machine can reach
    the scheduler.
    """
    host = urlsplit(address_of(client)).hostname or ""
    known = _here.get(client, frozenset())
    return host == "127.0.0.1" and bool(known) and known >= _checked.get(client, frozenset())


def _refuse_mismatch(
    ours: dict[str, str | None], answers: dict[str, dict[str, str | None]]
) -> None:
    """Raise with the first worker that differs, and with the number of those like it."""
    for name, wanted in ours.items():
        wrong = {address: got[name] for address, got in answers.items() if got[name] != wanted}
        if wrong:
            address, found = min(wrong.items())
            raise FleetVersionError(
                f"{name} must be {wanted} on every worker, as it is here. "
                f"Got {found or 'none'} on {address} ({len(wrong)} of {len(answers)} workers "
                f"differ) instead. Install {name} {wanted} where the workers run, and start "
                "them again."
            )


def _versions_lookup() -> Any:
    """Make the function that reads versions, in a form that travels without scikit-fleet."""

    # A function at module level would be pickled as a reference to this module, which is just
    # what a worker without scikit-fleet cannot import; one made here is pickled by value.
    def versions() -> dict[str, str | None]:
        import importlib
        import importlib.metadata
        import sys

        try:
            skfleet = importlib.import_module("skfleet").__version__
        except ImportError:
            skfleet = None
        try:
            sklearn = importlib.metadata.version("scikit-learn")
        except importlib.metadata.PackageNotFoundError:
            sklearn = None
        try:
            machine = importlib.import_module("skfleet.engine._dask._shared_memory").machine()
        except (ImportError, AttributeError):
            machine = None  # another version, which the rest of the answer tells
        return {
            "machine": machine,
            "Python": "{}.{}".format(*sys.version_info[:2]),
            "scikit-learn": sklearn,
            "scikit-fleet": skfleet,
        }

    return versions


def _worker() -> Any:
    """Give the worker that runs the present task, or None outside a task."""
    try:
        return get_worker()
    except ValueError:
        return None


def _client_for_scheduler(address: str) -> Client | None:
    """Find the offered client of a scheduler, if this process has one."""
    for client in list(_registered):
        if address_of(client) == address:
            return client
    return None


def address_of(client: Client) -> str:
    """Address of a client's scheduler; empty once the client is closed."""
    return getattr(client.scheduler, "address", None) or ""
