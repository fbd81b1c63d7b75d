"""The distributed client that a call belongs to, and its workers (`current_client`)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask.config
from distributed import Client, Worker, get_client, get_worker, rejoin, secede

from skfleet._cluster._client_state import WorkerInfo, registered_clients, state_of
from skfleet._config import get_config
from skfleet._distributed_private import default_clients
from skfleet.exceptions import FleetError, FleetVersionError, NoWorkersError

# Whether the running task has seceded. Threads that it starts and waits for copy its context.
_is_seceded: ContextVar[bool] = ContextVar("skfleet_is_seceded", default=False)


def current_client(*, is_required: bool = True) -> Client | None:
    """Return the client that tasks of the calling code belong to.

    Inside a task it is the client of the worker that runs the task, so that nested work goes to
    the same scheduler. Elsewhere it is distributed's default client. One that never started, or is
    closed, is passed over for the one before it, with a line on the standard error stream; at once
    and without a line unless `is_required`. An asynchronous client raises a TypeError, and one
    whose scheduler does not answer in time a FleetError.

    A task that waits for other tasks holds one of the slots that they need: wait under `seceded`.
    """
    worker = _worker()
    if worker is not None:
        address = worker.scheduler.address
        registered = (c for c in registered_clients() if address_of(c) == address)
        client: Client = next(registered, None) or get_client()
        check_synchronous(client)
        return client
    for client in default_clients():
        if client.status not in ("closing", "closed"):
            check_synchronous(client)
        if is_required and _may_come_back(client):
            check_running(client)
        if client.status == "running":
            return client
        if is_required and not state_of(client).is_reported:
            state_of(client).is_reported = True
            problem, remedy = "is closed", "Leave it"
            if client.status in _BEFORE_START:
                problem = "never started"
                remedy = "Close it with distributed.default_client().close()"
            print(
                f"scikit-fleet: the default client {client.id} {problem} and is passed over. "
                f"{remedy}, or open another.",
                file=sys.stderr,
            )
    return None


_BEFORE_START = ("newly-created", "connecting")


def _may_come_back(client: Client) -> bool:
    """Return whether a client is connecting to its scheduler, for the first time or again."""
    return client.status == "connecting" and client.scheduler is not None


def check_running(client: Client) -> None:
    """Raise FleetError unless a client runs, after waiting for a scheduler that does not answer."""
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
) -> dict[str, WorkerInfo]:
    """Return the workers of a client, after waiting for a first one where there is none.

    By default that is as long as the config says; then a NoWorkersError is raised. It shows
    `setting`, the start of the call that sets a longer timeout.
    """
    if workers := scheduler_workers(client):
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
    """Do nothing: the task is done once there is a worker."""


def n_workers_planned(client: Client) -> int:
    """Return how many workers a client's cluster is to have; 0 if it is unknown."""
    cluster: Any = client.cluster
    with suppress(Exception):  # of clusters of any library
        return len(cluster.plan)
    return 0


def has_dashboard(client: Client) -> bool:
    """Return whether the scheduler serves a dashboard; without Bokeh its port serves nothing."""

    # A nested function is pickled by value: the scheduler may not have scikit-fleet.
    def is_shown(dask_scheduler: Any) -> bool:
        import sys

        application = getattr(dask_scheduler, "http_application", None)
        pages = getattr(application, "applications", ())
        return "bokeh" in sys.modules and bool(pages) and "dashboard" in dask_scheduler.services

    return bool(client.run_on_scheduler(is_shown))


def scheduler_for_values() -> Client | str | None:
    """Return the scheduler for collections of this process: a client, or Dask's "threads".

    None leaves the choice to Dask: without a client, or where the config names another scheduler.
    """
    if dask.config.get("scheduler", None) not in (None, "distributed", "dask.distributed"):
        return None
    client = current_client()
    if client is not None:
        wait_for_workers(client)
        return client
    # Dask would take a default client that does not run.
    return "threads" if next(default_clients(), None) is not None else None


def check_synchronous(client: Client) -> None:
    """Raise TypeError for an asynchronous client, whose calls return awaitables."""
    if client.asynchronous:
        raise TypeError(
            "client must be synchronous. Got an asynchronous distributed.Client instead. "
            "Make a Client without asynchronous=True, or call this in asyncio.to_thread."
        )


def register_client(client: Client) -> None:
    """Make `current_client` return this client in tasks that its workers run in this process.

    distributed would open another client for them, and make that one the default of the process.
    """
    state_of(client).is_registered = True


@contextmanager
def seceded() -> Iterator[None]:
    """Secede from the worker's thread pool inside a ``with``, while a task waits for others.

    Outside a task, and inside another ``seceded``, this does nothing.
    """
    if _worker() is None or _is_seceded.get():
        yield
        return
    secede()
    _is_seceded.set(True)
    try:
        yield
    finally:
        _is_seceded.set(False)  # not by a token: a generator may be closed in another context
        rejoin()


def is_cancelled() -> bool:
    """Return whether the running task was cancelled; False outside a task."""
    worker = _worker()
    if worker is None:
        return False
    task = worker.state.tasks.get(worker.get_current_task())
    return task is None or task.state == "cancelled"


def current_worker_address() -> str:
    """Return the address of the worker that runs the task; "" outside one."""
    worker = _worker()
    return "" if worker is None else str(worker.address)


def worker_resources() -> dict[str, float]:
    """Return the resources that the running task's worker offers; none outside a task."""
    worker = _worker()
    return {} if worker is None else dict(worker.state.total_resources)


def scheduler_workers(client: Client, max_age: float = 0.0) -> dict[str, WorkerInfo]:
    """Return the workers by address, as the scheduler describes them; none if it does not answer.

    ``Client.scheduler_info`` returns the last message, which now and then is the reply to the
    client's own poll of every other second, and that has no workers in it. An earlier answer that
    names a worker is reused for `max_age` seconds.
    """
    if client.scheduler is None:
        return {}
    state = state_of(client)
    described_at, workers = state.workers
    if workers and time.monotonic() - described_at < max_age:
        return workers
    try:
        workers = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    except OSError:
        return {}
    state.workers = time.monotonic(), dict(workers)
    return state.workers[1]


def latest_workers(client: Client, timeout: float) -> tuple[dict[str, WorkerInfo], bool]:
    """Return the workers as they were last described, and whether the scheduler just did so.

    The wait for its answer ends after `timeout` seconds; in the client's event loop there is none.
    """
    state = state_of(client)
    if client.asynchronous or client.scheduler is None:
        return state.workers[1], False
    identity = client.scheduler.identity
    try:
        workers = client.sync(identity, n_workers=-1, callback_timeout=timeout)["workers"]
    except (OSError, RuntimeError):  # no answer in time, no connection, or a loop that is closed
        return state.workers[1], False
    state.workers = time.monotonic(), dict(workers)
    return state.workers[1], True


def check_workers(client: Client, present: Iterable[str] | None = None) -> None:
    """Raise FleetVersionError unless every worker has the caller's versions.

    Those are of scikit-fleet, scikit-learn and Python (major and minor). Each worker is checked
    once, workers in this process are not. `present` are the addresses, by default the scheduler's.
    """
    if address_of(client).startswith("inproc://"):
        return
    addresses = frozenset(client.nthreads() if present is None else present)
    state = state_of(client)
    checked = state.checked & addresses
    unchecked = addresses - checked
    if unchecked:
        versions = _versions_lookup()
        # A worker may leave meanwhile; its replacement has a new address, to be checked next time.
        replies = client.run(versions, workers=sorted(unchecked), on_error="return")
        replies = {address: reply for address, reply in replies.items() if isinstance(reply, dict)}
        own = versions()
        host = own.pop("machine")
        _check_versions(own, replies)
        checked |= frozenset(replies)
        if host is not None:
            state.local |= {a for a, reply in replies.items() if reply.get("machine") == host}
    state.checked = checked


def all_workers_on_this_host(client: Client) -> bool:
    """Return whether all workers are, and will be, processes of this machine and user.

    Of later workers it is known only that no other machine can reach the scheduler.
    """
    host = urlsplit(address_of(client)).hostname or ""
    state = state_of(client)
    return host == "127.0.0.1" and bool(state.local) and state.local >= state.checked


def _check_versions(own: dict[str, str | None], replies: dict[str, dict[str, str | None]]) -> None:
    """Raise if any worker has another version, naming the first such worker and their number."""
    for name, version in own.items():
        wrong = {a: reply[name] for a, reply in replies.items() if reply[name] != version}
        if wrong:
            address, other = min(wrong.items())
            raise FleetVersionError(
                f"{name} must be {version} on every worker, as it is here. "
                f"Got {other or 'none'} on {address} ({len(wrong)} of {len(replies)} workers "
                f"differ) instead. Install {name} {version} where the workers run, and start "
                "them again."
            )


def _versions_lookup() -> Callable[[], dict[str, str | None]]:
    """Return the function that reads versions, to be run where scikit-fleet may be missing."""

    # A function at module level is pickled as a reference to this module, which a worker without
    # scikit-fleet cannot import. A nested one is pickled by value.
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
            machine = importlib.import_module("skfleet._cluster").host_identity()
        except (ImportError, AttributeError):
            machine = None  # another version of scikit-fleet, which the check reports
        return {
            "machine": machine,
            "Python": "{}.{}".format(*sys.version_info[:2]),
            "scikit-learn": sklearn,
            "scikit-fleet": skfleet,
        }

    return versions


def host_identity() -> str | None:
    """Return what processes that can map each other's memory have in common; None without it.

    That is the boot of the machine, the namespace of process numbers, and the user.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {os.getuid()}"
    except (OSError, AttributeError):
        return None


def _worker() -> Worker | None:
    """Return the worker that runs the task, or None outside a task."""
    try:
        return get_worker()
    except ValueError:
        return None


def address_of(client: Client) -> str:
    """Return the address of a client's scheduler; "" once the client is closed."""
    return getattr(client.scheduler, "address", None) or ""
