"""The route of fits whose results a checkpoint has."""

from __future__ import annotations

from typing import Any

from skfleet._joblib import BatchResult
from skfleet.model_selection._dispatch._requests import FitRequest
from skfleet.model_selection._dispatch._routes._route import Outcome
from skfleet.model_selection._dispatch._search_context import SearchContext


class RecordedFits:
    """Fits that an earlier run of the search has made."""

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self._results: dict[FitRequest, dict[str, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._results)

    def offer(self, fit: FitRequest) -> bool:
        """Take a fit that the checkpoint has."""
        records, key = self._context.records, fit.checkpoint_key
        result = records.results.get(key) if records is not None and key else None
        if result is not None:
            self._results[fit] = result
        return result is not None

    def run(self) -> list[Outcome] | None:
        """Return the recorded results."""
        results, self._results = self._results, {}
        return [
            Outcome(fit, BatchResult(True, [result], from_checkpoint=True))
            for fit, result in results.items()
        ] or None

    def clear(self) -> list[FitRequest]:
        """Remove all fits, and return them."""
        results, self._results = self._results, {}
        return list(results)
