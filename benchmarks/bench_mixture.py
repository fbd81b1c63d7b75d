"""A mixture of Gaussians next to scikit-learn's: speed as ratios in one run, and passes.

A ratio above 1 says that we are faster.
"""

import dask.array as da
import numpy as np
from bench_cluster import best
from sklearn import mixture

from skfleet.engine import counting
from skfleet.estimators import GaussianMixture

N_ROWS, N_COLUMNS, N_COMPONENTS, N_ITER = 200_000, 20, 10, 5
PRECISIONS = {
    "full": np.stack([np.eye(N_COLUMNS)] * N_COMPONENTS),
    "tied": np.eye(N_COLUMNS),
    "diag": np.ones((N_COMPONENTS, N_COLUMNS)),
    "spherical": np.ones(N_COMPONENTS),
}


def _rows():
    """Normal components that overlap."""
    rng = np.random.default_rng(0)
    means = rng.uniform(-2, 2, size=(N_COMPONENTS, N_COLUMNS))
    return means[rng.integers(N_COMPONENTS, size=N_ROWS)] + rng.normal(size=(N_ROWS, N_COLUMNS))


class AgainstScikitLearn:
    """200,000 x 20 rows in memory, 10 components, five iterations from the same start."""

    params = list(PRECISIONS)
    param_names = ["covariance_type"]
    timeout = 600

    def setup(self, covariance_type):
        self.X = _rows()
        self.options = {
            "covariance_type": covariance_type,
            "weights_init": np.full(N_COMPONENTS, 1 / N_COMPONENTS),
            "means_init": self.X[:N_COMPONENTS],
            "precisions_init": PRECISIONS[covariance_type],
            "max_iter": N_ITER,
            "tol": 0,
        }

    def track_speedup(self, covariance_type):
        """Of the iterations; scikit-learn makes one more E step at the end."""
        (ours, theirs), _ = best(
            lambda: GaussianMixture(N_COMPONENTS, **self.options).fit(self.X),
            lambda: mixture.GaussianMixture(N_COMPONENTS, **self.options).fit(self.X),
        )
        return theirs / ours

    def track_passes(self, covariance_type):
        """Of so many iterations over Dask rows, from the same start."""
        rows = da.from_array(self.X, chunks=(20_000, N_COLUMNS))
        with counting() as counts:
            best(lambda: GaussianMixture(N_COMPONENTS, **self.options).fit(rows), repeats=1)
        return counts.passes


if __name__ == "__main__":
    for kind in PRECISIONS:
        benchmark = AgainstScikitLearn()
        benchmark.setup(kind)
        print(f"{kind}: {benchmark.track_speedup(kind):.2f} times as fast as scikit-learn")
