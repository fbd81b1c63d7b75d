"""
Learning curves and validation curves
=====================================

Would more rows make a model better, or is its parameter wrong? Two curves answer this before you
collect data or start a large search:

- A *learning curve* has the scores for growing numbers of training rows.
- A *validation curve* has the scores for growing values of one parameter.

Both need many fits that do not depend on one another, and so both run on a fleet.
"""

# %%
# Would more rows help?
# ---------------------
#
# We compare two models of scikit-learn's digits: naive Bayes, and a support vector machine. Each is
# fitted on five numbers of rows and on four splits, which makes 40 fits.
#
# :func:`skfleet.model_selection.learning_curve` has the arguments of scikit-learn's function and
# returns the same arrays. The splitter has a number as ``random_state``, so both models are trained
# and tested on the same rows.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import LearningCurveDisplay, ShuffleSplit, ValidationCurveDisplay
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import learning_curve, validation_curve

X, y = load_digits(return_X_y=True)
X = X / 16
splits = ShuffleSplit(n_splits=4, test_size=0.2, random_state=0)
models = {"naive Bayes": GaussianNB(), "support vector machine": SVC(gamma=0.05)}

curves = {}
with Fleet(n_workers=2, processes=False):
    for name, model in models.items():
        curves[name] = learning_curve(
            model, X, y, cv=splits, train_sizes=np.linspace(0.1, 1.0, 5), return_times=True
        )

for name, (sizes, _, test_scores, *_) in curves.items():
    first, last = test_scores.mean(axis=1)[[0, -1]]
    print(f"{name}: {first:.3f} with {sizes[0]} rows, {last:.3f} with {sizes[-1]}")

# %%
# The arrays go into scikit-learn's own pictures.
fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
for ax, (name, (sizes, train_scores, test_scores, *_)) in zip(axes, curves.items(), strict=True):
    display = LearningCurveDisplay(
        train_sizes=sizes, train_scores=train_scores, test_scores=test_scores, score_name="accuracy"
    )
    display.plot(ax=ax, score_type="both", line_kw={"marker": "o"})
    ax.set_title(name)
    ax.legend(["training rows", "test rows"], loc="lower right")
plt.show()

# %%
# What to look at is the distance between the two lines of each model. The bands are the spread over
# the four splits.
#
# - The lines of naive Bayes come together well below 1. This model cannot describe the digits any
#   better, so more rows will not help. Try another model.
# - The support vector machine knows its training rows almost by heart, and its score on test rows
#   still rises a little at the right end. More rows may help it.
#
# What more rows cost
# -------------------
#
# With ``return_times=True`` the seconds of each fit come back too. They show how the work grows
# with the rows, before you try ten times as many.
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
for (name, curve), color in zip(curves.items(), ("#3499cd", "#f79a3b"), strict=True):
    sizes, _, _, fit_times, _ = curve
    ax.plot(sizes, 1000 * np.median(fit_times, axis=1), "o-", color=color, label=name)
ax.set_xlabel("training rows")
ax.set_ylabel("milliseconds for a fit,\nmedian of four splits")
ax.set_ylim(bottom=0)
ax.legend(frameon=False)
plt.show()

# %%
# Which value of a parameter?
# ---------------------------
#
# The width ``gamma`` of the kernel decides how closely the support vector machine follows single
# rows. The validation curve tries five values of it on the same splits.
gammas = np.geomspace(1e-3, 10, 5)
with Fleet(n_workers=2, processes=False):
    train_scores, test_scores = validation_curve(
        SVC(), X, y, param_name="gamma", param_range=gammas, cv=splits
    )
best = gammas[test_scores.mean(axis=1).argmax()]
print(f"best gamma of these: {best:.3g}, mean accuracy {test_scores.mean(axis=1).max():.3f}")

display = ValidationCurveDisplay(
    param_name="gamma",
    param_range=gammas,
    train_scores=train_scores,
    test_scores=test_scores,
    score_name="accuracy",
)
fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
display.plot(ax=ax, line_kw={"marker": "o"})
ax.axvline(best, color="#5b5b5b", linestyle=":")
ax.legend(["training rows", "test rows"], loc=(0.26, 0.1))
plt.show()

# %%
# What to look at: on the left both lines are low, so the model is too simple. On the right it knows
# its training rows and nothing else, so it is too flexible. The dotted line is the best value.
#
# The score of the best value is a little too good, since it was chosen on these test rows. For a
# score to report, keep other rows aside.
#
# Two limits: a validation curve varies one parameter only, and it makes a fit for each value. A
# search varies several parameters at once, and one fit may serve many candidates.
#
# .. seealso::
#
#    - :doc:`/guide/cross_validation` has the other functions, and rows in Dask collections.
#    - :func:`~skfleet.model_selection.learning_curve` and
#      :func:`~skfleet.model_selection.validation_curve` list their arguments.
#    - :doc:`plot_shared_fits` shows what one fit can do for many candidates.
