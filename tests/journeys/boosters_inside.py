"""LightGBM and XGBoost in searches on a fleet, and their predictions of more rows."""

import dask.array as da
import numpy as np
from lightgbm import LGBMClassifier
from sklearn import model_selection
from sklearn.datasets import load_breast_cancer
from xgboost import XGBClassifier

from skfleet import Fleet
from skfleet.estimators import ParallelPostFit
from skfleet.model_selection import GridSearchCV

BOOSTERS = {
    "LightGBM": (LGBMClassifier(random_state=0, verbose=-1, n_jobs=1), "num_leaves"),
    "XGBoost": (XGBClassifier(random_state=0, n_jobs=1), "max_leaves"),
}

if __name__ == "__main__":
    X, y = load_breast_cancer(return_X_y=True)
    many = da.from_array(X, chunks=(100, -1)).repeat(4, axis=0)
    for name, (booster, leaves) in BOOSTERS.items():
        grid = {"n_estimators": [10, 20, 40], leaves: [4, 8]}
        theirs = model_selection.GridSearchCV(booster, grid, cv=3).fit(X, y)
        with Fleet(n_workers=2):
            ours = GridSearchCV(booster, grid, cv=3).fit(X, y)
            scores = [s.cv_results_["mean_test_score"] for s in (ours, theirs)]
            print(name, "best:", ours.best_params_ == theirs.best_params_, end=", ")
            print("scores:", np.allclose(*scores), "fits saved:", ours.shared_fits_[0].n_saved >= 9)
            answers = ParallelPostFit(ours.best_estimator_).predict_proba(many)
            same = np.allclose(answers.compute()[::4], ours.predict_proba(X))
            print("predicts", answers.shape, same)
