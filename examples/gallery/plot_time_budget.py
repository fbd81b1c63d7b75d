"""
A search that ends on time
==========================

You have ten minutes, and do not know how many candidates fit into them. With ``time_budget`` a
search begins no fit after that many seconds, and ends with the best candidate so far.

This example gives a random search four seconds. It draws how good the best candidate is over time,
and shows what the results have for the candidates that were not reached.
"""

# %%
# The search
# ----------
#
# A support vector machine classifies some of scikit-learn's digits. There are 400 candidates,
# far more than fit into four seconds.
#
# To know when each candidate was scored, the search is scored by a function of ours. It computes
# the usual accuracy and notes the time. Workers on threads call this very function; worker
# processes would call a copy.
import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.exceptions import FitFailedWarning
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import RandomizedSearchCV

X, y = load_digits(return_X_y=True)
X, y = X[:600], y[:600]
scored_at = {}


def timed_accuracy(fitted, X, y):
    """Return the accuracy, and note when a split of this candidate was scored."""
    score = fitted.score(X, y)
    scored_at.setdefault((fitted.C, fitted.gamma), []).append(time.perf_counter() - began)
    return score


search = RandomizedSearchCV(
    SVC(),
    {"C": loguniform(1e-2, 1e3), "gamma": loguniform(1e-6, 1e-1)},
    n_iter=400,
    cv=3,
    scoring=timed_accuracy,
    time_budget=4,
    random_state=3,
)

# %%
# A search that runs out of time warns of the fits that it did not make, as scikit-learn warns of
# fits that failed. Here we expect that, so the script catches the warnings. It prints the reason
# that they give.
with Fleet(n_workers=2, processes=False), warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    began = time.perf_counter()
    search.fit(X, y)
    seconds = time.perf_counter() - began

for warning in caught:
    if issubclass(warning.category, FitFailedWarning):
        print(str(warning.message).strip().splitlines()[-1])

# %%
# What is in the results
# ----------------------
#
# ``cv_results_`` has all candidates. Those with a split that was not fitted have NaN as their mean
# score, and share the last rank. With a time budget candidates are fitted one after the other, so
# there are few that have some of their splits only.
mean = search.cv_results_["mean_test_score"]
splits = np.array([search.cv_results_[f"split{n}_test_score"] for n in range(3)])
is_scored = ~np.isnan(mean)
is_begun = ~np.isnan(splits).all(axis=0)
print(f"{is_scored.sum()} of {len(mean)} candidates were scored on all splits")
print(f"{(is_begun & ~is_scored).sum()} more on some of them")
print(f"best mean accuracy {search.best_score_:.4f}, ended after {seconds:.1f} s")

# %%
# ``best_estimator_`` is there as after any search: the best of the complete candidates, fitted on
# all rows. So a search takes a little longer than its budget. Fits that run when the time is over
# are completed, and the last fit comes after them.
#
# The best candidate over time
# ----------------------------
#
# A candidate is complete when its last split was scored. The picture has the share of digits that
# it got wrong, on a logarithmic scale that shows small improvements too.
params = search.cv_results_["params"]
complete = np.flatnonzero(is_scored)
times = np.array([max(scored_at[params[n]["C"], params[n]["gamma"]]) for n in complete])
order = np.argsort(times)
times, errors = times[order], 1 - mean[complete][order]

fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
ax.plot(times, errors, ".", color="#c9c9c9", markersize=9, label="candidates")
ax.step(
    [*times, seconds],
    [*np.minimum.accumulate(errors), errors.min()],
    where="post",
    color="#3499cd",
    linewidth=2,
    label="best so far",
)
ax.axvline(search.time_budget, color="#f79a3b", linestyle="--", label="time budget")
ax.set_xlim(left=0)
ax.set_xlabel("seconds since the search began")
ax.set_yscale("log")
ax.set_yticks([0.1, 0.2, 0.5, 1], ["10 %", "20 %", "50 %", "100 %"])
ax.minorticks_off()
ax.set_ylabel("digits wrong, mean of three splits")
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
plt.show()

# %%
# What to look at: the blue line falls in steps that get smaller and rarer. That is in the nature of
# a random search. The n-th candidate is the best so far with a chance of one in n. Where the line
# still falls near the dashed line, a larger budget is likely to help.
#
# If there are points to the right of the dashed line, these are candidates whose last fits were
# running when the time was over.
#
# The number of candidates depends on the machine and on what else runs on it. So a search with a
# time budget is not reproducible, even with a number as ``random_state``. The candidates are the
# same, but those that are expected to be quick come first, and the search may get further the next
# time.
#
# With more time
# --------------
#
# Together with ``checkpoint`` a budget divides a long search into pieces. The same search with the
# same checkpoint, run again with another budget, makes only the missing fits:
# :doc:`plot_resumed_search` shows how.
#
# When not to use it: the quick candidates of a grid come first, so the time may be over before it
# reaches slow values of a parameter. If these are the ones you want to know about, leave the quick
# ones out. For models with ``partial_fit``, an adaptive search uses the time better still.
#
# .. seealso::
#
#    - :doc:`/guide/resuming` is about checkpoints, time budgets and Ctrl-C.
#    - :doc:`plot_hyperband` stops bad candidates early.
#    - :class:`~skfleet.model_selection.RandomizedSearchCV` explains ``time_budget``.
