"""`Fleet`: a client on a local cluster that it starts, or on a running scheduler."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from typing import Any

from dask.system import CPU_COUNT
from distributed import Client, Security
from distributed.deploy import Cluster, SpecCluster

from skfleet._display import html_table
from skfleet._worker_plugins import log_failures, stop_log_failures
from skfleet.exceptions import FleetError
from skfleet.fleet._adaptive import CpuOnlyAdaptive, FleetAdaptive
from skfleet.fleet._client import FleetClient
from skfleet.fleet._connect import conflicting_parameter, connect, is_cluster
from skfleet.fleet._credentials import is_connection_file, load_connection, save_connection
from skfleet.fleet._fleet_summary import FleetSummary
from skfleet.fleet._local_cluster import start_local_cluster
from skfleet.fleet._log_filters import quiet_closing
from skfleet.fleet._worker_memory import check_free_memory

# Of a local cluster, to reach the number of workers that `scale` sets.
_SCALE_TIMEOUT_SECONDS = 30.0
SLOW_START_SECONDS = 5.0


class Fleet:
    """A client on a local cluster of CPU and GPU workers, or on a scheduler that runs already.

    Parameters
    ----------
    address : str, path or cluster, default=None
        The address of a running scheduler ("tcp://10.0.0.1:8786", "tls://..."), the path of a file
        that `save_connection` or ``dask scheduler --scheduler-file`` wrote, or a cluster object:
        one of Dask's, or any that has the methods `get_client` and `scale`, as a
        `dask_gateway.GatewayCluster` has. By default a cluster is started on this machine, for
        this user alone: it listens on the loopback interface only, and its processes answer only
        those that have its credentials.
    n_workers : int, default=None
        Number of CPU workers, in a fleet without GPU workers. By default there is a worker for
        each of the `gpus`, and as many CPU workers as fill the remaining cores.
    gpus : "auto", int or list of int or str, default="auto"
        The GPUs of this machine that get a worker process each: their number, or a list of numbers
        or UUIDs as in the environment variable ``CUDA_VISIBLE_DEVICES``, which is obeyed. A GPU
        that is named twice has two workers, for trials; bound their memory by
        ``device_memory_limit=0.4``. "auto"
        takes all, unless `n_workers`, `resources` or ``processes=False`` define the workers. Where
        it takes none although the machine seems to have a GPU, it prints the reason on the standard
        error stream. Needs CuPy and dask-cuda (``pip install 'scikit-fleet[gpu]'``).
    cpus : int, default=None
        Number of CPU workers in addition to those on GPUs; they see no GPU.
    threads_per_worker : int, default=None
        Threads of each CPU worker, and so the number of tasks that it runs at a time; a worker on
        a GPU has one thread. By default 1 for processes. The BLAS and OpenMP libraries of a worker
        process are limited to the same number of threads.
    processes : bool, default=True
        Whether workers are processes. Otherwise they are threads of this process, which start at
        once, share memory, and share the interpreter lock.
    memory_limit : int, float, str or None, default="auto"
        Memory of each worker: bytes, a fraction of the machine's, text such as "4 GiB", or
        None for no limit. "auto" is the machine's memory divided by ``n_workers``; undivided for
        workers on threads, each of which measures the whole process. GPU workers with more CPU
        workers beside them share half of the memory. A worker process takes about 230 MB for the
        libraries that it imports: a limit of less than 100 MB more is refused.
    device_memory_limit : int, float, str or None, default="default"
        Memory of the GPU that the data of a worker may take before it moves them to the host, and
        that rows of the calling process may take before they are loaded for each pass: bytes, a
        fraction, text such as "40 GiB", or None for no limit. "default" is 0.8, and for such
        rows the free memory.
    resources : mapping, or sequence of mappings, default=None
        Dask resources of the workers, for all of them or one mapping for each. By default
        ``{"CPU": threads_per_worker}``, and ``{"GPU": 1}`` for a worker on a GPU.
        Workers added later by `scale` or `adapt` take the mapping for all, or the default.
    protocol : {"tcp", "tls", "ucx"}, default=None
        Protocol between scheduler and workers, by default "tls" for processes. "ucx" copies from
        GPU to GPU over NVLink and InfiniBand where available, and needs distributed-ucxx. With
        "tcp" and "ucx" any user of this machine can connect, which a line of the log says.
    env : mapping of str to str, default=None
        Further environment variables of worker processes, set before they start.
    dashboard_address : str or None, default=None
        Address of the dashboard; ":0" takes a free port of the loopback interface, ":8787" that
        one. By default there is none, and no HTTP server. The dashboard needs Bokeh, which the
        extra ``ui`` installs; without it there is none, and a warning. It answers requests with a
        token only, which `dashboard_link` has.
    security : distributed.Security or bool, default=None
        TLS credentials. By default those of Dask's configuration, else, for worker processes on
        this machine, temporary ones that exist in the memory of these processes alone. False is a
        fleet without them, to which any user of this machine can connect.
    timeout : float or str, default=None
        Seconds to wait for the scheduler at `address`; by default 8.
    asynchronous : bool, default=False
        Only False is supported; True raises.

    Attributes
    ----------
    client : distributed.Client
        The client, distributed's default one until the fleet is closed.
    dashboard_link : str or None
        Link that opens the dashboard, where there is one. Its token is a secret: who has it sees
        the names of tasks and the logs of workers.

    Raises
    ------
    MissingMainGuardError
        When a script starts worker processes outside ``if __name__ == "__main__":``.
    FleetError
        When no scheduler answers at `address`, or credentials for it are missing.
    PermissionError
        When others may write the file at `address`, or read the credentials in it.
    PlacementError
        When this machine lacks the GPUs that `gpus` requests.
    FleetVersionError
        When workers of a running scheduler lack scikit-fleet, or have another version of it, of
        scikit-learn or of Python.
    TypeError
        When the fleet is to be asynchronous.
    ValueError
        When parameters contradict one another.

    See Also
    --------
    distributed.LocalCluster : Dask's own local cluster.

    Notes
    -----
    The environment of workers has ``SCIPY_ARRAY_API=1``, which scikit-learn's Array API dispatch
    needs before SciPy is imported.

    A GPU worker is configured by dask-cuda: it runs on the cores next to its GPU, spills data from
    the device to the host and from there to the disk, and allocates device memory from RMM's
    asynchronous pool where RMM is installed. `scale` and `adapt` start and close CPU workers; a GPU
    worker is closed only when `scale` sets fewer workers than there are GPUs.

    A notebook shows a fleet as a table of its workers with a link to the dashboard, and the client
    as Dask does.

    Closing the fleet restores the default client of before. Leaving the ``with`` block closes it,
    after an error too. A cluster or a scheduler that the fleet did not start keeps running.

    Examples
    --------
    >>> from skfleet import Fleet
    >>> with Fleet(n_workers=2, processes=False) as client:
    ...     client.submit(sum, [1, 2, 3]).result()
    6
    """

    client: Client
    _adaptive: Any = None
    _joined_dashboard: str | None = None

    def __init__(
        self,
        address: str | PathLike[str] | Cluster | None = None,
        *,
        n_workers: int | None = None,
        gpus: int | str | Sequence[int | str] = "auto",
        cpus: int | None = None,
        threads_per_worker: int | None = None,
        processes: bool = True,
        memory_limit: int | float | str | None = "auto",
        device_memory_limit: float | int | str | None = "default",
        resources: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
        protocol: str | None = None,
        env: Mapping[str, str] | None = None,
        dashboard_address: str | None = None,
        security: Security | bool | None = None,
        timeout: float | str | None = None,
        asynchronous: bool = False,
    ) -> None:
        if asynchronous:
            raise TypeError(
                "asynchronous must be False. Got True instead. "
                "Use distributed.Client(asynchronous=True) for work that does not pass here."
            )
        if is_connection_file(address):
            address, saved = load_connection(address)
            if saved is not None and security is not None:
                raise conflicting_parameter("security", security, "with a file that has it")
            security = saved or security
        # Parameters of a cluster that is yet to be started, which an address contradicts.
        self._cluster: Cluster | None = None
        self._is_ours = address is None
        only_local: dict[str, Any] = {
            "n_workers": n_workers,
            "threads_per_worker": threads_per_worker,
            "processes": processes,
            "memory_limit": memory_limit,
            "resources": resources,
            "gpus": gpus,
            "cpus": cpus,
            "device_memory_limit": device_memory_limit,
            "protocol": protocol,
            "env": env,
            "dashboard_address": dashboard_address,
        }
        if address is None:
            # Without an address there is no scheduler to wait for but the one that is started here.
            if timeout is not None:
                raise conflicting_parameter("timeout", timeout, "without an address")
            waits_for = "worker processes to start; each imports its libraries" if processes else ""
            with _line_if_slow(waits_for or "the scheduler to start"):
                self._cluster = start_local_cluster(**only_local, security=security)
            try:
                # No process is left behind where the client cannot connect, or memory is too small.
                self.client = FleetClient(self._cluster)
                if processes:
                    check_free_memory(self.client)
            except BaseException:
                self._cluster.close()
                raise
            log_failures(self.client)
        else:
            # A cluster of someone else's: parameters that would silently do nothing are refused.
            defaults = Fleet.__init__.__kwdefaults__
            for name, value in only_local.items():
                if value != defaults[name]:
                    raise conflicting_parameter(name, value, "with an address")
            at = address if isinstance(address, str) else "the cluster's address"
            with _line_if_slow(f"an answer of the scheduler at {at}"):
                self.client, self._joined_dashboard = connect(address, security, timeout)
            self._cluster = address if is_cluster(address) else None

    @property
    def dashboard_link(self) -> str | None:
        """Link that opens the dashboard, with its token; None where there is none."""
        if self._is_ours and self.client.status not in ("closing", "closed"):
            return getattr(self._cluster, "dashboard_link_with_token", None)
        return self._dashboard()

    def _dashboard(self) -> str | None:
        """Return the address of the dashboard without its token, which nothing shows unasked."""
        if self.client.status in ("closing", "closed"):
            return None
        if self._is_ours:
            return getattr(self._cluster, "shown_dashboard", None)
        return self._joined_dashboard

    @property
    def security(self) -> Security:
        """Credentials with which ``distributed.Client(address, security=...)`` may connect."""
        return self.client.security

    def save_connection(self, path: str | PathLike[str]) -> None:
        """Write the address and the credentials to a file, with which ``Fleet(path)`` joins.

        Its owner alone may read it, and who reads it can run code in the owner's name as long as
        the fleet runs.

        Parameters
        ----------
        path : str or path
            The file, which is replaced if it exists.

        Raises
        ------
        FleetError
            When the workers are threads of this process, or the fleet is closed.
        """
        if self.client.status in ("closing", "closed"):
            raise FleetError(
                "Fleet.save_connection must be called on an open fleet. Got a closed one instead. "
                "Start another Fleet."
            )
        if self._address().startswith("inproc://"):
            raise FleetError(
                "Fleet.save_connection must be called on a fleet of processes. Got threads of this "
                "process instead, which no other process can join. Leave processes=False out."
            )
        save_connection(path, self._address(), self.security)

    def scale(self, n: int) -> None:
        """Change the number of workers.

        Parameters
        ----------
        n : int
            The number of workers. A local fleet has it on return; another cluster may take time.

        Raises
        ------
        FleetError
            When the fleet joined a scheduler by its address.
        """
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(
                f"n must be a positive whole number of workers. Got {n!r} instead. "
                "Close the fleet to be rid of all workers."
            )
        cluster = self._get_cluster("scale")
        self._stop_adapting()
        cluster.scale(n)
        if not self._is_ours:
            return
        cluster.sync(_wait_for_workers, cluster)
        # Adaptive scaling that was stopped just now may have changed the number since.
        deadline = time.monotonic() + _SCALE_TIMEOUT_SECONDS
        while len(self.client.nthreads()) != n and time.monotonic() < deadline:
            time.sleep(0.05)
            cluster.scale(n)
            cluster.sync(_wait_for_workers, cluster)

    def adapt(self, *, minimum: int = 1, maximum: int | None = None) -> None:
        """Scale adaptively: the number of workers follows the work until `scale` is called.

        Parameters
        ----------
        minimum : int, default=1
            The fewest workers. With 0, an idle fleet has no workers: persisted data is lost, and
            requests for GPUs cannot be validated.
        maximum : int, default=None
            The most workers; by default as many as this machine has cores.

        Raises
        ------
        FleetError
            When the fleet joined a scheduler by its address.
        """
        cluster = self._get_cluster("adapt")
        if maximum is None:
            maximum = max(CPU_COUNT, minimum)
        if not 0 <= minimum <= maximum or maximum < 1:
            raise ValueError(
                f"minimum must be between 0 and maximum={maximum}. Got {minimum} instead. "
                "Give both to Fleet.adapt, with maximum at least 1."
            )
        kind: dict[str, Any] = {}
        if isinstance(cluster, SpecCluster):  # others are scaled elsewhere, by their own rules
            adaptive = CpuOnlyAdaptive if self._is_ours else FleetAdaptive
            kind = {"Adaptive": partial(adaptive, self.client)}
        self._adaptive = cluster.adapt(minimum=minimum, maximum=maximum, **kind)

    def close(self) -> None:
        """Close the client, and the cluster if the fleet started it. Closing again does nothing."""
        self._stop_adapting()
        stop_log_failures(self.client)
        self.client.close()
        if self._is_ours and self._cluster is not None:
            with quiet_closing():
                self._cluster.close()

    def __enter__(self) -> Client:
        if self.client.status in ("closing", "closed"):
            raise FleetError(
                "Fleet must be open to be entered. Got a closed one instead. Start another Fleet."
            )
        return self.client.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        stop_log_failures(self.client)
        try:
            self.client.__exit__(*exc_info)
        finally:
            self.close()

    def __repr__(self) -> str:
        summary = self._summary()
        return f"Fleet({summary})" if isinstance(summary, str) else str(summary)

    def _repr_html_(self) -> str:
        summary = self._summary()
        if isinstance(summary, str):
            return html_table("Fleet", [("Status", summary)])
        return summary.html()

    def _summary(self) -> FleetSummary | str:
        """Return what the representations show: the state, unless the fleet is open."""
        client = vars(self).get("client")
        if client is None:  # of a fleet whose start failed, in a traceback
            return "not started"
        if client.status in ("closing", "closed"):
            return "closed"
        return FleetSummary.of(client, self._dashboard())

    def _address(self) -> str:
        return str(self.client.scheduler.address)

    def _stop_adapting(self) -> None:
        if self._adaptive is not None:
            self._adaptive.stop()
            self._adaptive = None

    def _get_cluster(self, method: str) -> Cluster:
        """Return the cluster, which has a method of this name, or raise."""
        if self._cluster is None:
            raise FleetError(
                f"Fleet.{method} must be called where the workers were started. Got a fleet that "
                f"joined {self._address()} by its address instead. Start or stop workers with what "
                "started that scheduler, or give Fleet its cluster object."
            )
        if self.client.status in ("closing", "closed"):
            raise FleetError(
                f"Fleet.{method} must be called on an open fleet. Got a closed one instead. "
                "Start another Fleet."
            )
        if isinstance(self._cluster, SpecCluster) and self._cluster.new_spec is None:
            raise FleetError(
                f"Fleet.{method} must be called on a cluster that can start more workers. Got one "
                "with a list of them instead, as an SSHCluster has of its hosts. Start a cluster "
                "with another list."
            )
        if not hasattr(self._cluster, method):
            raise FleetError(
                f"Fleet.{method} must be called on a cluster that has `{method}`. Got a "
                f"{type(self._cluster).__name__} instead. Use Fleet.scale, or its own methods."
            )
        return self._cluster


@contextmanager
def _line_if_slow(subject: str) -> Iterator[None]:
    """Print a line with what a start waits for, once it has taken long."""
    line = f"scikit-fleet: still waiting for {subject}."
    timer = threading.Timer(SLOW_START_SECONDS, print, [line], {"file": sys.stderr})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


async def _wait_for_workers(cluster: Cluster) -> None:
    """Wait until a local cluster has the workers that it was scaled to."""
    await cluster
