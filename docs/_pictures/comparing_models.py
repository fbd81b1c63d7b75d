"""Accuracy of four models on the same splits, and their differences to the best."""

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.model_selection import RepeatedStratifiedKFold, compare_models

plt.rcParams["font.size"] = 10

X, y = load_breast_cancer(return_X_y=True)
models = {
    "logistic regression": LogisticRegression(),
    "support vector machine": SVC(),
    "10 nearest neighbours": KNeighborsClassifier(10),
    "naive Bayes": GaussianNB(),
}
models = {name: make_pipeline(StandardScaler(), model) for name, model in models.items()}
splits = RepeatedStratifiedKFold(n_splits=5, n_repeats=4, random_state=0)
with Fleet(n_workers=2, processes=False):
    comparison = compare_models(models, X, y, cv=splits, scoring=["accuracy"])
comparison.plot()[0].figure.set_size_inches(7, 3)
