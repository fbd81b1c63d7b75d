"""The best candidate is scikit-learn's, on made and real rows, whatever fits come out of others."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.feather
import pytest
import sklearn.model_selection as reference
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn import datasets
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectKBest, SelectPercentile, chi2, f_regression
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from threadpoolctl import threadpool_limits
from xgboost import XGBClassifier, XGBRegressor

from skfleet import estimators
from skfleet.model_selection import GridSearchCV
from skfleet.model_selection._paths import _registry

DATA = Path(__file__).parents[3] / "shared" / "data"

# Scores that differ by less are a tie.
RTOL = 1e-7

# So many rows of each data set, drawn.
N_ROWS = 600


def _drawn(X: Any, y: np.ndarray) -> tuple[Any, np.ndarray]:
    """Some of the rows, the same each time."""
    rows = np.random.default_rng(0).permutation(len(y))[:N_ROWS]
    return X[rows], y[rows]


def _adult() -> tuple[Any, np.ndarray]:
    frame = pd.read_csv(DATA / "adult-train.csv", header=None, skipinitialspace=True)
    X, y = frame[frame.columns[:-1]], (frame.iloc[:, -1] == ">50K").to_numpy(int)
    text = X.select_dtypes(exclude="number").columns
    encode = make_column_transformer(
        (OneHotEncoder(sparse_output=False), text), remainder=StandardScaler()
    )
    return encode.fit_transform(X), y


def _sms() -> tuple[Any, np.ndarray]:
    lines = (DATA / "sms.tsv").read_text(encoding="utf-8").splitlines()
    y, text = zip(*(line.split("\t", 1) for line in lines), strict=True)
    return TfidfVectorizer(max_features=300).fit_transform(text), (np.array(y) == "spam").astype(
        int
    )


def _diamonds() -> tuple[Any, np.ndarray]:
    frame = pd.read_csv(DATA / "diamonds.csv")
    cut = OneHotEncoder(sparse_output=False).fit_transform(frame[["cut", "color"]])
    numbers = frame[["carat", "depth", "table", "x", "y", "z"]].to_numpy(float)
    return np.hstack([numbers, cut]), frame["price"].to_numpy(float)


def _bikes() -> tuple[Any, np.ndarray]:
    frame = pd.read_csv(DATA / "bikeshare.csv", parse_dates=["datetime"])
    frame["hour"] = frame["datetime"].dt.hour
    columns = ["hour", "season", "holiday", "workingday", "weather", "temp", "atemp", "humidity"]
    return frame[columns].to_numpy(float), frame["count"].to_numpy(float)


def _taxis() -> tuple[Any, np.ndarray]:
    frame = pd.read_csv(DATA / "taxis.csv", parse_dates=["pickup", "dropoff"])
    frame["minutes"] = (frame["dropoff"] - frame["pickup"]).dt.total_seconds() / 60
    columns = ["passengers", "distance", "fare", "tolls", "minutes"]
    return frame[columns].to_numpy(float), frame["tip"].to_numpy(float)


def _flights() -> tuple[Any, np.ndarray]:
    frame = pyarrow.feather.read_table(DATA / "flights-200k.arrow").to_pandas().head(20_000)
    return frame[["distance", "time"]].to_numpy(float), frame["delay"].to_numpy(float)


def _tied() -> tuple[Any, np.ndarray]:
    """Rows of small integers, many of them equal, and neighbours equally far."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (N_ROWS, 4)).astype(float)
    return X, (X.sum(axis=1) + rng.integers(0, 4, N_ROWS) > 7).astype(int)


MADE = {
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "digits": lambda: datasets.load_digits(n_class=4, return_X_y=True),
    "classes": lambda: datasets.make_classification(
        800, 12, n_classes=3, n_informative=6, random_state=0
    ),
    "tied": _tied,
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "sum": lambda: datasets.make_regression(600, 15, n_informative=8, noise=20, random_state=0),
    "friedman": lambda: datasets.make_friedman1(600, 10, noise=1.0, random_state=0),
}
REAL = {
    "adult": _adult,
    "sms": _sms,
    "diamonds": _diamonds,
    "bikes": _bikes,
    "taxis": _taxis,
    "flights": _flights,
}
C = [0.01, 0.1, 1.0, 10.0]
ALPHA = [1e-3, 0.1, 1.0, 10.0, 1e3]
SIZES = [2, 6, 15]
WEIGHTS = ["uniform", "distance"]
LOSS = "neg_log_loss"

# What is searched over, by a name: the estimator, the grid, and the scoring.
CLASSIFIERS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "logistic": (LogisticRegression(), {"C": np.logspace(-3, 3, 13)}, None),
    "logistic, loss": (LogisticRegression(max_iter=300), {"C": [0.5, 5.0, 50.0]}, LOSS),
    "newton": (LogisticRegression(solver="newton-cholesky"), {"C": C}, LOSS),
    "scaled": (
        make_pipeline(MinMaxScaler(), LogisticRegression(max_iter=1000)),
        {"logisticregression__C": C},
        None,
    ),
    "machine": (SVC(), {"C": C}, None),
    "linear machine": (
        make_pipeline(MinMaxScaler(), SVC(kernel="linear")),
        {"svc__C": [0.1, 1.0]},
        None,
    ),
    "ridge": (RidgeClassifier(), {"alpha": ALPHA}, None),
    "neighbours": (KNeighborsClassifier(), {"n_neighbors": [1, 2, 4, 9], "weights": WEIGHTS}, None),
    "tree": (DecisionTreeClassifier(random_state=0), {"ccp_alpha": [0.0, 1e-3, 0.01, 0.1]}, None),
    "forest": (RandomForestClassifier(random_state=0), {"n_estimators": SIZES}, LOSS),
    "trees": (ExtraTreesClassifier(random_state=0), {"n_estimators": SIZES}, None),
    "bagging": (BaggingClassifier(random_state=0), {"n_estimators": [2, 5, 9]}, None),
    "adaboost": (AdaBoostClassifier(random_state=0), {"n_estimators": SIZES}, None),
    "boosting": (
        GradientBoostingClassifier(random_state=0, max_depth=2),
        {"n_estimators": SIZES},
        LOSS,
    ),
    "histograms": (
        HistGradientBoostingClassifier(random_state=0, early_stopping=False),
        {"max_iter": SIZES},
        LOSS,
    ),
    "xgboost": (XGBClassifier(n_jobs=1, max_depth=2), {"n_estimators": SIZES}, None),
    "lightgbm": (LGBMClassifier(n_jobs=1, verbose=-1), {"n_estimators": SIZES}, LOSS),
    "components": (
        make_pipeline(PCA(), KNeighborsClassifier()),
        {"pca__n_components": [2, 3, 4], "kneighborsclassifier__n_neighbors": [2, 4]},
        None,
    ),
    "all components": (
        make_pipeline(PCA(svd_solver="full"), DecisionTreeClassifier(random_state=0)),
        {"pca__n_components": [2, 3, 4]},
        None,
    ),
    "vectors": (
        make_pipeline(TruncatedSVD(algorithm="arpack", random_state=0), GaussianNB()),
        {"truncatedsvd__n_components": [1, 2, 3]},
        LOSS,
    ),
    "columns": (
        make_pipeline(MinMaxScaler(), SelectKBest(chi2), KNeighborsClassifier()),
        {"selectkbest__k": [2, 3, 4], "kneighborsclassifier__weights": WEIGHTS},
        None,
    ),
}
REGRESSORS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "ridge": (Ridge(), {"alpha": ALPHA}, None),
    "ridge, absolute": (
        Ridge(),
        {"alpha": ALPHA, "fit_intercept": [True, False]},
        "neg_mean_absolute_error",
    ),
    "scaled ridge": (make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": ALPHA}, None),
    "our ridge": (estimators.Ridge(), {"alpha": ALPHA}, None),
    "our net": (estimators.ElasticNet(tol=1e-3), {"alpha": ALPHA, "l1_ratio": [0.3, 1.0]}, None),
    "least squares": (LinearRegression(), {"fit_intercept": [True, False]}, None),
    "lasso": (Lasso(), {"alpha": ALPHA}, None),
    "lasso, weak": (Lasso(), {"alpha": [1e-4, 1e-3, 0.01]}, "neg_root_mean_squared_error"),
    "net": (ElasticNet(), {"alpha": ALPHA, "l1_ratio": [0.2, 0.9]}, None),
    "net, loosely": (ElasticNet(tol=1e-2), {"alpha": ALPHA}, "neg_mean_absolute_error"),
    "scaled net": (
        make_pipeline(StandardScaler(), ElasticNet()),
        {"elasticnet__alpha": ALPHA, "elasticnet__l1_ratio": [0.2, 0.9]},
        None,
    ),
    "machine": (
        make_pipeline(StandardScaler(), SVR()),
        {"svr__C": [0.1, 10.0], "svr__epsilon": [0.1, 0.5]},
        None,
    ),
    "kernel": (
        make_pipeline(StandardScaler(), KernelRidge(kernel="rbf", gamma=0.1)),
        {"kernelridge__alpha": [0.01, 1.0, 10.0]},
        None,
    ),
    "neighbours": (KNeighborsRegressor(), {"n_neighbors": [1, 2, 4, 9], "weights": WEIGHTS}, None),
    "tree": (DecisionTreeRegressor(random_state=0), {"ccp_alpha": [0.0, 0.01, 1.0]}, None),
    "forest": (RandomForestRegressor(random_state=0), {"n_estimators": SIZES}, None),
    "trees": (ExtraTreesRegressor(random_state=0), {"n_estimators": SIZES}, None),
    "bagging": (BaggingRegressor(random_state=0), {"n_estimators": [2, 5, 9]}, None),
    "adaboost": (AdaBoostRegressor(random_state=0), {"n_estimators": SIZES}, None),
    "boosting": (
        GradientBoostingRegressor(random_state=0, subsample=0.7),
        {"n_estimators": SIZES},
        None,
    ),
    "histograms": (
        HistGradientBoostingRegressor(random_state=0, early_stopping=False),
        {"max_iter": SIZES},
        None,
    ),
    "xgboost": (XGBRegressor(n_jobs=1, max_depth=2), {"n_estimators": SIZES}, None),
    "lightgbm": (LGBMRegressor(n_jobs=1, verbose=-1), {"n_estimators": SIZES}, None),
    "components": (
        make_pipeline(PCA(), Ridge()),
        {"pca__n_components": [1, 2], "ridge__alpha": [0.1, 10.0]},
        None,
    ),
    "columns": (
        make_pipeline(SelectPercentile(f_regression), KNeighborsRegressor()),
        {"selectpercentile__percentile": [50, 80, 100], "kneighborsregressor__n_neighbors": [3, 7]},
        None,
    ),
}
# Those that take no sparse rows.
DENSE = {
    "histograms",
    "components",
    "all components",
    "scaled",
    "linear machine",
    "columns",
    "vectors",
}


class Grid(NamedTuple):
    """A search, and the name of the rows."""

    name: str
    data: str
    model: Any
    grid: dict[str, Any]
    scoring: Any


def grids() -> list[Grid]:
    """All searches that suit their rows."""
    kinds = [
        (CLASSIFIERS, ["iris", "wine", "cancer", "digits", "classes", "tied", "adult", "sms"]),
        (REGRESSORS, ["diabetes", "sum", "friedman", "diamonds", "bikes", "taxis", "flights"]),
    ]
    return [
        Grid(f"{name} of {rows}", rows, *search)
        for searches, data in kinds
        for name, search in searches.items()
        for rows in data
        if rows != "sms" or name not in DENSE
    ]


@cache
def rows_of(name: str) -> tuple[Any, np.ndarray]:
    """Read or make the rows, once."""
    return _drawn(*({**MADE, **REAL}[name]()))


def ranks(scores: np.ndarray) -> np.ndarray:
    """Rank mean scores, the best first; those within the tolerance of the best of them are tied."""
    order = np.argsort(-scores, kind="stable")
    found, best, rank = np.empty(len(scores), int), np.nan, 0
    for place, n in enumerate(order, 1):
        if not abs(scores[n] - best) <= RTOL * abs(best):
            best, rank = scores[n], place
        found[n] = rank
    return found


pytestmark = pytest.mark.usefixtures("one_thread")


# In the quick suite: each shared fit, on rows where one or the other was another one's.
QUICK = {
    "adaboost of wine",
    "bagging of iris",
    "boosting of wine",
    "columns of tied",
    "components of tied",
    "all components of iris",
    "forest of iris",
    "histograms of wine",
    "kernel of diabetes",
    "lasso, weak of taxis",
    "least squares of sum",
    "lightgbm of iris",
    "logistic of iris",
    "logistic of sms",
    "machine of wine",
    "machine of diabetes",
    "neighbours of tied",
    "net of diabetes",
    "net, loosely of sum",
    "our net of sum",
    "ridge of cancer",
    "ridge, absolute of sum",
    "scaled net of friedman",
    "tree of iris",
    "vectors of wine",
    "xgboost of iris",
}


def _marked(search: Grid) -> Any:
    """Put a search in its suite."""
    marks = [] if search.name in QUICK else [pytest.mark.slow]
    if search.data in REAL:
        no_data = pytest.mark.skipif(not DATA.exists(), reason="there is no folder of real data")
        marks.append(no_data)
    return pytest.param(search, id=search.name, marks=marks)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("search", [_marked(search) for search in grids()])
def test_best_candidate(search):
    X, y = rows_of(search.data)
    params = {"scoring": search.scoring, "cv": 3, "refit": False}
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        ours = GridSearchCV(search.model, search.grid, **params).fit(X, y)
        theirs = reference.GridSearchCV(search.model, search.grid, **params).fit(X, y)
    for name, expected in theirs.cv_results_.items():
        if name.endswith("test_score") and not name.startswith(("std", "rank")):
            np.testing.assert_allclose(ours.cv_results_[name], expected, RTOL, 1e-12, err_msg=name)
    expected = ranks(theirs.cv_results_["mean_test_score"])
    np.testing.assert_array_equal(ranks(ours.cv_results_["mean_test_score"]), expected)
    if (expected == 1).sum() == 1:
        assert ours.best_index_ == theirs.best_index_
        assert ours.best_params_ == theirs.best_params_
    else:
        assert expected[ours.best_index_] == 1
    assert any(use.n_saved or use.refused for use in ours.shared_fits_)


def test_searches_are_many_and_of_all_shared_fits():
    assert len(grids()) >= 200
    assert {search.name for search in grids()} >= QUICK
    searched = {
        type(member.shared_fit)
        for search in grids()
        for step in range(len(getattr(search.model, "steps", [1])))
        if (member := _registry.member_of(search.model, _first_of(search.grid), step=step))
    }
    known = {
        type(shared_fit)
        for by_module in _registry._by_name.values()
        for module, shared_fit in by_module.items()
        if module.partition(".")[0] in ("sklearn", "xgboost", "lightgbm")
    }
    assert searched >= known


def _first_of(grid: dict[str, Any]) -> dict[str, Any]:
    """Give the first candidate of a grid."""
    return {name: values[0] for name, values in grid.items()}
