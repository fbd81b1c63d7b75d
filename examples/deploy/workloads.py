"""Fits that a cluster must end right: a search, a model of Parquet files, and boosting.

Each is made on a fleet, and by the plain library in this process for comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from glob import glob
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from lightgbm import LGBMRegressor as PlainLGBMRegressor
from sklearn import cluster, model_selection
from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingClassifier
from xgboost import XGBRegressor as PlainXGBRegressor

from skfleet.estimators import KMeans, LGBMRegressor, XGBRegressor
from skfleet.model_selection import GridSearchCV

N_FILES, N_ROWS, N_COLUMNS = 8, 100_000, 10
COLUMNS = [f"x{number}" for number in range(N_COLUMNS)]


@dataclass
class Workload:
    """A fit on the fleet and in this process; their answers may differ by the tolerance."""

    name: str
    on_fleet: Callable[[], np.ndarray]
    in_process: Callable[[], np.ndarray]
    tolerance: float
    begin_message: str = ""  # of the log of scikit-fleet; else the first task is the begin

    def difference(self, answer: np.ndarray) -> float:
        """Return how far an answer of the fleet is from that of this process."""
        return float(np.abs(answer - self.in_process()).max())


def workloads(folder: Path) -> Iterator[Workload]:
    """Yield the fits, of which some read Parquet files of a folder, after writing these."""
    files = str(folder / "*.parquet")
    if not list(folder.glob("*.parquet")):
        write_files(folder)
    yield Workload("search", search_scores, plain_search_scores, 1e-12)
    yield Workload("Parquet", lambda: centers(files), lambda: plain_centers(files), 1e-9)
    yield boosting("XGBoost", XGBRegressor(**XGBOOST), PlainXGBRegressor(**XGBOOST), files)
    plain = PlainLGBMRegressor(**LIGHTGBM, n_jobs=1)
    yield boosting("LightGBM", LGBMRegressor(**LIGHTGBM), plain, files)


def write_files(folder: Path) -> None:
    """Write rows of few distinct values, of which every library makes the same bins."""
    for number in range(N_FILES):
        rng = np.random.default_rng(number)
        X = rng.integers(-50, 50, size=(N_ROWS, N_COLUMNS)) / 50.0
        frame = pd.DataFrame(X, columns=COLUMNS)
        frame["y"] = X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2]) + rng.normal(size=N_ROWS)
        frame.to_parquet(folder / f"{number}.parquet")


# A search over rows in this process: 36 fits, each a task

GRID = {"max_depth": [1, 2, 3], "learning_rate": [0.05, 0.1, 0.2, 0.4]}
CLASSIFIER = GradientBoostingClassifier(n_estimators=12, random_state=0)


def search_scores() -> np.ndarray:
    """Return the scores of a grid search on the fleet."""
    search = GridSearchCV(CLASSIFIER, GRID, cv=3)
    return search.fit(*load_digits(return_X_y=True)).cv_results_["mean_test_score"]


@cache
def plain_search_scores() -> np.ndarray:
    """Return those of scikit-learn's own search."""
    search = model_selection.GridSearchCV(CLASSIFIER, GRID, cv=3)
    return search.fit(*load_digits(return_X_y=True)).cv_results_["mean_test_score"]


# A model of rows in files, for which the workers pass over them 40 times

KMEANS = {"n_clusters": 12, "n_init": 1, "max_iter": 40, "tol": 0.0}
CENTERS = np.random.default_rng(0).uniform(-1, 1, size=(12, N_COLUMNS))


def centers(files: str) -> np.ndarray:
    """Return the centres that k-means finds in files that the workers read."""
    return KMeans(init=CENTERS, **KMEANS).fit(dd.read_parquet(files)[COLUMNS]).cluster_centers_


@cache
def plain_centers(files: str) -> np.ndarray:
    """Return those that scikit-learn's finds."""
    return cluster.KMeans(init=CENTERS, **KMEANS).fit(read(files)[COLUMNS]).cluster_centers_


def read(files: str) -> pd.DataFrame:
    """Return the rows of all files."""
    return pd.concat(map(pd.read_parquet, sorted(glob(files))), ignore_index=True)


# Boosting of the same files

XGBOOST = {"n_estimators": 200, "max_depth": 6, "learning_rate": 0.1}
LIGHTGBM = {"n_estimators": 200, "num_leaves": 31, "learning_rate": 0.1, "verbose": -1}


def boosting(name, model, plain_model, files: str) -> Workload:
    """Return the training of a booster, whose answers are predictions of the first file."""
    first = pd.read_parquet(files.replace("*", "0"))[COLUMNS]

    def on_fleet() -> np.ndarray:
        frame = dd.read_parquet(files)
        return model.fit(frame[COLUMNS], frame["y"]).predict(first)

    @cache
    def in_process() -> np.ndarray:
        frame = read(files)
        return plain_model.fit(frame[COLUMNS], frame["y"]).predict(first)

    return Workload(name, on_fleet, in_process, 1e-3, begin_message="is trained on")
