"""Fits that this process makes, one after the other, each of which submits tasks of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from sklearn.base import clone

from skfleet.blocks import is_lazy
from skfleet.engine import persisted_collections
from skfleet.estimators.compose._split_fits import shares_passes
from skfleet.model_selection._dispatch._context import SearchContext
from skfleet.model_selection._dispatch._first_steps import (
    FirstSteps,
    PreparedSplit,
    SplitPipeline,
)
from skfleet.model_selection._dispatch._requests import FitRequest, SearchJob
from skfleet.model_selection._dispatch._split_views import as_indexable, in_order


class _Group(NamedTuple):
    """The prepared rows of a split, and the targets, for fits with equal first steps."""

    key: tuple[int, int, bytes]
    rows: tuple[Any, Any, Any, Any]  # X, y, and the numbers of those to train on and to test on
    seconds: float


class LocalFits:
    """Fits on rows of Dask that wait for this process.

    Those with equal first steps on the same split follow one another. These steps are fitted once,
    and the rows that they prepare stay in the workers' memory meanwhile, where they fit.
    """

    def __init__(self, context: SearchContext, jobs: Sequence[SearchJob]) -> None:
        self._context, self._jobs = context, jobs
        self._fits: deque[FitRequest] = deque()
        self._pipelines: dict[FitRequest, SplitPipeline] = {}
        self._first_steps: dict[int, FirstSteps] = {}
        self._group: _Group | None = None
        self._persisted = ExitStack()
        self._is_planned = True

    def __bool__(self) -> bool:
        return bool(self._fits)

    def __iter__(self) -> Iterator[FitRequest]:
        return iter(self._fits)

    def add(self, fits: Iterable[FitRequest]) -> None:
        """Add fits that are to be made."""
        n_before = len(self._fits)
        self._fits.extend(fits)
        self._is_planned &= len(self._fits) == n_before

    def clear(self) -> None:
        """Remove all fits, and what was prepared for them."""
        self._fits.clear()
        self._pipelines.clear()
        self._first_steps.clear()
        self._close_group()

    def run_next(self) -> tuple[FitRequest, dict[str, Any] | Exception | None] | None:
        """Run a fit and return its result, or the error; None where no fit waits.

        There is no result of a fit that was interrupted, which waits again.
        """
        if not self._fits:
            return None
        outcome: dict[str, Any] | Exception | None = None
        with self._context.running_locally():
            if not self._is_planned:
                self._plan()
            fit = self._fits[0]
            try:
                outcome = self._run(fit)
            except Exception as error:
                outcome = error
        fit = self._fits[0]
        if outcome is not None:
            self._fits.popleft()
            self._pipelines.pop(fit, None)
        if not self._fits:
            self.clear()
        return fit, outcome

    # 1. Divide each pipeline in its first steps and the others.
    # 2. Order the fits by split and first steps; with a time budget they stay candidate by
    #    candidate, so that few are incomplete when it is over.
    # 3. Fit the first steps of all splits in shared passes.
    def _plan(self) -> None:
        """Prepare the fits that wait."""
        self._is_planned = True
        for fit in self._fits:
            if fit not in self._pipelines and (pipeline := self._divided(fit)) is not None:
                self._pipelines[fit] = pipeline
        if self._context.seconds_left is None:
            order = {key: n for n, key in enumerate(dict.fromkeys(map(self._key, self._fits)))}
            self._fits = deque(sorted(self._fits, key=lambda fit: order[self._key(fit)]))
        for number in {fit.job for fit in self._pipelines}:
            job = self._jobs[number]
            steps = self._first_steps.setdefault(number, FirstSteps(job.X, job.y))
            fits = {f: pipeline for f, pipeline in self._pipelines.items() if f.job == number}
            pipelines = {(f.fold, pipeline.digest): pipeline.first for f, pipeline in fits.items()}
            steps.fit(pipelines, {f.fold: in_order(job.folds[f.fold][0]) for f in fits})

    def _divided(self, fit: FitRequest) -> SplitPipeline | None:
        """Return the pipeline of a fit in two; None where it is fitted as a whole."""
        job = self._jobs[fit.job]
        fit_params = job.options.get("fit_params")
        pipeline = SplitPipeline.of(
            job.estimators[fit.call.estimator], fit.call.options, fit_params
        )
        if pipeline is not None and job.options.get("return_train_score"):
            # the rows that some steps are fitted on are transformed otherwise for a score
            return pipeline if shares_passes(pipeline.first) else None
        return pipeline

    def _key(self, fit: FitRequest) -> tuple[Any, ...]:
        pipeline = self._pipelines.get(fit)
        return (fit.job, fit.fold, pipeline.digest) if pipeline is not None else (fit,)

    def _run(self, fit: FitRequest) -> dict[str, Any]:
        """Fit and score on Dask rows."""
        job, call = self._jobs[fit.job], fit.call
        options = {**job.options, **call.options}
        pipeline = self._pipelines.get(fit)
        group = None if pipeline is None else self._group_of(fit, pipeline)
        if pipeline is None or group is None:
            train, test = map(in_order, job.folds[call.fold])
            rows = as_indexable(job.X), as_indexable(job.y)
            estimator = clone(job.estimators[call.estimator])
            return job.function(estimator, *rows, train=train, test=test, **options)
        X, y, train, test = group.rows
        options["parameters"] = pipeline.parameters
        result = job.function(clone(pipeline.rest), X, y, train=train, test=test, **options)
        if "fit_time" in result:
            result["fit_time"] += group.seconds
        return result

    def _group_of(self, fit: FitRequest, pipeline: SplitPipeline) -> _Group | None:
        """Return the prepared rows for a fit; None where its first steps fail."""
        key = (fit.job, fit.fold, pipeline.digest)
        if self._group is not None and self._group.key == key:
            return self._group
        self._close_group()
        job = self._jobs[fit.job]
        train, test = map(in_order, job.folds[fit.fold])
        try:
            prepared = self._first_steps[fit.job].prepare(key[1:], pipeline.first, train, test)
        except Exception:  # the fit itself reports it
            return None
        y = as_indexable(job.y)
        training = [prepared.train, y[train]] if is_lazy(job.y) else [prepared.train]
        if sum(self._key(other) == key for other in self._fits) > 1:
            training = self._persisted.enter_context(persisted_collections(*training))
        n_rows, names = len(as_indexable(job.X)), (train, test)
        X = PreparedSplit(n_rows, names, (training[0], prepared.test))
        if is_lazy(job.y):
            y = PreparedSplit(n_rows, names, (training[1], y[test]))
        self._group = _Group(key, (X, y, train, test), prepared.seconds)
        return self._group

    def _close_group(self) -> None:
        """Release the rows that were prepared for a group of fits."""
        self._group = None
        self._persisted.close()
