"""Measure precision and recall of a forest for every threshold, on rows of a fleet."""

import matplotlib.pyplot as plt
import numpy as np
from _drawing import BLUE, GREY, ORANGE
from sklearn.ensemble import RandomForestClassifier

from skfleet import Fleet
from skfleet.datasets import make_classification
from skfleet.estimators import ParallelPostFit
from skfleet.metrics import precision_recall_curve

N_TRAIN, RECALL = 2_000, 0.8

X, y = make_classification(
    22_000, n_features=10, weights=[0.9], flip_y=0.01, random_state=0, chunks=2_000
)
forest = RandomForestClassifier(50, min_samples_leaf=5, random_state=0)
forest.fit(X[:N_TRAIN].compute(), y[:N_TRAIN].compute())
with Fleet(n_workers=2, processes=False):
    chances = ParallelPostFit(forest).predict_proba(X[N_TRAIN:])[:, 1]
    precision, recall, thresholds = precision_recall_curve(y[N_TRAIN:], chances)
chosen = np.flatnonzero(recall >= RECALL)[-1]

plt.rcParams["font.size"] = 10
figure, axes = plt.subplots()
for values, colour, name in ((precision, BLUE, "precision"), (recall, ORANGE, "recall")):
    axes.plot(thresholds[::20], values[:-1:20], color=colour, label=name)
axes.axvline(0.5, color=GREY, linestyle=":", label="0.5, the threshold of predict")
axes.axvline(
    thresholds[chosen],
    color=GREY,
    linestyle="--",
    label=f"{thresholds[chosen]:.2f}, for a recall of {RECALL}",
)
axes.set_xlim(0, 1)
axes.set_ylim(0, 1)
axes.set_xlabel("threshold on the probability")
axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.24), ncols=2, frameon=False)
