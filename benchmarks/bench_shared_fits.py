"""Searches with shared fits, against scikit-learn's with two processes.

``python benchmarks/bench_shared_fits.py`` prints the table of the documentation: seconds of both,
the factor, the fits that were saved, and the largest difference of a score; for logistic regression
with ``share_fits="approximate"`` too. Words after it choose the searches whose names begin with
one.
"""

import sys
import time
import warnings

import numpy as np
from sklearn.datasets import make_classification, make_regression
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV as StockGridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from skfleet import Fleet
from skfleet.model_selection import GridSearchCV

SEARCHES = {
    "HistGradientBoosting, 6 `max_iter` up to 100": (
        HistGradientBoostingClassifier(early_stopping=False, random_state=0),
        {"max_iter": [50, 60, 70, 80, 90, 100]},
    ),
    "GradientBoosting, 5 `n_estimators` up to 100": (
        GradientBoostingClassifier(random_state=0),
        {"n_estimators": [20, 40, 60, 80, 100]},
    ),
    "RandomForest, 5 `n_estimators` up to 100": (
        RandomForestClassifier(random_state=0),
        {"n_estimators": [20, 40, 60, 80, 100]},
    ),
    "AdaBoost, 5 `n_estimators` up to 50": (
        AdaBoostClassifier(random_state=0),
        {"n_estimators": [10, 20, 30, 40, 50]},
    ),
    "KNeighbors, 20 `n_neighbors`": (
        KNeighborsClassifier(),
        {"n_neighbors": list(range(1, 21))},
    ),
    "Ridge, 20 `alpha`": (Ridge(), {"alpha": np.logspace(-3, 3, 20)}),
    "StandardScaler before Ridge, 20 `alpha`": (
        make_pipeline(StandardScaler(), Ridge()),
        {"ridge__alpha": np.logspace(-3, 3, 20)},
    ),
    "SimpleImputer and scaler before Ridge, 20 `alpha`": (
        make_pipeline(SimpleImputer(), StandardScaler(), Ridge()),
        {"ridge__alpha": np.logspace(-3, 3, 20)},
    ),
    "OneHotEncoder before Ridge, 20 `alpha`": (
        make_pipeline(OneHotEncoder(handle_unknown="ignore"), Ridge(tol=1e-12)),
        {"ridge__alpha": np.logspace(-2, 3, 20)},
    ),
    "ElasticNet, 50 `alpha`": (ElasticNet(), {"alpha": np.logspace(-2, 1, 50)}),
    "LogisticRegression, 20 `C`": (
        LogisticRegression(max_iter=1000),
        {"C": np.logspace(-4, 2, 20)},
    ),
    "DecisionTree, 20 `ccp_alpha`": (
        DecisionTreeClassifier(random_state=0),
        {"ccp_alpha": np.linspace(0, 0.01, 20)},
    ),
    "SVC, 5 `C`": (SVC(), {"C": np.logspace(-2, 2, 5)}),
    "PCA before naive Bayes, 8 `n_components`": (
        make_pipeline(StandardScaler(), PCA(), GaussianNB()),
        {"pca__n_components": [5, 10, 20, 40, 60, 80, 100, 120]},
    ),
}


# Those that are shared when a solver's tolerance will do.
APPROXIMATE = ("LogisticRegression, 20 `C`",)


def timed(search, X, y):
    """Return the seconds of a fit."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X, y)
    return time.perf_counter() - began


class SharedFits:
    """The searches, one a parameter."""

    params = (list(SEARCHES),)
    param_names = ("search",)
    timeout = 300

    def setup(self, name):
        self.fleet = Fleet(n_workers=2)
        self.rows = rows(name)

    def teardown(self, name):
        self.fleet.close()

    def time_search(self, name):
        GridSearchCV(*SEARCHES[name], refit=False).fit(*self.rows)


class ApproximateSharedFits:
    """The searches whose fits are shared within the tolerance of a solver, or not."""

    params = (list(APPROXIMATE), [True, "approximate"])
    param_names = ("search", "share_fits")
    timeout = 300

    def setup(self, name, share_fits):
        self.fleet = Fleet(n_workers=2)
        self.rows = rows(name)

    def teardown(self, name, share_fits):
        self.fleet.close()

    def time_search(self, name, share_fits):
        search = GridSearchCV(*SEARCHES[name], refit=False, share_fits=share_fits)
        search.fit(*self.rows)


def rows(name):
    """Make rows; more of them where scikit-learn is quick with so many."""
    kind = name.partition(",")[0]
    if kind.startswith("OneHotEncoder"):
        rng = np.random.default_rng(0)
        X = rng.integers(0, 100, (200_000, 10)).astype(str)
        return X, (X[:, 0] < "5") + rng.normal(size=len(X))
    if "Ridge" in kind or kind == "ElasticNet":
        size = (20_000, 100) if kind == "ElasticNet" else (200_000, 50)
        X, y = make_regression(*size, noise=10, random_state=0)
        if kind.startswith("SimpleImputer"):
            X[np.random.default_rng(0).random(X.shape) < 0.05] = np.nan
        return X, y
    size = {
        "KNeighbors": (20_000, 12),
        "LogisticRegression": (50_000, 50),
        "PCA before naive Bayes": (20_000, 200),
        "SVC": (3_000, 200),
    }.get(kind, (10_000, 12))
    return make_classification(*size, n_informative=8, random_state=0)


def main():
    """Print the table."""
    print(f"{'':50}{'skfleet':>9}{'sklearn':>9}{'factor':>8}{'saved':>7}{'differ':>9}")
    with Fleet(n_workers=2):
        for name, (model, grid) in SEARCHES.items():
            if not name.startswith(tuple(sys.argv[1:] or [""])):
                continue
            X, y = rows(name)
            stock = StockGridSearchCV(model, grid, refit=False, n_jobs=2)
            timed(stock, X[:500], y[:500])
            for share_fits in (True, "approximate") if name in APPROXIMATE else (True,):
                ours = GridSearchCV(model, grid, refit=False, share_fits=share_fits)
                timed(ours, X, y)
                one, other = timed(ours, X, y), timed(stock, X, y)
                scores = [name for name in stock.cv_results_ if name.startswith("split")]
                differ = max(
                    np.abs(ours.cv_results_[name] - stock.cv_results_[name]).max()
                    for name in scores
                )
                (use,) = ours.shared_fits_
                label = name if share_fits is True else f"{name}, {share_fits}"
                print(
                    f"{label:50}{one:9.2f}{other:9.2f}{other / one:8.1f}"
                    f"{use.n_saved:4}/{use.n_fits:<3}{differ:8.0e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
