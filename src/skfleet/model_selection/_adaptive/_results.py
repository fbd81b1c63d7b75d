"""Result tables of an adaptive search: `history_`, `cv_results_` and `metadata_`."""

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
from skfleet.model_selection._adaptive._loop import AdaptiveLoop
from skfleet.model_selection._adaptive._params import metric_names, scorer_for
from skfleet.model_selection._adaptive._schedules import Rung, TrainInstruction, calls_of
from skfleet.model_selection._adaptive._training_tasks import Record
from skfleet.model_selection._adaptive._trial import Candidate


class History:
    """The records of a search, in the order in which they came."""

    def __init__(self, column: str = "partial_fit_calls") -> None:
        self.column = column  # of calls, or of another resource
        self.rows: list[dict[str, Any]] = []
        self.n_calls: dict[int, int] = {}  # per candidate
        self.n_checkpoint_calls = 0

    def add(
        self, candidate: Candidate, instruction: TrainInstruction, record: Record, elapsed: float
    ) -> None:
        """Add a record; the record of a failure has no scores."""
        if record.failure is None:
            self.n_calls[candidate.number] = record.n_calls
        self.rows.append(
            {
                "candidate": candidate.number,
                "bracket": instruction.bracket,
                "rung": instruction.rung,
                self.column: record.n_calls,
                "n_samples_seen": record.n_samples,
                **{f"test_{name}": value for name, value in record.scores.items()},
                "fit_time": record.fit_time,
                "score_time": record.score_time,
                "elapsed": elapsed,
            }
        )

    def table(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the records as a DataFrame, with a column for each score."""
        scores = [f"test_{name}" for name in names]
        columns = ["candidate", "bracket", "rung", self.column, "n_samples_seen", *scores]
        return pd.DataFrame(self.rows, columns=[*columns, "fit_time", "score_time", "elapsed"])


def search_results(
    candidates: Mapping[int, Candidate],
    history: History,
    names: Sequence[str],
    error_score: float,
    n_splits: int = 0,
) -> dict[str, Any]:
    """Build `cv_results_`: a row per candidate, at its best score; without splits it is one score.

    Splits on which a candidate was not scored are NaN.
    """
    by_number = [candidates[number] for number in sorted(candidates)]
    at_best = [c.best or (c.instruction, Record(0, {})) for c in by_number]
    rows_of: dict[int, list[dict[str, Any]]] = {c.number: [] for c in by_number}
    for row in history.rows:
        rows_of[row["candidate"]].append(row)
    results: dict[str, Any] = {}
    for phase in ("fit", "score"):
        totals = [sum(row[f"{phase}_time"] for row in rows_of[c.number]) for c in by_number]
        results[f"mean_{phase}_time"] = np.array(totals, dtype=float)
        results[f"std_{phase}_time"] = np.zeros(len(by_number))
    params = [dict(c.params) for c in by_number]
    results |= param_columns(params) | {"params": params}
    results |= {
        "candidate": _column(c.number for c in by_number),
        "bracket": _column(instruction.bracket for instruction, _ in at_best),
        "rung": _column(instruction.rung for instruction, _ in at_best),
        "budget": _column(record.n_calls for _, record in at_best),
        history.column: _column(history.n_calls.get(c.number, 0) for c in by_number),
    }
    missing = [math.nan if c.failure is None else error_score for c in by_number]
    for name in names:
        values = [r.scores.get(name, value) for (_, r), value in zip(at_best, missing, strict=True)]
        scores = np.array(values, dtype=float)
        by_split = np.full((max(n_splits, 1), len(scores)), math.nan)
        by_split[0] = scores
        for i, (_, record) in enumerate(at_best):
            split_scores = record.split_scores.get(name, [scores[i]] * n_splits)
            by_split[: len(split_scores), i] = split_scores
        results |= {f"split{i}_test_{name}": row for i, row in enumerate(by_split)}
        results[f"mean_test_{name}"] = scores.copy()
        # of the splits that were scored: those of folds are the first of them
        n_scored = np.maximum(1, (~np.isnan(by_split)).sum(axis=0))
        squares = np.nansum((by_split - scores) ** 2, axis=0) / n_scored
        results[f"std_test_{name}"] = np.where(np.isnan(scores), np.nan, np.sqrt(squares))
        results[f"rank_test_{name}"] = ranks(scores)
    return results


def _column(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)


def ranks(scores: np.ndarray) -> np.ndarray:
    """Return the ranks of scores as scikit-learn computes them: 1 is best, NaN is last."""
    if np.isnan(scores).all():
        return np.ones(len(scores), dtype=np.int32)
    lowest = np.nanmin(scores) - 1
    filled = np.nan_to_num(scores, nan=lowest, neginf=lowest)
    return rankdata(-filled, method="min").astype(np.int32)


def planned_metadata(
    brackets: Sequence[Sequence[Rung]], column: str = "partial_fit_calls"
) -> dict[str, Any]:
    """Build `metadata`: models, calls and rungs of all brackets as planned."""
    planned = [
        {
            "bracket": len(brackets) - 1 - i,
            "n_models": rungs[0].n_candidates,
            column: calls_of(rungs),
            "rungs": [tuple(rung) for rung in rungs],
        }
        for i, rungs in enumerate(brackets)
    ]
    return _totals(planned, column)


def executed_metadata(history: History) -> dict[str, Any]:
    """Build `metadata_`: models, calls and rungs of all brackets as executed."""
    models: dict[tuple[int, int], set[int]] = {}  # by bracket and rung
    n_calls: dict[tuple[int, int], int] = {}
    for row in history.rows:
        key = row["bracket"], row["rung"]
        models.setdefault(key, set()).add(row["candidate"])
        n_calls[key] = max(n_calls.get(key, 0), row[history.column])
    executed = []
    for bracket in sorted({bracket for bracket, _ in models}, reverse=True):
        rungs = sorted(key for key in models if key[0] == bracket)
        in_bracket = set().union(*(models[key] for key in rungs))
        executed.append(
            {
                "bracket": bracket,
                "n_models": len(in_bracket),
                history.column: sum(history.n_calls.get(model, 0) for model in in_bracket),
                "rungs": [(len(models[key]), n_calls[key]) for key in rungs],
            }
        )
    return _totals(executed, history.column)


def _totals(brackets: list[dict[str, Any]], column: str) -> dict[str, Any]:
    return {
        "n_models": sum(bracket["n_models"] for bracket in brackets),
        column: sum(bracket[column] for bracket in brackets),
        "brackets": brackets,
    }


def best_index(refit: Any, results: Mapping[str, Any], loop: AdaptiveLoop) -> int:
    """Return the row of the best candidate in the results."""
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
    assert loop.best is not None
    return int(np.flatnonzero(results["candidate"] == loop.best.number)[0])


def check_and_warn_failures(loop: AdaptiveLoop, error_score: Any) -> None:
    """Raise if no candidate has a score; warn of the candidates that failed."""
    failed = {c.number: c.failure for c in loop.candidates.values() if c.failure is not None}
    first = next(iter(failed.values()), None)
    trace = "" if first is None else f"\n{first.trace or first.error}"
    if loop.best is None and first is not None:
        n_deaths = sum(isinstance(failure.error, FleetError) for failure in failed.values())
        if n_deaths == len(failed):  # there is nothing wrong with data or models
            raise FleetError(
                f"All the {n_deaths} candidates ended their workers. The first one: {first.error}"
            ) from first.error
        raise ValueError(
            f"All the {len(failed)} candidates failed: none could be trained and scored. The "
            f"first error:{trace}"
        ) from first.error
    if loop.best is None:
        raise ValueError(
            "a candidate must be scored before the search ends. Got no score that is a number "
            f"after {loop.seconds:.1f} s instead. Give a larger time_budget, or look at scoring."
        )
    if failed:
        warn(
            f"{len(failed)} of {len(loop.candidates)} candidates failed and are out: "
            f"{list(failed)[:10]}. Their score is {error_score!r}. The "
            f"first error:{trace}",
            FitFailedWarning,
        )


def set_attributes(search: Any, loop: AdaptiveLoop, history: History) -> None:
    """Fetch the best model, and only then set the fitted attributes of a search."""
    check_and_warn_failures(loop, search.error_score)
    record = next((c.best[1] for c in loop.candidates.values() if c.best), None)
    names = metric_names(search.scoring) or list(record.scores if record else ["score"])
    is_multimetric = names != ["score"]
    metrics = metrics_by_name(search.scoring)
    scorers = {name: scorer_for(search.estimator, metric) for name, metric in metrics.items()}
    scorer = scorers or scorer_for(search.estimator, search.scoring)
    error_score = math.nan if search.error_score == "raise" else float(search.error_score)
    n_splits = len(loop.context.splits)
    results = search_results(loop.candidates, history, names, error_score, n_splits)
    best = best_index(search.refit, results, loop)
    candidate = loop.candidates[int(results["candidate"][best])]
    if search.refit:
        search.best_estimator_ = loop.model_of(candidate, refit_on_test=search.refit_on_test)
    search.multimetric_, search.scorer_, search.n_splits_ = is_multimetric, scorer, n_splits or 1
    search.cv_results_, search.history_ = results, history.table(names)
    search.metadata_, search.search_time_ = executed_metadata(history), loop.seconds
    search.n_checkpoint_calls_ = history.n_checkpoint_calls
    search.best_index_ = best
    search.best_params_ = dict(candidate.params)
    search.n_iter_ = int(results["budget"][best])
    if not callable(search.refit):
        deciding = search.refit if is_multimetric else "score"
        search.best_score_ = float(results[f"mean_test_{deciding}"][best])


def metrics_by_name(scoring: Any) -> dict[str, Any]:
    """Return several metrics by name; an empty dict for a single one."""
    if isinstance(scoring, dict):
        return dict(scoring)
    return {name: name for name in metric_names(scoring)}
