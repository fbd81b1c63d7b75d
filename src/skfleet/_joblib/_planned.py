"""How the fits of a search get from joblib to workers by a plan, and their results back."""

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
from typing import Any, NamedTuple

from sklearn.base import clone

from skfleet._captured_output import Note, notes_taken
from skfleet._joblib._callbacks import at_home, pack
from skfleet._joblib._parallel_call import Batch, ParallelCall, explain_unpicklable
from skfleet._joblib._progress import SearchProgress
from skfleet._joblib._worker import Call, ForDevice, Outcome, task_name
from skfleet._sklearn_private import fit_result, scorers_of
from skfleet.blocks import is_lazy
from skfleet.engine import DeviceArrayCache, Pickled, current_worker_address, is_cancelled
from skfleet.model_selection._dispatch._analytic_scores import AnalyticScores
from skfleet.model_selection._dispatch._requests import FitList, FitRequest, JobInputs
from skfleet.model_selection._dispatch._scheduler import SLOW, FitBatch, FitScheduler, is_over
from skfleet.model_selection._dispatch._split_views import LazySplitView
from skfleet.model_selection._dispatch._worker import evaluate
from skfleet.model_selection._plans import DeviceSchedulers
from skfleet.model_selection._shared_fits._execution import FitOrigin

__all__ = ["WINDOW", "FitDispatcher"]

# So many fits are read ahead and planned together.
WINDOW = 10_000

# Seconds after which a fleet is asked again how many fits it can run at once.
_COUNT_EVERY = 5.0


class FitDispatcher:
    """The fits of one ``Parallel`` call, sent in bundles.

    Parameters
    ----------
    call : ParallelCall
        What brings a bundle to a worker, and its outcome back.
    limit : int or None
        Most bundles on their way.
    places_for : callable
        Gives, for fits on a device, the address of a worker for each of those that the fleet can
        run at once.
    tell : callable, default=None
        Takes a few words on how it is going.
    """

    def __init__(
        self,
        call: ParallelCall,
        *,
        limit: int | None,
        places_for: Callable[[str], Sequence[str]],
        tell: Callable[[str], Any] | None = None,
    ) -> None:
        self.n_read = 0
        self._call = call
        self._limit = limit
        self._places_for = places_for
        self._counted = time.monotonic()
        self._list = FitList(pack)
        self._run = self._list.run
        self._tally, self._tell = SearchProgress(), tell
        self._plans = DeviceSchedulers(self._make_plan)
        self._lock = threading.RLock()
        self._scored = AnalyticScores(call.client)
        self._known: dict[FitRequest, dict[str, Any]] = {}  # results that were recorded
        self._later: deque[FitRequest] = deque()
        self._here: deque[FitRequest] = deque()  # those that submit tasks of their own
        self._sent: set[FitBatch] = set()
        self._caller: Any = None
        self._evaluation = self._run.begin_evaluation()
        self._homes = ExitStack()
        # The timer is ours, and must not hold us: what is left on the fleet would wait for gc.
        context = contextvars.copy_context()
        self._timer = threading.Timer(SLOW, context.run, [_share_out_of, weakref.ref(self)])
        self._timer.daemon = True
        # Where the first bundles go: each worker fetches the rows then. Later ones may go anywhere,
        # but Dask would take them only to where the rows are.
        self._places: dict[str, Iterator[str]] = {}
        self._run.calls.add(self)

    def _make_plan(self, device: str) -> FitScheduler:
        """Make the plan of fits on a device, for as many slots as there are now."""
        places = self._places_for(device)
        self._places[device] = iter(places)
        # What waits behind a bundle would be begun when the time is over.
        queues = self._run.seconds_left is None
        return FitScheduler(self._within_limit(len(places)), self._limit, queues=queues)

    def _within_limit(self, n_slots: int) -> int:
        """Give how many slots may be used."""
        return n_slots if self._limit is None else min(self._limit, n_slots)

    def add(self, call: Call, report: Callable[[Outcome], Any]) -> None:
        """Put a fit on the plan."""
        with self._lock:
            if self._evaluation is not None:
                report = self._evaluation.watch(self.n_read, report)
            self.n_read += 1
            try:
                fit = self._list.read(*call, report)
            except Exception as error:
                explain_unpicklable(error, task_name([call]))
                raise
            if fit is None:
                return
            self._enter(fit)
            caller = fit.call.options.get("caller")
            if caller is not None and caller is not self._caller:
                self._caller = caller
                self._homes.enter_context(at_home(caller))

    def _enter(self, fit: FitRequest) -> None:
        """Put a fit where it belongs: among those known, scored, kept for later, or on the plan."""
        records = self._run.records
        result = records.get(fit.record) if records is not None and fit.record else None
        if result is not None:
            self._known[fit] = result
        elif self._scored.add(fit, self._list.jobs[fit.job], self._plans.of(fit).n_slots):
            pass
        elif self._run.fits_here:
            self._here.append(fit)
        elif self._run.seconds_left is not None and not fit.is_contained:
            # Candidate by candidate, so that few are left half done.
            self._later.append(fit)
        else:
            self._plans.add([fit])

    def start(self, *, early: bool = False) -> None:
        """Begin to send; ``early`` only where those still to come can have nothing to share."""
        waits = self._scored or self._known or self._later or self._here
        if early and (waits or self._plans.has_paths):
            return
        if self._send() and early:
            # Reading on at once would keep the event loop of this process from sending.
            time.sleep(0.01)

    def stop(self) -> None:
        """Send nothing any more."""
        self._timer.cancel()
        self._run.calls.discard(self)
        with self._lock:
            self._plans.drop_all()
            self._scored = AnalyticScores(self._call.client)
            self._known.clear()
            self._later.clear()
            self._here.clear()
            self._sent.clear()
            self._homes.close()
            # Nobody else may hold the rows, or they would stay on the fleet.
            self._list, self._caller = FitList(pack), None

    def give_up(self) -> None:
        """Cancel what is on its way, and report that nothing more will be made."""
        self._call.abort()
        with self._lock:
            for bundle in self._sent:
                self._plans.add(fit for fit in bundle.fits if not fit.is_done)
            self._sent.clear()
        self._send()

    def _send(self) -> bool:
        """Send as many bundles as are wanted now, and tell whether there were any."""
        while self._settle():
            pass
        batches = []
        while (taken := self._take()) is not None:
            bundle, rows = taken
            try:
                batches.append(self._batch(bundle, rows))
            except Exception as error:
                self._take_outcome(bundle, Outcome(False, error))
                break
        self._call.submit(batches)
        return bool(batches)

    def _settle(self) -> bool:
        """Report what no worker is needed for, and tell whether there was any."""
        results, others = self._scored.results(self._run) if self._scored else ({}, [])
        self._record(results.items())
        with self._lock:
            if self._run.fits_here:
                self._here.extend(others)
            else:
                self._plans.add(others)
            made: set[tuple[int, int]] = set()
            for fit in results:
                self._list.forget(fit, FitOrigin((fit.job, fit.fold) in made))
                self._count(fit, results[fit], was_saved=(fit.job, fit.fold) in made)
                made.add((fit.job, fit.fold))
            known, self._known = self._known, {}
            if known:
                self._run.note_checkpoint(sum(len(fit.waiting) for fit in known), self.n_read)
            interrupted = self._drop_waiting() if self._run.is_interrupted else []
            over = self._run.over
            left_out = {} if over is None else self._left_out(over)
        for fit, result in known.items():
            _report(fit, Outcome(True, [result], is_known=True))
        for fit, result in results.items():
            _report(fit, Outcome(True, [result]))
        for fit, result in left_out.items():
            _report(fit, Outcome(True, [result], is_made=False))
        for fit in interrupted:
            _report(fit, Outcome(False, KeyboardInterrupt()))
        return bool(known or results or left_out or interrupted) or self._make_here()

    def _make_here(self) -> bool:
        """Make a fit in this process, where it submits its own tasks; False if there is none."""
        try:
            fit = self._here.popleft()
        except IndexError:
            return False
        job, call = self._list.jobs[fit.job], fit.call
        train, test = job.folds[call.fold]
        result = None
        try:
            with self._run.here():
                result = job.function(
                    clone(job.estimators[call.estimator]),
                    LazySplitView(job.X),
                    LazySplitView(job.y) if is_lazy(job.y) else job.y,
                    train=train,
                    test=test,
                    **job.options,
                    **call.options,
                )
        except Exception as error:
            _report(fit, Outcome(False, error))
            return True
        if result is None:  # interrupted: it is left out, and so are all others
            self._here.append(fit)
            return True
        with self._lock:
            self._list.forget(fit, FitOrigin(refused=fit.refused))
            self._count(fit, result, was_saved=False)
        self._record([(fit, result)])
        _report(fit, Outcome(True, [result]))
        return True

    def _drop_waiting(self) -> list[FitRequest]:
        """Drop the fits that nobody has begun."""
        waiting: Any = [*self._plans.drop_all(), *self._later, *self._here]
        self._later.clear()
        self._here.clear()
        return waiting

    def _left_out(self, reason: str) -> dict[FitRequest, dict[str, Any]]:
        """Give what stands for the results of the fits that are still waiting."""
        results: dict[FitRequest, dict[str, Any]] = {}
        for fit in self._drop_waiting():
            options = self._list.jobs[fit.job].options
            scores = dict.fromkeys(scorers_of(options["scorer"]), math.nan)
            n_test = len(self._list.jobs[fit.job].folds[fit.fold][1])
            error = f"Not made, because {reason}."
            results[fit] = fit_result(options, scores, scores, n_test, math.nan, error)
        return results

    def _record(self, results: Iterable[tuple[FitRequest, dict[str, Any]]]) -> None:
        """Record the results of fits that have a name for it."""
        if self._run.records is not None:
            self._run.records.add((fit.record, result) for fit, result in results if fit.record)

    def _take(self) -> tuple[FitBatch, JobInputs] | None:
        """Take a bundle off the plan if one is wanted."""
        with self._lock:
            while (fit := self._plans.first_wanted(self._later)) is not None:
                self._later.remove(fit)
                self._plans.add([fit])
            bundle = self._plans.take()
            if bundle is None:
                return None
            if (left := self._run.seconds_left) is not None:
                bundle.within = max(0.0, min(bundle.within, left))
            self._sent.add(bundle)
            if not self._timer.is_alive() and not self._timer.finished.is_set():
                self._timer.start()
            return bundle, self._list.jobs[bundle.fits[0].job]

    def _batch(self, bundle: FitBatch, rows: JobInputs) -> Batch:
        """Make the batch that runs a bundle."""
        fits: Any = bundle.fits
        name = task_name([(rows.function, [rows.estimators[fits[0].call.estimator]], {})])
        if len(fits) > 1:
            # The scheduler takes a bundle to the worker that will be free first, as it knows how
            # long those of each name take. It never forgets a name: there must not be many.
            name = f"bundle_of_up_to_{1 << (len(fits) - 1).bit_length()}_{name}"
        try:
            call = _bundle_call(bundle, rows, self._run.copies)
        except Exception as error:
            explain_unpicklable(error, name)
            raise
        report = partial(self._take_outcome, bundle)
        device = fits[0].device
        return Batch([call], report, name, next(self._places[device], None), device)

    def _share_out(self) -> None:
        """Share out what the first bundles have not begun, if nothing has come back."""
        with self._lock:
            for bundle in self._sent:
                self._plans.reclaim(bundle)
        self._send()

    def _take_outcome(self, bundle: FitBatch, outcome: Outcome) -> None:
        """Plan anew with what a bundle has taught, and report the results of its fits."""
        fits: Any = bundle.fits
        worker, done = outcome.value[0] if outcome.ok else ("", [])
        try:
            self._recount()
            with self._lock:
                self._sent.discard(bundle)
                self._plans.come_back(bundle, [one.seconds for one in done])
                for fit, one in zip(fits, done, strict=False):
                    self._plans.learn(fit, one.seconds, one.shared_seconds)
                    came = one.came
                    if fit.device == "cuda" and not came.was_saved:
                        # on a device nobody tries it again
                        came = came._replace(refused=fit.refused or came.refused)
                    self._list.forget(fit, came, one.first_came)
                    self._count(fit, one.result, was_saved=one.came.was_saved)
                    if not fit.is_done:  # of one that was made twice, the first
                        self._run.note(worker, one.end - one.seconds, one.end)
                if not outcome.ok:
                    self._plans.drop_all()
                else:
                    self._plans.add(fit for fit in fits[len(done) :] if fit not in bundle.reclaimed)
            self._record(zip(fits, [one.result for one in done], strict=False))
            self._send()
        except Exception as error:
            outcome = Outcome(False, error)  # joblib would wait for ever
        if not outcome.ok:
            for fit in fits:
                _report(fit, outcome)
        for fit, one in zip(fits, done, strict=False):
            _report(fit, Outcome(True, [one.result], notes=one.notes))
        self._send()  # joblib may have handed out more

    def _count(self, fit: FitRequest, result: dict[str, Any], *, was_saved: bool) -> None:
        """Count a fit for those who watch."""
        if self._tell is not None and not fit.is_done:
            n_splits = len(self._list.jobs[fit.job].folds)
            self._tally.add(fit.candidate, result["test_scores"], n_splits, was_saved=was_saved)
            self._tell(str(self._tally))

    def _recount(self) -> None:
        """Ask how large the fleet is now, every now and then."""
        if time.monotonic() - self._counted < _COUNT_EVERY:
            return
        for device, plan in self._plans:
            try:
                n_slots = len(self._places_for(device))
            except Exception:
                n_slots = 0  # what is wrong with the fleet, the call itself will find out
            if n_slots:
                with self._lock:
                    plan.n_slots = self._within_limit(n_slots)
        self._counted = time.monotonic()


def _share_out_of(fits: weakref.ref[FitDispatcher]) -> None:
    """Let fits that are still there share out what has not begun."""
    if (planned := fits()) is not None:
        planned._share_out()


def _bundle_call(bundle: FitBatch, rows: JobInputs, copies: DeviceArrayCache) -> Call:
    """Make the call that runs a bundle. What is large is an argument, to travel once."""
    fits: Sequence[Any] = bundle.fits
    numbers = list(dict.fromkeys(fit.fold for fit in fits))
    parts = [part for number in numbers for part in rows.folds[number]]
    own = pack(([fit.call for fit in fits], bundle.within, numbers))
    X = ForDevice(rows.X, copies) if fits[0].device == "cuda" else rows.X
    return run_fits, (rows.job(), own, X, rows.y, *parts), {}


def _report(fit: FitRequest, outcome: Outcome) -> None:
    """Give the outcome of a fit to all who asked for it, once; the notes to the first of them."""
    fit.is_done = True
    while fit.waiting:
        report = fit.waiting.pop(0)
        if outcome.ok:
            outcome = outcome._replace(value=[dict(outcome.value[0])])
        report(outcome)
        outcome = outcome._replace(notes=())


class _Done(NamedTuple):
    """What comes home of a fit: what `Evaluated` has, and the notes."""

    result: dict[str, Any]
    seconds: float
    shared_seconds: float
    came: FitOrigin
    first_came: FitOrigin
    end: float  # when it was done, by the worker's clock
    notes: list[Note]


class _Answer(NamedTuple):
    """What comes home of a bundle: which worker made which fits."""

    worker: str
    done: list[_Done]


def run_fits(packed_job: Pickled, packed_calls: Pickled, X: Any, y: Any, *parts: Any) -> _Answer:
    """Run fits on a worker until their time is over."""
    job = packed_job.loads()
    calls, within, numbers = packed_calls.loads()
    folds = dict(zip(numbers, zip(parts[::2], parts[1::2], strict=True), strict=True))
    done: list[_Done] = []
    start = block_start = time.perf_counter()
    steps_seconds = 0.0
    evaluated = evaluate(job, calls, X, y, folds, discard=notes_taken)
    for n in range(len(calls)):
        if n and is_cancelled():
            break
        try:
            one = next(evaluated)
        except BaseException:
            # nobody will ask for the others' results, but their notes count
            notes_taken(put_back=[note for other in done for note in other.notes])
            raise
        done.append(_Done(*one, time.time(), notes_taken()))
        now = time.perf_counter()
        if n == 0 or not calls[n].goes_with(calls[n - 1]):
            block_start, steps_seconds = now - one.seconds, 0.0
        steps_seconds += one.shared_seconds
        if n + 1 == len(calls):
            break
        goes_on = calls[n + 1].goes_with(calls[n])
        if is_over(
            now - start,
            within,
            block_elapsed=now - block_start if goes_on else float("inf"),
            steps_seconds=steps_seconds,
        ):
            break
    return _Answer(current_worker_address(), done)
