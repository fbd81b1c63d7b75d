"""Dispatch of a search's fits: from joblib's calls to batches on workers, and results back."""

from __future__ import annotations

import contextvars
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any

from skfleet._cluster import current_worker_address
from skfleet._fall_back import fall_back
from skfleet._joblib import (
    BatchResult,
    CallBatch,
    CallItem,
    DeviceArgument,
    ParallelCall,
    explain_unpicklable,
    pack,
    register_search,
    task_name,
)
from skfleet._progress_bar import ProgressBar
from skfleet._sklearn_private import fit_result, scorers_of
from skfleet.engine import DeviceArrayCache
from skfleet.model_selection._dispatch._analytic_scores import AnalyticScores
from skfleet.model_selection._dispatch._call_progress import CallProgress
from skfleet.model_selection._dispatch._claims import BatchClaims, FitClaims
from skfleet.model_selection._dispatch._fit_memory import plan_fits, report_block_memory
from skfleet.model_selection._dispatch._fit_tasks import run_fit_batch
from skfleet.model_selection._dispatch._gathered_fits import GatheredFits
from skfleet.model_selection._dispatch._local_fits import LocalFits
from skfleet.model_selection._dispatch._memory_gate import MemoryShare
from skfleet.model_selection._dispatch._reports import report_error, report_result
from skfleet.model_selection._dispatch._requests import FitRequest, RequestReader, SearchJob
from skfleet.model_selection._dispatch._scheduler import (
    SLOW_BATCH_SECONDS,
    DeviceSchedulers,
    FitBatch,
    FitScheduler,
)
from skfleet.model_selection._dispatch._search_context import current_context
from skfleet.model_selection._memory import MemoryPlan
from skfleet.model_selection._shared_fits._execution import FitOrigin

# Fits that are read ahead and scheduled together.
READ_AHEAD_FITS = 10_000

# Seconds between two counts of the slots of the fleet.
_RECOUNT_SECONDS = 5.0


# The way of a fit:
# 1. `add` reads it from joblib's call; one that equals a pending fit only adds its callback.
# 2. `_route` puts it among those that the checkpoint has, that are scored analytically, that run
#    in this process, that are deferred for the time budget, or to a scheduler.
# 3. `_send` reports the results that need no worker, and sends batches as the schedulers form them.
# 4. `_batch_done` records durations and results, sends what follows, and reports to joblib.
class FitDispatcher:
    """Sends the fits of one ``Parallel`` call in batches, and reports their results.

    At most ``limit`` batches are in flight. ``slot_addresses`` returns, for a device, the address
    of a worker for each fit that the fleet can run at once. The ``bar`` shows the progress.
    """

    def __init__(
        self,
        call: ParallelCall,
        *,
        limit: int | None,
        slot_addresses: Callable[[str], Sequence[str]],
        bar: ProgressBar | None = None,
    ) -> None:
        self.n_read = 0
        self._call, self._limit = call, limit
        self._slot_addresses, self._counted_at = slot_addresses, time.monotonic()
        self._context = current_context()
        self._evaluation = self._context.begin_evaluation()
        # a call within a fit, such as a nested search, has no validation rows
        validation_rows = None if self._evaluation is None else self._context.validation_rows
        self._requests = RequestReader(pack, validation_rows)
        self._progress = CallProgress(bar, self._context, self._evaluation)
        self._schedulers = DeviceSchedulers(self._new_scheduler)
        self._lock = threading.RLock()
        self._checkpointed: dict[FitRequest, dict[str, Any]] = {}
        self._deferred: deque[FitRequest] = deque()
        self._local_fits = self._new_local_fits()
        self._in_flight: dict[FitBatch, None] = {}  # in the order in which they were sent
        self._claims, self._batch_numbers = FitClaims(), count()
        self._gathered_fits = GatheredFits(self._lock, self._send_fits, report_error)
        self._starter: int | None = None  # the thread that makes the local fits
        self._memory: MemoryPlan | None = None  # of fits on the host, once one is to be sent
        self._is_memory_planned = False
        self._search: Any = None
        self._search_registrations = ExitStack()
        candidates = () if self._evaluation is None else self._evaluation.candidates
        self._analytic_scores = AnalyticScores(call.client, self._context, candidates)
        # A weak reference: the timer must not keep data on the fleet until garbage collection.
        context = contextvars.copy_context()
        args = [_rebalance, weakref.ref(self)]
        self._timer = threading.Timer(SLOW_BATCH_SECONDS, context.run, args)
        self._timer.daemon = True
        # The first batches go one to each worker, which fetches the rows then. Later ones may go
        # anywhere; but Dask alone would run the first ones only where the rows are.
        self._initial_workers: dict[str, Iterator[str]] = {}
        self._context.active_calls.add(self)

    def _new_scheduler(self, device: str) -> FitScheduler:
        """Build the scheduler for a device, with the slots of the fleet as it is."""
        addresses = self._addresses(device)
        self._initial_workers[device] = iter(addresses)
        # A batch that is queued behind another one would begin when the time budget is over.
        may_queue = self._context.seconds_left is None
        return FitScheduler(self._bounded(len(addresses)), self._limit, may_queue=may_queue)

    def _new_local_fits(self) -> LocalFits:
        """Build the queue of fits on Dask rows, without a reference to this object."""
        n_slots = partial(_n_slots, self._slot_addresses, self._limit)
        return LocalFits(self._context, self._requests, n_slots)

    def _addresses(self, device: str) -> Sequence[str]:
        """Return the worker of each slot for fits on a device that may be in use."""
        addresses = self._slot_addresses(device)
        return addresses if self._memory is None else self._memory.allowed(addresses)

    def _plan_memory(self) -> None:
        """Bound the fits at a time by the memory of the workers, or raise, before the first fit.

        A task that waits for other tasks has no plan: they might wait for its memory.
        """
        with self._lock:
            if self._is_memory_planned or current_worker_address():
                return
            if self._context.fit_in_driver:
                if not (self._local_fits or self._analytic_scores):
                    return
                self._is_memory_planned = True
                addresses, job = self._addresses("cpu"), self._requests.jobs[0]
                report_block_memory(self._call.client, job, self._context, addresses)
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
                later=() if self._evaluation is None else self._evaluation.later,
                limit=min(n_waiting, self._limit or n_waiting),
            )
            if plan.is_bounded:
                allowed = self._addresses("cpu")
                scheduler.bound(self._bounded(len(allowed)))
                self._initial_workers["cpu"] = iter(allowed)

    def _bounded(self, n_slots: int) -> int:
        return n_slots if self._limit is None else min(self._limit, n_slots)

    def add(self, call: CallItem, report: Callable[[BatchResult], Any]) -> None:
        """Add the fit that a call requests."""
        with self._lock:
            if self._evaluation is not None:
                report = self._evaluation.watch(self.n_read, report)
            self.n_read += 1
            try:
                fit = self._requests.read(*call, report)
            except Exception as error:
                explain_unpicklable(error, task_name([call]))
                raise
            if fit is None:
                return
            self._progress.add(fit)
            self._route(fit)
            search = fit.call.options.get("caller")
            if search is not None and search is not self._search:
                self._search = search
                self._search_registrations.enter_context(register_search(search))

    def _route(self, fit: FitRequest) -> None:
        """Put a fit where it is going to run, or where its result comes from."""
        records = self._context.records
        key = fit.checkpoint_key
        result = records.results.get(key) if records is not None and key else None
        if result is not None:
            self._checkpointed[fit] = result
        elif self._analytic_scores.add(
            fit, self._requests.jobs[fit.job], self._schedulers.of(fit).n_slots
        ):
            pass
        elif self._context.fit_in_driver:
            self._local_fits.add([fit])
        elif self._context.seconds_left is not None and not fit.has_shared_fit:
            # Candidate by candidate, so that few are incomplete when the time is over.
            self._deferred.append(fit)
        else:
            self._schedulers.add([fit])

    @property
    def n_read_ahead(self) -> float:
        """Number of fits that are read before any begins: all, where this process makes them."""
        return math.inf if self._context.fit_in_driver else READ_AHEAD_FITS

    def start(self, *, early: bool = False) -> None:
        """Begin to send; ``early`` only where fits that are not read yet have nothing to share."""
        has_results = self._checkpointed or self._deferred or self._local_fits
        if early and (has_results or self._analytic_scores or self._schedulers.has_prefixes):
            return
        if not early:
            self._starter = threading.get_ident()
        if self._send() and early:
            # Reading on at once would keep the event loop of this process from sending.
            time.sleep(0.01)
        if not early:
            self._gathered_fits.run(self._local_fits, self._requests)

    def stop(self) -> None:
        """Stop sending, and release everything."""
        self._timer.cancel()
        self._context.active_calls.discard(self)
        with self._lock:
            self._clear_waiting()
            self._analytic_scores = AnalyticScores(self._call.client, self._context)
            self._checkpointed.clear()
            self._in_flight.clear()
            self._search_registrations.close()
            # A reference to the rows would keep them on the fleet.
            self._requests, self._search = RequestReader(pack), None
            self._local_fits = self._new_local_fits()

    def cancel(self) -> None:
        """Cancel the batches in flight, and report all pending fits as interrupted."""
        self._call.abort()
        with self._lock:
            for batch in self._in_flight:
                self._schedulers.add(fit for fit in batch.fits if not fit.is_done)
            self._in_flight.clear()
        self._send()
        self._gathered_fits.notify()

    def _send(self) -> bool:
        """Report what needs no worker, and send batches; return whether any were sent."""
        while self._report_without_workers():
            pass
        self._plan_memory()
        batches = []
        while (following := self._next_batch()) is not None:
            batch, job = following
            try:
                batches.append(self._call_batch(batch, job))
            except Exception as error:
                self._batch_done(batch, BatchResult(False, error))
                break
        self._call.submit(batches)
        return bool(batches)

    def _report_without_workers(self) -> bool:
        """Report results that need no worker; return whether there were any."""
        if self._context.fit_in_driver:
            self._plan_memory()
        scored, unscored = self._analytic_scores.results()
        self._save(scored.items())
        with self._lock:
            if self._context.fit_in_driver:
                self._local_fits.add(unscored)
            else:
                self._schedulers.add(unscored)
            seen: set[tuple[int, int]] = set()  # the first fit of each split counts as computed
            for fit in scored:
                was_saved = (fit.job, fit.fold) in seen
                self._requests.finish_scored(fit, was_saved=was_saved)
                self._progress.show_fit(fit, scored[fit], self._n_splits(fit), is_reused=was_saved)
                seen.add((fit.job, fit.fold))
            checkpointed, self._checkpointed = self._checkpointed, {}
            if checkpointed:
                n_fits = sum(len(fit.callbacks) for fit in checkpointed)
                self._context.report_checkpoint(n_fits, self.n_read)
            interrupted = self._clear_waiting() if self._context.is_interrupted else []
            stop_reason = self._context.stop_reason
            skipped = {} if stop_reason is None else self._skipped_results(stop_reason)
        for fit, result in checkpointed.items():
            report_result(fit, BatchResult(True, [result], from_checkpoint=True))
        for fit, result in scored.items():
            report_result(fit, BatchResult(True, [result]))
        for fit, result in skipped.items():
            report_result(fit, BatchResult(True, [result], has_run=False))
        for fit in interrupted:
            report_result(fit, BatchResult(False, KeyboardInterrupt()))
        return bool(checkpointed or scored or skipped or interrupted) or self._run_local_fits()

    def _run_local_fits(self) -> bool:
        """Make fits in this process, where they submit their own tasks; False if none waits."""
        # not on the thread that delivers results, for which others wait meanwhile
        is_starter = threading.get_ident() == self._starter
        begin = time.monotonic()
        outcomes = self._local_fits.run_next() if is_starter else None
        if outcomes is None:
            return False
        for fit, result in outcomes:
            if isinstance(result, Exception):
                report_result(fit, BatchResult(False, result))
                continue
            with self._lock:
                self._requests.finish(fit, FitOrigin(refused=fit.no_analytic_score))
                self._progress.record(fit, (time.monotonic() - begin) / len(outcomes))
                self._progress.show_fit(fit, result, self._n_splits(fit), is_reused=False)
                self._show_time_left()
            self._save([(fit, result)])
            report_result(fit, BatchResult(True, [result]))
        return True

    def _send_fits(self, fits: Sequence[FitRequest]) -> None:
        """Send fits, with those that wait."""
        with self._lock:
            self._schedulers.add(fits)
        self._send()

    def _clear_waiting(self) -> list[FitRequest]:
        """Remove and return the fits that have not begun."""
        waiting: Any = [*self._schedulers.clear(), *self._deferred, *self._local_fits]
        self._deferred.clear()
        self._local_fits.clear()
        return waiting

    def _skipped_results(self, reason: str) -> dict[FitRequest, dict[str, Any]]:
        """Return results with NaN scores for the fits that have not begun."""
        results: dict[FitRequest, dict[str, Any]] = {}
        for fit in self._clear_waiting():
            options = self._requests.jobs[fit.job].options
            scores = dict.fromkeys(scorers_of(options["scorer"]), math.nan)
            n_test = len(self._requests.jobs[fit.job].folds[fit.fold][1])
            error = f"Not made, because {reason}."
            results[fit] = fit_result(options, scores, scores, n_test, math.nan, error)
            if self._context.validation_rows is not None:
                results[fit]["best_iteration"] = math.nan
        return results

    def _save(self, results: Iterable[tuple[FitRequest, dict[str, Any]]]) -> None:
        """Save the results of fits that have a key in the checkpoint."""
        if self._context.records is not None:
            keyed = ((fit.checkpoint_key, result) for fit, result in results if fit.checkpoint_key)
            self._context.records.add(keyed)

    def _next_batch(self) -> tuple[FitBatch, SearchJob] | None:
        """Return the next batch with its job, or None."""
        with self._lock:
            while (fit := self._schedulers.first_startable(self._deferred)) is not None:
                self._deferred.remove(fit)
                self._schedulers.add([fit])
            batch = self._schedulers.next_batch()
            if batch is None:
                return None
            if (seconds_left := self._context.seconds_left) is not None:
                batch.time_limit = max(0.0, min(batch.time_limit, seconds_left))
            self._in_flight[batch] = None
            self._progress.mark_begun(self._schedulers, self._in_flight)
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
            share = None
            if self._memory is not None and self._memory.is_bounded and device == "cpu":
                share = MemoryShare(self._memory.fit.total, self._memory.n_fits)
            numbers = [(device, fit.sequence_number) for fit in fits]
            claims = BatchClaims(self._claims.token, next(self._batch_numbers), numbers)
            call = _batch_call(batch, job, self._context.device_cache, share, claims)
        except Exception as error:
            explain_unpicklable(error, subject)
            raise
        report = partial(self._batch_done, batch)
        worker = next(self._initial_workers[device], None)
        return CallBatch([call], report, name, worker, device, subject)

    def _rebalance(self) -> None:
        """Send the fits of slow first batches again, to slots that would be idle."""
        with self._lock:
            for batch in self._in_flight:
                self._schedulers.of_batch(batch).steal_unstarted(batch)
        self._send()

    def _batch_done(self, batch: FitBatch, result: BatchResult) -> None:
        """Record durations and results of a batch, send what follows, and report its fits."""
        fits = batch.fits
        worker, replies = result.value[0] if result.ok else ("", [])
        # A batch that ran out of time returns fewer replies; fits that another batch has have none.
        results = [(fit, reply) for fit, reply in zip(fits, replies, strict=False) if reply]
        try:
            self._recount_slots()
            with self._lock:
                # Under the lock: what the scheduler and the progress bar learn.
                self._in_flight.pop(batch, None)
                self._progress.mark_begun(self._schedulers, self._in_flight)
                scheduler = self._schedulers.of_batch(batch)
                scheduler.batch_done([reply.seconds for _, reply in results])
                for fit, reply in results:
                    scheduler.record_duration(fit, reply.seconds, reply.shared_seconds)
                    self._progress.record(fit, reply.seconds - reply.shared_seconds)
                    origin = reply.origin
                    if fit.device == "cuda" and not origin.was_saved:
                        # on a GPU worker shared fits are not tried again
                        origin = origin._replace(refused=fit.no_analytic_score or origin.refused)
                    self._requests.finish(fit, origin, reply.prefix_origin)
                    is_reused = reply.origin.was_saved
                    n_splits = self._n_splits(fit)
                    self._progress.show_fit(fit, reply.result, n_splits, is_reused=is_reused)
                    if not fit.is_done:  # of a fit that ran twice, the first run
                        begin = reply.end - reply.seconds
                        self._context.record_fit_time(worker, begin, reply.end)
                # After a failure nothing new begins; else fits that the batch returned do.
                if not result.ok:
                    self._schedulers.clear()
                else:
                    returned = fits[len(replies) :]
                    self._schedulers.add(fit for fit in returned if fit not in batch.stolen)
                self._show_time_left()
            # Outside the lock. On disk before joblib knows of them: an interrupt loses no result.
            # Workers get their next batch before the reports, which may run scikit-learn's code.
            self._save((fit, reply.result) for fit, reply in results)
            self._send()
        except Exception as error:
            result = BatchResult(False, error)  # unreported, joblib would wait for ever
        if not result.ok:
            for fit in fits:
                report_result(fit, result)
        for fit, reply in results:
            report_result(fit, BatchResult(True, [reply.result], output=reply.output))
        self._send()  # the reports may have made joblib dispatch further fits
        self._gathered_fits.notify(has_failed=not result.ok)

    def _n_splits(self, fit: FitRequest) -> int:
        return len(self._requests.jobs[(fit.original or fit).job].folds)

    def _show_time_left(self) -> None:
        """Update the seconds left on the progress bar."""
        self._progress.show_time_left(
            self._schedulers, self._in_flight, self._deferred, self._local_fits, self.n_read
        )

    def _recount_slots(self) -> None:
        """Update the number of slots, every `_RECOUNT_SECONDS`."""
        if time.monotonic() - self._counted_at < _RECOUNT_SECONDS:
            return
        for device, scheduler in self._schedulers:
            n_slots = 0
            with fall_back("the slots of a fleet are not counted anew"):  # the call reports it
                n_slots = len(self._addresses(device))
            if n_slots:
                with self._lock:
                    scheduler.n_slots = self._bounded(n_slots)
        self._counted_at = time.monotonic()


def _n_slots(slot_addresses: Callable[[str], Sequence[str]], limit: int | None) -> int:
    """Return the number of fits that workers without a GPU may run at once."""
    n_slots = len(slot_addresses("cpu"))
    return n_slots if limit is None else min(limit, n_slots)


def _rebalance(dispatcher_ref: weakref.ref[FitDispatcher]) -> None:
    """Rebalance the fits of a dispatcher that is still alive."""
    if (dispatcher := dispatcher_ref()) is not None:
        dispatcher._rebalance()


def _batch_call(
    batch: FitBatch,
    job: SearchJob,
    device_cache: DeviceArrayCache,
    share: MemoryShare | None,
    claims: BatchClaims,
) -> CallItem:
    """Build the call that runs a batch. Large objects are arguments, to be scattered once."""
    numbers = list(dict.fromkeys(fit.fold for fit in batch.fits))
    parts = [part for number in numbers for part in job.folds[number]]
    own = pack(([fit.call for fit in batch.fits], batch.time_limit, numbers, share, claims))
    is_on_gpu = batch.fits[0].device == "cuda"
    X = DeviceArgument(job.X, device_cache) if is_on_gpu else job.X
    return run_fit_batch, (job.spec(), own, X, job.y, *parts), {}
