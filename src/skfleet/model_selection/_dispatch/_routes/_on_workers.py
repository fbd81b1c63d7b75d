"""The route of fits that workers make, in batches."""

from __future__ import annotations

import contextvars
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count

from skfleet._cluster import current_worker_address, state_of
from skfleet._fall_back import fall_back
from skfleet._joblib import (
    BatchResult,
    CallBatch,
    CallItem,
    DeviceArgument,
    ParallelCall,
    ProcessArgument,
    explain_unpicklable,
    pack,
    task_name,
)
from skfleet.model_selection._dispatch._claims import BatchClaims, FitClaims
from skfleet.model_selection._dispatch._fit_memory import plan_fits
from skfleet.model_selection._dispatch._fit_queues import CandidateQueue, FitQueue, SplitQueue
from skfleet.model_selection._dispatch._fit_tasks import (
    FitReply,
    has_prefix_steps,
    run_fit_batch,
)
from skfleet.model_selection._dispatch._fit_times import FitGroup, group_in_flight, mark_begun
from skfleet.model_selection._dispatch._memory import MemoryPlan
from skfleet.model_selection._dispatch._memory_gate import MemoryAllowance
from skfleet.model_selection._dispatch._requests import FitRequest, RequestReader, SearchJob
from skfleet.model_selection._dispatch._routes._route import Outcome
from skfleet.model_selection._dispatch._scheduler import (
    SLOW_BATCH_SECONDS,
    DeviceSchedulers,
    FitBatch,
    FitScheduler,
)
from skfleet.model_selection._dispatch._search_context import SearchContext
from skfleet.model_selection._dispatch._step_cache import StepCache
from skfleet.model_selection._racing._race import Race
from skfleet.model_selection._records._evaluations import LaterIteration

# Seconds between two counts of the slots of the fleet.
_RECOUNT_SECONDS = 5.0

# Of the memory that is left in a worker process, for the fitted steps of earlier batches.
_STEPS_FRACTION = 0.25


class FitsOnWorkers:
    """Fits that wait for workers, and the batches in flight, at most ``limit`` of them.

    ``slot_addresses`` returns, for a device, the address of a worker for each fit that the fleet
    can run at once. ``later`` are iterations that follow. In a ``race`` fits begin split by split,
    and those of candidates that it drops can be removed. ``on_done`` is called with each batch
    that is done, and ``rebalanced`` where fits of a slow one wait again.
    """

    def __init__(
        self,
        call: ParallelCall,
        requests: RequestReader,
        context: SearchContext,
        lock: AbstractContextManager[bool],
        *,
        limit: int | None,
        slot_addresses: Callable[[str], Sequence[str]],
        later: Sequence[LaterIteration],
        race: Race | None,
        on_done: Callable[[FitBatch, BatchResult], object],
        rebalanced: Callable[[], object],
    ) -> None:
        self._call, self._requests, self._context, self._lock = call, requests, context, lock
        self._limit, self._later = limit, later
        self._on_done, self._rebalanced = on_done, rebalanced
        self._slot_addresses, self._counted_at = slot_addresses, time.monotonic()
        self._schedulers = DeviceSchedulers(self._new_scheduler)
        self._race = race
        self._deferred: FitQueue = (
            CandidateQueue(lambda fit: fit.call.options.get("parameters"))
            if race is None
            else SplitQueue(race, lambda fit: fit.place.candidate)
        )
        self._in_flight: dict[FitBatch, None] = {}  # in the order in which they were sent
        self._claims, self._batch_numbers = FitClaims(), count()
        self.n_sent = self.n_returned = 0
        self._memory: MemoryPlan | None = None  # of fits on the host, once one is to be sent
        self._is_memory_planned = False
        self._step_bytes = 0  # that the steps of earlier batches may take in a process
        # A weak reference: the timer must not keep data on the fleet until garbage collection.
        args = [_rebalance, weakref.ref(self)]
        self._timer = threading.Timer(SLOW_BATCH_SECONDS, contextvars.copy_context().run, args)
        self._timer.daemon = True
        # The first batches go one to each worker, which fetches the rows then. Later ones may go
        # anywhere; but Dask alone would run the first ones only where the rows are.
        self._initial_workers: dict[str, Iterator[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._deferred) or any(own.n_waiting for _, own in self._schedulers)

    @property
    def can_begin_early(self) -> bool:
        """True if fits that are not read yet have nothing to share with those that wait."""
        return not self._deferred and not self._schedulers.has_prefixes

    def n_slots_for(self, fit: FitRequest) -> int:
        """Return how many fits may run at once on the device of a fit."""
        return self._schedulers.of(fit).n_slots

    def host_addresses(self) -> Sequence[str]:
        """Return the worker of each slot for fits that need no GPU, as the fleet is now."""
        return self._slot_addresses("cpu")

    def n_host_slots(self) -> int:
        """Return how many fits that need no GPU may run at once, as the fleet is now."""
        return self.bounded(len(self.host_addresses()))

    # -- the route ---------------------------------------------------------------------------------

    def offer(self, fit: FitRequest) -> bool:
        """Take any fit."""
        scheduler = self._schedulers.of(fit)  # counts the slots, with the first fit for a device
        has_budget = self._context.seconds_left is not None
        if self._race is not None or (has_budget and not fit.has_shared_fit):
            self._deferred.add(fit)
        else:
            scheduler.add([fit])
        return True

    def run(self) -> None:
        """Send as many batches as the fleet is to have; their results come later."""
        self._plan_memory()
        batches = []
        while (following := self._next_batch()) is not None:
            batch, job = following
            try:
                batches.append(self._call_batch(batch, job))
            except Exception as error:
                self._on_done(batch, BatchResult(False, error))
                break
        with self._lock:
            self._mark_begun()
        self.n_sent += len(batches)
        self._call.submit(batches)

    def clear(self) -> list[FitRequest]:
        """Remove the fits that wait, and return them."""
        return [*self._schedulers.clear(), *self._deferred.remove(lambda _: True)]

    def remove(self, is_removed: Callable[[FitRequest], bool]) -> list[FitRequest]:
        """Remove some of the fits that wait, and return them."""
        return [*self._schedulers.remove(is_removed), *self._deferred.remove(is_removed)]

    # -- batches -----------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Let the fits in flight wait again, after their batches were cancelled."""
        for batch in self._in_flight:
            self._schedulers.add(fit for fit in batch.fits if not fit.is_done)
        self._in_flight.clear()

    def stop(self) -> None:
        """Send nothing more, and forget what is in flight."""
        self._timer.cancel()
        self._counted_at = math.inf  # no batch that is done later has slots counted
        state_of(self._call.client).waiting_seconds.pop(id(self), None)
        with self._lock:
            self._in_flight.clear()

    def take_in(self, batch: FitBatch, result: BatchResult) -> list[Outcome]:
        """Record the durations and results of a batch that is done; return its outcomes.

        A batch that ran out of time returns fewer replies: the fits without one wait again.
        """
        self._in_flight.pop(batch, None)
        worker, replies = result.value[0] if result.ok else ("", [])
        # fits that another batch has have an empty reply
        pairs = [(fit, reply) for fit, reply in zip(batch.fits, replies, strict=False) if reply]
        scheduler = self._schedulers.of_batch(batch)
        scheduler.batch_done([reply.seconds for _, reply in pairs])
        outcomes = []
        for fit, reply in pairs:
            scheduler.record_duration(fit, reply.seconds, reply.shared_seconds)
            self._deferred.record(fit, reply.seconds - reply.shared_seconds)
            outcomes.append(self._outcome(fit, reply, result, worker))
        # After a failure nothing new begins; else fits that the batch returned do.
        if not result.ok:
            self._schedulers.clear()
        else:
            returned = batch.fits[len(replies) :]
            self._schedulers.add(fit for fit in returned if fit not in batch.stolen)
            self.n_returned += len(returned)
        return outcomes

    def _outcome(
        self, fit: FitRequest, reply: FitReply, result: BatchResult, worker: str
    ) -> Outcome:
        """Record how a fit ended on a worker, and return its outcome."""
        origin = reply.origin
        if fit.device == "cuda" and not origin.was_saved:
            # on a GPU worker shared fits are not tried again
            origin = origin._replace(refused=fit.no_analytic_score or origin.refused)
        self._requests.finish(fit, origin, reply.prefix_origin)
        if not fit.is_done:  # of a fit that ran twice, the first run
            self._context.record_fit_time(worker, reply.end - reply.seconds, reply.end, fit.place)
        own = BatchResult(True, [reply.result], output=reply.output)
        return Outcome(fit, own, reply.seconds - reply.shared_seconds, origin.was_saved)

    def _next_batch(self) -> tuple[FitBatch, SearchJob] | None:
        """Return the next batch with its job, or None."""
        with self._lock:
            for device, scheduler in self._schedulers:
                self._deferred.feed(device, scheduler)
            batch = self._schedulers.next_batch()
            if batch is None:
                return None
            if (seconds_left := self._context.seconds_left) is not None:
                batch.time_limit = max(0.0, min(batch.time_limit, seconds_left))
            self._in_flight[batch] = None
            if not self._timer.is_alive() and not self._timer.finished.is_set():
                self._timer.start()
            return batch, self._requests.jobs[batch.fits[0].job]

    def _call_batch(self, batch: FitBatch, job: SearchJob) -> CallBatch:
        """Build the joblib batch that runs a batch of fits."""
        fits, device = batch.fits, batch.fits[0].device
        name = task_name([(job.function, [job.estimators[fits[0].call.estimator]], {})])
        model = name.partition("-")[2] or "estimator"
        subject = f"a fit of {model}" if len(fits) == 1 else f"one of {len(fits)} fits of {model}"
        if len(fits) > 1:
            # The scheduler places a task by the mean duration of those with its name, and never
            # forgets a name: there must not be many.
            name = f"up_to_{1 << (len(fits) - 1).bit_length()}_fits_of_{model}"
        try:
            allowance = None
            if self._memory is not None and self._memory.is_bounded and device == "cpu":
                allowance = MemoryAllowance(self._memory.fit.total, self._memory.n_fits)
            numbers = [(device, fit.sequence_number) for fit in fits]
            claims = BatchClaims(self._claims.token, next(self._batch_numbers), numbers)
            call = _batch_call(batch, job, self._context, allowance, claims, self._step_bytes)
        except Exception as error:
            explain_unpicklable(error, subject)
            raise
        report = partial(self._on_done, batch)
        worker = next(self._initial_workers[device], None)
        return CallBatch([call], report, name, worker, device, subject)

    def _rebalance(self) -> None:
        """Let the fits of slow first batches wait again, for slots that would be idle."""
        with self._lock:
            for batch in self._in_flight:
                self._schedulers.of_batch(batch).steal_unstarted(batch)
        self._rebalanced()

    # -- slots and memory --------------------------------------------------------------------------

    def recount_slots(self) -> None:
        """Update the number of slots, and what adaptive scaling knows, every `_RECOUNT_SECONDS`."""
        if time.monotonic() - self._counted_at < _RECOUNT_SECONDS:
            return
        seconds = sum(scheduler.seconds_waiting for _, scheduler in self._schedulers)
        state_of(self._call.client).waiting_seconds[id(self)] = seconds
        for device, scheduler in self._schedulers:
            n_slots = 0
            with fall_back("the slots of a fleet are not counted anew"):  # the call reports it
                n_slots = len(self._addresses(device))
            if n_slots:
                with self._lock:
                    scheduler.n_slots = self.bounded(n_slots)
        self._counted_at = time.monotonic()

    def _new_scheduler(self, device: str) -> FitScheduler:
        """Build the scheduler for a device, with the slots of the fleet as it is."""
        addresses = self._addresses(device)
        self._initial_workers[device] = iter(addresses)
        has_deadline = self._context.seconds_left is not None
        return FitScheduler(
            self.bounded(len(addresses)),
            self._limit,
            has_deadline=has_deadline,
            is_race=self._race is not None,
        )

    def _addresses(self, device: str) -> Sequence[str]:
        """Return the worker of each slot for fits on a device that may be in use."""
        addresses = self._slot_addresses(device)
        return addresses if self._memory is None else self._memory.allowed(addresses)

    def bounded(self, n_fits: int) -> int:
        """Return a number of fits at once, or as many as `n_jobs` allows."""
        return n_fits if self._limit is None else min(self._limit, n_fits)

    def _plan_memory(self) -> None:
        """Bound the fits at a time by the memory of the workers, or raise, before the first fit.

        A task that waits for other tasks has no plan: they might wait for its memory. Fits on rows
        gathered from Dask are planned with their rows.
        """
        with self._lock:
            is_planned = self._is_memory_planned or self._context.fit_in_driver
            if is_planned or current_worker_address():
                return
            scheduler = dict(self._schedulers).get("cpu")
            n_waiting = sum(fit.device == "cpu" for fit in self._deferred)
            if scheduler is None or not (n_waiting := n_waiting + scheduler.n_waiting):
                return
            self._is_memory_planned = True
            addresses = self._addresses("cpu")
            plan = self._memory = plan_fits(
                self._call.client,
                self._requests.jobs[0],
                self._context,
                addresses,
                later=self._later,
                limit=min(n_waiting, self._limit or n_waiting),
            )
            self._step_bytes = int(_STEPS_FRACTION * plan.spare_bytes())
            if plan.is_bounded:
                allowed = self._addresses("cpu")
                scheduler.bound(self.bounded(len(allowed)))
                self._initial_workers["cpu"] = iter(allowed)

    # -- the time left -----------------------------------------------------------------------------

    @property
    def mean_prefix_seconds(self) -> float:
        """Mean seconds of the steps that fits share, on the device where it is longest."""
        return max((own.mean_prefix_seconds for _, own in self._schedulers), default=0.0)

    def work_left(self) -> list[tuple[int, list[FitGroup]]]:
        """Return the slots of each kind, with the fits that are left for them."""
        now, work = time.monotonic(), []
        for device, scheduler in self._schedulers:
            groups = [FitGroup(*group) for group in scheduler.groups_left()]
            groups += [FitGroup(0.0, [fit]) for fit in self._deferred if fit.device == device]
            for batch in self._in_flight_on(device):
                groups.append(group_in_flight(batch, scheduler.prefix_seconds_of(batch), now))
            work.append((scheduler.n_slots, groups))
        return work

    def _mark_begun(self) -> None:
        """Mark the batches for which a slot is free as begun."""
        now = time.monotonic()
        for device, scheduler in self._schedulers:
            mark_begun(self._in_flight_on(device), scheduler.n_slots, now)

    def _in_flight_on(self, device: str) -> list[FitBatch]:
        return [batch for batch in self._in_flight if batch.fits[0].device == device]


def _rebalance(route_ref: weakref.ref[FitsOnWorkers]) -> None:
    """Rebalance the fits of a route that is still alive."""
    if (route := route_ref()) is not None:
        route._rebalance()


def _batch_call(
    batch: FitBatch,
    job: SearchJob,
    context: SearchContext,
    allowance: MemoryAllowance | None,
    claims: BatchClaims,
    step_bytes: int,
) -> CallItem:
    """Build the call that runs a batch. Large objects are arguments, to be scattered once."""
    numbers = list(dict.fromkeys(fit.fold for fit in batch.fits))
    parts = [part for number in numbers for part in job.folds[number]]
    calls = [fit.call for fit in batch.fits]
    own = pack((calls, batch.time_limit, numbers, allowance, claims, step_bytes))
    is_on_gpu = batch.fits[0].device == "cuda"
    X = DeviceArgument(job.X, context.device_cache) if is_on_gpu else job.X
    options = {}
    if context.has_batches and step_bytes and has_prefix_steps(job.estimators[0]):
        context.step_cache = context.step_cache or StepCache()
        options["steps"] = ProcessArgument(context.step_cache)
    return run_fit_batch, (job.spec(), own, X, job.y, *parts), options
