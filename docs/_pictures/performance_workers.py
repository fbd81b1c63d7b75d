"""Seconds of a search by number of workers, from ``benchmarks/results``."""

from statistics import median

import matplotlib.pyplot as plt
from _drawing import BLUE, GREY, ORANGE
from _results import load

PANELS = {"computing": "60 decision trees", "waiting": "160 fits that wait for 100 ms"}
series = load("search-workers-2026-11-28.json")["series"]
plt.rcParams["font.size"] = 10
figure, axes = plt.subplots(1, 2, figsize=(7.0, 3.6), width_ratios=(1, 2))


def draw(axis, searches, side, label, **style):
    """Draw the median seconds of one side, or the ideal: those of all fits over the workers."""
    workers = [search["workers"] for search in searches]
    seconds = [median(search[side]) for search in searches]
    if side == "fits":
        seconds = [taken / n for taken, n in zip(seconds, workers, strict=True)]
    axis.plot(workers, seconds, label=label, **style)


for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
    searches = series[name]["searches"]
    draw(axis, searches, "scikit-learn", "scikit-learn (loky)", color=ORANGE, marker="s")
    draw(axis, searches, "scikit-fleet", "scikit-fleet", color=BLUE, marker="o")
    draw(axis, searches, "fits", "ideal", color=GREY, ls="--")
    ticks = [search["workers"] for search in searches]
    axis.set(xscale="log", yscale="log", xlabel="workers, or jobs")
    axis.set_xticks(ticks, ticks)
    axis.set_xticks([], minor=True)
    lowest, highest = axis.get_ylim()
    seconds = [s for s in (0.5, 1, 2, 3, 4, 5, 6, 8, 10, 16) if lowest <= s <= highest]
    axis.set_yticks(seconds, seconds)
    axis.set_yticks([], minor=True)
    axis.set_xlim(ticks[0] / 1.2, ticks[-1] * 1.2)
    axis.set_title(title, fontsize=10)
    axis.grid(color="#e5e5e5")
    axis.set_axisbelow(True)
axes[0].set_ylabel("seconds of a search")
axes[1].legend(frameon=False)
figure.tight_layout()
