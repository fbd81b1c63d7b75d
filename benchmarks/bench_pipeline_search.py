"""Searches over pipelines whose rows are on Dask: seconds against scikit-learn, and passes.

``python benchmarks/bench_pipeline_search.py`` prints the table of the documentation. scikit-learn
gets the rows in memory, with ``n_jobs=2`` (loky); the fleet has two worker processes of a thread.
"""

import logging
import time
import warnings
from collections import Counter

import dask.dataframe as dd
import numpy as np
import pandas as pd
import sklearn.compose
import sklearn.linear_model
import sklearn.model_selection
import sklearn.preprocessing
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline

from skfleet import Fleet
from skfleet.estimators import LogisticRegression
from skfleet.estimators.compose import ColumnTransformer
from skfleet.estimators.preprocessing import OneHotEncoder, StandardScaler
from skfleet.model_selection import GridSearchCV

NUMBERS, CATEGORIES = [f"x{i}" for i in range(10)], ["a", "b"]
ENCODINGS = {"columns__categories__drop": [None, "first"]}
CASES = {
    "LogisticRegression, 3 C": {"last__C": [0.1, 1.0, 10.0]},
    "HistGradientBoosting, 3 sizes": {"last__max_leaf_nodes": [7, 15, 31]},
}


def rows(n_rows=200_000):
    """Return a frame of ten numbers and two categories, and labels that follow from them."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(n_rows, 10)), columns=NUMBERS)
    for name in CATEGORIES:
        table[name] = rng.choice([f"{name}{i}" for i in range(20)], n_rows)
    score = table.x0 - table.x1 + (table.a < "a2") + rng.normal(size=n_rows)
    return table, (score > 0.5).astype(int)


def search(case, kind, scaler, encoder, transformer, logistic, **params):
    """Return a search over three penalties or sizes, two encodings and three splits."""
    columns = [("numbers", scaler, NUMBERS), ("categories", encoder, CATEGORIES)]
    boosting = HistGradientBoostingClassifier(max_iter=30, early_stopping=False)
    last = logistic(tol=1e-6) if "Logistic" in case else boosting
    pipeline = Pipeline([("columns", transformer(columns)), ("last", last)])
    grid, params = CASES[case] | ENCODINGS, {"cv": 3, "refit": False, **params}
    return kind(pipeline, grid, scoring="neg_log_loss", **params)


def ours(case):
    """Return the search of this library."""
    encoder = OneHotEncoder(sparse_output=False)
    room = StandardScaler(), encoder, ColumnTransformer, LogisticRegression
    return search(case, GridSearchCV, *room)


def reference(case):
    """Return scikit-learn's search."""
    encoder = sklearn.preprocessing.OneHotEncoder(sparse_output=False)
    transformer, logistic = sklearn.compose.ColumnTransformer, sklearn.linear_model
    room = sklearn.preprocessing.StandardScaler(), encoder, transformer
    room = *room, logistic.LogisticRegression
    return search(case, sklearn.model_selection.GridSearchCV, *room, n_jobs=2)


class PassCounter(logging.Handler):
    """Counter of the passes that the engine logs, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def emit(self, record):
        message = record.getMessage()
        if message.startswith("pass "):
            self.counts[message.split()[1].rstrip(":")] += 1


def measure(func):
    """Return the result of a call, and its seconds."""
    start = time.perf_counter()
    result = func()
    return result, time.perf_counter() - start


class PipelineSearch:
    """Searches over pipelines on a Dask frame of eight partitions."""

    params = (list(CASES),)
    param_names = ("case",)
    timeout = 600

    def setup(self, case):
        self.fleet = Fleet(n_workers=2)
        self.table, self.labels = rows()
        self.lazy = [dd.from_pandas(x, npartitions=8) for x in (self.table, self.labels)]

    def teardown(self, case):
        self.fleet.close()

    def compare(self, case):
        """Return the seconds of both, the passes by name, and the largest difference of a score."""
        warnings.simplefilter("ignore")
        counter, logger = PassCounter(), logging.getLogger("skfleet.engine")
        level = logger.level
        ours(case).fit(*self.lazy)  # imports
        logger.setLevel(logging.DEBUG)
        logger.addHandler(counter)
        search, seconds = measure(lambda: ours(case).fit(*self.lazy))
        logger.removeHandler(counter)
        logger.setLevel(level)
        other, other_seconds = measure(lambda: reference(case).fit(self.table, self.labels))
        scores = (x.cv_results_["mean_test_score"] for x in (search, other))
        difference = float(np.abs(np.subtract(*scores)).max())
        return seconds, other_seconds, counter.counts, difference

    def track_speedup(self, case):
        seconds, other_seconds, _, _ = self.compare(case)
        return other_seconds / seconds

    def track_passes_of_preparation(self, case):
        counts = self.compare(case)[2]
        return counts["fit-first-steps"] + counts["gather-rows"]


if __name__ == "__main__":
    for name in CASES:
        benchmark = PipelineSearch()
        benchmark.setup(name)
        print(name, *benchmark.compare(name), sep=" | ", flush=True)
        benchmark.teardown(name)
