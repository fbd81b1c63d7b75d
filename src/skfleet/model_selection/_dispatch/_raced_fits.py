"""The fits of a call in a race: their scores, and what stands for those that are not made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from skfleet._joblib import BatchResult
from skfleet.model_selection._dispatch._requests import FitRequest
from skfleet.model_selection._dispatch._routes._route import Outcome
from skfleet.model_selection._racing._race import Race
from skfleet.model_selection._records._evaluations import CandidateResults


class RacedFits:
    """Fits in a race, which are compared by a metric."""

    def __init__(self, race: Race, metric: Any) -> None:
        self.race, self._metric = race, metric
        self._success: dict[str, Any] | None = None  # the first result of a fit that did not fail

    @classmethod
    def of(cls, evaluation: CandidateResults) -> RacedFits | None:
        """Return the fits of an evaluation, or None where they are in no race."""
        return None if evaluation.race is None else cls(evaluation.race, evaluation.metric)

    def record(self, outcomes: Iterable[Outcome]) -> None:
        """Record the scores of fits that were made, or whose results were known."""
        ended = [own for own in outcomes if own.result.ok and own.result.has_run]
        for outcome in ended:
            if outcome.is_new and outcome.seconds is None:  # scored from sums, on all splits
                for report in outcome.fit.callbacks:
                    self.race.spare(report.place.candidate)
        for outcome in ended:
            (result,) = outcome.result.value
            if self._success is None and result["fit_error"] is None:
                self._success = result
            for report in outcome.fit.callbacks:
                place = report.place
                self.race.record(place.candidate, place.split, score_of(result, self._metric))

    def has_dropped(self, fit: FitRequest) -> bool:
        """Return whether the race has dropped the candidate of a fit that waits."""
        return fit.place.candidate in self.race.drops

    def withdrawn(self) -> BatchResult:
        """Return a result for a fit of a candidate that the race has dropped."""
        return BatchResult(True, [self.stand_in(None)], has_run=False, is_withdrawn=True)

    def stand_in(self, error: str | None) -> dict[str, Any]:
        """Return a result for a fit that is not made, or nothing as long as there is no other.

        Its numbers do not count. They are those of a fit that was made, so that scikit-learn does
        not warn of any that is not finite.
        """
        return {} if self._success is None else {**self._success, "fit_error": error}


def score_of(result: dict[str, Any], metric: Any) -> float:
    """Return the score by which a fit is compared."""
    scores = result["test_scores"]
    if not hasattr(scores, "keys"):
        return float(scores)
    if len(scores) > 1 and metric not in scores:
        names = ", ".join(map(repr, scores))
        raise ValueError(
            f"refit must name the metric by which racing compares candidates, one of {names}. Got "
            f"{metric!r} instead. Set refit to one of these names, or leave racing out."
        )
    return float(scores[metric] if metric in scores else next(iter(scores.values())))
