"""What an adaptive search has found, as tables: a row per record, and a row per candidate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata
from sklearn.exceptions import FitFailedWarning

from skfleet._sklearn_private import param_columns
from skfleet._warnings import warn
from skfleet.exceptions import FleetError
from skfleet.model_selection._adaptive._loop import Run
from skfleet.model_selection._adaptive._schedules import Rung, Train, calls_of
from skfleet.model_selection._adaptive._trial import Candidate
from skfleet.model_selection._adaptive._worker import Record

__all__ = [
    "History",
    "best_place",
    "described",
    "executed",
    "search_results",
    "warn_of_failures",
]


class History:
    """The records of a search, in the order in which they came."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.n_calls: dict[int, int] = {}  # that each candidate has had
        self.n_checkpoint_calls = 0  # whose scores an earlier search recorded

    def add(self, candidate: Candidate, order: Train, record: Record, elapsed: float) -> None:
        """Add a record; a failed one has no scores."""
        if record.failure is None:
            self.n_calls[candidate.number] = record.n_calls
        self.rows.append(
            {
                "candidate": candidate.number,
                "bracket": order.bracket,
                "rung": order.rung,
                "partial_fit_calls": record.n_calls,
                "n_samples_seen": record.n_samples,
                **{f"test_{name}": value for name, value in record.scores.items()},
                "fit_time": record.fit_time,
                "score_time": record.score_time,
                "elapsed": elapsed,
            }
        )

    def table(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the records as a frame, with a column for each score."""
        scores = [f"test_{name}" for name in names]
        before = ["candidate", "bracket", "rung", "partial_fit_calls", "n_samples_seen"]
        return pd.DataFrame(
            self.rows, columns=[*before, *scores, "fit_time", "score_time", "elapsed"]
        )


def search_results(
    candidates: Mapping[int, Candidate], history: History, names: Sequence[str], error_score: float
) -> dict[str, Any]:
    """Return what `cv_results_` is: a row per candidate, when its score was best."""
    known = [candidates[number] for number in sorted(candidates)]
    at_best = [one.best or (one.order, Record(0, {})) for one in known]
    of: dict[int, list[dict[str, Any]]] = {one.number: [] for one in known}
    for row in history.rows:
        of[row["candidate"]].append(row)
    rows = [of[one.number] for one in known]
    results: dict[str, Any] = {}
    for part in ("fit", "score"):
        spent = [sum(row[f"{part}_time"] for row in own) for own in rows]
        results[f"mean_{part}_time"] = np.array(spent, dtype=float)
        results[f"std_{part}_time"] = np.zeros(len(known))
    results |= _parameters([dict(one.params) for one in known])
    results |= {
        "candidate": _column(one.number for one in known),
        "bracket": _column(order.bracket for order, _ in at_best),
        "rung": _column(order.rung for order, _ in at_best),
        "budget": _column(record.n_calls for _, record in at_best),
        "partial_fit_calls": _column(history.n_calls.get(one.number, 0) for one in known),
    }
    for name in names:
        scores = np.array(
            [
                record.scores.get(name, math.nan if one.failure is None else error_score)
                for one, (_, record) in zip(known, at_best, strict=True)
            ],
            dtype=float,
        )
        results[f"split0_test_{name}"] = scores
        results[f"mean_test_{name}"] = scores.copy()
        results[f"std_test_{name}"] = np.where(np.isnan(scores), np.nan, 0.0)
        results[f"rank_test_{name}"] = ranks(scores)
    return results


def _column(values: Iterable[int]) -> np.ndarray:
    """Return whole numbers as a column."""
    return np.array(list(values), dtype=np.int64)


def ranks(scores: np.ndarray) -> np.ndarray:
    """Return the ranks of scores as scikit-learn has them: 1 is best, what failed comes last."""
    if np.isnan(scores).all():
        return np.ones(len(scores), dtype=np.int32)
    lowest = np.nanmin(scores) - 1
    filled = np.nan_to_num(scores, nan=lowest, neginf=lowest)
    return rankdata(-filled, method="min").astype(np.int32)


def _parameters(params: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the parameters as scikit-learn has them: a masked column each, and all as dicts."""
    return param_columns(params) | {"params": list(params)}


def described(brackets: Sequence[Sequence[Rung]]) -> dict[str, Any]:
    """Return what `metadata` is: what the rungs of all brackets take."""
    told = [
        {
            "bracket": len(brackets) - 1 - i,
            "n_models": rungs[0].n_candidates,
            "partial_fit_calls": calls_of(rungs),
            "rungs": [tuple(rung) for rung in rungs],
        }
        for i, rungs in enumerate(brackets)
    ]
    return {
        "n_models": sum(one["n_models"] for one in told),
        "partial_fit_calls": sum(one["partial_fit_calls"] for one in told),
        "brackets": told,
    }


def executed(run: Run, history: History) -> dict[str, Any]:
    """Return what `metadata_` is: what was done, in the form of what was planned."""
    rungs: dict[tuple[int, int], set[int]] = {}
    reached: dict[tuple[int, int], int] = {}
    for row in history.rows:
        place = row["bracket"], row["rung"]
        rungs.setdefault(place, set()).add(row["candidate"])
        reached[place] = max(reached.get(place, 0), row["partial_fit_calls"])
    done = []
    for bracket in sorted({bracket for bracket, _ in rungs}, reverse=True):
        own = sorted(place for place in rungs if place[0] == bracket)
        models = set().union(*(rungs[place] for place in own))
        done.append(
            {
                "bracket": bracket,
                "n_models": len(models),
                "partial_fit_calls": sum(history.n_calls.get(model, 0) for model in models),
                "rungs": [(len(rungs[place]), reached[place]) for place in own],
            }
        )
    return {
        "n_models": sum(one["n_models"] for one in done),
        "partial_fit_calls": sum(one["partial_fit_calls"] for one in done),
        "brackets": done,
    }


def best_place(refit: Any, results: Mapping[str, Any], run: Run) -> int:
    """Return the place of the best candidate in the results."""
    if callable(refit):
        best = refit(results)
        if not isinstance(best, int | np.integer):
            raise TypeError(f"refit must return a whole number. Got {best!r} instead.")
        if not 0 <= best < len(results["params"]):
            raise IndexError(
                f"refit must return the place of a candidate. Got {best} for "
                f"{len(results['params'])} candidates instead."
            )
        return int(best)
    assert run.best is not None
    return int(np.flatnonzero(results["candidate"] == run.best.number)[0])


def warn_of_failures(run: Run, error_score: Any) -> None:
    """Raise if no candidate has a score; warn of those that have none."""
    failed = {c.number: c.failure for c in run.candidates.values() if c.failure is not None}
    first = next(iter(failed.values()), None)
    told = "" if first is None else f"\n{first.trace or first.error}"
    if run.best is None and first is not None:
        n_deaths = sum(isinstance(one.error, FleetError) for one in failed.values())
        if n_deaths == len(failed):  # there is nothing wrong with data or models
            raise FleetError(
                f"All the {n_deaths} candidates ended their workers. The first one: {first.error}"
            ) from first.error
        raise ValueError(
            f"All the {len(failed)} candidates failed: none could be trained and scored. The "
            f"first error:{told}"
        ) from first.error
    if run.best is None:
        raise ValueError(
            "a candidate must be scored before the search ends. Got no score that is a number "
            f"after {run.seconds:.1f} s instead. Give a larger time_budget, or look at scoring."
        )
    if failed:
        warn(
            f"{len(failed)} of {len(run.candidates)} candidates failed and are out: "
            f"{list(failed)[:10]}. Their score is {error_score!r}. The "
            f"first error:{told}",
            FitFailedWarning,
        )
