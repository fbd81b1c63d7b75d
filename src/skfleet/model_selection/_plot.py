"""Plots of a search: scores over parameters and over time, and the timeline of fits per worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from skfleet._optional_dependencies import check_extra
from skfleet._validation import check_option

_MAX_LINES = 8  # more than these cannot be told apart


class FitTime(NamedTuple):
    """Begin and end of a fit on a worker, in seconds since the search began, by its clock."""

    worker: str
    begin: float
    end: float
    candidate: int
    split: int


def timeline_of(times: Iterable[FitTime], numbers: Sequence[int] | None = None) -> pd.DataFrame:
    """Return a row for each fit, for `timeline_`.

    Where the results have the candidates of some ``numbers`` alone, candidates become their rows
    there, and those without are -1.
    """
    timeline = pd.DataFrame(list(times), columns=FitTime._fields)
    timeline = timeline.astype({"worker": object, "begin": float, "end": float})
    timeline = timeline.astype({"candidate": np.int64, "split": np.int64})
    if numbers is not None:
        timeline["candidate"] = pd.Index(numbers).get_indexer(pd.Index(timeline["candidate"]))
    return timeline


def pyplot_for(search: Any) -> Any:
    """Return matplotlib's pyplot; raise if it is missing or the search is not fitted."""
    check_extra("plot()", "matplotlib", "plot")
    from matplotlib import pyplot

    if not hasattr(search, "cv_results_"):
        raise AttributeError(
            f"{type(search).__name__} must be fitted to be drawn. Got none of its results instead. "
            "Call fit first."
        )
    return pyplot


def metric_of(search: Any, scoring: str | None) -> str:
    """Return the metric to draw: by default that of `refit`, or the first."""
    prefix = "mean_test_"
    names = [key.removeprefix(prefix) for key in search.cv_results_ if key.startswith(prefix)]
    if scoring is None:
        refit = getattr(search, "refit", None)
        scoring = refit if isinstance(refit, str) and refit in names else names[0]
    check_option("scoring", scoring, names)
    return scoring


def plot_search(search: Any, scoring: str | None = None) -> Any:
    """Draw the scores and the timeline of a fitted search, and return the two axes."""
    pyplot = pyplot_for(search)
    scoring = metric_of(search, scoring)
    _, (scores, times) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    _draw_scores(scores, search.cv_results_, scoring)
    _draw_times(times, getattr(search, "timeline_", timeline_of(())))
    return np.array([scores, times])


def _draw_scores(axes: Any, results: dict[str, Any], name: str) -> None:
    """Draw the mean score, and its spread over the splits, over the parameter with most values."""
    mean, spread = results[f"mean_test_{name}"], results[f"std_test_{name}"]
    values = {
        key.removeprefix("param_"): np.ma.filled(column.astype(object), None)
        for key, column in results.items()
        if key.startswith("param_")
    }
    n_values = {key: len({repr(value) for value in column}) for key, column in values.items()}
    numeric = [key for key in values if _are_numbers(values[key]) and n_values[key] > 1]
    x_name = max(numeric, key=lambda key: n_values[key], default=None)
    label_names = [key for key in values if key != x_name and n_values[key] > 1]
    axes.set_ylabel("score" if name == "score" else name)
    if x_name is None:
        axes.errorbar(range(len(mean)), mean, spread, fmt="o", capsize=3)
        axes.set_xlabel("candidate")
        axes.set_title("Score of each candidate, with its spread over the splits")
        return
    x = values[x_name].astype(float)
    # of a halving search, each of which has other rows
    iterations = [f"iteration {number}" for number in results.get("iter", ())] or [""] * len(x)
    params = [", ".join(f"{key}={values[key][n]}" for key in label_names) for n in range(len(x))]
    labels = [", ".join(filter(None, pair)) for pair in zip(params, iterations, strict=True)]
    style: dict[str, Any] = {"capsize": 3}
    if len(set(labels)) > _MAX_LINES:
        labels, style = iterations, {"capsize": 2, "alpha": 0.6, "linestyle": "none"}
    for label in dict.fromkeys(labels):
        line = [n for n in np.argsort(x, kind="stable") if labels[n] == label]
        axes.errorbar(x[line], mean[line], spread[line], marker="o", label=label, **style)
    if len(set(labels)) > 1:
        axes.legend(fontsize="small")
    if x.min() > 0 and x.max() / x.min() >= 50:
        axes.set_xscale("log")
    if np.isfinite(mean).any():
        # ranked behind others: candidates dropped by a race, and those of earlier iterations
        is_last = np.array(iterations) == iterations[-1]
        best = int(np.argmin(np.where(is_last, results[f"rank_test_{name}"], np.inf)))
        axes.plot(x[best], mean[best], "*", markersize=14, color="black", zorder=3)
    axes.set_xlabel(x_name)
    axes.set_title("Mean score and its spread over the splits (star: best)")


def _are_numbers(column: np.ndarray) -> bool:
    """Return whether all values of a parameter are numbers."""
    return all(isinstance(v, (int, float, np.number)) and not isinstance(v, bool) for v in column)


def _draw_times(axes: Any, timeline: pd.DataFrame) -> None:
    """Draw a row for each worker, with a bar for each fit."""
    workers = sorted(set(timeline["worker"]))
    for row, worker in enumerate(workers):
        fits = timeline[timeline["worker"] == worker]
        bars = list(zip(fits["begin"], fits["end"] - fits["begin"], strict=True))
        axes.broken_barh(bars, (row - 0.4, 0.8), edgecolor="white", linewidth=0.5)
    axes.set_yticks(range(len(workers)), [name.partition("://")[2] or name for name in workers])
    axes.set_xlabel("seconds since the search began")
    axes.set_title(f"{len(timeline)} fits over time, per worker")
    axes.set_xlim(left=0)


def draw_history(
    axes: Any, x: np.ndarray, scores: np.ndarray, labels: np.ndarray, counts: np.ndarray
) -> None:
    """Draw scores in the order of x, with a colour for each label, and the best that counts."""
    for label in dict.fromkeys(labels):
        is_own = labels == label
        axes.plot(x[is_own], scores[is_own], "o", markersize=4, alpha=0.6, label=label)
    order = np.argsort(x, kind="stable")
    best = np.fmax.accumulate(np.where(counts, scores, np.nan)[order])
    axes.step(x[order], best, where="post", linewidth=2, color="black", label="best so far")
    axes.legend(fontsize="small")
