"""Spectral clustering next to scikit-learn's: speed as a ratio in one run, agreement, and passes.

A ratio above 1 says that we are faster.
"""

import dask.array as da
from sklearn import cluster as reference
from sklearn.datasets import make_blobs, make_moons
from sklearn.metrics import adjusted_rand_score

from benchmarks.bench_cluster import best
from skfleet.engine import counting
from skfleet.estimators import SpectralClustering

# As many as scikit-learn's clusters within seconds.
N_ROWS = 5_000
CASES = {
    "moons": lambda n: (make_moons(n, noise=0.06, random_state=0)[0], 2, 50.0),
    "blobs": lambda n: (make_blobs(n, 10, centers=8, random_state=0)[0], 8, 0.02),
}


class AgainstScikitLearn:
    """5,000 rows in memory, for the default number of landmarks, 500, and a fifth of it."""

    params = [list(CASES), [100, 500]]
    param_names = ["rows", "n_landmarks"]
    timeout = 600

    def setup(self, rows, n_landmarks):
        self.X, k, gamma = CASES[rows](N_ROWS)
        self.reference = reference.SpectralClustering(k, gamma=gamma, random_state=0)
        self.model = SpectralClustering(k, gamma=gamma, n_landmarks=n_landmarks, random_state=0)

    def track_speedup(self, rows, n_landmarks):
        (theirs,), _ = best(lambda: self.reference.fit(self.X), repeats=1)
        (ours,), _ = best(lambda: self.model.fit(self.X))
        return theirs / ours

    def track_agreement_of_labels(self, rows, n_landmarks):
        """The adjusted Rand index, 1 for the same clusters."""
        theirs, ours = self.reference.fit(self.X).labels_, self.model.fit(self.X).labels_
        return adjusted_rand_score(theirs, ours)

    def track_largest_residual(self, rows, n_landmarks):
        return self.model.fit(self.X).residuals_.max()


class OnDask:
    """200,000 rows in 16 blocks."""

    timeout = 600

    def setup(self):
        X, k, gamma = CASES["blobs"](200_000)
        self.X = da.from_array(X, chunks=(12_500, X.shape[1]))
        self.model = SpectralClustering(k, gamma=gamma, random_state=0)

    def track_passes(self):
        with counting() as counts:
            self.model.fit(self.X)
        return counts.passes

    def time_fit(self):
        self.model.fit(self.X)
