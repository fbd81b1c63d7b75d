"""Measured: the seconds to go that the bar of a search shows, and those that really remained."""

import io
import os
import re
import time
from contextlib import redirect_stdout
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
from _drawing import BLUE, GREY, ORANGE
from sklearn.datasets import load_iris
from sklearn.dummy import DummyClassifier

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

plt.rcParams["font.size"] = 10
BAR = re.compile(r"(\d+) of (\d+) fits.*about ([\d.]+) s to go")


class SlowClassifier(DummyClassifier):
    """Takes 20 to 200 ms a fit, on busy machines too."""

    def fit(self, X, y):
        """Wait, and learn the labels."""
        time.sleep(0.001 * self.random_state)
        return super().fit(X, y)


class Screen(io.StringIO):
    """A terminal that notes when the bar showed what."""

    def __init__(self):
        super().__init__()
        self.shown = []

    def isatty(self):
        """Return True, so that the search draws a bar."""
        return True

    def write(self, text):
        """Note the numbers of the bar."""
        if found := BAR.search(text):
            self.shown.append([time.perf_counter(), *map(float, found.groups())])
        return len(text)


X, y = load_iris(return_X_y=True)
grid = {"random_state": np.geomspace(20, 200, 28).astype(int)}
search = GridSearchCV(SlowClassifier(), grid, cv=3, refit=False, verbose=1)
screen = Screen()
terminal = patch.dict(os.environ, TERM="xterm")
with terminal, Fleet(n_workers=2, threads_per_worker=1, processes=False):
    # The first fit on a worker imports libraries.
    GridSearchCV(DummyClassifier(), {"random_state": [0]}, cv=2).fit(X, y)
    begin = time.perf_counter()
    with redirect_stdout(screen):
        search.fit(X, y)
    seconds = time.perf_counter() - begin

when, n_done, n_fits, to_go = np.array(screen.shown).T
when -= begin
figure, axes = plt.subplots(layout="constrained")
axes.plot([0, seconds], [seconds, 0], color=GREY, label="what really remained")
in_proportion = when * (n_fits - n_done) / n_done
axes.plot(when, in_proportion, "s--", ms=4, color=ORANGE, label="the simple rule")
axes.plot(when, to_go, "o-", ms=4, color=BLUE, clip_on=False, label="what the bar shows")
axes.set(xlim=(0, seconds), ylim=(0, None))
axes.set(xlabel="seconds since the search began", ylabel="seconds to go")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
