"""First steps of pipelines on Dask rows, fitted once per split for all candidates."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.pipeline import Pipeline

from skfleet.blocks import RowSet
from skfleet.engine import Pickled
from skfleet.model_selection._dispatch._blockwise_steps import (
    can_divide,
    n_blockwise_steps,
    n_steps_of,
)
from skfleet.model_selection._dispatch._split_views import as_indexable

logger = logging.getLogger(__name__)


class PreparedStep(TransformerMixin, BaseEstimator):
    """Stand-in for a step that has transformed the rows already; it has all parameters."""

    def set_params(self, **params: Any) -> Self:
        """Ignore the parameters, which the step itself has."""
        return self

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn nothing."""
        return self

    def transform(self, X: Any) -> Any:
        """Return the rows."""
        return X

    def __sklearn_is_fitted__(self) -> bool:
        return True


@dataclass(frozen=True)
class SplitPipeline:
    """A candidate's pipeline in two: first steps that learn on Dask rows, and what follows them.

    `last` takes `parameters`. Where it `needs_rows`, these come to this process. Candidates with
    the same `digest` have equal first steps.
    """

    first: Pipeline | None
    digest: bytes
    last: Any
    parameters: dict[str, Any]
    needs_rows: bool

    @classmethod
    def of(cls, estimator: Any, options: Mapping[str, Any]) -> SplitPipeline | None:
        """Return the two parts; None for a candidate that is fitted as a whole on Dask rows.

        `options` are the keyword arguments of scikit-learn's function.
        """
        parameters = dict(options.get("parameters") or {})
        try:
            candidate = clone(estimator).set_params(**clone(parameters, safe=False))
        except Exception:  # the fit itself raises it
            return None
        n_first, n_steps = n_blockwise_steps(candidate), n_steps_of(candidate)
        needs_rows = n_first < n_steps
        n_first = min(n_first, n_steps - 1)
        if not can_divide(candidate, n_first, parameters, options):
            return cls(None, b"", clone(estimator), parameters, True) if needs_rows else None
        first, names = candidate[:n_first], [name for name, _ in candidate.steps]
        steps = [(name, PreparedStep()) for name in names[:n_first]]
        if needs_rows and options.get("verbose", 0) < 2:
            steps = []  # stand-ins cost a copy of the rows, and only show what they stand for
        last = Pipeline(steps + clone(estimator).steps[n_first:], verbose=estimator.verbose)
        last_names = {name for name, _ in last.steps}
        own = {
            name: value
            for name, value in parameters.items()
            if name.partition("__")[0] in last_names and name not in names[:n_first]
        }
        digest = Pickled.dumps(first).digest()
        return cls(first, digest, last, own, needs_rows)


class TransformedParts(NamedTuple):
    """The parts of a split after fitted first steps, and the seconds that these took to fit."""

    parts: tuple[Any, ...]
    seconds: float
    steps: Pipeline | None = None


def joined_pipeline(first: Pipeline, last: Pipeline) -> Pipeline:
    """Return a pipeline whose first steps were fitted by themselves."""
    steps = [(name, step) for name, step in last.steps if not isinstance(step, PreparedStep)]
    return Pipeline([*first.steps, *steps], verbose=last.verbose)


class FirstSteps:
    """Fitted first steps, by split and digest, for Dask rows of known partition lengths."""

    def __init__(self, X: Any, y: Any) -> None:
        self._X, self._y = as_indexable(X), as_indexable(y)
        self._fitted: dict[tuple[int, bytes], Any] = {}
        self._seconds = 0.0

    def fit(
        self, pipelines: Mapping[tuple[int, bytes], Pipeline], train: Mapping[int, Any]
    ) -> None:
        """Fit several in shared passes, by the rows to train on of each split.

        Where any fails, or cannot share passes, each is fitted when its rows are asked for.
        """
        from skfleet.estimators.pipeline import fit_on_splits, shares_passes  # not at import

        shared = {k: v for k, v in pipelines.items() if k not in self._fitted and shares_passes(v)}
        if not shared:
            return
        start = time.perf_counter()
        n_rows = len(self._X)
        fits = [
            (steps, RowSet.from_indices(train[fold], n_rows)) for (fold, _), steps in shared.items()
        ]
        y = getattr(self._y, "collection", self._y)
        try:
            fitted = fit_on_splits(fits, self._X.collection, y)
        except Exception:
            logger.debug("first steps are fitted one by one", exc_info=True)
            return
        self._fitted |= zip(shared, fitted, strict=True)
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


class PreparedSplit:
    """Rows, or targets, that scikit-learn indexes by the very objects that name their parts."""

    def __init__(self, n_rows: int, names: Sequence[Any], parts: Sequence[Any]) -> None:
        self._names, self._parts = names, parts
        self.shape, self.ndim = (n_rows, *parts[0].shape[1:]), parts[0].ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        name = key[0] if isinstance(key, tuple) and len(key) == 2 and key[1] is ... else key
        return next(p for n, p in zip(self._names, self._parts, strict=True) if n is name)
