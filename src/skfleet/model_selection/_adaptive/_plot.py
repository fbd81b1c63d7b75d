"""Plot of the learning curves of an adaptive search."""

from __future__ import annotations

from typing import Any

from skfleet._validation import check_option
from skfleet.model_selection._plot import pyplot_for


def plot_curves(search: Any, scoring: str | None = None) -> Any:
    """Draw the score of every candidate over its calls, and return the axes."""
    pyplot = pyplot_for(search)
    table, unit = search.history_, search._budget(len(search.cv_results_["params"])).unit
    level = "n_resources" if "n_resources" in table.columns else "partial_fit_calls"
    names = [name.removeprefix("test_") for name in table.columns if name.startswith("test_")]
    if scoring is None:
        scoring = search.refit if search.multimetric_ else names[0]
    check_option("scoring", scoring, names)
    _, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    brackets = sorted(table["bracket"].unique(), reverse=True)
    colors = pyplot.get_cmap("tab10")
    best = search.cv_results_["candidate"][search.best_index_]

    def draw(curve: Any, **style: Any) -> None:
        axes.plot(curve[level], curve[f"test_{scoring}"], **style)

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
    axes.set_xlabel(unit)
    rows = "on the rows held out" if search.n_splits_ == 1 else f"of {search.n_splits_} splits"
    axes.set_ylabel(f"score {rows}" if scoring == "score" else scoring)
    axes.set_title(f"{type(search).__name__}: {table['candidate'].nunique()} candidates")
    axes.legend(loc="lower right", fontsize="small")
    return axes
