"""Plots of an adaptive search: learning curves, scores over time, importance of parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from skfleet._optional_dependencies import check_extra
from skfleet._validation import check_option
from skfleet.model_selection._plot import draw_history, metric_of, pyplot_for
from skfleet.model_selection._samplers._importances import draw_importances


def plot_adaptive(search: Any, scoring: str | None, kind: str) -> Any:
    """Draw a plot of some kind, and return the axes."""
    pyplot = pyplot_for(search)
    check_option("kind", kind, _DRAWINGS)
    if kind == "importances":
        check_extra('kind="importances"', "optuna", "optuna")
    metric = metric_of(search, scoring)
    _, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    n_candidates = search.history_["candidate"].nunique()
    axes.set_title(f"{type(search).__name__}: {n_candidates} candidates")
    _DRAWINGS[kind](axes, search, metric)
    return axes


def _draw_curves(axes: Any, search: Any, metric: str) -> None:
    """Draw the score of every candidate over its calls, the best one in front."""
    from matplotlib import pyplot

    table = search.history_
    level = "n_resources" if "n_resources" in table.columns else "partial_fit_calls"
    brackets = sorted(table["bracket"].unique(), reverse=True)
    colors = pyplot.get_cmap("tab10")
    best = search.cv_results_["candidate"][search.best_index_]

    def draw(curve: Any, **style: Any) -> None:
        axes.plot(curve[level], curve[f"test_{metric}"], **style)

    for i, bracket in enumerate(brackets):
        label: str | None = f"bracket {bracket}" if len(brackets) > 1 else "candidates"
        of_bracket = table[table["bracket"] == bracket]
        for _, curve in of_bracket.groupby("candidate", sort=False):
            draw(curve, marker=".", linewidth=0.8, alpha=0.5, color=colors(i % 10), label=label)
            label = None
    draw(table[table["candidate"] == best], marker="o", linewidth=2, color="black", label="best")
    if table[level].max() >= 8:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel(search._budget(len(search.cv_results_["params"])).unit)
    _label_scores(axes, search, metric)
    axes.legend(loc="lower right", fontsize="small")


def _draw_history(axes: Any, search: Any, metric: str) -> None:
    """Draw all scores over the seconds since the search began, and the best so far."""
    table = search.history_.sort_values("bracket", ascending=False, kind="stable")
    labels = [f"bracket {number}" for number in table["bracket"]]
    if table["bracket"].nunique() == 1:
        labels = ["scores"] * len(table)
    scores = table[f"test_{metric}"].to_numpy()
    counts = np.full(len(table), fill_value=True)
    draw_history(axes, table["elapsed"].to_numpy(), scores, np.array(labels), counts)
    axes.set_xlabel("seconds since the search began")
    axes.set_xlim(left=0)
    _label_scores(axes, search, metric)


def _draw_importances(axes: Any, search: Any, metric: str) -> None:
    draw_importances(axes, search.parameters, search.cv_results_, metric)


def _label_scores(axes: Any, search: Any, metric: str) -> None:
    rows = "on the rows held out" if search.n_splits_ == 1 else f"of {search.n_splits_} splits"
    axes.set_ylabel(f"score {rows}" if metric == "score" else metric)


_DRAWINGS = {"curves": _draw_curves, "history": _draw_history, "importances": _draw_importances}
