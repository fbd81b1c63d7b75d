"""Rows, models, and fits that stop early by the hand of a user of scikit-learn."""

import lightgbm
import numpy as np
import pandas as pd
import xgboost
from sklearn.base import clone, is_classifier
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import ParameterGrid, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import skfleet.estimators as ours

NUMBERS, LABELS = make_classification(420, 5, flip_y=0.3, random_state=1)
TARGETS = NUMBERS[:, 0] * 3 + np.random.default_rng(0).normal(size=420) * 2
FRAME = pd.DataFrame(NUMBERS, columns=list("abcde")).assign(
    kind=np.array(["x", "y", "z"])[np.random.default_rng(1).integers(3, size=420)]
)

XGB = {"n_estimators": 60, "early_stopping_rounds": 4, "n_jobs": 1}
LGBM = {"n_estimators": 60, "early_stopping_round": 4, "n_jobs": 1, "verbose": -1}
HIST = {"max_iter": 60, "n_iter_no_change": 4, "random_state": 3}
MODELS = {
    "hist classifier": HistGradientBoostingClassifier(**HIST),
    "hist regressor": HistGradientBoostingRegressor(**HIST),
    "hist, scored": HistGradientBoostingClassifier(**HIST, scoring="roc_auc", early_stopping=True),
    "xgboost": xgboost.XGBClassifier(**XGB),
    "lightgbm": lightgbm.LGBMRegressor(**LGBM),
    "our xgboost": ours.XGBRegressor(**XGB),
    "our lightgbm": ours.LGBMClassifier(**LGBM),
}
DEPTHS = {"model__max_depth": [2, 4]}


def is_lightgbm(model):
    return isinstance(model, lightgbm.LGBMModel)


def pipeline(model):
    columns = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["kind"]), remainder="passthrough"
    )
    scaler = StandardScaler()
    return Pipeline([("columns", columns), ("scaler", scaler), ("model", model)])


def with_rounds(model, n_rounds):
    """Return a clone that boosts so many times, without early stopping."""
    if isinstance(model, xgboost.XGBModel):
        params = {"n_estimators": n_rounds, "early_stopping_rounds": None}
    elif is_lightgbm(model):
        params = {"n_estimators": n_rounds, "early_stopping_round": None}
    else:
        params = {"max_iter": n_rounds, "early_stopping": False}
    return clone(model).set_params(**params)


def rounds_by_hand(model, X, y, X_val, y_val, weight=None, weight_val=None):
    """Return the number of rounds up to the best validation score, by the library's own fit."""
    model = clone(model)
    if isinstance(model, xgboost.XGBModel):
        weights = {} if weight_val is None else {"sample_weight_eval_set": [weight_val]}
        evals = {"eval_set": [(X_val, y_val)], "verbose": False}
        model.fit(X, y, sample_weight=weight, **evals, **weights)
        return model.best_iteration + 1
    if is_lightgbm(model):
        weights = {} if weight_val is None else {"eval_sample_weight": [weight_val]}
        model.fit(X, y, sample_weight=weight, eval_X=X_val, eval_y=y_val, **weights)
        return model.best_iteration_
    model.set_params(early_stopping=True)
    weights = {"sample_weight_val": weight_val}
    model.fit(X, y, sample_weight=weight, X_val=X_val, y_val=y_val, **weights)
    return max(1, np.argmax(model.validation_score_))


def take(X, rows):
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def splits_by_hand(y, cv, fraction, seed=0, *, stratify):
    for train, test in cv.split(np.empty((len(y), 0)), y):
        labels = y[train] if stratify else None
        fit, val = train, test
        if fraction != "test":
            fit, val = train_test_split(
                train, test_size=fraction, random_state=seed, stratify=labels
            )
        yield fit, val, test


def by_hand(estimator, grid, X, y, cv, fraction, weight=None):
    """Return the rounds, test scores and train scores of shape (n_candidates, n_splits)."""
    rows = []
    seed = estimator[-1].get_params()["random_state"] or 0
    for params in ParameterGrid(grid):
        candidate = clone(estimator).set_params(**params)
        for fit, val, test in splits_by_hand(
            y, cv, fraction, seed, stratify=is_classifier(estimator)
        ):
            steps, model = clone(candidate[:-1]), clone(candidate[-1])
            fitted = steps.fit_transform(take(X, fit), y[fit])
            weights = (None, None) if weight is None else (weight[fit], weight[val])
            validation = steps.transform(take(X, val)), y[val]
            n_rounds = rounds_by_hand(model, fitted, y[fit], *validation, *weights)
            model = with_rounds(model, n_rounds).fit(fitted, y[fit], sample_weight=weights[0])
            scores = (
                model.score(steps.transform(take(X, test)), y[test]),
                model.score(fitted, y[fit]),
            )
            rows.append((n_rounds, *scores))
    n_splits = cv.get_n_splits()
    return [np.reshape(values, (-1, n_splits)) for values in zip(*rows, strict=True)]


def by_split(search, name):
    columns = [search.cv_results_[f"split{n}_{name}"] for n in range(search.n_splits_)]
    return np.transpose(columns)


def assert_as_by_hand(search, expected):
    n_rounds, test, train = expected
    np.testing.assert_array_equal(by_split(search, "best_iteration"), n_rounds)
    np.testing.assert_allclose(by_split(search, "test_score"), test, rtol=1e-12)
    if search.return_train_score:
        np.testing.assert_allclose(by_split(search, "train_score"), train, rtol=1e-12)
    medians = np.rint(np.median(n_rounds, axis=1))
    np.testing.assert_array_equal(search.cv_results_["best_iteration"], medians)
