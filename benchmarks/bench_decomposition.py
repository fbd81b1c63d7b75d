"""Decompositions next to scikit-learn's: speed as ratios in one run, accuracy for equal passes.

A ratio above 1 says that we are faster. Of several solvers of scikit-learn's the fastest counts.
"""

import dask.array as da
import numpy as np
from scipy import linalg, sparse
from sklearn import decomposition as reference

from benchmarks.bench_cluster import best
from skfleet.engine import counting
from skfleet.estimators import PCA, IncrementalPCA, TruncatedSVD


def _rows(n_rows=1_000_000, n_columns=100, dtype=np.float64):
    """Correlated columns, off the origin."""
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(n_columns, n_columns)).astype(np.float32)
    return (rng.standard_normal((n_rows, n_columns), dtype=np.float32) @ mixed + 5).astype(dtype)


class AgainstScikitLearn:
    """Ten components of 1,000,000 x 100 rows in memory."""

    params = ["float64", "float32"]
    param_names = ["dtype"]
    timeout = 600

    def setup(self, dtype):
        self.X = _rows(dtype=dtype)

    def track_speedup_of_pca(self, dtype):
        (ours, *theirs), _ = best(
            lambda: PCA(10).fit(self.X),
            lambda: reference.PCA(10, svd_solver="covariance_eigh").fit(self.X),
            lambda: reference.PCA(10, svd_solver="randomized", random_state=0).fit(self.X),
        )
        return min(theirs) / ours

    def track_speedup_of_randomized_pca(self, dtype):
        settings = {"svd_solver": "randomized", "iterated_power": 4, "random_state": 0}
        (ours, theirs), _ = best(
            lambda: PCA(10, **settings).fit(self.X),
            lambda: reference.PCA(10, **settings).fit(self.X),
        )
        return theirs / ours

    def track_speedup_of_incremental_pca(self, dtype):
        X = self.X[:100_000]
        (ours, theirs), _ = best(
            lambda: IncrementalPCA(10).fit(X),
            lambda: reference.IncrementalPCA(10).fit(X),
            repeats=1,
        )
        return theirs / ours


class Blocks:
    """Rows in blocks, of which scikit-learn's default batch would be five for each column."""

    timeout = 600

    def setup(self):
        self.X = da.from_array(_rows(200_000, 5), chunks=(50_000, 5))

    def track_incremental_pca_in_units_of_pca(self):
        (ours, pca), _ = best(lambda: IncrementalPCA(2).fit(self.X), lambda: PCA(2).fit(self.X))
        return ours / pca

    def track_batch_size(self):
        return IncrementalPCA(2).fit(self.X).batch_size_


class SparseRows:
    """Ten components of 100,000 x 20,000 sparse rows, one value in 200."""

    timeout = 600

    def setup(self):
        self.X = sparse.random_array(
            (100_000, 20_000), density=0.005, format="csr", rng=np.random.default_rng(0)
        )

    def track_speedup_of_truncated_svd(self):
        """The same number of power iterations."""
        settings = {"algorithm": "randomized", "n_iter": 5, "random_state": 0}
        (ours, theirs), _ = best(
            lambda: TruncatedSVD(10, **settings).fit(self.X),
            lambda: reference.TruncatedSVD(10, **settings).fit(self.X),
        )
        return theirs / ours


class EqualIterations:
    """A spectrum that decays slowly: passes, and the error of five singular values."""

    params = [1, 2, 4]
    param_names = ["n_iter"]

    def setup(self, n_iter):
        rng = np.random.default_rng(0)
        left, right = (
            linalg.qr(rng.normal(size=(n, 300)), mode="economic")[0] for n in (2000, 300)
        )
        self.X = left * (1 / np.sqrt(1 + np.arange(300))) @ right.T
        self.settings = {"algorithm": "randomized", "n_iter": n_iter, "random_state": 0}

    def _error(self, kind):
        values = kind(5, **self.settings).fit(self.X).singular_values_
        return np.max(np.abs(values / linalg.svdvals(self.X)[:5] - 1))

    def track_error(self, n_iter):
        return self._error(TruncatedSVD)

    def track_error_of_scikit_learn(self, n_iter):
        return self._error(reference.TruncatedSVD)

    def track_passes(self, n_iter):
        with counting() as counts:
            TruncatedSVD(5, **self.settings).fit(self.X)
        return counts.passes
