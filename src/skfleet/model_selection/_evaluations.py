"""What a search has evaluated so far, and its results when it ends before the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from skfleet._sklearn_private import format_results, scorers_in_use, select_best_index

__all__ = ["Evaluation", "set_results"]


@dataclass
class Evaluation:
    """Candidates that are fitted on the same splits, and the results of their fits.

    ``more_results`` are values of each candidate that go into ``cv_results_`` too.
    """

    candidates: Sequence[Mapping[str, Any]]
    n_splits: int
    more_results: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    results: dict[int, dict[str, Any]] = field(default_factory=dict)  # by the place of the fit

    def watch(self, place: int, report: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Make a report of a fit that leaves its result here too."""

        def watched(outcome: Any) -> Any:
            if outcome.ok:
                (self.results[place],) = outcome.value
            return report(outcome)

        return watched

    @property
    def complete(self) -> list[int]:
        """Places of the candidates of which all splits have been scored."""
        return [
            candidate
            for candidate in range(len(self.candidates))
            if all(place in self.results for place in self._places(candidate))
        ]

    @property
    def is_complete(self) -> bool:
        """Whether that is so of all candidates."""
        return len(self.results) == len(self.candidates) * self.n_splits

    def fits_of(self, candidates: Sequence[int]) -> list[dict[str, Any]]:
        """Give the results of the fits of candidates, in the order of the splits."""
        return [self.results[place] for one in candidates for place in self._places(one)]

    def _places(self, candidate: int) -> range:
        """Give the places of the fits of a candidate."""
        return range(candidate * self.n_splits, (candidate + 1) * self.n_splits)


def set_results(search: Any, evaluations: Sequence[Evaluation]) -> bool:
    """Set what is known after a search of scikit-learn's was interrupted, all but the last fit.

    In ``cv_results_`` are the candidates of which all splits have been scored. Where there is none,
    or all of them failed, nothing is set. Tell whether anything was.
    """
    candidates: list[Any] = []
    fits: list[dict[str, Any]] = []
    more_results: dict[str, list[Any]] = {}
    n_compared = 0  # candidates up to the last evaluation that can be compared as a whole
    for evaluation in evaluations:
        complete = evaluation.complete
        candidates += [evaluation.candidates[one] for one in complete]
        fits += evaluation.fits_of(complete)
        for name, values in evaluation.more_results.items():
            more_results.setdefault(name, []).extend(values[one] for one in complete)
        if evaluation.is_complete or not n_compared:
            n_compared = len(candidates)
    if all(fit["fit_error"] is not None for fit in fits):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of scores that are not finite
        results = format_results(search, candidates, evaluations[0].n_splits, fits, more_results)
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
    with suppress(Exception):  # a function of the user's may want what is not there
        best = select_best_index(search, metric, compared)
        search.best_index_, search.best_params_ = best, results["params"][best]
        if not callable(search.refit):
            search.best_score_ = results[f"mean_test_{metric}"][best]
    return True
