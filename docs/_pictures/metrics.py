"""Measured: how often the blocks of rows are loaded for one to six metrics, alone and together."""

import dask.array as da
import matplotlib.pyplot as plt
from _drawing import BLUE, ORANGE
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from skfleet import Fleet, config_context
from skfleet.engine import counting
from skfleet.estimators import ParallelPostFit
from skfleet.metrics import check_scoring, get_scorer

plt.rcParams["font.size"] = 10
NAMES = ["accuracy", "f1", "precision", "recall", "neg_log_loss", "roc_auc"]
N_BLOCKS = 6

X, y = load_breast_cancer(return_X_y=True)
model = ParallelPostFit(LogisticRegression(max_iter=10_000)).fit(X, y)
rows, labels = da.from_array(X, chunks=(100, 30)), da.from_array(y, chunks=100)


def loads(score):
    """Return how often each block is loaded for a score."""
    with counting() as counts:
        score(model, rows, labels)
    return counts.loads / N_BLOCKS


with Fleet(n_workers=2, processes=False), config_context(single_task_below=0):
    alone = [loads(get_scorer(name)) for name in NAMES]
    together = [loads(check_scoring(scoring=NAMES[: n + 1])) for n in range(len(NAMES))]

figure, axes = plt.subplots(layout="constrained")
places = range(len(NAMES))
one_by_one = [sum(alone[: n + 1]) for n in places]
axes.barh([p - 0.2 for p in places], one_by_one, 0.38, color=ORANGE, label="one by one")
axes.barh([p + 0.2 for p in places], together, 0.38, color=BLUE, label="one check_scoring")
axes.set_yticks(places, [NAMES[0]] + [f"+ {name}" for name in NAMES[1:]])
axes.invert_yaxis()
axes.set_xlabel("times that each block is loaded, for the metrics so far")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
