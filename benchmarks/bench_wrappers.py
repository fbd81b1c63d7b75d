"""What the wrappers add to the estimator's own work: ratios to that work, taken in one run.

The estimator sleeps for as long as it is said to work: what is measured is the wrapper and Dask.
"""

import pickle
import time

import dask.array as da
import numpy as np
import psutil
from distributed import wait
from sklearn.base import BaseEstimator
from sklearn.ensemble import RandomForestClassifier

from skfleet import Fleet
from skfleet.estimators import Incremental, ParallelPostFit

N_BLOCKS = 100
SECONDS = 0.05


class Worker(BaseEstimator):
    """Learns and predicts a block in a given time."""

    def __init__(self, seconds=SECONDS):
        self.seconds = seconds

    def partial_fit(self, X, y=None):
        time.sleep(self.seconds)
        self.seen_ = getattr(self, "seen_", 0) + len(X)
        return self

    def predict(self, X):
        time.sleep(self.seconds)
        return X[:, 0]


def _rows(n_blocks=N_BLOCKS):
    return da.zeros((n_blocks * 100, 20), chunks=(100, 20))


def _slow(block):
    """Load a block in the time that it takes to learn it."""
    time.sleep(SECONDS if len(block) > 1 else 0)
    return block


def _seconds(func):
    began = time.perf_counter()
    func()
    return time.perf_counter() - began


class Processes:
    """A fleet of two worker processes of one thread each."""

    timeout = 300

    def setup(self):
        self.fleet = Fleet(n_workers=2, dashboard_address=None)

    def teardown(self):
        self.fleet.close()


class Predictions(Processes):
    """ParallelPostFit, 100 blocks."""

    def track_throughput_of_two_workers(self):
        """Shares of twice what one process does, with 50 ms of work a block."""
        model = ParallelPostFit(Worker().partial_fit(np.zeros((1, 20))))
        model.predict(_rows(4)).compute()
        return N_BLOCKS * SECONDS / 2 / _seconds(model.predict(_rows()).compute)

    def track_overhead_per_block(self):
        """Milliseconds that a block costs beyond its work."""
        model = ParallelPostFit(Worker(0.0).partial_fit(np.zeros((1, 20))))
        model.predict(_rows(4)).compute()
        return 1000 * _seconds(model.predict(_rows(1000)).compute) / 1000

    def track_models_received_by_a_worker(self):
        """Bytes over the loopback interface, in models a worker, of a forest of 13 MB."""
        rng = np.random.default_rng(0)
        forest = RandomForestClassifier(220, random_state=0)
        forest.fit(rng.normal(size=(2000, 20)), rng.integers(0, 3, 2000))
        size = len(pickle.dumps(forest))
        model = ParallelPostFit(forest)
        before = psutil.net_io_counters(pernic=True)["lo"].bytes_recv
        model.predict(_rows()).compute()
        received = psutil.net_io_counters(pernic=True)["lo"].bytes_recv - before
        return (received / size - 1) / 2  # the scheduler received one


def _ratio(X):
    """Divide the time of a fit by that of a loop over as many blocks in memory."""
    model, block = Incremental(Worker(), shuffle=False), np.zeros((100, 20))
    model.fit(_rows(4))
    bare = _seconds(lambda: [Worker().partial_fit(block) for _ in range(N_BLOCKS)])
    return _seconds(lambda: model.fit(X)) / bare


class Learning(Processes):
    """Incremental, 100 blocks of 50 ms."""

    def track_ratio_to_a_bare_loop(self):
        X = _rows().persist()
        wait(X)
        return _ratio(X)

    def track_ratio_where_loading_takes_as_long(self):
        return _ratio(_rows().map_blocks(_slow, dtype=float))


class LearningHere:
    """The same in this process, without a cluster."""

    timeout = 300

    def track_ratio_to_a_bare_loop(self):
        return _ratio(_rows())

    def track_ratio_where_loading_takes_as_long(self):
        return _ratio(_rows().map_blocks(_slow, dtype=float))
