"""The joblib backend ``"skfleet"``: joblib's interface of backends, for a fleet of Dask workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed import Client
from joblib.parallel import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase

from skfleet._captured_output import WarningTally, replay
from skfleet._cluster import (
    check_running,
    check_synchronous,
    check_workers,
    register_client,
    seceded,
)
from skfleet._config import check_timeout, get_config
from skfleet._joblib import (
    BatchResult,
    CallBatch,
    ParallelCall,
    SharedArguments,
    WorkerSlots,
    open_call_bar,
)
from skfleet._joblib_private import has_all_calls, raise_error_of_calls
from skfleet._progress_bar import ProgressBar, shows_progress
from skfleet._sklearn_private import is_fit
from skfleet.engine import check_device
from skfleet.fleet import default_client

if TYPE_CHECKING:
    from skfleet.model_selection._dispatch._dispatcher import FitDispatcher

__all__ = ["FleetBackend"]

# Keyword arguments of Client.submit; it passes any others to the function.
_SUBMIT_OPTIONS = {
    "allow_other_workers", "fifo_timeout", "priority", "resources", "retries", "workers",
}  # fmt: skip

# Fits that cannot share preprocessing steps start when this many for each slot have been read.
FITS_PER_SLOT_TO_START = 10

_PID = os.getpid()


class FleetBackend(AutoBatchingMixin, ParallelBackendBase):
    """Run the calls of :class:`joblib.Parallel` on a fleet.

    Registered as ``"skfleet"`` by ``import skfleet``, for ``joblib.parallel_config("skfleet")``.
    The constructor starts nothing. The first ``Parallel`` call takes the current client, and
    starts the embedded fleet where there is none.

    Parameters
    ----------
    scheduler_host : str, default=None
        Address of a scheduler to connect to, where no ``client`` is given.
    scatter : list or tuple of object, default=None
        Objects to scatter to every worker before the first call, and to keep there.
    client : distributed.Client, default=None
        The client to use. By default that of the running task within a worker, else the current
        default client, else that of the embedded fleet.
    loop : tornado.ioloop.IOLoop, default=None
        Event loop of the client that ``scheduler_host`` asks for.
    wait_for_workers_timeout : float, default=None
        Seconds to wait for a first worker. By default that of :func:`skfleet.config_context`, which
        is 10 unless it was changed.
    nesting_level : int, default=None
        Number of Parallel calls around this one. Set by joblib.
    inner_max_num_threads : int, default=None
        Threads that BLAS and OpenMP libraries may use in a task. By default the threads of the
        fleet divided by the calls in flight, so 1 unless ``n_jobs`` is small.
    device : {"auto", "cpu", "cuda"}, default=None
        Workers that may run the calls: "cuda" those labelled ``GPU``, "cpu" those labelled ``CPU``
        where any worker is labelled, "auto" all. By default that of
        :func:`skfleet.config_context`. Unless "cpu" or "cuda" is given here, or ``resources``,
        the fits of a search run on the device of their models (:func:`skfleet.engine.device_of`).
    progress : bool, default=False
        Whether to show the progress of each call, and of each fit of an estimator of this library
        that passes over rows (:func:`skfleet.config_context`): as a bar in a terminal, where rich
        is installed, and in a notebook, else as lines at intervals.
    **submit_options
        ``workers``, ``allow_other_workers``, ``resources``, ``retries``, ``priority`` and
        ``fifo_timeout`` of :meth:`distributed.Client.submit`.

    Raises
    ------
    TypeError
        When ``scatter`` is no list or tuple, the client is asynchronous, or an option is unknown.
    skfleet.exceptions.PlacementError
        At the first call, when no worker offers the ``resources`` or is of the ``device``.
    ValueError
        When the device is none of these.
    skfleet.exceptions.FleetError
        From a call whose task kills its workers, or when the fleet is gone.
    skfleet.exceptions.NoWorkersError
        When no worker has come in time; it is a TimeoutError too.

    Notes
    -----
    ``n_jobs=None`` and ``-1`` mean all workers that the fleet has when the call starts.
    ``n_jobs=k`` keeps at most k calls in flight, where a batch of calls counts once. ``n_jobs=1``
    runs in the calling process, as in every joblib backend.

    A Parallel call within a task uses the fleet as long as some of its threads are idle, and runs
    in the task itself otherwise; so does any call nested deeper, and one within a task that holds
    ``resources``.

    Arguments of 64 kB and more are scattered, once for equal content, and stay on the workers as
    long as the object lives in the calling process. From 1 MB on they are read-only in tasks, as
    with joblib's own process backends; where all workers are processes of this machine, they are
    in shared memory. Warnings and printed output of tasks are replayed in the calling process, and
    so are messages of scikit-learn's callbacks.

    The fits of scikit-learn's searches, ``cross_validate``, ``learning_curve`` and
    ``validation_curve`` are read ahead, up to 10,000, and scheduled in batches: see
    :class:`skfleet.model_selection.GridSearchCV`. Then ``n_jobs`` and ``pre_dispatch`` bound the
    batches in flight.

    Examples
    --------
    >>> import joblib, skfleet
    >>> from distributed import Client
    >>> with (
    ...     Client(processes=False, n_workers=1, dashboard_address=":0") as client,
    ...     joblib.parallel_config("skfleet", client=client),
    ... ):
    ...     joblib.Parallel()(joblib.delayed(abs)(i) for i in (-1, -2))
    [1, 2]
    """

    MIN_IDEAL_BATCH_DURATION = 0.2
    MAX_IDEAL_BATCH_DURATION = 1.0
    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1
    supports_fit_planning = True  # a search checks it

    parallel: Any = None
    _call: ParallelCall | None = None
    _dispatcher: FitDispatcher | None = None
    _bar: ProgressBar | None = None
    _n_uncounted = 0  # calls whose results a checkpoint had, or that need not run
    _warnings: WarningTally | None = None

    def __init__(
        self,
        scheduler_host: str | None = None,
        scatter: list | tuple | None = None,
        client: Client | None = None,
        loop: Any = None,
        wait_for_workers_timeout: float | None = None,
        *,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        device: str | None = None,
        progress: bool = False,
        **submit_options: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        if wait_for_workers_timeout is not None:
            check_timeout(wait_for_workers_timeout)
        if scatter is not None and not isinstance(scatter, (list, tuple)):
            raise TypeError(
                f"scatter must be a list or tuple of objects. Got {type(scatter).__name__} "
                "instead. Write scatter=[X]."
            )
        unknown = sorted(set(submit_options) - _SUBMIT_OPTIONS)
        if unknown:
            raise TypeError(
                f"options must be among {sorted(_SUBMIT_OPTIONS)}. Got {unknown} instead. "
                "Look up distributed.Client.submit."
            )
        if client is not None:
            check_synchronous(client)
        self.device = get_config().device if device is None else device
        check_device(self.device)
        if not isinstance(progress, bool):
            raise TypeError(
                f"progress must be True or False. Got {progress!r} instead. "
                'Write parallel_config("skfleet", progress=True).'
            )
        self.progress = progress
        self.wait_for_workers_timeout = wait_for_workers_timeout
        self._scheduler_host, self._loop, self._client_option = scheduler_host, loop, client
        self._scatter, self._options = list(scatter or ()), submit_options
        # Without the option, each candidate's model decides on the device of its fits.
        has_device_option = device not in (None, "auto")
        slot_options = (submit_options, self.device, has_device_option, wait_for_workers_timeout)
        self._slots = WorkerSlots(type(self).__name__, *slot_options)
        # Set at the first call, and shared by the backends of single Parallel objects.
        self._lazy_state: dict[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker has another client, and no objects of the driver's.
        return partial(type(self), **self._settings()), ()

    def _settings(self) -> dict[str, Any]:
        """Return the arguments that mean the same in every process."""
        return {
            "wait_for_workers_timeout": self.wait_for_workers_timeout,
            "nesting_level": self.nesting_level,
            "inner_max_num_threads": self.inner_max_num_threads,
            "device": self.device,
            **self._options,
        }

    @property
    def client(self) -> Client:
        """The client in use; opened, or started with the embedded fleet, on first use."""
        if self._client_option is not None:
            return self._client_option
        client = self._lazy_state.get("client")
        if client is None or client.status in ("closing", "closed"):
            if self._scheduler_host:
                client = Client(self._scheduler_host, loop=self._loop, set_as_default=False)
            else:
                client = default_client()
            self._lazy_state["client"] = client
        return client

    # -- joblib's interface before a call ---------------------------------------------------------

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_hints: Any) -> int:
        """Prepare for a Parallel object, and return the number of calls that will run at once.

        joblib's hints (the folder for memory maps, a preference for threads) have no meaning here.
        """
        if parallel is not self.parallel:
            # One instance serves all Parallel objects of a context, several at a time if they
            # return generators; joblib does not say which of them it aborts. So each gets its own.
            raise FallbackToBackend(self._for_parallel(parallel))
        self._n_jobs = n_jobs
        return self.effective_n_jobs(n_jobs)

    def _for_parallel(self, parallel: Any) -> FleetBackend:
        """Build the backend of one Parallel object."""
        backend = type(self)(**self._settings())
        backend._scheduler_host, backend._loop = self._scheduler_host, self._loop
        backend._client_option, backend._lazy_state = self._client_option, self._lazy_state
        backend._scatter, backend.progress = self._scatter, self.progress
        backend.parallel = parallel
        backend._slots.has_device_option = self._slots.has_device_option
        return backend

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of calls that run at once for an ``n_jobs``."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if os.getpid() != _PID:
            return 1  # a forked child has the objects of its parent's client, and not its threads
        level = self.nesting_level or 0
        has_request = self._options.get("resources") or self.device != "auto"
        if n_jobs == 1 or level > 1 or (level == 1 and has_request):
            # A task keeps its resources while it waits: nested tasks might wait for them for ever.
            return 1
        check_running(self.client)
        n_slots = len(self._slots.addresses(self.client))
        if n_slots == 0:
            return 0
        n_calls = self.count_slots(n_jobs)
        if level == 1:
            # all tasks that workers have been given are busy, the calling one included
            n_busy = sum(len(keys) for keys in self.client.processing().values())
            return min(n_calls, max(1, n_slots - n_busy))
        # joblib takes 1 to mean: do not use a backend at all. A fleet of one worker is one.
        return max(2, min(n_calls, n_slots))

    def count_slots(self, n_jobs: int | None) -> int:
        """Return the number of calls that run at once, which may be one."""
        n_slots = len(self._slots.addresses(self.client))
        return min(self._limit(n_jobs, n_slots) or n_slots, n_slots)

    @staticmethod
    def _limit(n_jobs: int | None, n_slots: int) -> int | None:
        """Return the largest number of calls in flight, or None for the whole fleet."""
        if n_jobs is None or n_jobs == -1:
            return None
        return n_jobs if n_jobs > 0 else max(1, n_slots + 1 + n_jobs)

    def check_device(self, device: str) -> None:
        """Raise PlacementError unless fits of models that compute on a device can run."""
        self._slots.addresses(self.client, device)

    def get_nested_backend(self) -> tuple[FleetBackend, int]:
        """Return the backend of Parallel calls within tasks."""
        settings = self._settings() | {"nesting_level": (self.nesting_level or 0) + 1}
        # Tasks wait for their nested calls, so these come first.
        settings["priority"] = settings.get("priority", 0) + 1
        return type(self)(**settings), -1

    # -- joblib's interface in a call --------------------------------------------------------------

    def start_call(self) -> None:
        """Start a Parallel call."""
        client = self.client
        self._n_slots = n_slots = len(self._slots.addresses(client))
        if not self.nesting_level:
            check_workers(client, self._slots.workers(client))
            register_client(client)
        limit = self._limit(self._n_jobs, n_slots)
        n_in_flight = min(limit or n_slots, n_slots)
        self._call = ParallelCall(
            client,
            limit=limit,
            nested=self.get_nested_backend(),
            n_threads=self.inner_max_num_threads or max(1, n_slots // max(1, n_in_flight)),
            shared=SharedArguments(client, self._broadcast(client)),
            options={k: v for k, v in self._options.items() if k != "resources"},
            resources_for=self._slots.resources,
            has_workers=self._slots.has_workers,
            no_worker_timeout=self.wait_for_workers_timeout or 0,
        )
        self._warnings, self._n_uncounted = WarningTally(), 0

    def _broadcast(self, client: Client) -> Mapping[int, Any]:
        """Send the objects of ``scatter`` to every worker, once for this context."""
        if self._scatter and self._lazy_state.get("broadcast_by") is not client:
            self._lazy_state["broadcast"] = SharedArguments.broadcast(client, self._scatter)
            self._lazy_state["broadcast_by"] = client
        return self._lazy_state.get("broadcast", {})

    def submit(self, func: Any, callback: Any = None) -> None:
        """Submit a batch of calls; the fits of a search go to its dispatcher."""
        assert self._call is not None
        if self.parallel.n_dispatched_batches == 1 and self._shows_progress():
            self._bar = open_call_bar(func.items[0], self.parallel.n_tasks)
        if len(func.items) == 1 and is_fit(*func.items[0]):
            self._dispatch_fit(func.items[0], callback)
        else:
            self._call.submit([CallBatch(func.items, callback)])

    def _shows_progress(self) -> bool:
        return self.progress or shows_progress() or get_config().progress is True

    def _dispatch_fit(self, call: Any, callback: Any) -> None:
        """Pass a fit to the dispatcher; after the first one read further ones ahead."""
        if self._dispatcher is not None:
            self._dispatcher.add(call, callback)
            return
        assert self._call is not None
        from skfleet.model_selection._dispatch._dispatcher import FitDispatcher

        self.reset_batch_stats()
        n_slots = self._n_slots
        n_pre_dispatched = getattr(self.parallel, "_pre_dispatch_amount", 0)  # 0 for all
        limits = [self._limit(self._n_jobs, n_slots), n_pre_dispatched]
        self._dispatcher = FitDispatcher(
            self._call,
            # two batches for each slot are no limit; there may be more slots later
            limit=min((n for n in limits if n and n < 2 * n_slots), default=None),
            slot_addresses=lambda device: self._slots.addresses(self.client, device),
            bar=self._bar,
        )
        self._dispatcher.add(call, callback)
        if self.parallel.pre_dispatch != "all":
            # joblib would dispatch a fit whenever one is done, and there is nothing to schedule
            n_before = 0
            n_max = self._dispatcher.n_read_ahead - n_pre_dispatched
            while n_before < self._dispatcher.n_read < n_max:
                n_before = self._dispatcher.n_read
                self.parallel.dispatch_next()
                if n_before % (FITS_PER_SLOT_TO_START * n_slots) == 0:
                    self._dispatcher.start(early=True)

    def batch_completed(self, batch_size: int, duration: float) -> None:
        """Record the duration of a batch; a dispatcher does so itself."""
        if self._dispatcher is None:
            super().batch_completed(batch_size, duration)

    def retrieve_result_callback(self, out: BatchResult) -> Any:
        """Replay the output of a batch, count its warnings, and return its results or raise."""
        replay(out.output)
        if self._warnings is not None:
            self._warnings.add(out.output)
        is_uncounted = out.from_checkpoint or out.is_withdrawn
        if out.ok and is_uncounted:
            self._n_uncounted += 1
        if self._bar is not None and out.ok and (out.has_run or out.is_withdrawn):
            if has_all_calls(self.parallel):
                self._bar.state.total = self.parallel.n_dispatched_tasks - self._n_uncounted
            self._bar.advance(0 if is_uncounted else len(out.value))
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the batches in flight."""
        if self._dispatcher is not None:
            self._dispatcher.stop()
        if self._call is not None:
            self._call.abort()

    def stop_call(self) -> None:
        """End a Parallel call."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._warnings is not None:
            self._warnings.close()
            self._warnings = None
        if self._dispatcher is not None:
            self._dispatcher.stop()
        if self._call is not None:
            self._call.close()
            self._call = self._dispatcher = None

    def terminate(self) -> None:
        """Reset the durations of the batches of a Parallel object."""
        self.reset_batch_stats()

    @contextlib.contextmanager
    def retrieval_context(self) -> Iterator[None]:
        """Secede from the thread pool of a worker while a task waits; show warnings at the end."""
        assert self._warnings is not None
        raise_error_of_calls(self.parallel)
        with self._warnings.at_end(lambda: self._dispatcher and self._dispatcher.n_read), seceded():
            if self._dispatcher is not None:
                self._dispatcher.start()
            yield
