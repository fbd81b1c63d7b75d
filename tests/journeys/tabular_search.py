"""A table with numbers, categories and gaps: a search over a pipeline, as with scikit-learn."""

import numpy as np
import pandas as pd
from scipy.stats import loguniform
from sklearn import model_selection
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV, RandomizedSearchCV


def table(n=3000):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "age": rng.integers(17, 90, n).astype(float),
            "hours": rng.normal(40, 12, n).round(1),
            "work": pd.Categorical(rng.choice(["state", "private", "own"], n)),
            "town": rng.choice(["north", "south", "east", "west"], n),
        }
    )
    odds = 0.04 * (X.age - 50) + 0.05 * (X.hours - 40) + 0.8 * (X.work == "own")
    X.loc[rng.random(n) < 0.05, "hours"] = np.nan
    return X, np.where(odds + rng.logistic(size=n) > 0, "more", "less")


if __name__ == "__main__":
    X, y = table()
    train, test, y_train, y_test = model_selection.train_test_split(X, y, random_state=0)
    numbers = make_column_selector(dtype_include=np.number)
    texts = make_column_selector(dtype_exclude=np.number)
    prepared = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers), (OneHotEncoder(), texts)
    )
    linear = make_pipeline(prepared, LogisticRegression())
    grid = {"logisticregression__C": [0.01, 0.1, 1.0], "columntransformer__remainder": ["drop"]}
    boosted = HistGradientBoostingClassifier(random_state=0, categorical_features=["work"])
    drawn = {"learning_rate": loguniform(0.01, 0.3), "max_iter": [20, 40], "max_depth": [2, 3]}

    theirs = model_selection.GridSearchCV(linear, grid, scoring="roc_auc").fit(train, y_train)
    with Fleet(n_workers=2):
        ours = GridSearchCV(linear, grid, scoring="roc_auc").fit(train, y_train)
        print(ours.best_params_, ours.best_params_ == theirs.best_params_)
        print(
            np.allclose(ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"])
        )
        print("unseen rows:", round(ours.score(test, y_test), 1))
        search = RandomizedSearchCV(boosted, drawn, n_iter=6, cv=3, random_state=0, verbose=1)
        search.fit(train.drop(columns="town"), y_train)
        print("drawn:", len(search.cv_results_["params"]), "best:", round(search.best_score_, 1))
        print("shared:", search.shared_fits_[0].parameters)
        few = GridSearchCV(LogisticRegression(max_iter=2), {"C": [1.0, 10.0]}, cv=3, refit=False)
        few.fit(train[["age", "hours"]].fillna(0), y_train)
