"""
Hyperband: stop bad candidates early
====================================

Most candidates of a search are bad, and most of them show it soon. Hyperband trains many candidates
for a few calls of ``partial_fit``, scores them on rows held out, and goes on with the best third.
So the long trainings are for promising candidates only.

This example searches a neural network for scikit-learn's digits, and draws who was stopped when.
"""

# %%
# The plan
# --------
#
# Hyperband has one number to choose: the most calls of ``partial_fit`` that a candidate may get.
# Here that is ``max_iter=27``. All of its plan follows from it, and ``metadata`` shows the plan
# before any fit.
import matplotlib.pyplot as plt
from scipy.stats import loguniform
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from skfleet import Fleet
from skfleet.model_selection import HyperbandSearchCV

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X / 16, y, random_state=0, stratify=y)

search = HyperbandSearchCV(
    MLPClassifier(random_state=0),
    {
        "hidden_layer_sizes": [(16,), (32,), (64,)],
        "alpha": loguniform(1e-6, 1e-1),
        "learning_rate_init": loguniform(1e-4, 1e-1),
    },
    max_iter=27,
    random_state=0,
)
plan = search.metadata
print(f"{plan['n_models']} candidates, {plan['partial_fit_calls']} calls of partial_fit")
for bracket in plan["brackets"]:
    rungs = ", then ".join(f"{n} to {calls} calls" for n, calls in bracket["rungs"])
    print(f"    bracket {bracket['bracket']}: {rungs}")

# %%
# Each *bracket* is a race of its own, and its *rungs* are the points where candidates are compared.
# The first bracket begins with many candidates and stops most of them after a single call. The last
# one trains a few candidates to the end without comparing them. That guards against models that
# begin slowly: no single rule for stopping would suit every data set.
#
# Training all candidates to the end would take this many calls:
print(plan["n_models"] * search.max_iter)

# %%
# The search
# ----------
#
# All brackets run at the same time on the workers of the fleet. One call trains on up to 10,000
# rows, so on these data it is a whole epoch.
with Fleet(n_workers=2, processes=False):
    search.fit(X_train, y_train)

print(f"best score on the rows held out: {search.best_score_:.3f}")
print(f"score on the test rows:          {search.score(X_test, y_test):.3f}")
for name, value in search.best_params_.items():
    print(f"    {name} = {value:.3g}" if isinstance(value, float) else f"    {name} = {value}")

# %%
# Candidates are chosen by the rows held out, so the first score is a little too good. The test rows
# had no part in the choice.
#
# Who was stopped when
# --------------------
#
# ``history_`` is a DataFrame with a row for each score: the candidate, its bracket and rung, the
# calls it has had, and the score.
history = search.history_.sort_values(["candidate", "partial_fit_calls"], ignore_index=True)
print(history[["candidate", "bracket", "rung", "partial_fit_calls", "test_score"]].head(4))

# %%
# ``search.plot()`` draws all learning curves in one picture. Here we draw a picture for each
# bracket. A cross is where a candidate was stopped, and the black line is the best one.
best = search.cv_results_["candidate"][search.best_index_]
brackets = sorted(history["bracket"].unique(), reverse=True)
fig, axes = plt.subplots(2, 2, figsize=(8, 5.6), sharex=True, sharey=True, layout="constrained")
for ax, bracket in zip(axes.flat, brackets, strict=True):
    rows = history[history["bracket"] == bracket]
    for candidate, curve in rows.groupby("candidate"):
        calls, scores = curve["partial_fit_calls"], curve["test_score"]
        is_best, is_stopped = candidate == best, calls.max() < search.max_iter
        color = "black" if is_best else "#c9c9c9" if is_stopped else "#3499cd"
        ax.plot(calls, scores, ".-", color=color, zorder=3 if is_best else 2 - is_stopped)
        if is_stopped:
            ax.plot(calls.iloc[-1], scores.iloc[-1], "x", color="#f79a3b", zorder=2)
    n_to_the_end = (rows["partial_fit_calls"] == search.max_iter).sum()
    ax.set_title(
        f"bracket {bracket}: {rows['candidate'].nunique()} candidates, {n_to_the_end} to the end",
        fontsize=10,
    )
    ax.set_xscale("log", base=3)
    ax.set_xticks([1, 3, 9, 27], ["1", "3", "9", "27"])
for ax in axes[1]:
    ax.set_xlabel("calls of partial_fit")
for ax in axes[:, 0]:
    ax.set_ylabel("score, rows held out")
for style, color, label in (
    ("x", "#f79a3b", "stopped"),
    (".-", "#3499cd", "trained to the end"),
    (".-", "black", "best"),
):
    axes[0, 0].plot([], [], style, color=color, label=label)
fig.legend(loc="outside upper center", ncols=3, frameon=False)
plt.show()

# %%
# What to look at: the crosses are at the low end of each column. From the first bracket to the
# last there are fewer candidates, and they are stopped later. The last bracket stops nobody: it
# trains a weak candidate for as long as a good one.
#
# A stopped candidate is not proven to be bad. A model with a small learning rate begins slowly, and
# may lose its place in the first bracket. The other brackets are there for it.
#
# Where the calls went
# --------------------
#
# The best candidates of the search got most of the calls. The picture counts the calls that each
# candidate has had, in the order of its rank.
results = search.cv_results_
order = results["rank_test_score"].argsort()
fig, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
ax.bar(range(1, len(order) + 1), results["partial_fit_calls"][order], color="#3499cd")
ax.set_xlabel("rank of the candidate")
ax.set_ylabel("calls of partial_fit")
ax.set_yticks([1, 9, 27])
plt.show()

# %%
# In a notebook, a cell that ends with the fitted search shows a table of its results:
search

# %%
# When not to use it: the estimator needs ``partial_fit``, and early scores must say something about
# later ones. For other estimators take
# :class:`~skfleet.model_selection.HalvingRandomSearchCV`, which gives candidates more rows instead
# of more calls.
#
# .. seealso::
#
#    - :doc:`/guide/adaptive_searches` helps to choose among the adaptive searches.
#    - :doc:`/how_it_works/adaptive` has their exact rules.
#    - :class:`~skfleet.model_selection.HyperbandSearchCV` lists parameters and attributes.
