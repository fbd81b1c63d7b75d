"""First steps of the last fit of a search, fitted from the pass that scores the candidates."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sklearn.pipeline import Pipeline

from skfleet.engine import Pickled, Reduction

if TYPE_CHECKING:
    from skfleet.estimators.pipeline import FittedSteps, SuspendedFit

logger = logging.getLogger(__name__)

# Different first steps of candidates that the pass may carry: only one of them is refitted.
MAX_STARTED_FITS = 4


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
        from skfleet.estimators.pipeline import shares_passes, start_fit  # not at import

        self._X, self._results = X, {}
        different = {_digest(steps): steps for steps in pipelines}
        if len(different) > MAX_STARTED_FITS:
            different = {}
        started = {}
        for digest, steps in different.items():
            try:
                fit = start_fit(steps, X, y) if shares_passes(steps) else None
            except Exception:  # the last fit raises it
                logger.debug("first steps are not fitted while scoring", exc_info=True)
                continue
            if fit is not None:
                started[digest] = fit
        self._started = started
        return [fit.reduction for fit in started.values()]

    def set_results(self, results: Iterable[Any]) -> None:
        """Set the results of the first pass, in the order of the reductions."""
        self._results = dict(zip(self._started, results, strict=True))

    def finish(self, steps: Pipeline, X: Any) -> FittedSteps | None:
        """Return fitted steps; None where these were not started on the same rows."""
        digest = _digest(steps)
        if X is not self._X or digest not in self._results:
            return None
        return self._started[digest].finish(self._results.pop(digest))


def _digest(steps: Pipeline) -> bytes:
    return Pickled.dumps(steps).digest()
