"""How to find the distributed client that a call belongs to, and what its workers are."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

from distributed import Client, get_client, get_worker, rejoin, secede

from skfleet.exceptions import FleetVersionError

__all__ = [
    "check_workers",
    "current_client",
    "has_one_machine",
    "is_cancelled",
    "offer_client",
    "refuse_asynchronous",
    "slot_released",
    "workers_of",
]

# Clients of this process that are nobody's default, but that tasks on their workers may use.
_offered: WeakSet[Client] = WeakSet()

# Addresses of the workers of each client whose versions have been found right.
_checked: WeakKeyDictionary[Client, frozenset[str]] = WeakKeyDictionary()

# Those of them that are processes of this machine and user.
_here: WeakKeyDictionary[Client, frozenset[str]] = WeakKeyDictionary()

_waiting = threading.local()


def current_client() -> Client | None:
    """Find the client that work started here belongs to.

    Inside a task it is the client of the worker that runs the task, so that nested work goes to
    the same scheduler. Elsewhere it is distributed's default client.

    Returns
    -------
    distributed.Client or None
        None where no client is open.

    Raises
    ------
    TypeError
        When the client is asynchronous.

    Notes
    -----
    A task that waits for other tasks holds one of the slots that they need: wait under
    :func:`slot_released`.
    """
    client: Client | None
    worker = _worker()
    if worker is not None:
        client = _offered_for(worker.scheduler.address) or get_client()
    else:
        try:
            client = Client.current()
        except ValueError:
            return None
    if client is None or client.status in ("closing", "closed"):
        return None
    refuse_asynchronous(client)
    return client


def refuse_asynchronous(client: Client) -> None:
    """Raise TypeError for a client whose calls would return awaitables instead of answers."""
    if client.asynchronous:
        raise TypeError(
            "client must be synchronous. Got an asynchronous distributed.Client instead. "
            "Make a Client without asynchronous=True, or call this in asyncio.to_thread."
        )


def offer_client(client: Client) -> None:
    """Let tasks on this client's workers find it, without making it anybody's default.

    distributed would open another client for them, and make that one the default of the process.
    """
    _offered.add(client)


@contextmanager
def slot_released() -> Iterator[None]:
    """Give the slot of the running task back to its worker while the task waits for others.

    Outside a task, and inside another ``slot_released``, this does nothing.
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


def this_worker() -> str:
    """Give the address of the worker that runs the task; nothing outside one."""
    worker = _worker()
    return "" if worker is None else str(worker.address)


def resources_here() -> dict[str, float]:
    """Give what the worker that runs the task offers; nothing outside one."""
    worker = _worker()
    return {} if worker is None else dict(worker.state.total_resources)


def workers_of(client: Client) -> dict[str, dict[str, Any]]:
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
    if _address(client).startswith("inproc://"):
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


def has_one_machine(client: Client) -> bool:
    """Tell whether all workers are, and will be, processes of this machine and user.

    Of workers that came after :func:`check_workers` this knows only that no other machine can reach
    the scheduler.
    """
    host = urlsplit(_address(client)).hostname or ""
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
            machine = importlib.import_module("skfleet.engine._same_machine").machine()
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


def _offered_for(address: str) -> Client | None:
    """Find the offered client of a scheduler, if this process has one."""
    for client in list(_offered):
        if _address(client) == address:
            return client
    return None


def _address(client: Client) -> str:
    """Address of a client's scheduler; empty once the client is closed."""
    return getattr(client.scheduler, "address", None) or ""
