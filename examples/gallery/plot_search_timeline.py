"""
Which fit ran when, and on which worker
=======================================

A grid search is many fits that do not depend on one another, so a fleet makes several of them at
the same time. This example searches the parameters of a pipeline on two workers. Then it draws
what each worker did at each moment.

You need such a picture when a search takes longer than you expect. It shows whether workers wait,
and whether a few slow candidates take most of the time.
"""

# %%
# The search
# ----------
#
# The pipeline scales the pixels of scikit-learn's digits, keeps some principal components, and
# classifies the digits with a support vector machine. The grid has 12 candidates. With three
# splits that makes 36 fits.
#
# The workers are threads of this process here, so the script needs no
# ``if __name__ == "__main__":``. On your own data, leave out the arguments, and put that line in:
# :class:`~skfleet.Fleet` then starts a worker process for each core.
import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

X, y = load_digits(return_X_y=True)
model = make_pipeline(StandardScaler(), PCA(random_state=0), SVC())
grid = {
    "pca__n_components": [8, 32],
    "svc__gamma": [0.001, 0.01, 0.1],
    "svc__C": [1, 10],
}
search = GridSearchCV(model, grid, cv=3)
with Fleet(n_workers=2, threads_per_worker=1, processes=False):
    search.fit(X, y)

print(f"{len(search.timeline_)} fits, best mean accuracy {search.best_score_:.4f} with")
for name, value in search.best_params_.items():
    print(f"    {name} = {value}")

# %%
# The picture that a grid search draws
# ------------------------------------
#
# ``search.plot()`` draws two pictures. On the left is the mean score over the parameter with the
# most values. There is a line for each combination of the other parameters, and the bars are the
# spread over the splits. On the right is a row for each worker, with a box for each fit.
#
# The method returns the two axes, so you can change what it drew. Here the workers get short names
# in place of their network addresses.
scores, times = search.plot()
times.set_yticks([0, 1], ["worker 1", "worker 2"])
plt.show()

# %%
# The timeline, with the candidates
# ---------------------------------
#
# ``timeline_`` is a DataFrame with a row for each fit. Its columns are the ``worker``, ``begin``
# and ``end`` in seconds since the search began, the ``candidate`` and the ``split``. These times
# include the scoring.
timeline = search.timeline_.sort_values(["worker", "begin"], ignore_index=True)
print(timeline[["begin", "end"]].describe().loc[["count", "min", "max"]].round(2))

# %%
# The number of a candidate is its row in ``cv_results_``, so each fit gets the parameters of its
# candidate. Blue and orange are the two numbers of components, light and dark the two values of
# ``C``.
timeline = timeline.join(pd.DataFrame(search.cv_results_["params"]), on="candidate")

colors = {(8, 1): "#3499cd", (8, 10): "#1b5a7d", (32, 1): "#f79a3b", (32, 10): "#a85a12"}
workers = sorted(set(timeline["worker"]))
fig, ax = plt.subplots(figsize=(8, 2.8), layout="constrained")
for (components, C), color in colors.items():
    fits = timeline[(timeline["pca__n_components"] == components) & (timeline["svc__C"] == C)]
    ax.barh(
        [workers.index(worker) for worker in fits["worker"]],
        fits["end"] - fits["begin"],
        left=fits["begin"],
        color=color,
        edgecolor="white",
        linewidth=0.5,
        label=f"{components} components, C={C}",
    )
ax.set_yticks([0, 1], ["worker 1", "worker 2"])
ax.set_xlabel("seconds since the search began")
ax.set_xlim(left=0)
fig.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
plt.show()

# %%
# What to look at:
#
# - **Pairs of boxes, the first one wide.** Candidates that differ in ``C`` alone share the kernel
#   matrix, which counts for the first of them. Fits on the same split travel in batches, and the
#   first fit of a batch also fits the scaler and the principal components for those after it.
# - **The right ends.** Both workers should finish at about the same time. A single box that sticks
#   out is a slow candidate that began too late. The search avoids that: once a candidate was timed
#   on one split, the longest fits begin first.
# - **The gap on the left.** Before the first fit, the search plans its batches and hands the rows
#   to the workers.
#
# The share of time in which the workers were busy sums this up. It counts from the first fit to the
# last one:
span = timeline["end"].max() - timeline["begin"].min()
busy = (timeline["end"] - timeline["begin"]).sum() / (2 * span)
print(f"the workers were busy {busy:.0%} of the time")

# %%
# What was shared is in ``shared_fits_``, and :doc:`another example <plot_shared_fits>` is about it:
for use in search.shared_fits_:
    print(f"{use.estimator}: {use.n_fits} fits asked for, {use.n_saved} of them saved")

# %%
# In a notebook, a cell that ends with the fitted search shows a table of its results:
search

# %%
# .. seealso::
#
#    - :doc:`/guide/searches` shows searches of rows in memory.
#    - :doc:`/guide/monitoring` has other ways to see what a fleet does.
#    - :class:`~skfleet.model_selection.GridSearchCV` lists all attributes of a search.
