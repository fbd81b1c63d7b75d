"""
Resume a search that was killed
===============================

A long search may die for many reasons: somebody restarts the machine, the batch system ends the
job, or a notebook loses its kernel. With ``checkpoint`` a search records its finished fits in a
folder. The same search, run again, makes only the fits that are missing.

This example kills a search in the middle, runs it again, and counts which fits were repeated.
"""

# %%
# The search
# ----------
#
# The grid has 12 candidates of extremely randomised trees. With three splits that makes 36 fits.
#
# To count fits, the search is scored by a function of ours. It computes the usual accuracy, and
# adds a line to a log file for each fit. The checkpoint itself needs nothing of the kind.
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

folder = tempfile.TemporaryDirectory()
log_file = str(Path(folder.name) / "log.csv")
checkpoint = Path(folder.name) / "checkpoint"


def logged_accuracy(fitted, X, y):
    """Return the accuracy, and add a line to the log: the time and the candidate."""
    score = fitted.score(X, y)
    with open(log_file, "a") as file:
        file.write(f"{time.time()},{fitted.max_depth} / {fitted.max_features}\n")
    return score


X, y = load_digits(return_X_y=True)
search = GridSearchCV(
    ExtraTreesClassifier(20, random_state=0),
    {"max_depth": [6, 9, 12, None], "max_features": [4, 8, 16]},
    cv=3,
    scoring=logged_accuracy,
    checkpoint=str(checkpoint),
)

# %%
# A process that is killed
# ------------------------
#
# The first attempt runs in a Python process of its own, so that we can kill it without ending this
# script. The process reads the search and its rows from a file, and begins to fit.
CHILD = """
import cloudpickle, sys
from skfleet import Fleet

with open(sys.argv[1], "rb") as file:
    search, X, y = cloudpickle.load(file)
with Fleet(n_workers=2, processes=False):
    search.fit(X, y)
"""


def read_log():
    """Return the log as a DataFrame with a row for each fit."""
    return pd.read_csv(log_file, names=["time", "candidate"])


def run_and_kill(n_fits):
    """Fit the search in a child process, and kill it after so many fits."""
    pickled = Path(folder.name) / "search.pickle"
    pickled.write_bytes(cloudpickle.dumps((search, X, y)))
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(pickled)])
    try:
        while child.poll() is None and not (Path(log_file).exists() and len(read_log()) >= n_fits):
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()


run_and_kill(n_fits=18)
first = read_log()
print(f"killed after {len(first)} fits")

# %%
# ``kill`` ends the process at once, on Linux by the signal ``SIGKILL``. It has no chance to tidy
# up, as if the power had failed.
#
# The same search again
# ---------------------
#
# Now this process runs the same search with the same checkpoint. It could be on another machine
# that sees the folder, with more workers or fewer.
with Fleet(n_workers=2, processes=False):
    search.fit(X, y)
second = read_log()[len(first) :]

# %%
# Which fits were repeated
# ------------------------
#
# ``n_checkpoint_fits_`` is the number of fits that came from the checkpoint, and ``timeline_`` has
# a row for each fit that was made now. Together they are all 36.
recorded, made = search.n_checkpoint_fits_, len(search.timeline_)
print(f"{recorded} fits from the checkpoint + {made} made now = {recorded + made}")
print(f"made twice: {len(first) + len(second) - 36}")

# %%
# Workers send their results home in batches, and a batch lasts a quarter of a second at most unless
# a single fit takes longer. A fit that had ended, but whose batch had not, is made twice. Fits that
# were running at the kill are begun again; the log does not show those.
params = [(p["max_depth"], p["max_features"]) for p in search.cv_results_["params"]]
candidates = [f"{depth} / {features}" for depth, features in params]
n_first = first["candidate"].value_counts().reindex(candidates, fill_value=0).to_numpy()
n_second = second["candidate"].value_counts().reindex(candidates, fill_value=0).to_numpy()
kinds = {
    "first run only": (3 - n_second, "#3499cd"),
    "both runs": (n_first + n_second - 3, "#5b5b5b"),
    "second run only": (3 - n_first, "#f79a3b"),
}

fig, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.8), layout="constrained")
start = np.zeros(len(candidates))
for label, (widths, color) in kinds.items():
    left.barh(candidates, widths, left=start, color=color, edgecolor="white", label=label)
    start += widths
left.set_xticks(range(4))
left.invert_yaxis()
left.set_xlabel("fits of the candidate")
left.set_ylabel("candidate: depth / columns")

for log, color, before in ((first, "#3499cd", 0), (second, "#f79a3b", recorded)):
    seconds = log["time"] - first["time"].iloc[0]
    right.step(seconds, before + np.arange(1, len(log) + 1), where="post", color=color)
right.axhline(recorded, color="#5b5b5b", linestyle=":", linewidth=1)
right.set_xlabel("seconds since the first fit was scored")
right.set_ylabel("fits that are done")
fig.legend(loc="outside upper center", ncols=3, frameon=False)
plt.show()

# %%
# What to look at:
#
# - **Left.** Each row is a candidate with its three fits. Blue fits were made before the kill and
#   never again. Orange fits were missing. Grey ones, if there are any, were made twice.
# - **Right.** The blue line breaks off where the process was killed. The orange one goes on from
#   the dotted line, which is what the checkpoint had, and not from zero.
#
# The result is that of an undisturbed search
# -------------------------------------------
#
# A recorded score is the very number that the first process computed. So the results are those of a
# search that was never interrupted, which we run now without a checkpoint.
with Fleet(n_workers=2, processes=False):
    undisturbed = clone(search).set_params(checkpoint=None).fit(X, y)

same = np.array_equal(
    undisturbed.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"]
)
print("same scores:", same)
print("same best candidate:", undisturbed.best_params_ == search.best_params_)
folder.cleanup()

# %%
# Two things to know before you rely on it:
#
# - The search, its rows and its splits must be the same. scikit-fleet compares them, and refuses a
#   checkpoint of another search with an error that says what changed. Randomly drawn candidates and
#   splits therefore need a number as ``random_state``.
# - The last fit, of the best candidate on all rows, is not recorded. It is made in every run.
#
# .. seealso::
#
#    - :doc:`/guide/resuming` is about checkpoints, time budgets and Ctrl-C.
#    - :doc:`/how_it_works/checkpoints` says exactly what counts as the same search.
#    - :class:`~skfleet.model_selection.GridSearchCV` has the parameter ``checkpoint``.
