"""Pictures of a search: the score over the parameters, and which worker fitted when."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._optional_dependencies import check_extra

__all__ = ["FitTime", "plot_search", "pyplot_for"]

# More lines than these nobody can tell apart.
_MOST_LINES = 8


class FitTime(NamedTuple):
    """When a worker was at a fit, in seconds since the search began.

    Workers' clocks may differ by as much as those of their machines do.

    Parameters
    ----------
    worker : str
        Address of the worker.
    begin, end : float
        Seconds since the search began.

    Examples
    --------
    >>> from skfleet.model_selection import FitTime
    >>> FitTime("tcp://10.0.0.1:8786", begin=0.5, end=2.0).end
    2.0
    """

    worker: str
    begin: float
    end: float


def pyplot_for(search: Any) -> Any:
    """Return matplotlib's pyplot, to draw a search that was fitted."""
    check_extra("plot()", "matplotlib", "plot")
    from matplotlib import pyplot

    if not hasattr(search, "cv_results_"):
        raise AttributeError(
            f"{type(search).__name__} must be fitted to be drawn. Got none of its results instead. "
            "Call fit first."
        )
    return pyplot


def plot_search(search: Any, scoring: str | None = None) -> Any:
    """Draw the scores and the timeline of a fitted search side by side; give the two axes."""
    pyplot = pyplot_for(search)
    name = _score_name(search, scoring)
    _, (scores, times) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    _draw_scores(scores, search.cv_results_, name)
    _draw_times(times, getattr(search, "timeline_", ()))
    return np.array([scores, times])


def _score_name(search: Any, scoring: str | None) -> str:
    """Give the name of the score to draw, as `cv_results_` calls it."""
    prefix = "mean_test_"
    known = [key.removeprefix(prefix) for key in search.cv_results_ if key.startswith(prefix)]
    if scoring is None:
        refit = getattr(search, "refit", None)
        return refit if isinstance(refit, str) and refit in known else known[0]
    if scoring not in known:
        raise ValueError(
            f"scoring must be one of {', '.join(map(repr, known))}. Got {scoring!r} instead."
        )
    return scoring


def _draw_scores(axes: Any, results: dict[str, Any], name: str) -> None:
    """Draw the mean score, and its spread over the splits, over the parameter with most values."""
    mean, spread = results[f"mean_test_{name}"], results[f"std_test_{name}"]
    values = {
        key.removeprefix("param_"): np.ma.filled(column.astype(object), None)
        for key, column in results.items()
        if key.startswith("param_")
    }
    counts = {key: len({repr(one) for one in column}) for key, column in values.items()}
    numeric = [key for key in values if _are_numbers(values[key]) and counts[key] > 1]
    across = max(numeric, key=lambda key: counts[key], default=None)
    others = [key for key in values if key != across and counts[key] > 1]
    axes.set_ylabel("score" if name == "score" else name)
    if across is None:
        axes.errorbar(range(len(mean)), mean, spread, fmt="o", capsize=3)
        axes.set_xlabel("candidate")
        axes.set_title("Score of each candidate, with its spread over the splits")
        return
    x = values[across].astype(float)
    labels = [", ".join(f"{key}={values[key][n]}" for key in others) for n in range(len(x))]
    groups = list(dict.fromkeys(labels))
    if len(groups) > _MOST_LINES:
        axes.errorbar(x, mean, spread, fmt="o", capsize=2, alpha=0.6)
    else:
        for label in groups:
            chosen = [n for n in np.argsort(x, kind="stable") if labels[n] == label]
            axes.errorbar(
                x[chosen], mean[chosen], spread[chosen], marker="o", capsize=3, label=label
            )
        if len(groups) > 1:
            axes.legend(fontsize="small")
    if x.min() > 0 and x.max() / x.min() >= 50:
        axes.set_xscale("log")
    best = int(np.nanargmax(mean)) if np.isfinite(mean).any() else None
    if best is not None:
        axes.plot(x[best], mean[best], "*", markersize=14, color="black", zorder=3)
    axes.set_xlabel(across)
    axes.set_title("Mean score and its spread over the splits (star: best)")


def _are_numbers(column: np.ndarray) -> bool:
    """Tell whether all values of a parameter are numbers."""
    return all(
        isinstance(one, (int, float, np.number)) and not isinstance(one, bool) for one in column
    )


def _draw_times(axes: Any, timeline: Any) -> None:
    """Draw a row for each worker, with a bar for each fit."""
    workers = sorted({one.worker for one in timeline})
    for row, worker in enumerate(workers):
        bars = [(one.begin, one.end - one.begin) for one in timeline if one.worker == worker]
        axes.broken_barh(bars, (row - 0.4, 0.8), edgecolor="white", linewidth=0.5)
    axes.set_yticks(
        range(len(workers)), [worker.partition("://")[2] or worker for worker in workers]
    )
    axes.set_xlabel("seconds since the search began")
    axes.set_title(f"{len(timeline)} fits over time, per worker")
    axes.set_xlim(left=0)
