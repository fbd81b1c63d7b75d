"""The joblib backend ``"skfleet"``: what joblib asks of a backend, answered for a fleet."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from distributed import Client
from joblib.parallel import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase

from skfleet._captured_output import WarningTally, echo
from skfleet._config import check_timeout, get_config
from skfleet._joblib._parallel_call import Batch, ParallelCall
from skfleet._joblib._places import resources_for, slots_of
from skfleet._joblib._progress import call_bar, check_progress
from skfleet._joblib._shared_arguments import SharedArguments
from skfleet._joblib._worker import Outcome
from skfleet._progress_bar import ProgressBar, shows_progress
from skfleet._sklearn_private import is_fit
from skfleet.engine import (
    check_device,
    check_running,
    check_synchronous,
    check_workers,
    register_client,
    scheduler_workers,
    seceded,
    wait_for_workers,
)
from skfleet.exceptions import NoWorkersError
from skfleet.fleet import default_client

if TYPE_CHECKING:
    from skfleet._joblib._planned import FitDispatcher

__all__ = ["FleetBackend"]

# What Client.submit takes besides the call itself. Anything else it would pass to the function.
_SUBMIT_OPTIONS = {
    "allow_other_workers",
    "fifo_timeout",
    "priority",
    "resources",
    "retries",
    "workers",
}

# Fits without first steps to share begin when so many for each slot have been read.
_BEGIN_AT = 10

# Seconds for which the scheduler's word on its workers holds: joblib asks three times for a call.
_HOLDS = 0.1

_PID = os.getpid()


class FleetBackend(AutoBatchingMixin, ParallelBackendBase):
    """Run the calls of :class:`joblib.Parallel` on a fleet.

    Registered as ``"skfleet"`` by ``import skfleet``, for ``joblib.parallel_config("skfleet")``.
    Making one starts nothing: the client is looked for at the first ``Parallel`` call, and without
    one the embedded fleet is started.

    Parameters
    ----------
    scheduler_host : str, default=None
        Address of a scheduler to connect to, where no ``client`` is given.
    scatter : list or tuple of object, default=None
        Objects to send to every worker before the first call, and to keep there.
    client : distributed.Client, default=None
        The client to use. Default: that of the running task within a worker, else the current
        default client, else that of the embedded fleet.
    loop : tornado.ioloop.IOLoop, default=None
        Event loop of the client that ``scheduler_host`` asks for.
    wait_for_workers_timeout : float, default=None
        Seconds to wait for a first worker. Default: what :func:`skfleet.config_context` says, which
        is 10 unless it was changed.
    nesting_level : int, default=None
        How many Parallel calls there are around this one. Set by joblib.
    inner_max_num_threads : int, default=None
        Threads that BLAS and OpenMP libraries may use in a task. Default: the threads of the fleet
        divided by the calls in flight, so 1 unless ``n_jobs`` is small.
    device : {"auto", "cpu", "cuda"}, default=None
        Which workers may run the calls: "cuda" those labelled ``GPU``, "cpu" those labelled ``CPU``
        where any worker is labelled, "auto" all. Default: what
        :func:`skfleet.config_context` says. Unless "cpu" or "cuda" is given here, or ``resources``,
        the fits of a search go to where their models compute (:func:`skfleet.engine.device_of`).
    progress : bool, default=False
        Whether to show how far each call is: with a bar in a terminal, where rich is installed,
        and in a notebook, else with lines at intervals.
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
    ``n_jobs=None`` and ``-1`` mean the whole fleet, as it is when the call starts. ``n_jobs=k``
    keeps at most k calls in flight, each batch of calls counting once. ``n_jobs=1`` runs in the
    calling process, as in every joblib backend.

    A Parallel call within a task uses the fleet as long as some of its threads are idle, and runs
    in the task itself otherwise; so does any call nested deeper, and one within a task that holds
    ``resources``.

    Arguments from 64 kB on travel apart from their calls, once for equal content, and stay as long
    as the driver's object lives. From 1 MB on tasks see them read-only, as with joblib's own
    process backends; where all workers are processes of this machine, they read them in shared
    memory. Warnings and printed output of tasks come home with their results, and so do messages
    of scikit-learn's callbacks.

    The fits of scikit-learn's searches, ``cross_validate``, ``learning_curve`` and
    ``validation_curve`` are read ahead, up to 10,000, and planned: see
    :class:`skfleet.model_selection.GridSearchCV`. Then ``n_jobs`` and ``pre_dispatch`` bound the
    bundles of fits on their way.

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
    plans_fits = True  # searches ask for it

    parallel: Any = None
    _call: ParallelCall | None = None
    _fits: FitDispatcher | None = None
    _bar: ProgressBar | None = None
    _n_known = 0  # calls whose results a checkpoint had
    _warnings: WarningTally | None = None
    _told: tuple[float, Mapping[str, Any]] = 0.0, {}

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
        # Where the configuration alone says so, a search looks at what each candidate is.
        self._is_told = device not in (None, "auto")
        self.device = get_config().device if device is None else device
        check_device(self.device)
        self.progress = check_progress(progress)
        self.wait_for_workers_timeout = wait_for_workers_timeout
        self._scheduler_host = scheduler_host
        self._loop = loop
        self._given_client = client
        self._scatter = list(scatter or ())
        self._options = submit_options
        # What is found at the first call. The backends of single Parallel objects share it.
        self._found: dict[str, Any] = {}
        self._resources: dict[str | None, dict[str, float]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # On a worker there are another client and no objects of the driver's to recognise.
        return _rebuild, (type(self), self._settings())

    def _settings(self) -> dict[str, Any]:
        """Give the arguments that mean the same in every process."""
        return {
            "wait_for_workers_timeout": self.wait_for_workers_timeout,
            "nesting_level": self.nesting_level,
            "inner_max_num_threads": self.inner_max_num_threads,
            "device": self.device,
            **self._options,
        }

    @property
    def client(self) -> Client:
        """The client in use; looked for, or started, when it is first needed."""
        if self._given_client is not None:
            return self._given_client
        client = self._found.get("client")
        if client is None or client.status in ("closing", "closed"):
            if self._scheduler_host:
                client = Client(self._scheduler_host, loop=self._loop, set_as_default=False)
            else:
                client = default_client()
            self._found["client"] = client
        return client

    # -- what joblib asks, before a call ---------------------------------------------------------

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_hints: Any) -> int:
        """Get ready for a Parallel object, and tell how many calls will run at once.

        joblib's hints (where to map memory, whether to prefer threads) have no meaning here.
        """
        if parallel is not self.parallel:
            # One instance serves all Parallel objects of a context, several at a time if they
            # return generators; joblib does not say which of them it aborts. So each gets its own.
            raise FallbackToBackend(self._for_parallel(parallel))
        n_jobs_effective = self.effective_n_jobs(n_jobs)
        self._n_jobs = n_jobs
        return n_jobs_effective

    def _for_parallel(self, parallel: Any) -> FleetBackend:
        """Make the backend of one Parallel object."""
        backend = _rebuild(type(self), self._settings())
        backend._scheduler_host, backend._loop = self._scheduler_host, self._loop
        backend._given_client, backend._found = self._given_client, self._found
        backend._scatter, backend.progress = self._scatter, self.progress
        backend.parallel, backend._is_told = parallel, self._is_told
        return backend

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Tell how many calls run at once for an ``n_jobs``."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if os.getpid() != _PID:
            return 1  # a forked child has the objects of its parent's client, and not its threads
        level = self.nesting_level or 0
        asks = self._options.get("resources") or self.device != "auto"
        if n_jobs == 1 or level > 1 or (level == 1 and asks):
            # A task keeps its resources while it waits: nested tasks might wait for them for ever.
            return 1
        check_running(self.client)
        slots = self._count_slots()
        if slots == 0:
            return 0
        wanted = self._limit(n_jobs, slots) or slots
        if level == 1:
            return min(wanted, max(1, slots - self._count_busy()))
        # joblib takes 1 to mean: do not use a backend at all. A fleet of one worker is one.
        return max(2, min(wanted, slots))

    @staticmethod
    def _limit(n_jobs: int | None, slots: int) -> int | None:
        """Give the largest number of calls in flight, or None for the whole fleet."""
        if n_jobs is None or n_jobs == -1:
            return None
        return n_jobs if n_jobs > 0 else max(1, slots + 1 + n_jobs)

    def _count_busy(self) -> int:
        """Count the tasks that workers have been given, the calling one included."""
        return sum(len(keys) for keys in self.client.processing().values())

    def _count_slots(self) -> int:
        """Count the calls that the fleet can run at once, after waiting for a first worker."""
        return len(self._slots())

    def _slots(self, device: str | None = None) -> list[str]:
        """Give the worker of each slot: first one of every worker, then the seconds, and so on.

        Slots are those of calls, or of fits of models that compute on a device.
        """
        workers = self._workers()
        timeout = self.wait_for_workers_timeout
        timeout = get_config().wait_for_workers_timeout if timeout is None else timeout
        if not workers and timeout:
            setting = 'joblib.parallel_config("skfleet", '
            try:
                workers = wait_for_workers(self.client, timeout, setting=setting)
            except NoWorkersError as error:  # begins as the one of joblib's Dask backend
                begin = f"{type(self).__name__} has no worker after {timeout:g} seconds"
                raise NoWorkersError(f"{begin}: {error}") from error
        if not workers:
            return []
        offers = {address: info.get("resources") or {} for address, info in workers.items()}
        told = self.device if device is None or self._is_told else None
        asked = self._resources[device] = resources_for(
            told, device, self._options.get("resources") or {}, offers
        )
        slots = [
            (n, address)
            for address, info in workers.items()
            if self._may_use(address, info)
            for n in range(slots_of(info["nthreads"], offers[address], asked))
        ]
        if not slots:
            raise ValueError(
                f"workers must name workers of this fleet. Got {self._options['workers']!r} "
                f"instead. Its workers are {sorted(workers)}."
            )
        return [address for _, address in sorted(slots, key=itemgetter(0))]

    def check_device(self, device: str) -> None:
        """Raise PlacementError unless fits of models that compute on a device can run."""
        self._slots(device)

    def _workers(self) -> Mapping[str, Any]:
        """Ask the scheduler which workers there are, unless it has just told that there are any."""
        asked, workers = self._told
        if not workers or time.monotonic() - asked > _HOLDS:
            workers = scheduler_workers(self.client)
            self._told = time.monotonic(), workers
        return workers

    def _may_use(self, address: str, info: Mapping[str, Any]) -> bool:
        """Tell whether a worker is among those that the ``workers`` option allows."""
        allowed = self._options.get("workers")
        if allowed is None or self._options.get("allow_other_workers"):
            return True
        allowed = [allowed] if isinstance(allowed, (str, int)) else allowed
        return any(one in (address, info.get("name"), info.get("host")) for one in allowed)

    def _has_workers(self, device: str | None) -> bool:
        """Tell whether any worker may run the calls, or the fits on a device, now."""
        return any(
            self._may_use(address, info)
            and slots_of(1, info.get("resources") or {}, self._resources[device]) > 0
            for address, info in self._workers().items()
        )

    def get_nested_backend(self) -> tuple[FleetBackend, int]:
        """Give the backend of Parallel calls within tasks."""
        settings = self._settings()
        settings["nesting_level"] = (self.nesting_level or 0) + 1
        # First what others wait for.
        settings["priority"] = settings.get("priority", 0) + 1
        return _rebuild(type(self), settings), -1

    # -- what joblib asks, in a call -------------------------------------------------------------

    def start_call(self) -> None:
        """Begin a Parallel call."""
        client = self.client
        self._places = self._slots()
        slots = len(self._places)
        if not self.nesting_level:
            check_workers(client, self._workers())
            register_client(client)
        limit = self._limit(self._n_jobs, slots)
        in_flight = min(limit or slots, slots)
        self._call = ParallelCall(
            client,
            limit=limit,
            nested=self.get_nested_backend(),
            n_threads=self.inner_max_num_threads or max(1, slots // max(1, in_flight)),
            shared=SharedArguments(client, self._scattered(client)),
            options={k: v for k, v in self._options.items() if k != "resources"},
            resources_for=lambda device: self._resources[device] or None,
            has_workers=self._has_workers,
            patience=max(30.0, self.wait_for_workers_timeout or 0),
        )
        self._warnings, self._n_known = WarningTally(), 0

    def _scattered(self, client: Client) -> Mapping[int, Any]:
        """Send the objects of ``scatter`` to every worker, once for this context."""
        if self._scatter and self._found.get("scattered_by") is not client:
            self._found["scattered"] = SharedArguments.broadcast(client, self._scatter)
            self._found["scattered_by"] = client
        return self._found.get("scattered", {})

    def submit(self, func: Any, callback: Any = None) -> None:
        """Send a batch of calls; the fits of a search are put on its plan."""
        assert self._call is not None
        if self.parallel.n_dispatched_batches == 1 and (self.progress or shows_progress()):
            self._bar = call_bar(func.items[0], self.parallel.n_tasks)
        if len(func.items) == 1 and is_fit(*func.items[0]):
            self._plan_fit(func.items[0], callback)
        else:
            self._call.submit([Batch(func.items, callback)])

    def _plan_fit(self, call: Any, callback: Any) -> None:
        """Put a fit on the plan; with the first one come all others, or many of them."""
        assert self._call is not None
        if self._fits is not None:
            self._fits.add(call, callback)
            return
        from skfleet._joblib._planned import WINDOW, FitDispatcher

        self.reset_batch_stats()
        n_slots = len(self._places)
        limits = [self._limit(self._n_jobs, n_slots), self._n_dispatched_ahead()]
        self._fits = FitDispatcher(
            self._call,
            # a plan never sends more than two for each slot, of which there may be more later
            limit=min((n for n in limits if n and n < 2 * n_slots), default=None),
            places_for=self._slots,
            tell=None if self._bar is None else self._bar.set_status,
        )
        self._fits.add(call, callback)
        if self.parallel.pre_dispatch != "all":
            # joblib would hand out the next fit whenever one is done, and there is nothing to plan.
            n_before = 0
            window = WINDOW - self._n_dispatched_ahead()
            while n_before < self._fits.n_read < window:
                n_before = self._fits.n_read
                self.parallel.dispatch_next()
                if n_before % (_BEGIN_AT * n_slots) == 0:
                    self._fits.start(early=True)

    def _n_dispatched_ahead(self) -> int:
        """Give what `pre_dispatch` comes to; 0 for all."""
        return getattr(self.parallel, "_pre_dispatch_amount", 0)

    def batch_completed(self, batch_size: int, duration: float) -> None:
        """Learn how long a batch took; a plan makes its own of single fits."""
        if self._fits is None:
            super().batch_completed(batch_size, duration)

    def retrieve_result_callback(self, out: Outcome) -> Any:
        """Print what the batch did, note its warnings, and give its results or raise its error."""
        echo(out.notes)
        if self._warnings is not None:
            self._warnings.add(out.notes)
        if out.ok and out.is_known:
            self._n_known += 1
        if self._bar is not None and out.ok and out.is_made:
            if not self.parallel._iterating:  # only then joblib knows how many there are
                self._bar.set_total(self.parallel.n_dispatched_tasks - self._n_known)
            self._bar.advance(0 if out.is_known else len(out.value))
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel what was sent."""
        if self._fits is not None:
            self._fits.stop()
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
        if self._fits is not None:
            self._fits.stop()
        if self._call is not None:
            self._call.close()
            self._call = self._fits = None

    def terminate(self) -> None:
        """Forget how long the batches of a Parallel object took."""
        self.reset_batch_stats()

    @contextlib.contextmanager
    def retrieval_context(self) -> Iterator[None]:
        """Let others use the slot of a task that waits for nested calls; then warn as tasks did."""
        assert self._warnings is not None
        with self._warnings.at_end(lambda: self._fits and self._fits.n_read), seceded():
            if self._fits is not None:
                self._fits.start()
            yield


def _rebuild(cls: type[FleetBackend], settings: dict[str, Any]) -> FleetBackend:
    """Make a backend from its settings."""
    return cls(**settings)
