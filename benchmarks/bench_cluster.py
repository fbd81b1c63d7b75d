"""k-means next to scikit-learn's and dask-ml's: speed as ratios in one run, inertia, and passes.

A ratio above 1 says that we are faster.
"""

import time
import warnings

import dask.array as da
import numpy as np
from distributed import wait
from sklearn import cluster as reference

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import KMeans, MiniBatchKMeans

N_ROWS, N_COLUMNS = 1_000_000, 20


def _clusters(n_rows=N_ROWS, k=100, spread=10.0):
    """Normal clusters; the smaller the spread of their centres, the more they overlap."""
    rng = np.random.default_rng(0)
    centers = rng.uniform(-spread, spread, size=(k, N_COLUMNS))
    return centers[rng.integers(k, size=n_rows)] + rng.normal(size=(n_rows, N_COLUMNS))


def best(*fits, repeats=3):
    """The best time of each fit, in turns, and what it returned last."""
    seconds, found = [np.inf] * len(fits), [None] * len(fits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(repeats):
            for i, fit in enumerate(fits):
                began = time.perf_counter()
                found[i] = fit()
                seconds[i] = min(seconds[i], time.perf_counter() - began)
    return seconds, found


class AgainstScikitLearn:
    """1,000,000 x 20 rows in memory."""

    params = ["float64", "float32"]
    param_names = ["dtype"]
    timeout = 600

    def setup(self, dtype):
        self.X = _clusters().astype(dtype)
        drawn = np.random.default_rng(1).choice(N_ROWS, 100, replace=False)
        self.start = self.X[drawn]

    def track_speedup_of_ten_plain_iterations(self, dtype):
        """50 clusters, Lloyd's algorithm, the same start."""
        given = {"init": self.start[:50], "max_iter": 10, "tol": 0, "algorithm": "lloyd"}
        (ours, theirs), _ = best(
            lambda: KMeans(50, **given).fit(self.X),
            lambda: reference.KMeans(50, **given).fit(self.X),
        )
        return theirs / ours

    def track_speedup_to_convergence(self, dtype):
        """100 clusters, the same start, and the faster of scikit-learn's algorithms."""
        given = {"init": self.start, "n_init": 1}
        (ours, *theirs), _ = best(
            lambda: KMeans(100, **given).fit(self.X),
            lambda: reference.KMeans(100, algorithm="lloyd", **given).fit(self.X),
            lambda: reference.KMeans(100, algorithm="elkan", **given).fit(self.X),
            repeats=2,
        )
        return min(theirs) / ours

    def track_speedup_from_the_default_start(self, dtype):
        (ours, theirs), _ = best(
            lambda: KMeans(100, random_state=0).fit(self.X),
            lambda: reference.KMeans(100, random_state=0).fit(self.X),
            repeats=1,
        )
        return theirs / ours

    def track_speedup_of_mini_batches(self, dtype):
        (ours, theirs), _ = best(
            lambda: MiniBatchKMeans(100, random_state=0).fit(self.X),
            lambda: reference.MiniBatchKMeans(100, random_state=0).fit(self.X),
        )
        return theirs / ours


class Inertia:
    """Inertia over eight seeds, as a share of scikit-learn's best of ten starts each."""

    params = [["k-means++", "k-means||"], [10.0, 4.0, 0.0]]
    param_names = ["init", "spread"]
    timeout = 600

    def track_inertia(self, init, spread):
        ours, theirs = [], []
        X = _clusters(20_000, 50, spread)
        for seed in range(8):
            ours.append(KMeans(50, init=init, random_state=seed).fit(X).inertia_)
            best = reference.KMeans(50, n_init=10, random_state=seed).fit(X)
            theirs.append(best.inertia_)
        return np.mean(ours) / np.mean(theirs)


class OnACluster:
    """200,000 x 20 rows in 16 blocks, in the memory of two workers of one thread each."""

    timeout = 600

    def setup(self):
        self.fleet = Fleet(n_workers=2, processes=False, dashboard_address=None)
        self.X = da.from_array(_clusters(200_000), chunks=(12_500, N_COLUMNS)).persist()
        wait(self.X)

    def teardown(self):
        self.fleet.close()

    def track_speedup_over_dask_ml(self):
        """50 clusters, each with its own default start."""
        try:
            from dask_ml.cluster import KMeans as Peer
        except ImportError:
            return np.nan
        (ours,), _ = best(lambda: KMeans(50, random_state=0).fit(self.X))
        (theirs,), _ = best(lambda: Peer(50, random_state=0).fit(self.X), repeats=1)
        return theirs / ours

    def track_passes_but_for_iterations(self):
        with counting() as counts:
            model = KMeans(50, random_state=0).fit(self.X)
        return counts.passes - model.n_iter_

    def track_tasks_a_pass(self):
        with counting() as counts:
            KMeans(50, random_state=0).fit(self.X)
        return counts.tasks / counts.passes
