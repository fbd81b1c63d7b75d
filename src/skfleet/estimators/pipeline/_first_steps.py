"""First steps of pipelines on Dask rows, fitted once for all candidates of a search."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sklearn.base import clone
from sklearn.pipeline import Pipeline

from skfleet._fall_back import fall_back
from skfleet.blocks import RowSet, meta_of, with_pandas_text
from skfleet.engine import Passes, Reduction, engine_for, run_passes
from skfleet.estimators._blockwise import blocks_as_they_are
from skfleet.estimators.pipeline._fit import FittedSteps, begin_fit
from skfleet.estimators.pipeline._splits import fit_on_splits, shares_passes

# Different first steps of candidates that a pass may carry for the refit: only one is refitted.
MAX_STARTED_FITS = 4


class TransformedParts(NamedTuple):
    """The parts of a split after fitted first steps, and the seconds that these took to fit."""

    parts: tuple[Any, ...]
    seconds: float
    steps: Pipeline | None = None


class FirstSteps:
    """Fitted first steps, by split and digest, for Dask rows of known partition lengths.

    `X` and `y` are Dask rows that can be indexed by the numbers of rows.
    """

    def __init__(self, X: Any, y: Any) -> None:
        self._X, self._y = X, y
        self._fitted: dict[tuple[int, bytes], Any] = {}
        self._seconds = 0.0

    def fit(
        self, pipelines: Mapping[tuple[int, bytes], Pipeline], train: Mapping[int, Any]
    ) -> None:
        """Fit several in shared passes, by the rows to train on of each split.

        Where any fails, or cannot share passes, each is fitted when its rows are asked for.
        """
        shared = {k: v for k, v in pipelines.items() if k not in self._fitted and shares_passes(v)}
        if not shared:
            return
        start = time.perf_counter()
        n_rows = len(self._X)
        fits = [
            (steps, RowSet.from_indices(train[fold], n_rows)) for (fold, _), steps in shared.items()
        ]
        y = getattr(self._y, "collection", self._y)
        with fall_back("first steps are fitted one by one"):
            self._fitted |= zip(shared, fit_on_splits(fits, self._X.collection, y), strict=True)
            self._seconds = (time.perf_counter() - start) / len(shared)

    def prepare(
        self, key: tuple[int, bytes], steps: Pipeline | None, parts: Sequence[Any]
    ) -> TransformedParts:
        """Return the parts of a split, transformed lazily by first steps, if there are any.

        These are fitted on the first part.
        """
        rows = [self._X[part] for part in parts]
        if steps is None:
            return TransformedParts(tuple(rows), 0.0)
        if key in self._fitted:
            fitted = self._fitted[key]
            transformed = tuple(map(fitted.prepare_all, rows))
            return TransformedParts(transformed, self._seconds, fitted.pipeline)
        start = time.perf_counter()
        steps, y = clone(steps), None if self._y is None else self._y[parts[0]]
        transformed = steps.fit_transform(rows[0], y), *map(steps.transform, rows[1:])
        return TransformedParts(transformed, time.perf_counter() - start, steps)


class RefitFirstSteps:
    """Fits of first steps on all rows of a Dask collection, for the last fit of a search.

    Their first pass is made by the pass that scores the candidates.
    """

    def __init__(self) -> None:
        self._X: Any = None
        self._started: dict[bytes, SuspendedFit] = {}
        self._results: dict[bytes, Any] = {}

    def start(self, pipelines: Iterable[Pipeline], X: Any, y: Any) -> list[Reduction]:
        """Start to fit pipelines of first steps; return the reductions of their first pass."""
        self._X, self._results = X, {}
        different = {digest_of(steps): steps for steps in pipelines}
        if len(different) > MAX_STARTED_FITS:
            different = {}
        started = {}
        for digest, steps in different.items():
            fit = None
            with fall_back("first steps are not fitted while scoring"):  # the refit raises it
                fit = start_fit(steps, X, y) if shares_passes(steps) else None
            if fit is not None:
                started[digest] = fit
        self._started = started
        return [fit.reduction for fit in started.values()]

    def set_results(self, results: Iterable[Any]) -> None:
        """Set the results of the first pass, in the order of the reductions."""
        self._results = dict(zip(self._started, results, strict=True))

    def finish(self, steps: Pipeline, X: Any) -> FittedSteps | None:
        """Return fitted steps; None where these were not started on the same rows."""
        digest = digest_of(steps)
        if X is not self._X or digest not in self._results:
            return None
        return self._started[digest].finish(self._results.pop(digest))


class SuspendedFit:
    """A fit of a pipeline of transformers on Dask rows, that waits for the result of a pass."""

    def __init__(self, passes: Passes, first: Reduction, X: Any, y: Any) -> None:
        self._passes, self._X, self._y = passes, X, y
        self.reduction = first

    def finish(self, result: Any) -> FittedSteps:
        """Finish the fit with the result of its first pass; it may take further ones."""
        rows = blocks_as_they_are(self._X, self._y)
        passes, engine = _continued(self._passes, result), engine_for(rows)
        fitted = run_passes(
            passes, engine, rows, answer=lambda request: request.run(self._X, self._y)
        )
        return FittedSteps(fitted.model)


def start_fit(steps: Pipeline, X: Any, y: Any) -> SuspendedFit | None:
    """Start to fit a clone of a pipeline on Dask rows; None where it does not begin with a pass."""
    passes = begin_fit(steps, with_pandas_text(meta_of(X)), cross_fit=False)
    first = next(passes, None)
    return SuspendedFit(passes, first, X, y) if isinstance(first, Reduction) else None


def digest_of(steps: Pipeline) -> bytes:
    """Return what is equal for equal first steps."""
    from skfleet.engine import Pickled  # which imports Dask

    return Pickled.dumps(steps).digest()


def _continued(passes: Passes, result: Any) -> Passes:
    """Continue a computation that waits for a result."""
    while True:
        try:
            request = passes.send(result)
        except StopIteration as end:
            return end.value
        result = yield request
