"""Dispatch of a search's fits: from joblib's calls to batches on workers, and results back."""

from __future__ import annotations

import contextvars
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from numbers import Real
from typing import Any

from sklearn.base import clone

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
from skfleet._sklearn_private import fit_result, scorers_of
from skfleet.blocks import is_lazy
from skfleet.engine import DeviceArrayCache
from skfleet.model_selection._dispatch._analytic_scores import AnalyticScores
from skfleet.model_selection._dispatch._requests import FitRequest, RequestReader, SearchJob
from skfleet.model_selection._dispatch._scheduler import (
    SLOW_BATCH_SECONDS,
    DeviceSchedulers,
    FitBatch,
    FitScheduler,
)
from skfleet.model_selection._dispatch._split_views import LazySplitView
from skfleet.model_selection._dispatch._worker import run_fit_batch
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
    of a worker for each fit that the fleet can run at once. ``on_progress`` is called with a short
    text on the state of the search.
    """

    def __init__(
        self,
        call: ParallelCall,
        *,
        limit: int | None,
        slot_addresses: Callable[[str], Sequence[str]],
        on_progress: Callable[[str], Any] | None = None,
    ) -> None:
        self.n_read = 0
        self._call, self._limit = call, limit
        self._slot_addresses, self._counted_at = slot_addresses, time.monotonic()
        self._requests = RequestReader(pack)
        self._context = self._requests.context
        self._progress, self._on_progress = SearchProgress(), on_progress
        self._schedulers = DeviceSchedulers(self._new_scheduler)
        self._lock = threading.RLock()
        self._checkpointed: dict[FitRequest, dict[str, Any]] = {}
        self._deferred: deque[FitRequest] = deque()
        self._local_fits: deque[FitRequest] = deque()
        self._in_flight: set[FitBatch] = set()
        self._search: Any = None
        self._search_registrations = ExitStack()
        self._evaluation = self._context.begin_evaluation()
        candidates = () if self._evaluation is None else self._evaluation.candidates
        self._analytic_scores = AnalyticScores(call.client, candidates)
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
        addresses = self._slot_addresses(device)
        self._initial_workers[device] = iter(addresses)
        # A batch that is queued behind another one would begin when the time budget is over.
        may_queue = self._context.seconds_left is None
        return FitScheduler(self._bounded(len(addresses)), self._limit, may_queue=may_queue)

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
            self._local_fits.append(fit)
        elif self._context.seconds_left is not None and not fit.has_shared_fit:
            # Candidate by candidate, so that few are incomplete when the time is over.
            self._deferred.append(fit)
        else:
            self._schedulers.add([fit])

    def start(self, *, early: bool = False) -> None:
        """Begin to send; ``early`` only where fits that are not read yet have nothing to share."""
        has_results = self._checkpointed or self._deferred or self._local_fits
        if early and (has_results or self._analytic_scores or self._schedulers.has_prefixes):
            return
        if self._send() and early:
            # Reading on at once would keep the event loop of this process from sending.
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop sending, and release everything."""
        self._timer.cancel()
        self._context.active_calls.discard(self)
        with self._lock:
            self._clear_waiting()
            self._analytic_scores = AnalyticScores(self._call.client)
            self._checkpointed.clear()
            self._in_flight.clear()
            self._search_registrations.close()
            # A reference to the rows would keep them on the fleet.
            self._requests, self._search = RequestReader(pack), None

    def cancel(self) -> None:
        """Cancel the batches in flight, and report all pending fits as interrupted."""
        self._call.abort()
        with self._lock:
            for batch in self._in_flight:
                self._schedulers.add(fit for fit in batch.fits if not fit.is_done)
            self._in_flight.clear()
        self._send()

    def _send(self) -> bool:
        """Report what needs no worker, and send batches; return whether any were sent."""
        while self._report_without_workers():
            pass
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
        scored, unscored = self._analytic_scores.results(self._context)
        self._save(scored.items())
        with self._lock:
            if self._context.fit_in_driver:
                self._local_fits.extend(unscored)
            else:
                self._schedulers.add(unscored)
            seen: set[tuple[int, int]] = set()  # the first fit of each split counts as computed
            for fit in scored:
                was_saved = (fit.job, fit.fold) in seen
                self._requests.finish_scored(fit, was_saved=was_saved)
                self._show_progress(fit, scored[fit], was_reused=was_saved)
                seen.add((fit.job, fit.fold))
            checkpointed, self._checkpointed = self._checkpointed, {}
            if checkpointed:
                n_fits = sum(len(fit.callbacks) for fit in checkpointed)
                self._context.report_checkpoint(n_fits, self.n_read)
            interrupted = self._clear_waiting() if self._context.is_interrupted else []
            stop_reason = self._context.stop_reason
            skipped = {} if stop_reason is None else self._skipped_results(stop_reason)
        for fit, result in checkpointed.items():
            _report(fit, BatchResult(True, [result], from_checkpoint=True))
        for fit, result in scored.items():
            _report(fit, BatchResult(True, [result]))
        for fit, result in skipped.items():
            _report(fit, BatchResult(True, [result], has_run=False))
        for fit in interrupted:
            _report(fit, BatchResult(False, KeyboardInterrupt()))
        return bool(checkpointed or scored or skipped or interrupted) or self._run_local_fit()

    def _run_local_fit(self) -> bool:
        """Run a fit in this process, where it submits its own tasks; False if none is waiting."""
        try:
            fit = self._local_fits.popleft()
        except IndexError:
            return False
        job, call = self._requests.jobs[fit.job], fit.call
        parts = dict(zip(("train", "test"), job.folds[call.fold], strict=True))
        result = None
        try:
            with self._context.running_locally():
                estimator = clone(job.estimators[call.estimator])
                data = LazySplitView(job.X), LazySplitView(job.y) if is_lazy(job.y) else job.y
                result = job.function(estimator, *data, **parts, **job.options, **call.options)
        except Exception as error:
            _report(fit, BatchResult(False, error))
            return True
        if result is None:  # interrupted: it is reported with all that are waiting
            self._local_fits.append(fit)
            return True
        with self._lock:
            self._requests.finish(fit, FitOrigin(refused=fit.no_analytic_score))
            self._show_progress(fit, result, was_reused=False)
        self._save([(fit, result)])
        _report(fit, BatchResult(True, [result]))
        return True

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
            self._in_flight.add(batch)
            if not self._timer.is_alive() and not self._timer.finished.is_set():
                self._timer.start()
            return batch, self._requests.jobs[batch.fits[0].job]

    def _call_batch(self, batch: FitBatch, job: SearchJob) -> CallBatch:
        """Build the joblib batch that runs a batch of fits."""
        fits = batch.fits
        name = task_name([(job.function, [job.estimators[fits[0].call.estimator]], {})])
        if len(fits) > 1:
            # The scheduler places a task by the mean duration of those with its name, and never
            # forgets a name: there must not be many.
            name = f"bundle_of_up_to_{1 << (len(fits) - 1).bit_length()}_{name}"
        try:
            call = _batch_call(batch, job, self._context.device_cache)
        except Exception as error:
            explain_unpicklable(error, name)
            raise
        report = partial(self._batch_done, batch)
        device = fits[0].device
        return CallBatch([call], report, name, next(self._initial_workers[device], None), device)

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
        try:
            self._recount_slots()
            with self._lock:
                self._in_flight.discard(batch)
                scheduler = self._schedulers.of_batch(batch)
                scheduler.batch_done([reply.seconds for reply in replies])
                for fit, reply in zip(fits, replies, strict=False):
                    scheduler.record_duration(fit, reply.seconds, reply.shared_seconds)
                    origin = reply.origin
                    if fit.device == "cuda" and not origin.was_saved:
                        # on a GPU worker shared fits are not tried again
                        origin = origin._replace(refused=fit.no_analytic_score or origin.refused)
                    self._requests.finish(fit, origin, reply.prefix_origin)
                    self._show_progress(fit, reply.result, was_reused=reply.origin.was_saved)
                    if not fit.is_done:  # of a fit that ran twice, the first run
                        begin = reply.end - reply.seconds
                        self._context.record_fit_time(worker, begin, reply.end)
                if not result.ok:
                    self._schedulers.clear()
                else:
                    returned = fits[len(replies) :]
                    self._schedulers.add(fit for fit in returned if fit not in batch.stolen)
            self._save(zip(fits, [reply.result for reply in replies], strict=False))
            self._send()
        except Exception as error:
            result = BatchResult(False, error)  # unreported, joblib would wait for ever
        if not result.ok:
            for fit in fits:
                _report(fit, result)
        for fit, reply in zip(fits, replies, strict=False):
            _report(fit, BatchResult(True, [reply.result], output=reply.output))
        self._send()  # the reports may have made joblib dispatch further fits

    def _show_progress(self, fit: FitRequest, result: dict[str, Any], *, was_reused: bool) -> None:
        """Update the text beside the progress bar."""
        if self._on_progress is not None and not fit.is_done:
            n_splits = len(self._requests.jobs[fit.job].folds)
            scores = result["test_scores"]
            self._progress.add(fit.candidate, scores, n_splits, was_reused=was_reused)
            self._on_progress(str(self._progress))

    def _recount_slots(self) -> None:
        """Update the number of slots, every `_RECOUNT_SECONDS`."""
        if time.monotonic() - self._counted_at < _RECOUNT_SECONDS:
            return
        for device, scheduler in self._schedulers:
            try:
                n_slots = len(self._slot_addresses(device))
            except Exception:
                n_slots = 0  # the call itself reports what is wrong with the fleet
            if n_slots:
                with self._lock:
                    scheduler.n_slots = self._bounded(n_slots)
        self._counted_at = time.monotonic()


def _rebalance(dispatcher_ref: weakref.ref[FitDispatcher]) -> None:
    """Rebalance the fits of a dispatcher that is still alive."""
    if (dispatcher := dispatcher_ref()) is not None:
        dispatcher._rebalance()


def _batch_call(batch: FitBatch, job: SearchJob, device_cache: DeviceArrayCache) -> CallItem:
    """Build the call that runs a batch. Large objects are arguments, to be scattered once."""
    numbers = list(dict.fromkeys(fit.fold for fit in batch.fits))
    parts = [part for number in numbers for part in job.folds[number]]
    own = pack(([fit.call for fit in batch.fits], batch.time_limit, numbers))
    is_on_gpu = batch.fits[0].device == "cuda"
    X = DeviceArgument(job.X, device_cache) if is_on_gpu else job.X
    return run_fit_batch, (job.spec(), own, X, job.y, *parts), {}


def _report(fit: FitRequest, result: BatchResult) -> None:
    """Call the callbacks of a fit, once; only the first one gets its output."""
    fit.is_done = True
    while fit.callbacks:
        callback = fit.callbacks.pop(0)
        if result.ok:
            result = result._replace(value=[dict(result.value[0])])
        callback(result)
        result = result._replace(output=())


class SearchProgress:
    """Text on the state of a search: number of reused fits, and best mean score so far."""

    def __init__(self) -> None:
        self.n_reused = 0
        self._scores: dict[Hashable, list[float]] = {}
        self._best: float | None = None

    def add(self, candidate: Hashable, score: Any, n_splits: int, *, was_reused: bool) -> None:
        """Add a fit; the best is among the candidates that are scored on all splits."""
        self.n_reused += was_reused
        scores = self._scores.setdefault(candidate, [])
        scores.append(float(score) if isinstance(score, Real) else math.nan)
        mean = sum(scores) / n_splits
        is_complete = len(scores) == n_splits and not math.isnan(mean)
        if is_complete and (self._best is None or mean > self._best):
            self._best = mean

    def __str__(self) -> str:
        reused = [f"{self.n_reused} saved"] if self.n_reused else []
        return ", ".join(reused + ([f"best {self._best:.4g}"] if self._best is not None else []))
