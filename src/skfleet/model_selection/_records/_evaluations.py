"""Results of the candidates evaluated so far, and the attributes of an interrupted search."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from skfleet._sklearn_private import format_results, scorers_in_use, select_best_index
from skfleet.model_selection._early_stopping._validation_rows import best_iterations


class LaterIteration(NamedTuple):
    """Fits of a later iteration: candidates, and resources and rows in multiples of those now."""

    n_candidates: int
    resources: float
    rows: float


@dataclass
class CandidateResults:
    """Candidates that are fitted on the same splits, and the results of their fits.

    ``more_results`` are further columns of ``cv_results_``, ``later`` the planned iterations that
    follow. Fits are numbered by candidate, and within a candidate by split.
    """

    candidates: Sequence[Mapping[str, Any]]
    n_splits: int
    more_results: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    later: Sequence[LaterIteration] = ()
    results: dict[int, dict[str, Any]] = field(default_factory=dict)  # by number of the fit

    def watch(self, number: int, report: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a callback that records the result of a fit before it calls `report`."""

        def record_and_report(outcome: Any) -> Any:
            if outcome.ok:
                (self.results[number],) = outcome.value
            return report(outcome)

        return record_and_report

    @property
    def all_fits(self) -> list[dict[str, Any]]:
        """Results of the fits of all candidates, once they have ended."""
        return self.fits_of(range(len(self.candidates)))

    @property
    def resources(self) -> float:
        """Resources of each fit, in a search that has several amounts of them."""
        return float(self.more_results.get("n_resources", [1])[0])

    @property
    def complete(self) -> list[int]:
        """Numbers of the candidates of which all splits have been scored."""
        numbers = range(len(self.candidates))
        return [n for n in numbers if self.results.keys() >= set(self._fit_numbers(n))]

    def fits_of(self, candidates: Sequence[int]) -> list[dict[str, Any]]:
        """Return the results of candidates' fits, in the order of the splits."""
        return [self.results[number] for c in candidates for number in self._fit_numbers(c)]

    def _fit_numbers(self, candidate: int) -> range:
        return range(candidate * self.n_splits, (candidate + 1) * self.n_splits)


def set_results(search: Any, evaluations: Sequence[CandidateResults]) -> bool:
    """Set the attributes of an interrupted scikit-learn search, but for ``best_estimator_``.

    ``cv_results_`` has the candidates of which all splits have been scored. If there is none, or
    all of them failed, no attribute is set, and False is returned.
    """
    candidates: list[Any] = []
    fits: list[dict[str, Any]] = []
    more_results: dict[str, list[Any]] = {}
    n_compared = 0  # candidates up to the last complete evaluation
    for evaluation in evaluations:
        complete = evaluation.complete
        candidates += [evaluation.candidates[n] for n in complete]
        fits += evaluation.fits_of(complete)
        for name, values in evaluation.more_results.items():
            more_results.setdefault(name, []).extend(values[n] for n in complete)
        if len(complete) == len(evaluation.candidates) or not n_compared:
            n_compared = len(candidates)
    if all(fit["fit_error"] is not None for fit in fits):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of scores that are not finite
        results = format_results(search, candidates, evaluations[0].n_splits, fits, more_results)
    if search.early_stopping is not None:
        results |= best_iterations(fits, evaluations[0].n_splits)
    for name in ("best_estimator_", "refit_time_", "feature_names_in_"):  # of an earlier fit
        vars(search).pop(name, None)
    search.cv_results_ = results
    search.multimetric_ = isinstance(fits[0]["test_scores"], dict)
    search.scorer_, metric = scorers_in_use(search)
    if not search.refit and search.multimetric_:
        return True
    if callable(search.scoring) and search.multimetric_:
        metric = search.refit
    compared = {name: values[:n_compared] for name, values in results.items()}
    with suppress(Exception):  # a callable refit may need columns that are missing
        best = select_best_index(search, metric, compared)
        search.best_index_, search.best_params_ = best, results["params"][best]
        if not callable(search.refit):
            search.best_score_ = results[f"mean_test_{metric}"][best]
    return True
