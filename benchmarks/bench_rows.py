"""What the estimators on blocks cost: passes and tasks, which gate, and seconds, which do not."""

import dask.array as da
import numpy as np
from distributed import wait

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import KMeans, LogisticRegression, Ridge

ESTIMATORS = {
    "Ridge": lambda: Ridge(),
    "LogisticRegression": lambda: LogisticRegression(tol=1e-6),
    "KMeans": lambda: KMeans(n_clusters=8, max_iter=10, tol=0.0, random_state=0),
}


class Rows:
    """200,000 x 20 rows in memory, in few or many blocks, on two workers of one thread each."""

    params = (list(ESTIMATORS), [4, 64])
    param_names = ("estimator", "n_blocks")
    timeout = 300

    def setup(self, estimator, n_blocks):
        self.fleet = Fleet(n_workers=2, processes=False, dashboard_address=None)
        rng = da.random.default_rng(0)
        X = rng.normal(size=(200_000, 20), chunks=(200_000 // 64, 20))
        y = X @ np.linspace(-1, 1, 20) + rng.logistic(size=200_000, chunks=X.chunks[0]) > 0
        # The same rows, whatever the cut.
        cut = 200_000 // n_blocks
        blocks = [X.rechunk((cut, 20)), y.astype(float).rechunk(cut)]
        self.X, self.y = self.fleet.client.persist(blocks)
        wait([self.X, self.y])
        self.model = ESTIMATORS[estimator]()

    def teardown(self, estimator, n_blocks):
        self.fleet.close()

    def time_fit(self, estimator, n_blocks):
        self.model.fit(self.X, self.y)

    def track_passes(self, estimator, n_blocks):
        with counting() as counts:
            self.model.fit(self.X, self.y)
        return counts.passes

    def track_tasks(self, estimator, n_blocks):
        with counting() as counts:
            self.model.fit(self.X, self.y)
        return counts.tasks
