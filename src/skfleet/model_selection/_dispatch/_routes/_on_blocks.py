"""The route of fits on Dask rows: this process makes them, or gathers their rows for workers."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from sklearn.base import clone

from skfleet._cluster import interruptible_waits, seceded
from skfleet._fall_back import fall_back
from skfleet._joblib import BatchResult
from skfleet._pipeline_steps import has_processes, last_step
from skfleet.blocks import is_lazy, partition_lengths
from skfleet.engine import have_short_passes, is_part_small, persisted_collections
from skfleet.model_selection._dispatch._gathered_rows import GatheredRows
from skfleet.model_selection._dispatch._requests import FitRequest, RequestReader, SearchJob
from skfleet.model_selection._dispatch._routes._route import Outcome
from skfleet.model_selection._dispatch._search_context import SearchContext
from skfleet.model_selection._dispatch._split_views import PreparedSplit, as_indexable, in_order
from skfleet.model_selection._early_stopping._validation_rows import fit_and_score
from skfleet.model_selection._paths._execution import FitOrigin

if TYPE_CHECKING:
    from skfleet.estimators.pipeline import DividedPipeline, FirstSteps

# Fits whose passes overlap: while one waits for an answer, workers are at those of the others.
N_AT_ONCE = 3
# Within which a fit that waits for tasks has ended after an interruption.
INTERRUPT_SECONDS = 1.0


class _Group(NamedTuple):
    """The prepared rows of a split, and the targets, for fits with equal first steps."""

    key: tuple[Any, ...]
    X: Any
    y: Any
    parts: tuple[Any, ...]  # numbers of the rows to train on, to test on, and to validate on
    seconds: float
    first_steps: Any


class _Split(NamedTuple):
    """Fits on a split that wait: on Dask rows, and on rows that come to this process."""

    fits: deque[FitRequest]
    to_gather: deque[list[FitRequest]]

    def remove(self, removed: Collection[FitRequest]) -> None:
        """Remove fits."""
        parts = [
            [fit for fit in fits if fit not in removed] for fits in (self.fits, *self.to_gather)
        ]
        self.fits.clear()
        self.fits.extend(parts[0])
        self.to_gather.clear()
        self.to_gather.extend(filter(None, parts[1:]))


class FitsOnBlocks:
    """Fits on rows of Dask, which this process makes one after the other, or a few at once.

    Those with equal first steps on the same split follow one another. These steps are fitted once,
    and the rows that they prepare stay in the workers' memory meanwhile, where they fit. Other
    steps than this library's are fitted by workers, on prepared rows that come to this process, and
    so is all on a split of few rows.
    In a race they are made split by split, and those of candidates that it drops can be removed.
    ``send_gathered`` sends such fits; ``n_slots`` returns how many fits workers may run at once,
    ``bounded`` a number of fits, or as many as ``n_jobs`` allows.
    """

    def __init__(
        self,
        context: SearchContext,
        requests: RequestReader,
        lock: AbstractContextManager[Any],
        *,
        is_race: bool,
        n_slots: Callable[[], int],
        bounded: Callable[[int], int],
        send_gathered: Callable[[Sequence[FitRequest]], object],
    ) -> None:
        self._context, self._requests, self._lock = context, requests, lock
        self._is_race = is_race
        self._n_slots, self._bounded, self._send_gathered = n_slots, bounded, send_gathered
        self._starter: int | None = None  # the thread that makes the fits
        self._fits: deque[FitRequest] = deque()  # on Dask rows
        self._to_gather: deque[list[FitRequest]] = deque()  # on rows that come to this process
        self._later: deque[_Split] = deque()  # of a race
        self._pipelines: dict[FitRequest, DividedPipeline] = {}
        self._first_steps: dict[int, FirstSteps] = {}
        self._group: _Group | None = None
        self._persisted = ExitStack()
        self._have_short_passes: dict[int, bool] = {}  # by job
        self._is_planned = True
        self._gathered: list[list[FitRequest]] = []  # fits under way, by their rows
        self._was_notified, self._has_failed = threading.Condition(), False

    def __bool__(self) -> bool:
        return bool(self._fits or self._to_gather or self._later)

    def __iter__(self) -> Iterator[FitRequest]:
        for part in (_Split(self._fits, self._to_gather), *self._later):
            yield from part.fits
            for fits in part.to_gather:
                yield from fits

    def offer(self, fit: FitRequest) -> bool:
        """Take a fit on Dask rows."""
        if self._context.fit_in_driver:
            self._fits.append(fit)
            self._is_planned = False
        return self._context.fit_in_driver

    def start(self) -> None:
        """Let this thread make the fits: others wait for the one that delivers results."""
        self._starter = threading.get_ident()

    def clear(self) -> list[FitRequest]:
        """Remove all fits, and what was prepared for them; return them."""
        fits = list(self)
        self._fits.clear()
        self._to_gather.clear()
        self._later.clear()
        self._pipelines.clear()
        self._first_steps.clear()
        self._close_group()
        return fits

    def remove(self, is_removed: Callable[[FitRequest], bool]) -> list[FitRequest]:
        """Remove some of the fits that wait, and return them."""
        removed = [fit for fit in self if is_removed(fit)]
        if removed:
            for part in (_Split(self._fits, self._to_gather), *self._later):
                part.remove(set(removed))
            for fit in removed:
                self._pipelines.pop(fit, None)
        return removed

    # Fits on Dask rows come first. Then, for each split and kind of other first steps:
    # 1. Prepare its rows and bring them here, while workers are at the fits on those before.
    # 2. Send the fits. Those of two kinds are under way at a time, one where two do not fit.
    # 3. Release the rows of which all fits are done.
    # 4. In a race begin with the next split, whose fits may have become fewer.
    def run(self) -> list[Outcome] | None:
        """Make the next fits on Dask rows; where none waits, let workers make all on others."""
        if threading.get_ident() != self._starter:
            return None
        if (outcomes := self._make_next()) is not None:
            return outcomes
        while self._to_gather and not self._has_failed:
            fits = self._to_gather[0]
            rows = self._gather_next()
            if isinstance(rows, Exception):
                return [Outcome(fit, BatchResult(False, rows)) for fit in fits]
            if rows is None:
                return []
            with self._lock:
                fits = self._replace(fits, rows)
            self._gathered.append(fits)
            n_at_once = 2 if rows.fits_twice else 1
            del rows
            self._send_gathered(fits)
            self._release_done(n_at_once)
        self._release_done(1)
        with self._lock:
            if not self._later or self._has_failed:
                return None
            self._fits, self._to_gather = self._later.popleft()
        return []

    def notify(self, *, has_failed: bool = False) -> None:
        """Look at the gathered fits again, or stop waiting for them after a failure."""
        with self._was_notified:
            self._has_failed |= has_failed
            self._was_notified.notify_all()

    def _release_done(self, n_at_once: int) -> None:
        """Wait until fewer kinds of fits than these are under way; release rows of the others."""
        with self._was_notified:
            self._was_notified.wait_for(
                lambda: (
                    self._has_failed
                    or sum(not _are_done(fits) for fits in self._gathered) < n_at_once
                )
            )
        for fits in filter(_are_done, list(self._gathered)):
            self._gathered.remove(fits)
            with self._lock:
                for number in {fit.job for fit in fits}:
                    self._requests.release_rows(number)

    def _make_next(self) -> list[Outcome] | None:
        """Make the next fits on Dask rows; None where no such fit waits.

        Those that are interrupted wait again.
        """
        begin = time.monotonic()
        results: dict[FitRequest, dict[str, Any] | Exception] = {}
        fits: list[FitRequest] = []
        with self._context.running_locally():
            if not self._is_planned:
                self._plan()
            if not self._fits:
                self._close_group()
                return None
            fits = self._take()
            self._run_all(fits, results)
        results = results.copy()  # fits that go on after an interruption may still add theirs
        for fit in results:
            self._pipelines.pop(fit, None)
        self._fits.extend(fit for fit in fits if fit not in results)
        outcomes = []
        for fit, result in results.items():
            if isinstance(result, Exception):
                outcomes.append(Outcome(fit, BatchResult(False, result)))
                continue
            with self._lock:
                self._requests.finish(fit, FitOrigin(refused=fit.no_analytic_score))
            seconds = (time.monotonic() - begin) / len(results)
            outcomes.append(Outcome(fit, BatchResult(True, [result]), seconds))
        return outcomes

    def _take(self) -> list[FitRequest]:
        """Take the fits that are made next: several at once where one leaves workers idle."""
        fits = [self._fits.popleft()]
        pipeline, key = self._pipelines.get(fits[0]), self._key(fits[0])
        n_at_once = self._n_at_once(fits[0])
        while self._fits and len(fits) < n_at_once:
            following = self._fits[0]
            is_whole = pipeline is None and following not in self._pipelines
            if not is_whole and self._key(following) != key:
                break
            fits.append(self._fits.popleft())
        return fits

    @property
    def n_at_once(self) -> int:
        """Number of fits on Dask rows that are made at once; 1 where none waits."""
        return self._n_at_once(self._fits[0]) if self._fits else 1

    def _n_at_once(self, fit: FitRequest) -> int:
        """Return how many fits like this one keep the workers busy."""
        job = self._requests.jobs[fit.job]
        if has_processes(job.estimators[fit.call.estimator]):
            return 1
        # One fit is on as many workers as its rows have blocks, and not while its messages travel.
        n_blocks = max(1, len(partition_lengths(job.X) or ()))
        if fit.job not in self._have_short_passes:
            self._have_short_passes[fit.job] = have_short_passes(job.X, N_AT_ONCE)
        n_overlapping = self._bounded(N_AT_ONCE) if self._have_short_passes[fit.job] else 1
        return max(self._n_slots() // n_blocks, n_overlapping)

    def _run_all(
        self, fits: Sequence[FitRequest], results: dict[FitRequest, dict[str, Any] | Exception]
    ) -> None:
        """Make fits at once, and add their results, or errors, as they come."""
        pipeline = self._pipelines.get(fits[0])
        group = None if pipeline is None else self._group_of(fits, pipeline)

        def run(fit: FitRequest) -> None:
            results[fit] = self._run(fit, group)

        if len(fits) == 1:
            run(fits[0])
            return
        pool = ThreadPoolExecutor(len(fits), thread_name_prefix="skfleet-local-fit")
        with seceded(), interruptible_waits() as waits:
            # A context can be entered by one thread at a time.
            copy = contextvars.copy_context
            futures = [pool.submit(copy().run, run, fit) for fit in fits]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                waits.interrupt()  # and what does not wait ends where it next would
                wait(futures, timeout=INTERRUPT_SECONDS)
                raise
            finally:
                pool.shutdown(wait=False)

    # 1. Divide each pipeline in its first steps and the others.
    # 2. Order the fits by split and first steps, and separate those on gathered rows. With a time
    #    budget those on Dask rows stay candidate by candidate, so that few are incomplete.
    # 3. Fit the first steps of all splits in shared passes.
    def _plan(self) -> None:
        """Prepare the fits that wait."""
        from skfleet.estimators.pipeline import FirstSteps  # not at import

        self._is_planned = True
        divided: dict[Any, DividedPipeline | None] = {}  # by candidate
        for fit in self._fits:
            if fit.candidate not in divided:
                divided[fit.candidate] = self._divided(fit)
            if (pipeline := divided[fit.candidate]) is not None:
                self._pipelines[fit] = pipeline
        order = {key: n for n, key in enumerate(dict.fromkeys(map(self._key, self._fits)))}
        fits = sorted(self._fits, key=lambda fit: order[self._key(fit)])
        needing = {fit for fit, pipeline in self._pipelines.items() if pipeline.needs_rows}
        gathered = [fit for fit in fits if fit in needing]
        self._to_gather.extend(list(group) for _, group in groupby(gathered, self._key))
        following = self._fits if self._context.seconds_left is not None else fits
        self._fits = deque(fit for fit in following if fit not in needing)
        if self._is_race:
            self._divide_by_split()
        for number in {fit.job for fit in self._pipelines}:
            job = self._requests.jobs[number]
            rows = as_indexable(job.X), as_indexable(job.y)
            steps = self._first_steps.setdefault(number, FirstSteps(*rows))
            pipelines = {
                (fit.fold, pipeline.digest): pipeline.first
                for fit, pipeline in self._pipelines.items()
                if fit.job == number and pipeline.first is not None
            }
            n_rows = len(as_indexable(job.X))
            train = {fold: in_order(job.folds[fold][0], n_rows) for fold, _ in pipelines}
            steps.fit(pipelines, train)

    def _divide_by_split(self) -> None:
        """Put off the fits of all splits but the first."""
        splits: dict[int, _Split] = {}
        for fit in self._fits:
            splits.setdefault(fit.fold, _Split(deque(), deque())).fits.append(fit)
        for fits in self._to_gather:
            splits.setdefault(fits[0].fold, _Split(deque(), deque())).to_gather.append(fits)
        self._later.extend(splits[fold] for fold in sorted(splits))
        self._fits, self._to_gather = self._later.popleft()

    def _divided(self, fit: FitRequest) -> DividedPipeline | None:
        """Return the pipeline of a fit in two; None where it is fitted as a whole."""
        from skfleet.estimators.pipeline import DividedPipeline, shares_passes  # not at import

        job = self._requests.jobs[fit.job]
        options = {**job.options, **fit.call.options}
        if self._context.may_gather and _has_few_rows(job, fit.fold):
            return DividedPipeline.whole(job.estimators[fit.call.estimator], options)
        pipeline = DividedPipeline.of(job.estimators[fit.call.estimator], options)
        if pipeline is None or pipeline.needs_rows or not options.get("return_train_score"):
            return pipeline
        # the rows that other steps are fitted on are transformed otherwise for a score
        return pipeline if pipeline.first and shares_passes(pipeline.first) else None

    def _key(self, fit: FitRequest) -> tuple[Any, ...]:
        pipeline = self._pipelines.get(fit)
        return (fit.job, fit.fold, pipeline.digest) if pipeline is not None else (fit,)

    def _run(self, fit: FitRequest, group: _Group | None) -> dict[str, Any] | Exception:
        """Fit and score on Dask rows; return the result, or the error."""
        job, call = self._requests.jobs[fit.job], fit.call
        options = {**job.options, **call.options}
        if group is None:
            estimator, parts = job.estimators[call.estimator], job.parts(call.fold)
            X, y = as_indexable(job.X), as_indexable(job.y)
        else:
            pipeline = self._pipelines[fit]
            estimator, parts, X, y = pipeline.last, group.parts, group.X, group.y
            options["parameters"] = pipeline.parameters
            fit.first_steps = group.first_steps
        estimator, (train, test, validation) = clone(estimator), (*parts, None)[:3]
        try:
            options |= {"train": train, "test": test}
            result = fit_and_score(job.function, estimator, X, y, validation, options)
        except Exception as error:
            return error
        if group is not None and "fit_time" in result:
            result["fit_time"] += group.seconds
        return result

    def _group_of(self, fits: Sequence[FitRequest], pipeline: DividedPipeline) -> _Group | None:
        """Return the prepared rows for fits; None where their first steps fail."""
        fit, key = fits[0], self._key(fits[0])
        if self._group is not None and self._group.key == key:
            return self._group
        self._close_group()
        job = self._requests.jobs[fit.job]
        parts = job.parts(fit.fold)
        prepared = None
        with fall_back("first steps that fail are fitted with the others"):  # whose fit reports it
            prepared = self._first_steps[fit.job].prepare(key[1:], pipeline.first, parts)
        if prepared is None:
            return None
        rows, y = list(prepared.parts), as_indexable(job.y)
        targets = [y[part] for part in parts] if is_lazy(job.y) else []
        if len(fits) > 1 or any(self._key(other) == key for other in self._fits):
            training = [x[0] for x in (rows, targets) if x]
            persisted = self._persisted.enter_context(persisted_collections(*training))
            for x, training_part in zip((rows, targets), persisted, strict=False):
                x[0] = training_part
        n_rows = len(as_indexable(job.X))
        X = PreparedSplit(n_rows, parts, rows)
        y = PreparedSplit(n_rows, parts, targets) if targets else y
        self._group = _Group(key, X, y, parts, prepared.seconds, prepared.steps)
        return self._group

    def _close_group(self) -> None:
        """Release the rows that were prepared for a group of fits."""
        self._group = None
        self._persisted.close()

    def _gather_next(self) -> GatheredRows | Exception | None:
        """Bring the prepared rows of a split here, or return why they do not fit.

        There are no rows after an interruption, and where they cannot be prepared: then the fits
        wait to be made on Dask rows, and report why.
        """
        fits = self._to_gather[0]
        fit, key, pipeline = fits[0], self._key(fits[0]), self._pipelines[fits[0]]
        rows: GatheredRows | Exception | None = None
        with self._context.running_locally():
            prepare = partial(self._first_steps[fit.job].prepare, key[1:], pipeline.first)
            name = type(last_step(pipeline.last)).__name__
            try:
                rows = GatheredRows.of(self._requests.jobs[fit.job], fit.fold, prepare, name)
            except Exception as error:
                rows = error
            if rows is None:
                for fit in fits:
                    del self._pipelines[fit]
                self._fits.extend(fits)
            self._to_gather.popleft()
        return rows

    def _replace(self, fits: Iterable[FitRequest], rows: GatheredRows) -> list[FitRequest]:
        """Return the fits on gathered rows that workers make in the place of others."""
        replaced = []
        for fit in fits:
            pipeline = self._pipelines.pop(fit)
            options = {**rows.options, "parameters": pipeline.parameters}
            new = self._requests.replace(fit, pipeline.last, rows.X, rows.y, rows.parts, **options)
            for request in new:
                request.first_steps = rows.first_steps
            replaced += new
        return replaced


def _has_few_rows(job: SearchJob, fold: int) -> bool:
    """Return whether the rows of a split, of many on Dask, are as few as those of a single task."""
    n_rows = len(as_indexable(job.X))
    return is_part_small(job.X, sum(map(len, job.parts(fold))) / max(n_rows, 1))


def _are_done(fits: Iterable[FitRequest]) -> bool:
    return all(fit.is_done for fit in fits)
