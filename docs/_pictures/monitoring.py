"""Measured: what ``search.plot()`` draws of a grid search on four workers."""

import matplotlib.pyplot as plt
from _drawing import BLUE, GREY, ORANGE
from cycler import cycler
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

plt.rcParams["font.size"] = 10
plt.rcParams["axes.prop_cycle"] = cycler(color=[BLUE, ORANGE, GREY])

X, y = load_digits(return_X_y=True)
grid = {"C": [0.01, 0.1, 1, 10], "gamma": [0.0002, 0.001, 0.005]}
with Fleet(n_workers=4, processes=False):
    search = GridSearchCV(SVC(), grid, cv=3, refit=False, share_fits=False)
    search.fit(X[:800], y[:800])

search.plot()
for axes in plt.gcf().axes:
    axes.spines[["top", "right"]].set_visible(False)
ticks = axes.get_yticks()
axes.set_yticks(ticks, [f"worker {row + 1}" for row in range(len(ticks))])
