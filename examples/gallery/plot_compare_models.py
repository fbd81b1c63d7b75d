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
# Five folds, repeated four times, give 20 splits.
import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import RepeatedStratifiedKFold, compare_models

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
# One fleet for all fits
# ----------------------
#
# :func:`skfleet.model_selection.compare_models` draws the splits once, and schedules the fits of
# all models together, so that no worker waits between two models. Two metrics cost one fit, since
# each fitted model is scored by both. The first one decides which model is the best.
with Fleet(n_workers=2, processes=False):
    comparison = compare_models(models, X, y, cv=splits, scoring=["accuracy", "roc_auc"])
comparison

# %%
# Scores, and differences of scores
# ---------------------------------
#
# The left picture has the mean accuracy of each model, the right one the difference to the best
# model, which is taken on each split before the mean. Bars are confidence intervals.
comparison.plot()
plt.show()

# %%
# What to look at:
#
# - **Left.** The intervals overlap, as some splits are harder than others for every model. From
#   these alone you could not rank the models.
# - **Right.** The hard splits cancel out. An interval on one side of zero is of a model that is
#   worse than the best one. An interval across zero is of a model that you cannot tell from it with
#   these rows.
#
# Splits share most of their training rows, so their scores depend on one another, and the mean is
# less certain than 20 independent values would make it. The intervals are therefore wider than
# those of a plain t-test: their variance is that of Nadeau and Bengio (2003).
#
# All pairs
# ---------
#
# The frame ``p_values`` has a test for each pair of models. Among ten pairs one may well have a
# small p-value by chance; ``p_value_holm`` is corrected for that.
pairs = comparison.p_values[comparison.p_values["metric"] == "accuracy"]
pairs[["model_1", "model_2", "difference", "p_value", "p_value_holm"]].round(4)

# %%
# What each model costs
# ---------------------
#
# The frame ``splits`` has the scores of each split, and the seconds of each fit and of each score.
seconds = comparison.splits.groupby("model")[["fit_time", "score_time"]].median()
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
(1000 * seconds).loc[comparison.results.index].plot.barh(
    stacked=True, ax=ax, color=["#3499cd", "#f79a3b"]
)
ax.invert_yaxis()
ax.set_ylabel("")
ax.set_xlabel("milliseconds for each split, median of 20")
plt.show()

# %%
# If the models also have parameters to choose, compare searches instead: pass
# :class:`~skfleet.model_selection.GridSearchCV` objects in place of the models. The scores are then
# of rows that the choice of parameters has not seen.
#
# .. seealso::
#
#    - :doc:`/guide/comparing_models` says more about the tests.
#    - :func:`~skfleet.model_selection.compare_models` lists all arguments.
#    - :doc:`plot_learning_curves` asks whether more rows would help.
