"""A dozen users of joblib in scikit-learn run on a fleet, and answer as they do without."""

import joblib
import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import (
    BaggingClassifier,
    ExtraTreesRegressor,
    IsolationForest,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import RFECV
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, learning_curve
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from skfleet import Fleet

X, y = load_iris(return_X_y=True)
tree, bayes = DecisionTreeClassifier(random_state=0), GaussianNB()
pair = [("tree", tree), ("bayes", bayes)]
columns = [("first", MinMaxScaler(), [0, 1]), ("last", StandardScaler(), [2, 3])]


def consumers(n):
    """Return an answer of each, made with n_jobs=n."""
    return {
        "forest": RandomForestClassifier(random_state=0, n_jobs=n).fit(X, y).predict_proba(X),
        "extra trees": ExtraTreesRegressor(random_state=0, n_jobs=n).fit(X, y).predict(X),
        "bagging": BaggingClassifier(tree, random_state=0, n_jobs=n).fit(X, y).predict_proba(X),
        "isolation": IsolationForest(n_estimators=20, random_state=0, n_jobs=n)
        .fit(X)
        .score_samples(X),
        "voting": VotingClassifier(pair, voting="soft", n_jobs=n).fit(X, y).predict_proba(X),
        "stacking": StackingClassifier(pair, LogisticRegression(), n_jobs=n).fit(X, y).predict(X),
        "one against the rest": OneVsRestClassifier(bayes, n_jobs=n).fit(X, y).predict_proba(X),
        "columns": ColumnTransformer(columns, n_jobs=n).fit_transform(X),
        "cross_val_score": cross_val_score(tree, X, y, n_jobs=n),
        "cross_val_predict": cross_val_predict(bayes, X, y, n_jobs=n),
        "learning_curve": learning_curve(bayes, X, y, shuffle=True, random_state=0, n_jobs=n)[2],
        "permutation_importance": permutation_importance(
            tree.fit(X, y), X, y, random_state=0, n_jobs=n
        ).importances,
        "recursive elimination": RFECV(tree, n_jobs=n).fit(X, y).ranking_,
        "search": GridSearchCV(tree, {"max_depth": [1, 2, 3]}, n_jobs=n).fit(X, y).best_params_,
        "own calls": joblib.Parallel(n)(joblib.delayed(pow)(i, 2) for i in range(50)),
    }


if __name__ == "__main__":
    expected = consumers(1)
    with Fleet(n_workers=2), joblib.parallel_config("skfleet"):
        for name, answer in consumers(-1).items():
            print(f"{name}:", "the same" if np.all(answer == expected[name]) else "another")
