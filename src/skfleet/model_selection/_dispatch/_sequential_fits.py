"""Fits on Dask rows, or with validation rows, in the calling process where no fleet makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joblib.parallel import ParallelBackendBase

from skfleet._sklearn_private import is_fit
from skfleet.blocks import n_rows_of
from skfleet.model_selection._dispatch._search_context import current_context
from skfleet.model_selection._dispatch._split_views import in_order
from skfleet.model_selection._early_stopping._validation_rows import fit_and_score
from skfleet.model_selection._records._evaluations import CandidateResults


class SequentialFits(ParallelBackendBase):
    """Joblib backend that makes the fits of a search one after the other.

    With ``n_jobs=1`` joblib calls scikit-learn's function itself, without validation rows, and with
    parts of Dask rows in the order of a splitter's numbers. The fits are of the caller's own
    objects, which need not be picklable: no dispatcher reads them.
    ``nested`` is the backend of Parallel calls within a fit.
    """

    def __init__(self, nested: Any) -> None:
        super().__init__()
        self._nested = nested
        self._evaluation: CandidateResults | None = None
        self._n_calls = 0

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return a number of calls for which joblib asks a backend."""
        return 2

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Return the backend of Parallel calls within a fit."""
        return self._nested, None

    def start_call(self) -> None:
        """Start a Parallel call."""
        self._evaluation = current_context().begin_evaluation()
        self._n_calls = 0

    def submit(self, func: Any, callback: Callable[[Any], Any] | None = None) -> Any:
        """Return a batch of calls, which run when joblib retrieves it."""
        return func, callback

    def retrieve_result(self, out: Any, timeout: float | None = None) -> list[Any]:
        """Run a batch of calls, and let joblib submit the next."""
        batch, callback = out
        batch.items = [(self._call, call, {}) for call in batch.items]
        results: list[Any] = batch()
        callback(results)
        return results

    def _call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        context = current_context()
        if self._evaluation is None or not is_fit(function, args, kwargs):
            return function(*args, **kwargs)
        estimator, X, y = args
        parts: tuple[Any, ...] = (kwargs["train"], kwargs["test"])
        if context.validation_rows is not None:
            parts = context.validation_rows.split(kwargs["train"], kwargs["test"], y)
        if context.fit_in_driver:
            parts = tuple(in_order(part, n_rows_of(X)) for part in parts)
        train, test, validation = (*parts, None)[:3]
        options = {**kwargs, "train": train, "test": test}
        result = fit_and_score(function, estimator, X, y, validation, options)
        self._evaluation.results[self._n_calls] = result
        self._evaluation.hide_failures()
        self._n_calls += 1
        return result
