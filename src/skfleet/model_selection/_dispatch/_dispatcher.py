"""Dispatch of a search's fits: from joblib's calls to their routes, and results back to joblib."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from skfleet._cluster import current_worker_address
from skfleet._joblib import (
    BatchResult,
    CallItem,
    ParallelCall,
    explain_unpicklable,
    pack,
    register_search,
    task_name,
)
from skfleet._progress_bar import ProgressBar
from skfleet._sklearn_private import fit_result, scorers_of
from skfleet.model_selection._dispatch._call_progress import CallProgress
from skfleet.model_selection._dispatch._fit_memory import report_block_memory
from skfleet.model_selection._dispatch._fit_times import FitGroup
from skfleet.model_selection._dispatch._raced_fits import RacedFits
from skfleet.model_selection._dispatch._requests import FitRequest, RequestReader
from skfleet.model_selection._dispatch._routes._closed_form import ClosedFormScores
from skfleet.model_selection._dispatch._routes._on_blocks import FitsOnBlocks
from skfleet.model_selection._dispatch._routes._on_workers import FitsOnWorkers
from skfleet.model_selection._dispatch._routes._recorded import RecordedFits
from skfleet.model_selection._dispatch._routes._route import Outcome, Route, offer_in_turn
from skfleet.model_selection._dispatch._scheduler import FitBatch
from skfleet.model_selection._dispatch._search_context import current_context

# Fits that are read ahead and scheduled together.
READ_AHEAD_FITS = 10_000


# The way of a fit:
# 1. `add` reads it from joblib's call; one that equals a pending fit only adds its callback.
# 2. The first route that takes it has it: recorded, closed form, on blocks, or on workers.
# 3. `_advance` runs the routes in turn. The results that need no worker come back at once, batches
#    are sent to workers, and fits that are not to begin any more are ended.
# 4. `_batch_done` takes in what a batch of workers returns, and lets the routes go on.
# 5. `_settle` records outcomes for the progress bar and the checkpoint, and reports to joblib.
class FitDispatcher:
    """Takes the fits of one ``Parallel`` call to their routes, and reports their results.

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
        self._call, self._context = call, current_context()
        self._evaluation = evaluation = self._context.begin_evaluation()
        # a call within a fit, such as a nested search, has no validation rows
        validation_rows = None if evaluation is None else self._context.validation_rows
        self._requests = RequestReader(pack, validation_rows)
        self._race = None if evaluation is None else RacedFits.of(evaluation)
        self._progress = CallProgress(bar, self._context, evaluation)
        self._lock = threading.RLock()
        self._search: Any = None
        self._search_registrations = ExitStack()
        self._is_memory_reported = False
        self._last_changes = (0, 0)  # candidates that a race has dropped, fits that wait again
        self._on_workers = FitsOnWorkers(
            call,
            self._requests,
            self._context,
            self._lock,
            limit=limit,
            slot_addresses=slot_addresses,
            later=() if evaluation is None else evaluation.later,
            race=None if self._race is None else self._race.race,
            on_done=self._batch_done,
            rebalanced=self._advance,
        )
        self._on_blocks = FitsOnBlocks(
            self._context,
            self._requests,
            self._lock,
            is_race=self._race is not None,
            n_slots=self._on_workers.n_host_slots,
            bounded=self._on_workers.bounded,
            send_gathered=self._send_gathered,
        )
        self._closed_form = ClosedFormScores(
            call.client,
            self._requests,
            self._context,
            self._lock,
            candidates=() if evaluation is None else evaluation.candidates,
            n_slots=self._on_workers.n_slots_for,
            following=(self._on_blocks, self._on_workers),
        )
        self._recorded = RecordedFits(self._context)
        self._routes: tuple[Route, ...] = (
            self._recorded,
            self._closed_form,
            self._on_blocks,
            self._on_workers,
        )
        self._context.active_calls.add(self)

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
            offer_in_turn([fit], self._routes)
            search = fit.call.options.get("caller")
            if search is not None and search is not self._search:
                self._search = search
                self._search_registrations.enter_context(register_search(search))

    @property
    def n_read_ahead(self) -> float:
        """Number of fits that are read before any begins: all in this process, and in a race."""
        reads_all = self._context.fit_in_driver or self._race is not None
        return math.inf if reads_all else READ_AHEAD_FITS

    def start(self, *, early: bool = False) -> None:
        """Begin to send; ``early`` only where fits that are not read yet have nothing to share."""
        if early and (
            self._race is not None
            or any((self._recorded, self._closed_form, self._on_blocks))
            or not self._on_workers.can_begin_early
        ):
            return
        if not early:
            self._on_blocks.start()
        n_sent = self._on_workers.n_sent
        self._advance()
        if early and self._on_workers.n_sent > n_sent:
            # Reading on at once would keep the event loop of this process from sending.
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop sending, and release everything."""
        self._on_workers.stop()
        self._context.active_calls.discard(self)
        with self._lock:
            for route in self._routes:
                route.clear()
            self._search_registrations.close()
            self._requests.clear()
            self._search = None

    def cancel(self) -> None:
        """Cancel the batches in flight, and report all pending fits as interrupted."""
        self._call.abort()
        with self._lock:
            self._on_workers.cancel()
        self._advance()
        self._on_blocks.notify()

    def _advance(self) -> None:
        """Run all routes, until nothing is left but what workers are at."""
        self._run(
            self._recorded.run,
            self._report_memory,
            self._closed_form.run,
            self._end_dropped,
            self._skip,
            self._on_blocks.run,
            self._on_workers.run,
        )

    def _send_gathered(self, fits: Sequence[FitRequest]) -> None:
        """Send fits on rows that were on Dask to workers."""
        with self._lock:
            offer_in_turn(fits, [self._on_workers])
        self._run(self._end_dropped, self._skip, self._on_workers.run)

    def _run(self, *steps: Callable[[], Sequence[Outcome] | None]) -> None:
        """Take steps, again from the first after each that has outcomes, until none has."""
        while any(self._settle(step()) for step in steps):
            pass

    def _settle(self, outcomes: Sequence[Outcome] | None) -> bool:
        """Record, save and report outcomes; return False for None."""
        if outcomes is None:
            return False
        self._record(outcomes)
        self._save(outcomes)
        _report(outcomes)
        return True

    def _record(self, outcomes: Sequence[Outcome]) -> None:
        """Show outcomes on the progress bar."""
        with self._lock:
            n_recorded = sum(len(o.fit.callbacks) for o in outcomes if o.result.from_checkpoint)
            if n_recorded:
                self._context.report_checkpoint(n_recorded, self.n_read)
            if self._race is not None:
                self._race.record(outcomes)
            for outcome in outcomes:
                if not outcome.is_new:
                    continue
                if outcome.seconds is not None:
                    self._progress.record(outcome.fit, outcome.seconds)
                job = self._requests.jobs[(outcome.fit.original or outcome.fit).job]
                (result,) = outcome.result.value
                self._progress.show_fit(
                    outcome.fit, result, len(job.folds), is_reused=outcome.is_reused
                )
            self._progress.show_time_left(
                self._work_left, self.n_read, self._on_workers.mean_prefix_seconds
            )

    def _work_left(self) -> list[tuple[int, list[FitGroup]]]:
        """Return the slots of each kind, with the fits that are left for them."""
        return [(1, [FitGroup(0.0, list(self._on_blocks))]), *self._on_workers.work_left()]

    def _save(self, outcomes: Sequence[Outcome]) -> None:
        """Save new results that have a key in the checkpoint."""
        if self._context.records is not None:
            keys = ((outcome.fit.checkpoint_key, outcome) for outcome in outcomes if outcome.is_new)
            self._context.records.add((key, own.result.value[0]) for key, own in keys if key)

    def _end_dropped(self) -> list[Outcome] | None:
        """End the fits that wait of candidates that the race has dropped."""
        if self._race is None:
            return None
        with self._lock:
            changes = len(self._race.race.drops), self._on_workers.n_returned
            if changes == self._last_changes:
                return None
            self._last_changes = changes
            fits = [
                *self._on_workers.remove(self._race.has_dropped),
                *self._on_blocks.remove(self._race.has_dropped),
            ]
            for fit in fits:
                self._requests.withdraw(fit)
            self._progress.show_dropped(len(self._race.race.drops))
            return [Outcome(fit, self._race.withdrawn()) for fit in fits] or None

    def _skip(self) -> list[Outcome] | None:
        """End the fits that wait, after an interrupt, or when the time budget is over."""
        with self._lock:
            reason, is_interrupted = self._context.stop_reason, self._context.is_interrupted
            if reason is None and not is_interrupted:
                return None
            outcomes = []
            for fit in (*self._on_workers.clear(), *self._on_blocks.clear()):
                error = BatchResult(False, KeyboardInterrupt())
                outcomes.append(Outcome(fit, error if is_interrupted else self._nan(fit, reason)))
            return outcomes or None

    def _nan(self, fit: FitRequest, reason: str | None) -> BatchResult:
        """Return a result with NaN scores for a fit that was not made."""
        error = f"Not made, because {reason}."
        if self._race is not None and (stand_in := self._race.stand_in(error)):
            return BatchResult(True, [stand_in], has_run=False)
        job = self._requests.jobs[fit.job]
        scores = dict.fromkeys(scorers_of(job.options["scorer"]), math.nan)
        n_test = len(job.folds[fit.fold][1])
        result = fit_result(job.options, scores, scores, n_test, math.nan, error)
        if self._context.validation_rows is not None:
            result["best_iteration"] = math.nan
        return BatchResult(True, [result], has_run=False)

    def _report_memory(self) -> None:
        """Report the memory of fits on Dask rows, before the first of them."""
        with self._lock:
            if not self._context.fit_in_driver or not (self._on_blocks or self._closed_form):
                return
            if self._is_memory_reported or current_worker_address():
                return
            self._is_memory_reported = True
            job, addresses = self._requests.jobs[0], self._on_workers.host_addresses()
            n_fits = self._on_blocks.n_at_once
            report_block_memory(self._call.client, job, self._context, addresses, n_fits)

    def _batch_done(self, batch: FitBatch, result: BatchResult) -> None:
        """Take in the results of a batch, send what follows, and report its fits."""
        outcomes: list[Outcome] = []
        try:
            self._on_workers.recount_slots()
            with self._lock:
                # Under the lock: what the scheduler and the progress bar learn.
                outcomes = self._on_workers.take_in(batch, result)
                self._record(outcomes)
            # Outside the lock. On disk before joblib knows of them: an interrupt loses no result.
            # Workers get their next batch before the reports, which may run scikit-learn's code.
            self._save(outcomes)
            self._advance()
        except Exception as error:
            result = BatchResult(False, error)  # unreported, joblib would wait for ever
        if not result.ok:
            _report([Outcome(fit, result) for fit in batch.fits])
        _report(outcomes)
        self._advance()  # the reports may have made joblib dispatch further fits
        self._on_blocks.notify(has_failed=not result.ok)


def _report(outcomes: Sequence[Outcome]) -> None:
    """Call the callbacks of fits, once; only the first one of a fit gets its output."""
    for fit, result, *_ in outcomes:
        fit.is_done = True
        while fit.callbacks:
            callback = fit.callbacks.pop(0)
            if result.ok:
                value = dict(result.value[0])
                if fit.first_steps is not None and "estimator" in value:
                    from skfleet.estimators.pipeline import joined_pipeline  # not at import

                    value["estimator"] = joined_pipeline(fit.first_steps, value["estimator"])
                result = result._replace(value=[value])
            callback(result)
            result = result._replace(output=())
