"""Passes over Dask rows: of three searches, and of the same fits and scores one after the other."""

import matplotlib.pyplot as plt
from _drawing import BLUE, GREY
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import make_pipeline

import skfleet
from skfleet.datasets import make_classification
from skfleet.engine import counting
from skfleet.estimators import GaussianNB, LogisticRegression, Ridge, RobustScaler, StandardScaler
from skfleet.model_selection import GridSearchCV, split_rows

plt.rcParams["font.size"] = 10

X, y = make_classification(8_192, n_features=6, random_state=0, chunks=4_096)
searches = {
    "StandardScaler, Ridge\n5 alpha": (
        make_pipeline(StandardScaler(), Ridge()),
        {"ridge__alpha": [0.1, 1, 10, 100, 1000]},
    ),
    "StandardScaler, LogisticRegression\n2 C": (
        make_pipeline(StandardScaler(), LogisticRegression()),
        {"logisticregression__C": [0.1, 1]},
    ),
    "RobustScaler, GaussianNB\n4 var_smoothing": (
        make_pipeline(RobustScaler(), GaussianNB()),
        {"gaussiannb__var_smoothing": [1e-9, 1e-6, 1e-3, 1e-1]},
    ),
}
alone, together = [], []
with skfleet.config_context(single_task_below=0):
    for model, grid in searches.values():
        with counting() as counts:
            GridSearchCV(model, grid, cv=3, refit=False).fit(X, y)
        together.append(counts.passes)
        with counting() as counts:
            for X_train, X_test, y_train, y_test in split_rows(X, y, cv=3):
                for parameters in ParameterGrid(grid):
                    fitted = clone(model).set_params(**parameters).fit(X_train, y_train)
                    fitted.score(X_test, y_test)
        alone.append(counts.passes)

figure, axes = plt.subplots(figsize=(7, 3.6))
places = range(len(searches))
bars = axes.barh(
    [k - 0.2 for k in places], alone, 0.36, color=GREY, label="one fit after the other"
)
axes.bar_label(bars, padding=3)
bars = axes.barh([k + 0.2 for k in places], together, 0.36, color=BLUE, label="GridSearchCV")
axes.bar_label(bars, padding=3)
axes.set_yticks(places, searches)
axes.invert_yaxis()
axes.set(xlabel="passes over the rows", xlim=(0, 1.12 * max(alone)))
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
figure.tight_layout()
