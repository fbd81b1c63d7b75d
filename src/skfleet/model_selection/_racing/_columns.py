"""Columns of ``cv_results_`` after a race, in which candidates have unequal numbers of splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from skfleet.model_selection._racing._race import RaceResult


def set_race_results(
    results: dict[str, Any], race: RaceResult, fits: Sequence[Mapping[str, Any]], n_splits: int
) -> None:
    """Correct the columns of scikit-learn, for which all candidates have all splits, in place.

    Means are over the splits that count, and others are NaN. Candidates that may not be the best
    rank behind all that may. ``fits`` are the results of all fits, by candidate and split.
    """
    results["n_folds"] = race.n_splits
    rows = np.flatnonzero(race.n_splits < n_splits)
    is_compared = race.is_dropped | race.is_eligible  # there was no time for others
    for name in [key.removeprefix("mean_") for key in results if key.startswith("mean_")]:
        columns = [f"split{split}_{name}" for split in range(n_splits)]
        if columns[0] in results:
            values = np.column_stack([results[column] for column in columns])
        else:
            values = np.array([fit[name] for fit in fits], dtype=float).reshape(-1, n_splits)
        for row in rows:
            own = values[row, : race.n_splits[row]] if is_compared[row] else np.array([np.nan])
            results[f"mean_{name}"][row], results[f"std_{name}"][row] = own.mean(), own.std()
            for column in columns[race.n_splits[row] :]:
                if column in results:
                    results[column][row] = np.nan
        if f"rank_{name}" in results:
            results[f"rank_{name}"] = _ranks(results[f"mean_{name}"], race.is_eligible)


def _ranks(means: np.ndarray, is_eligible: np.ndarray) -> np.ndarray:
    """Return the ranks of means from 1 on, those of eligible candidates first, then by the mean."""
    means = np.where(np.isnan(means), -np.inf, means)
    result = np.empty(len(means), dtype=np.int32)
    result[is_eligible] = rankdata(-means[is_eligible], method="min")
    n_eligible = np.count_nonzero(is_eligible)
    result[~is_eligible] = n_eligible + rankdata(-means[~is_eligible], method="min")
    return result


def without_iterations(
    fits: Sequence[dict[str, Any]], race: RaceResult, n_splits: int
) -> list[dict[str, Any]]:
    """Return the results of fits, of those that do not count without their best iteration."""
    return [
        fit
        if number % n_splits < race.n_splits[number // n_splits]
        else fit | {"best_iteration": np.nan}
        for number, fit in enumerate(fits)
    ]
