"""Accuracy after each epoch on rows that are sorted by label, for three orders of training."""

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from _drawing import BLUE, GREY, ORANGE
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

from skfleet import Fleet
from skfleet.estimators import Incremental

plt.rcParams["font.size"] = 10

X, X_val, y, y_val = train_test_split(*load_digits(return_X_y=True), random_state=0)
order = np.argsort(y, kind="stable")
rows, labels = da.from_array(X[order] / 16, chunks=(30, 64)), da.from_array(y[order], chunks=30)
orders = {
    "shuffle=False": (False, GREY),
    'shuffle="blocks"': ("blocks", ORANGE),
    'shuffle="rows"': ("rows", BLUE),
}
figure, axes = plt.subplots(figsize=(7, 3.6))
with Fleet(n_workers=2, processes=False):
    for name, (shuffle, colour) in orders.items():
        model = Incremental(
            SGDClassifier(alpha=1e-3, random_state=0),
            epochs=6,
            shuffle=shuffle,
            early_stopping=True,
            n_iter_no_change=6,
            random_state=0,
        )
        history = model.fit(rows, labels, X_val=X_val / 16, y_val=y_val).history_
        axes.plot(history.epoch, history.score, marker="o", color=colour, label=name)
axes.set(xlabel="epoch", ylabel="accuracy on validation rows", xticks=range(1, 7))
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
figure.tight_layout()
