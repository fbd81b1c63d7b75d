"""Measured: the fits of a search that its time budget ends, and of the same search afterwards."""

import tempfile
import time
import warnings

import matplotlib.pyplot as plt
from _drawing import BLUE, GREY, ORANGE
from sklearn.datasets import load_iris
from sklearn.dummy import DummyClassifier

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

plt.rcParams["font.size"] = 10
BUDGET = 1.0


class SlowClassifier(DummyClassifier):
    """Takes 0.1 to 0.2 s a fit, on busy machines too."""

    def fit(self, X, y):
        """Wait, and learn the labels."""
        time.sleep(0.1 + 0.001 * self.random_state)
        return super().fit(X, y)


X, y = load_iris(return_X_y=True)
model, grid = SlowClassifier(), {"random_state": range(0, 100, 10)}

with Fleet(n_workers=2, processes=False), tempfile.TemporaryDirectory() as folder:
    # The first fit on a worker imports libraries.
    GridSearchCV(model, {"random_state": [0]}, cv=2).fit(X, y)
    runs = []
    for budget in (BUDGET, None):
        search = GridSearchCV(model, grid, cv=3, refit=False, checkpoint=folder, time_budget=budget)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits that were not made
            runs.append(search.fit(X, y).timeline_)

figure, panels = plt.subplots(2, sharex=True, layout="constrained")
workers = sorted({*runs[0]["worker"], *runs[1]["worker"]})
n_fits = sum(map(len, runs))
titles = [
    f"time_budget={BUDGET:g}: {len(runs[0])} of {n_fits} fits",
    f"the same search again: the other {len(runs[1])} fits",
]
for axes, run, color, title in zip(panels, runs, (BLUE, ORANGE), titles, strict=True):
    for row, worker in enumerate(workers):
        fits = run[run["worker"] == worker]
        bars = list(zip(fits["begin"], fits["end"] - fits["begin"], strict=True))
        axes.broken_barh(bars, (row - 0.4, 0.8), color=color, edgecolor="white")
    axes.set_yticks(range(len(workers)), [f"worker {row + 1}" for row in range(len(workers))])
    axes.set_ylim(len(workers) - 0.4, -0.6)
    axes.set_title(title, loc="left", size=10)
    axes.spines[["top", "right"]].set_visible(False)
panels[0].axvline(BUDGET, color=GREY, linestyle="--")
panels[1].set_xlim(left=0)
panels[1].set_xlabel("seconds since each search began")
