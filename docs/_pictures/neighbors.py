"""Measure forests of all blocks and of single blocks, on rows in two orders."""

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from _drawing import BLUE, ORANGE
from sklearn.metrics import roc_auc_score
from sklearn.tree import DecisionTreeClassifier

from skfleet import Fleet
from skfleet.estimators import BlockwiseVotingClassifier, RandomForestClassifier

N_ROWS, N_BLOCKS = 8_000, 32

rng = np.random.default_rng(0)
hour = np.sort(rng.uniform(0, 24, N_ROWS))  # rows come in the order of a day
distance = rng.gamma(2.0, 400.0, N_ROWS)
is_late = rng.random(N_ROWS) < 0.1 + 0.4 * (distance % 700 < 200) + 0.02 * np.abs(hour - 12)
X = np.column_stack([distance, hour])
is_test = rng.random(N_ROWS) < 0.3
shuffled = rng.permutation(N_ROWS)
models = {
    "BlockwiseVoting-\nClassifier": BlockwiseVotingClassifier(
        DecisionTreeClassifier(min_samples_leaf=10, random_state=0), voting="soft"
    ),
    "RandomForest-\nClassifier": RandomForestClassifier(
        N_BLOCKS, max_samples=1 / 4, min_samples_leaf=10, random_state=0
    ),
}


def area(model, order):
    """Return the area under the ROC curve of test rows after a fit on rows in this order."""
    train = order[~is_test[order]]
    rows = da.from_array(X[train], chunks=(-(-len(train) // N_BLOCKS), 2))
    labels = da.from_array(is_late[train], chunks=rows.chunks[0])
    model.fit(rows, labels)
    return roc_auc_score(is_late[is_test], model.predict_proba(X[is_test])[:, 1])


plt.rcParams["font.size"] = 10
figure, axes = plt.subplots(figsize=(7, 2.9))
with Fleet(n_workers=2, processes=False):
    for shift, colour, label, order in (
        (0.2, ORANGE, "rows in the order of the day", np.arange(N_ROWS)),
        (-0.2, BLUE, "rows shuffled", shuffled),
    ):
        areas = [area(model, order) for model in models.values()]
        bars = axes.barh(np.arange(2)[::-1] + shift, areas, height=0.36, color=colour, label=label)
        axes.bar_label(bars, fmt="%.3f", padding=3)
axes.set_yticks([1, 0], list(models))
axes.set_xlim(0.5, 0.75)
axes.set_xlabel("area under the ROC curve, on other rows")
axes.legend(loc="upper center", bbox_to_anchor=(0.45, 1.2), ncols=2, frameon=False)
