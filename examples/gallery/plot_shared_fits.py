"""
What a shared fit saves
=======================

A random forest of 80 trees contains a forest of 20 trees: its first 20. A search over
``n_estimators`` therefore needs to grow only the largest forest on each split. All smaller ones
can be scored from it. scikit-fleet's searches do this by themselves, wherever the scores are those
of separate fits.

This example runs three searches twice, with and without shared fits, and compares the models that
were fitted and the seconds that it took.
"""

# %%
# Three searches
# --------------
#
# Each of these grids varies a parameter that one fit can serve for all values:
#
# - trees of a random forest, for two depths,
# - rounds of gradient boosting,
# - the pruning of a decision tree: the same large tree is cut back to each ``ccp_alpha``.
#
# All of them have a number as ``random_state``. Without one, separate fits would draw different
# random numbers, and nothing would be shared.
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

X, y = load_breast_cancer(return_X_y=True)
searches = {
    "forest,\n4 n_estimators": (
        RandomForestClassifier(random_state=0),
        {"n_estimators": [20, 40, 60, 80], "max_depth": [4, None]},
    ),
    "boosting,\n4 n_estimators": (
        GradientBoostingClassifier(random_state=0),
        {"n_estimators": [20, 40, 60, 80]},
    ),
    "tree,\n20 ccp_alpha": (
        DecisionTreeClassifier(random_state=0),
        {"ccp_alpha": np.geomspace(1e-4, 1e-1, 20)},
    ),
}

# %%
# ``share_fits=False`` turns sharing off. ``refit=False`` leaves out the last fit on all rows, which
# is the same for both. A small search comes first, so that none of those measured pays for starting
# up.
results, seconds = {}, {}
with Fleet(n_workers=2, processes=False):
    GridSearchCV(DecisionTreeClassifier(), {"max_depth": [1, 2]}).fit(X, y)
    for name, (model, grid) in searches.items():
        for share_fits in (False, True):
            search = GridSearchCV(model, grid, cv=3, share_fits=share_fits, refit=False)
            began = time.perf_counter()
            results[name, share_fits] = search.fit(X, y)
            seconds[name, share_fits] = time.perf_counter() - began

# %%
# The scores are the same
# -----------------------
#
# The candidates of both searches have the same scores on every split. So the search finds the same
# best candidate, whether it shares fits or not.
for name in searches:
    alone, shared = results[name, False].cv_results_, results[name, True].cv_results_
    keys = [f"split{n}_test_score" for n in range(3)]
    difference = max(np.abs(alone[key] - shared[key]).max() for key in keys)
    print(f"{' '.join(name.split())}: largest difference of a score {difference}")

# %%
# Fits and seconds
# ----------------
#
# ``shared_fits_`` has an entry for each kind of shared fit: how many fits the search asked for, and
# how many of them were saved.
n_fits = {}
for name in searches:
    use = results[name, True].shared_fits_[0]
    n_fits[name, False], n_fits[name, True] = use.n_fits, use.n_fits - use.n_saved
    print(f"{use.estimator}, {', '.join(use.parameters)}: {use.n_saved} of {use.n_fits} saved")

fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
places = np.arange(len(searches))
for ax, values, label in zip(axes, (n_fits, seconds), ("models fitted", "seconds"), strict=True):
    for shift, share_fits, color in ((-0.2, False, "#5b5b5b"), (0.2, True, "#3499cd")):
        heights = [values[name, share_fits] for name in searches]
        bars = ax.bar(places + shift, heights, 0.4, color=color, label=f"{share_fits=}")
        ax.bar_label(bars, fmt="{:.3g}")
    ax.set_xticks(places, searches, fontsize=9)
    ax.set_ylabel(label)
    ax.spines[["top", "right"]].set_visible(False)
handles, labels = axes[0].get_legend_handles_labels()
fig.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
plt.show()

# %%
# What to look at: the left picture tells how many models were fitted, and the right one how long
# each search took. The seconds usually fall less than the fits, for three reasons:
#
# - The one fit that is left is the longest of them, with the most trees.
# - Each candidate is still scored on its own. For forests that is a good part of the work.
# - A batch that takes long hands some candidates to idle workers, which fit again. You may
#   therefore see fewer saved fits than candidates would allow.
#
# When nothing is shared
# ----------------------
#
# A search shares only what leaves the scores as they are. The same forest without a number as
# ``random_state`` is fitted separately for each candidate, and ``shared_fits_`` has the reason:
with Fleet(n_workers=2, processes=False):
    search = GridSearchCV(RandomForestClassifier(), {"n_estimators": [5, 10]}, cv=3).fit(X, y)
print(search.shared_fits_[0].refused)

# %%
# .. seealso::
#
#    - :doc:`/how_it_works/shared_fits` has the table of estimators and parameters that share fits.
#    - :doc:`/guide/searches` is about searches of rows in memory.
#    - :class:`~skfleet.model_selection.SharedFitUse` describes the entries of ``shared_fits_``.
