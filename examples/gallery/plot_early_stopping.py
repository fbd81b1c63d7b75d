"""
Early stopping inside a search
==============================

Gradient boosting has two parameters that belong together: the smaller the learning rate, the more
rounds it needs. A grid over both wastes most of its rounds. With ``early_stopping`` a search gives
each fit some validation rows, and each fit stops by itself when its score on them gets no better.

This example searches a grid both ways. It compares the rounds that each candidate used, the time of
its fits, and the scores.
"""

# %%
# Two searches
# ------------
#
# The rows are made up: the classes depend on four of ten columns, and on chance. A model that
# boosts too long learns the chance by heart. Each of the six candidates may boost 120 rounds.
#
# ``early_stopping=0.2`` holds out a fifth of the training rows of each split, the same rows for all
# candidates. The test rows of the split stay unseen until the score. The search also turns on the
# early stopping of scikit-learn's
# :class:`~sklearn.ensemble.HistGradientBoostingClassifier`, whose ``n_iter_no_change`` says how
# many rounds without progress end a fit.
#
# The search that makes all rounds is here for its scores only. ``refit=False`` leaves out its last
# fit.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

rng = np.random.default_rng(0)
X = rng.normal(size=(3_000, 10))
log_odds = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + X[:, 3] ** 2 - 1
y = (rng.random(len(X)) < 1 / (1 + np.exp(-log_odds))).astype(int)

model = HistGradientBoostingClassifier(max_iter=120, n_iter_no_change=10, random_state=0)
grid = {"learning_rate": [0.1, 0.2, 0.4], "max_leaf_nodes": [4, 12]}
searches = {
    "all rounds": GridSearchCV(model, grid, cv=3, scoring="neg_log_loss", refit=False),
    "early stopping": GridSearchCV(model, grid, cv=3, scoring="neg_log_loss", early_stopping=0.2),
}
with Fleet(n_workers=2, processes=False):
    for search in searches.values():
        search.fit(X, y)

# %%
# Rounds used by each candidate
# -----------------------------
#
# ``cv_results_`` has a new column. ``best_iteration`` is the number of rounds up to the best
# validation score, as the median over the splits. ``split0_best_iteration`` and so on are those of
# each split.
results = {name: search.cv_results_ for name, search in searches.items()}
stopped = results["early stopping"]
labels = [f"rate {p['learning_rate']},\n{p['max_leaf_nodes']} leaves" for p in stopped["params"]]
for params, rounds in zip(stopped["params"], stopped["best_iteration"], strict=True):
    print(params, "->", int(rounds), "rounds")

colors = {"all rounds": "#5b5b5b", "early stopping": "#3499cd"}
places = np.arange(len(labels))
fig, axes = plt.subplot_mosaic(
    [["rounds", "rounds", "seconds"], ["loss", "loss", "seconds"]],
    figsize=(8.5, 5),
    layout="constrained",
    width_ratios=[1, 1, 0.7],
)
for shift, name in ((-0.2, "all rounds"), (0.2, "early stopping")):
    color, values = colors[name], results[name]
    rounds = values.get("best_iteration", model.max_iter)
    axes["rounds"].bar(places + shift, rounds, 0.4, color=color, label=name)
    loss, spread = -values["mean_test_score"], values["std_test_score"]
    axes["loss"].errorbar(places + shift, loss, spread, fmt="o", color=color, capsize=4)
    bar = axes["seconds"].bar(name, 3 * values["mean_fit_time"].sum(), color=color)
    axes["seconds"].bar_label(bar, fmt="{:.2g}")
for split in range(3):
    axes["rounds"].plot(places + 0.2, stopped[f"split{split}_best_iteration"], "k.")
axes["rounds"].set_ylabel("rounds used")
axes["rounds"].set_xticks(places, [])
axes["loss"].set_ylabel("log loss on test rows")
axes["loss"].set_xticks(places, labels, fontsize=8)
axes["seconds"].set_xticks([0, 1], ["all\nrounds", "early\nstopping"])
axes["seconds"].set_ylabel("seconds of all 18 fits")
fig.get_layout_engine().set(wspace=0.06)
handles, names = axes["rounds"].get_legend_handles_labels()
fig.legend(handles, names, loc="outside upper center", ncols=2, frameon=False)
plt.show()

# %%
# What to look at:
#
# - **Rounds.** The blue bars shrink as the learning rate grows, since larger steps need fewer of
#   them. No single number of rounds suits all candidates. The dots are the three splits.
# - **Log loss**, where lower is better. With the largest learning rate 120 rounds are far too many,
#   and the grey points rise. The blue points are about level: each candidate is judged at its own
#   best number of rounds.
# - **Seconds.** Fits that stop early save the rounds that they do not make. They still make
#   ``n_iter_no_change`` rounds after the best one, and score the validation rows after each round.
#
# Early stopping need not find a better best candidate. Its fits have a fifth fewer rows, and 120
# rounds happen to suit some candidate of this grid:
for name, search in searches.items():
    print(f"{name}: log loss {-search.best_score_:.3f} with {search.best_params_}")

# %%
# The model that you get
# ----------------------
#
# The last fit uses all rows, the validation rows too. It boosts as many rounds as
# ``best_iteration`` says for the best candidate, and does not stop early.
search = searches["early stopping"]
print("rounds of the best estimator:", search.best_estimator_.n_iter_)

# %%
# When not to use it: on few rows, holding out a fifth costs accuracy. ``early_stopping="test"``
# holds out nothing and stops on the test rows of the split. Its scores are then too good: they
# compare candidates, but say little about new rows.
#
# .. seealso::
#
#    - :doc:`/guide/boosting` is about gradient boosting on a fleet.
#    - :doc:`/how_it_works/search_early_stopping` lists the estimators that can stop in a search.
#    - :class:`~skfleet.model_selection.GridSearchCV` explains the parameter.
