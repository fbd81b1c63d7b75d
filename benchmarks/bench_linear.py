"""Linear models next to scikit-learn's and dask-ml's: speed as ratios in one run, and passes.

A ratio above 1 says that we are faster. Of several solvers of scikit-learn's the fastest counts,
of those that reach the optimum where it says so.
"""

import time
import warnings

import dask
import dask.array as da
import numpy as np
from distributed import wait
from scipy.special import expit
from sklearn import linear_model as reference

from skfleet import Fleet, config_context, estimators
from skfleet.blocks import row_blocks
from skfleet.engine import LocalEngine, Reduction, counting, limit_threadpools, map_reduce
from skfleet.glm import (
    BinaryLogistic,
    ClassEncoding,
    Objective,
    Scaling,
    block_cross_products,
    combine_products,
)

N_ROWS, N_COLUMNS = 1_000_000, 50


def _rows(n_rows=N_ROWS, n_columns=N_COLUMNS, log_scale=0.0):
    """Rows, a target and labels that follow from them, and counts."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_columns))
    eta = X @ (rng.normal(size=n_columns) / np.sqrt(n_columns))
    X *= np.logspace(-log_scale, log_scale, n_columns)
    return {
        "X": X,
        "number": 3 * eta + rng.normal(size=n_rows),
        "label": (rng.random(n_rows) < expit(2 * eta)).astype(int),
        "count": rng.poisson(np.exp(0.3 * eta)).astype(float),
    }


def _seconds(func, repeats=3):
    """The best of a few times."""
    best = np.inf
    for _ in range(repeats):
        began = time.perf_counter()
        func()
        best = min(best, time.perf_counter() - began)
    return best


def _log_loss(model, X, y):
    """The objective of a logistic regression over the rows, with C of 1."""
    eta = X @ model.coef_[0] + model.intercept_[0]
    return np.mean(np.logaddexp(0, eta) - y * eta) + 0.5 * np.sum(model.coef_**2) / len(y)


class AgainstScikitLearn:
    """1,000,000 x 50 rows in memory; ElasticNetCV takes 50 alphas and 5 folds."""

    timeout = 600
    params = ["Ridge", "LinearRegression", "LogisticRegression", "PoissonRegressor", "ElasticNetCV"]
    param_names = ["estimator"]
    unit = "times as fast"

    def setup(self, name):
        self.data = _rows()
        self.settings = {"alphas": 50} if name == "ElasticNetCV" else {}

    def track_speedup(self, name):
        X = self.data["X"]
        target = {"LogisticRegression": "label", "PoissonRegressor": "count"}.get(name, "number")
        y = self.data[target]
        solvers = {
            "LogisticRegression": ["lbfgs", "newton-cg", "newton-cholesky"],
            "PoissonRegressor": ["lbfgs", "newton-cholesky"],
        }.get(name, [None])
        ours = getattr(estimators, name)(**self.settings)
        seconds = _seconds(lambda: ours.fit(X, y))
        best = np.inf
        for solver in solvers:
            settings = self.settings | ({} if solver is None else {"solver": solver})
            theirs = getattr(reference, name)(**settings)
            repeats = 1 if name == "ElasticNetCV" else 2
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                best = min(best, _seconds(lambda: theirs.fit(X, y), repeats))  # noqa: B023
        return best / seconds


class BadlyScaled:
    """Logistic regression on columns from 1e-3 to 1e3, next to solvers that reach the optimum."""

    timeout = 600
    unit = "times as fast"

    def setup(self):
        self.data = _rows(log_scale=3.0)

    def track_speedup(self):
        X, y = self.data["X"], self.data["label"]
        ours = estimators.LogisticRegression()
        seconds = _seconds(lambda: ours.fit(X, y))
        least, at_null = _log_loss(ours, X, y), np.log(2)
        best = np.inf
        for solver in ("lbfgs", "newton-cholesky"):  # newton-cg takes many minutes
            theirs = reference.LogisticRegression(solver=solver, max_iter=1000)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                taken = _seconds(lambda: theirs.fit(X, y), 1)  # noqa: B023
            if _log_loss(theirs, X, y) <= least + 1e-6 * at_null:
                best = min(best, taken)
        return best / seconds


class Bandwidth:
    """One pass over 1,000,000 x 50 rows in units of the time to read them from memory once."""

    timeout = 300
    params = ["products", "gradient", "gradient and Hessian"]
    param_names = ["of"]
    unit = "reads"

    def setup(self, of):
        data = _rows()
        self.rows = row_blocks(data["X"], data["label"])
        self.X = data["X"]
        self.objective = Objective(
            LocalEngine(),
            self.rows,
            BinaryLogistic(),
            total_weight=float(N_ROWS),
            scaling=Scaling(self.X.mean(axis=0), self.X.std(axis=0)),
            labels=ClassEncoding(np.array([0, 1])),
        )

    def track_reads(self, of):
        coef = np.full(N_COLUMNS + 1, 0.1)
        passes = {
            "products": lambda: map_reduce(
                LocalEngine(), Reduction(block_cross_products, combine_products), self.rows
            ),
            "gradient": lambda: self.objective.evaluate(coef),
            "gradient and Hessian": lambda: self.objective.evaluate(coef, hessian=True),
        }
        with limit_threadpools(1):
            return _seconds(passes[of], 7) / _seconds(self._read, 7)

    def _read(self):
        """Read all rows, with as many threads as there are cores."""
        map_reduce(LocalEngine(), Reduction(_first), self.rows)


def _first(block):
    """Read a block."""
    return float(block.X.sum())


class OnACluster:
    """200,000 x 20 rows on two workers of one thread each, streamed or not; and dask-ml's there."""

    timeout = 600
    params = [
        "LinearRegression", "Ridge", "RidgeCV", "Lasso", "LassoCV", "ElasticNetCV",
        "LogisticRegression", "LogisticRegression L1", "PoissonRegressor", "GammaRegressor",
    ]  # fmt: skip
    param_names = ["estimator"]

    def setup(self, name):
        self.fleet = Fleet(n_workers=2, dashboard_address=None)
        data = _rows(200_000, 20)
        X = da.from_array(data["X"], chunks=(10_000, 20))
        target = {"Log": "label", "Poi": "count", "Gam": "count"}.get(name[:3], "number")
        self.target = data[target] + (0.1 if name[:3] == "Gam" else 0)
        y = da.from_array(self.target, chunks=10_000)
        self.lazy = X, y
        # The rows are sent as they are: here that is what is meant.
        dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GiB"})
        self.X, self.y = self.fleet.client.persist([X, y])
        wait([self.X, self.y])
        self.data = data

    def teardown(self, name):
        self.fleet.close()

    def _model(self, name):
        name, *l1 = name.split()
        return getattr(estimators, name)(**({"l1_ratio": 1.0} if l1 else {}))

    def time_fit(self, name):
        self._model(name).fit(self.X, self.y)

    def track_passes_streamed(self, name):
        with config_context(keep_blocks=False), counting() as counts:
            self._model(name).fit(*self.lazy)
        return counts.passes

    def track_tasks(self, name):
        with counting() as counts:
            self._model(name).fit(self.X, self.y)
        return counts.tasks

    def track_scikit_learn_iterations(self, name):
        """Passes of scikit-learn's default solver, where it makes any by iteration."""
        name, *l1 = name.split()
        model = getattr(reference, name)(
            **({"l1_ratio": 1.0, "solver": "saga", "max_iter": 1000} if l1 else {})
        )
        n_iter = getattr(model.fit(self.data["X"], self.target), "n_iter_", None)
        return 1 if n_iter is None else int(np.max(n_iter))

    def track_speedup_over_dask_ml(self, name):
        """With dask-ml's default solver, ADMM."""
        return self._over_dask_ml(name, "admm")

    def track_speedup_over_dask_ml_lbfgs(self, name):
        """With the fastest of its solvers."""
        return self._over_dask_ml(name, "lbfgs")

    def _over_dask_ml(self, name, solver):
        peers = {
            "LinearRegression": "LinearRegression",
            "LogisticRegression": "LogisticRegression",
            "PoissonRegressor": "PoissonRegression",
        }
        if name not in peers:
            return np.nan
        try:
            from dask_ml import linear_model as peer
        except ImportError:
            return np.nan
        ours = _seconds(lambda: self._model(name).fit(self.X, self.y))
        theirs = getattr(peer, peers[name])(solver=solver)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _seconds(lambda: theirs.fit(self.X, self.y), 1) / ours
