"""Fits on Dask rows: made by this process, or on workers, of rows that it prepares and gathers."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import clone

from skfleet._fall_back import fall_back
from skfleet._pipeline_steps import last_step
from skfleet.blocks import compute_together, is_lazy, n_rows_of, partition_lengths, take_rows
from skfleet.engine import (
    NarrowRows,
    check_fits_in_memory,
    engine_for,
    gather_rows,
    joined_blocks,
    persisted_collections,
)
from skfleet.model_selection._dispatch._requests import FitRequest, RequestReader, SearchJob
from skfleet.model_selection._dispatch._search_context import SearchContext
from skfleet.model_selection._dispatch._split_views import (
    PreparedSplit,
    as_indexable,
    collection_of,
    in_order,
)
from skfleet.model_selection._early_stopping import stopping_early

if TYPE_CHECKING:
    from skfleet.estimators.pipeline import FirstSteps, SplitPipeline

# A fit with its result, or its error.
Outcome = tuple[FitRequest, dict[str, Any] | Exception]


class _Group(NamedTuple):
    """The prepared rows of a split, and the targets, for fits with equal first steps."""

    key: tuple[Any, ...]
    X: Any
    y: Any
    parts: tuple[Any, ...]  # numbers of the rows to train on, to test on, and to validate on
    seconds: float
    first_steps: Any


class LocalFits:
    """Fits on rows of Dask that wait for this process.

    Those with equal first steps on the same split follow one another. These steps are fitted once,
    and the rows that they prepare stay in the workers' memory meanwhile, where they fit. Other
    steps than this library's get the prepared rows from this process.
    """

    def __init__(
        self, context: SearchContext, requests: RequestReader, n_slots: Callable[[], int]
    ) -> None:
        self._context, self._requests, self._n_slots = context, requests, n_slots
        self._fits: deque[FitRequest] = deque()  # on Dask rows
        self._gathered: deque[list[FitRequest]] = deque()  # on rows that come to this process
        self._pipelines: dict[FitRequest, SplitPipeline] = {}
        self._first_steps: dict[int, FirstSteps] = {}
        self._group: _Group | None = None
        self._persisted = ExitStack()
        self._is_planned = True

    def __bool__(self) -> bool:
        return bool(self._fits or self._gathered)

    def __iter__(self) -> Iterator[FitRequest]:
        yield from self._fits
        for fits in self._gathered:
            yield from fits

    def add(self, fits: Iterable[FitRequest]) -> None:
        """Add fits that are to be made."""
        n_before = len(self._fits)
        self._fits.extend(fits)
        self._is_planned &= len(self._fits) == n_before

    def clear(self) -> None:
        """Remove all fits, and what was prepared for them."""
        self._fits.clear()
        self._gathered.clear()
        self._pipelines.clear()
        self._first_steps.clear()
        self._close_group()

    def run_next(self) -> list[Outcome] | None:
        """Make the next fits on Dask rows; None where no such fit waits.

        Those that are interrupted wait again.
        """
        outcomes: dict[FitRequest, dict[str, Any] | Exception] = {}
        fits: list[FitRequest] = []
        with self._context.running_locally():
            if not self._is_planned:
                self._plan()
            if not self._fits:
                self._close_group()
                return None
            fits = self._take()
            for fit, outcome in zip(fits, self._run_all(fits), strict=True):
                outcomes[fit] = outcome
                self._pipelines.pop(fit, None)
        self._fits.extend(fit for fit in fits if fit not in outcomes)
        return list(outcomes.items())

    def _take(self) -> list[FitRequest]:
        """Take the fits that are made next: several at once where one leaves workers idle."""
        fits = [self._fits.popleft()]
        pipeline, key = self._pipelines.get(fits[0]), self._key(fits[0])
        n_blocks = max(1, len(partition_lengths(self._requests.jobs[fits[0].job].X) or ()))
        # A fit keeps as many workers busy as its rows have blocks.
        while self._fits and len(fits) < self._n_slots() // n_blocks:
            following = self._fits[0]
            is_whole = pipeline is None and following not in self._pipelines
            if not is_whole and self._key(following) != key:
                break
            fits.append(self._fits.popleft())
        return fits

    def _run_all(self, fits: Sequence[FitRequest]) -> Iterator[dict[str, Any] | Exception]:
        """Yield the results, or errors, of fits that are made at once."""
        pipeline = self._pipelines.get(fits[0])
        group = None if pipeline is None else self._group_of(fits, pipeline)
        if len(fits) == 1:
            yield self._run(fits[0], group)
            return
        pool = ThreadPoolExecutor(len(fits), thread_name_prefix="skfleet-local-fit")
        try:
            # A context can be entered by one thread at a time.
            copy = contextvars.copy_context
            futures = [pool.submit(copy().run, self._run, fit, group) for fit in fits]
            yield from (future.result() for future in futures)
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
        divided: dict[Any, SplitPipeline | None] = {}  # by candidate
        for fit in self._fits:
            if fit.candidate not in divided:
                divided[fit.candidate] = self._divided(fit)
            if (pipeline := divided[fit.candidate]) is not None:
                self._pipelines[fit] = pipeline
        order = {key: n for n, key in enumerate(dict.fromkeys(map(self._key, self._fits)))}
        fits = sorted(self._fits, key=lambda fit: order[self._key(fit)])
        needing = {fit for fit, pipeline in self._pipelines.items() if pipeline.needs_rows}
        gathered = [fit for fit in fits if fit in needing]
        self._gathered.extend(list(group) for _, group in groupby(gathered, self._key))
        following = self._fits if self._context.seconds_left is not None else fits
        self._fits = deque(fit for fit in following if fit not in needing)
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

    def _divided(self, fit: FitRequest) -> SplitPipeline | None:
        """Return the pipeline of a fit in two; None where it is fitted as a whole."""
        from skfleet.estimators.pipeline import SplitPipeline, shares_passes  # not at import

        job = self._requests.jobs[fit.job]
        options = {**job.options, **fit.call.options}
        pipeline = SplitPipeline.of(job.estimators[fit.call.estimator], options)
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
            estimator, parts = job.estimators[call.estimator], _parts_of(job, call.fold)
            X, y = as_indexable(job.X), as_indexable(job.y)
        else:
            pipeline = self._pipelines[fit]
            estimator, parts, X, y = pipeline.last, group.parts, group.X, group.y
            options["parameters"] = pipeline.parameters
            fit.first_steps = group.first_steps
        estimator, (train, test, validation) = clone(estimator), (*parts, None)[:3]
        try:
            with stopping_early(estimator, X, y, validation, options.get("fit_params")) as added:
                result = job.function(estimator, X, y, train=train, test=test, **options)
        except Exception as error:
            return error
        result |= added
        if group is not None and "fit_time" in result:
            result["fit_time"] += group.seconds
        return result

    def _group_of(self, fits: Sequence[FitRequest], pipeline: SplitPipeline) -> _Group | None:
        """Return the prepared rows for fits; None where their first steps fail."""
        fit, key = fits[0], self._key(fits[0])
        if self._group is not None and self._group.key == key:
            return self._group
        self._close_group()
        job = self._requests.jobs[fit.job]
        parts = _parts_of(job, fit.fold)
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

    def next_gathered(self) -> tuple[list[FitRequest], GatheredRows | Exception | None] | None:
        """Bring the prepared rows of a split here, for fits on workers; None where none wait.

        There are no rows after an interruption, and where they cannot be prepared: then the fits
        wait to be made on Dask rows, and report why.
        """
        if not self._gathered:
            return None
        fits = self._gathered[0]
        rows: GatheredRows | Exception | None = None
        with self._context.running_locally():
            try:
                rows = self._gather(fits[0], self._pipelines[fits[0]])
            except Exception as error:
                rows = error
            if rows is None:
                for fit in fits:
                    del self._pipelines[fit]
                self._fits.extend(fits)
            self._gathered.popleft()
        return fits, rows

    def _gather(self, fit: FitRequest, pipeline: SplitPipeline) -> GatheredRows | None:
        """Return the prepared rows of a split, those to train on first, with their targets.

        None where they cannot be prepared; raise where they do not fit.
        """
        job, name = self._requests.jobs[fit.job], type(last_step(pipeline.last)).__name__
        parts = _parts_of(job, fit.fold)
        if len(parts) > 2 and np.array_equal(parts[1], parts[2]):
            parts = parts[:2]  # rows to test on are those to validate on
        prepare, blocks, X = self._first_steps[fit.job].prepare, None, None
        with fall_back("rows that cannot be prepared are not gathered"):
            prepared = prepare(self._key(fit)[1:], pipeline.first, parts)
            blocks = joined_blocks(*prepared.parts)
        if blocks is None:
            return None
        check_fits_in_memory(blocks, name)
        with fall_back("rows that cannot be prepared are not gathered"):
            X = gather_rows(blocks, name)
        if X is None:
            return None
        (job.y,) = compute_together(job.y)
        numbers, n_rows = np.concatenate(parts), len(as_indexable(job.X))

        def rows_of(values: Any) -> Any:
            (values,) = compute_together(collection_of(values))
            is_per_row = hasattr(values, "shape") and n_rows_of(values) == n_rows
            return take_rows(values, numbers) if is_per_row else values

        params = {
            name: {key: rows_of(value) for key, value in job.options[name].items()}
            for name in ("fit_params", "score_params")
            if job.options.get(name)
        }
        ends = np.cumsum([len(part) for part in parts])
        gathered = [np.arange(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
        if len(job.folds[fit.fold]) > len(parts):
            gathered.append(gathered[1].copy())
        y = None if job.y is None else take_rows(job.y, numbers)
        fits_twice = 3 * X.nbytes <= engine_for(blocks).memory_limit  # and the parts of one
        return GatheredRows(X, y, tuple(gathered), params, fits_twice, prepared.steps)

    def replace(self, fits: Iterable[FitRequest], rows: GatheredRows) -> list[FitRequest]:
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


def _parts_of(job: SearchJob, fold: int) -> tuple[Any, ...]:
    """Return the numbers of the rows to train on, to test on, and to validate on, in order."""
    n_rows = len(as_indexable(job.X))
    return tuple(in_order(part, n_rows) for part in job.folds[fold])


class GatheredRows(NamedTuple):
    """Rows of a split in this process, with their targets, and options of scikit-learn's function.

    The parts are the numbers of the rows to train on, to test on, and to validate on, and the
    options parameters per row. `fits_twice` is true where workers can hold another split too.
    `first_steps` are those that prepared the rows.
    """

    X: NarrowRows
    y: Any
    parts: tuple[Any, ...]
    options: dict[str, Any]
    fits_twice: bool
    first_steps: Any
