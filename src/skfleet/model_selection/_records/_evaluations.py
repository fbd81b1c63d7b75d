"""Results of the candidates evaluated so far, and the attributes of an interrupted search."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from skfleet._sklearn_private import format_results, scorers_in_use, select_best_index
from skfleet.model_selection._early_stopping._validation_rows import best_iterations
from skfleet.model_selection._racing._columns import set_race_results, without_iterations
from skfleet.model_selection._racing._race import Race, RaceResult


class LaterIteration(NamedTuple):
    """Fits of a later iteration: candidates, and resources and rows in multiples of those now."""

    n_candidates: int
    resources: float
    rows: float


class FitPlace(NamedTuple):
    """A fit of a search: the number of its candidate, and its split."""

    candidate: int
    split: int


class WatchedReport:
    """Callback that records the result of a fit before it calls another one."""

    def __init__(
        self, evaluation: CandidateResults, number: int, report: Callable[[Any], Any]
    ) -> None:
        self._evaluation, self._number, self._report = evaluation, number, report

    @property
    def place(self) -> FitPlace:
        """Place of the fit in the search."""
        candidate, split = divmod(self._number, self._evaluation.n_splits)
        return FitPlace(self._evaluation.n_earlier + candidate, split)

    def __call__(self, outcome: Any) -> Any:
        """Record a result, and report it."""
        if outcome.ok:
            (self._evaluation.results[self._number],) = outcome.value
            self._evaluation.n_withdrawn += outcome.is_withdrawn
            self._evaluation.hide_failures()
        return self._report(outcome)


@dataclass
class CandidateResults:
    """Candidates that are fitted on the same splits, and the results of their fits.

    ``more_results`` are further columns of ``cv_results_``, ``later`` the planned iterations that
    follow. Fits are numbered by candidate, and within a candidate by split. The ``race`` that they
    are in compares them by a ``metric``. Where they are a batch of many, all of which may fail,
    `hide_failures` keeps scikit-learn from ending the search.
    """

    candidates: Sequence[Mapping[str, Any]]
    n_splits: int
    more_results: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    later: Sequence[LaterIteration] = ()
    results: dict[int, dict[str, Any]] = field(default_factory=dict)  # by number of the fit
    race: Race | None = None
    metric: Any = None
    is_batch: bool = False
    n_earlier: int = 0  # candidates of earlier calls
    hidden_errors: list[str] = field(default_factory=list, init=False)
    n_withdrawn: int = field(default=0, init=False)  # fits that the race has prevented

    def __post_init__(self) -> None:
        if self.race is not None:
            self.race.add(len(self.candidates))

    def watch(self, number: int, report: Callable[[Any], Any]) -> WatchedReport:
        """Return a callback that records the result of a fit before it calls `report`."""
        return WatchedReport(self, number, report)

    def hide_failures(self) -> None:
        """Move the errors of a batch whose fits have all failed to `hidden_errors`."""
        n_fits = len(self.candidates) * self.n_splits
        if not self.is_batch or len(self.results) < n_fits:
            return
        if all(fit["fit_error"] is not None for fit in self.results.values()):
            for fit in self.results.values():
                self.hidden_errors.append(fit["fit_error"])
                fit["fit_error"] = None

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

    def raced(self, race: RaceResult) -> list[int]:
        """Numbers of the candidates with scores that count in a race."""
        own = slice(self.n_earlier, self.n_earlier + len(self.candidates))
        has_score = (race.is_eligible | race.is_dropped)[own]
        return [int(number) for number in np.flatnonzero(has_score)]

    def fits_of(
        self, candidates: Sequence[int], default: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return the results of candidates' fits, in the order of the splits.

        Those of fits that were not made are the default.
        """
        numbers = [number for c in candidates for number in self._fit_numbers(c)]
        if default is not None:
            return [self.results.get(number, default) for number in numbers]
        return [self.results[number] for number in numbers]

    def _fit_numbers(self, candidate: int) -> range:
        return range(candidate * self.n_splits, (candidate + 1) * self.n_splits)


def set_results(search: Any, evaluations: Sequence[CandidateResults]) -> list[int]:
    """Set the attributes of an interrupted scikit-learn search, but for ``best_estimator_``.

    ``cv_results_`` has the candidates of which all splits have been scored, whose numbers are
    returned. If there is none, or all of them failed, no attribute is set, and none is returned.
    """
    candidates: list[Any] = []
    fits: list[dict[str, Any]] = []
    more_results: dict[str, list[Any]] = {}
    n_compared = 0  # candidates up to the last complete evaluation
    race = evaluations[0].race.result() if evaluations and evaluations[0].race else None
    numbers: list[int] = []
    successes = (fit for e in evaluations for fit in e.results.values() if fit["fit_error"] is None)
    stand_in = None if race is None else next(successes, None)
    for evaluation in evaluations:
        complete = evaluation.complete if race is None else evaluation.raced(race)
        numbers += [evaluation.n_earlier + n for n in complete]
        candidates += [evaluation.candidates[n] for n in complete]
        fits += evaluation.fits_of(complete, stand_in)
        for name, values in evaluation.more_results.items():
            more_results.setdefault(name, []).extend(values[n] for n in complete)
        if len(complete) == len(evaluation.candidates) or not n_compared or race is not None:
            n_compared = len(candidates)
    if all(fit["fit_error"] is not None for fit in fits):
        return []
    n_splits = evaluations[0].n_splits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of scores that are not finite
        results = format_results(search, candidates, n_splits, fits, more_results)
    if race is not None:
        race = RaceResult(*(values[numbers] for values in race))
        set_race_results(results, race, fits, n_splits)
        fits = without_iterations(fits, race, n_splits)
    if search.early_stopping is not None:
        results |= best_iterations(fits, n_splits)
    for name in ("best_estimator_", "refit_time_", "feature_names_in_"):  # of an earlier fit
        vars(search).pop(name, None)
    search.cv_results_ = results
    search.multimetric_ = isinstance(fits[0]["test_scores"], dict)
    search.scorer_, metric = scorers_in_use(search)
    if not search.refit and search.multimetric_:
        return numbers
    if callable(search.scoring) and search.multimetric_:
        metric = search.refit
    compared = {name: values[:n_compared] for name, values in results.items()}
    with suppress(Exception):  # a callable refit may need columns that are missing
        best = select_best_index(search, metric, compared)
        search.best_index_, search.best_params_ = best, results["params"][best]
        if not callable(search.refit):
            search.best_score_ = results[f"mean_test_{metric}"][best]
    return numbers
