"""
Compare models on the same splits
=================================

Which of several models is better? Their scores depend on how the rows were split, often more than
on the model. A fair comparison therefore fits all models on the same splits, and looks at the
differences split by split.

This example compares five classifiers on 20 splits, which makes 100 fits for a fleet.
"""

# %%
# The models and the splits
# -------------------------
#
# The data are scikit-learn's measurements of breast tumours: 569 rows of 30 columns. Models that
# need columns of one scale get a scaler in a pipeline, which is fitted on the training rows of each
# split alone.
#
# Five folds, repeated four times, give 20 splits. ``random_state=0`` makes them the same for every
# model.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import RepeatedStratifiedKFold, cross_validate

X, y = load_breast_cancer(return_X_y=True)
models = {
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression()),
    "support vector machine": make_pipeline(StandardScaler(), SVC()),
    "10 nearest neighbours": make_pipeline(StandardScaler(), KNeighborsClassifier(10)),
    "random forest": RandomForestClassifier(50, random_state=0),
    "naive Bayes": GaussianNB(),
}
splits = RepeatedStratifiedKFold(n_splits=5, n_repeats=4, random_state=0)

# %%
# One fleet for all models
# ------------------------
#
# :func:`skfleet.model_selection.cross_validate` takes scikit-learn's arguments, and sends its fits
# to the fleet. The fleet starts once and stays for all models. Two metrics cost one fit, since each
# fitted model is scored by both.
#
# A model that always gives the most frequent class shows what a score is worth.
models["most frequent class"] = DummyClassifier()
scores = {}
with Fleet(n_workers=2, processes=False):
    for name, model in models.items():
        scores[name] = cross_validate(model, X, y, cv=splits, scoring=["accuracy", "roc_auc"])

for name, results in scores.items():
    accuracy, area = results["test_accuracy"], results["test_roc_auc"]
    print(f"{name:24} accuracy {accuracy.mean():.3f}, area under the curve {area.mean():.3f}")

# %%
# Scores, and differences of scores
# ---------------------------------
#
# The left picture has the accuracy of each model on the 20 splits: their mean, and their standard
# deviation as a bar. The right picture has the differences to the best model, taken on each split
# before the mean.
del scores["most frequent class"]  # so far below that the others could not be told apart
accuracies = {name: results["test_accuracy"] for name, results in scores.items()}
best = max(accuracies, key=lambda name: accuracies[name].mean())
print("best mean accuracy:", best)

fig, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
for row, (name, values) in enumerate(accuracies.items()):
    color = "#f79a3b" if name == best else "#3499cd"
    difference = values - accuracies[best]
    for ax, points in zip(axes, (values, difference), strict=True):
        jitter = np.linspace(-0.25, 0.25, len(points))
        ax.plot(points, row + jitter, ".", color="#c9c9c9", markersize=4)
        ax.errorbar(points.mean(), row, xerr=points.std(ddof=1), fmt="o", color=color, capsize=4)
axes[0].set_yticks(range(len(accuracies)), accuracies)
axes[0].invert_yaxis()
axes[0].set_xlabel("accuracy")
axes[1].axvline(0, color="#5b5b5b", linewidth=0.8)
axes[1].set_xlabel("difference to the best model")
plt.show()

# %%
# What to look at:
#
# - **Left.** The bars overlap, as some splits are harder than others for every model. From these
#   bars alone you could not rank the models.
# - **Right.** The hard splits cancel out. A bar that stays on one side of zero is a model that is
#   worse than the best one on most splits. A bar across zero is a model that you cannot tell from
#   it with these rows.
#
# The bars are no confidence intervals. Splits share most of their training rows, so their scores
# depend on one another, and the mean is less certain than 20 independent values would make it.
#
# What each model costs
# ---------------------
#
# ``cross_validate`` returns the seconds of each fit and of each score, too.
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
left = np.zeros(len(accuracies))
for phase, color in (("fit", "#3499cd"), ("score", "#f79a3b")):
    width = np.array([1000 * np.median(scores[name][f"{phase}_time"]) for name in accuracies])
    ax.barh(list(accuracies), width, left=left, color=color, label=phase)
    left += width
ax.invert_yaxis()
ax.set_xlabel("milliseconds for each split, median of 20")
ax.legend(frameon=False)
plt.show()

# %%
# If the models also have parameters to choose, compare searches instead: pass
# :class:`~skfleet.model_selection.GridSearchCV` objects in place of the models. The scores are then
# of rows that the choice of parameters has not seen.
#
# .. seealso::
#
#    - :doc:`/guide/cross_validation` explains what runs where.
#    - :func:`~skfleet.model_selection.cross_validate` lists all arguments.
#    - :doc:`plot_learning_curves` asks whether more rows would help.
