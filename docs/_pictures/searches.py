"""How many fits of the last step five searches ask for, and how many they make."""

import matplotlib.pyplot as plt
from _drawing import BLUE, GREY
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

plt.rcParams["font.size"] = 10

X, y = load_breast_cancer(return_X_y=True)
X /= X.std(axis=0)
forest, tree = RandomForestClassifier(random_state=0), DecisionTreeClassifier(random_state=0)
searches = {
    "KNeighborsClassifier, 20 n_neighbors": (
        KNeighborsClassifier(),
        {"n_neighbors": list(range(1, 21))},
    ),
    "DecisionTreeClassifier, 20 ccp_alpha": (tree, {"ccp_alpha": [k / 1000 for k in range(20)]}),
    "PCA and naive Bayes, 10 n_components": (
        make_pipeline(PCA(svd_solver="full"), GaussianNB()),
        {"pca__n_components": list(range(1, 11))},
    ),
    "SVC, 4 C and 2 gamma": (SVC(), {"C": [0.1, 1, 10, 100], "gamma": [0.01, 0.1]}),
    "RandomForestClassifier, 5 n_estimators": (forest, {"n_estimators": [2, 4, 6, 8, 10]}),
}
asked, made = [], []
with Fleet(n_workers=2, processes=False):
    for estimator, grid in searches.values():
        (use,) = GridSearchCV(estimator, grid, cv=5, refit=False).fit(X, y).shared_fits_
        asked.append(use.n_fits)
        made.append(use.n_fits - use.n_saved)

figure, axes = plt.subplots(figsize=(7, 3.6))
places = range(len(searches))
axes.barh([k - 0.2 for k in places], asked, 0.36, color=GREY, label="fits asked for")
bars = axes.barh([k + 0.2 for k in places], made, 0.36, color=BLUE, label="fits made")
axes.bar_label(bars, padding=3)
axes.bar_label(axes.containers[0], padding=3)
axes.set_yticks(places, searches)
axes.invert_yaxis()
axes.set(xlabel="fits, with 5 splits", xlim=(0, 112))
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, loc="lower right")
figure.tight_layout()
