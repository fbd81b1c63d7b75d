"""The start and the end of a fleet next to those of Dask's LocalCluster, and its first task.

Ratios of medians of five, in turns in one run: below 1 the fleet is faster.
"""

import statistics
import time

from distributed import Client, LocalCluster
from joblib import parallel_config
from lightgbm import LGBMClassifier
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV

from skfleet import Fleet, model_selection

REPEATS = 5


def _start_cluster():
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    return Client(cluster, set_as_default=False), cluster


def _start_fleet():
    fleet = Fleet(n_workers=2)
    return fleet.client, fleet


def _seconds(work):
    began = time.perf_counter()
    answer = work()
    return time.perf_counter() - began, answer


def _medians(*ways):
    """The median seconds of several ways to do the same, in turns."""
    found = [[way() for way in ways] for _ in range(REPEATS)]
    return [statistics.median(column) for column in zip(*found, strict=True)]


def _lap(start, work=None, *, is_interrupted=False):
    """Seconds until a cluster is ready and, if asked, until it has done something and is closed."""
    seconds, (client, cluster) = _seconds(start)
    if work is None:
        cluster_end(client, cluster)
        return seconds
    if is_interrupted:  # with work under way, as Ctrl-C leaves it
        under_way = client.map(time.sleep, [60, 61], pure=False)
        time.sleep(0.5)
        del under_way
    return work(client, cluster)


def cluster_end(client, cluster):
    """Seconds to close both."""
    return _seconds(lambda: (client.close(), cluster.close()))[0]


class Starting:
    """Two worker processes of one thread each."""

    timeout = 1200

    def track_ready(self):
        ours, theirs = _medians(lambda: _lap(_start_fleet), lambda: _lap(_start_cluster))
        return ours / theirs

    def track_closed(self):
        ours, theirs = _medians(
            lambda: _lap(_start_fleet, cluster_end), lambda: _lap(_start_cluster, cluster_end)
        )
        return ours / theirs

    def track_closed_with_tasks_under_way(self):
        ours, theirs = _medians(
            lambda: _lap(_start_fleet, cluster_end, is_interrupted=True),
            lambda: _lap(_start_cluster, cluster_end, is_interrupted=True),
        )
        return ours / theirs

    def track_first_fit_over_second(self):
        """The same small forest, twice, a second after the start."""
        X, y = load_digits(return_X_y=True)

        def ratio(client, cluster):
            time.sleep(1)
            with parallel_config("skfleet", client=client):
                first, second = (
                    _seconds(lambda: RandomForestClassifier(20, random_state=0).fit(X, y))[0]
                    for _ in range(2)
                )
            cluster_end(client, cluster)
            return first / second

        return statistics.median(_lap(_start_fleet, ratio) for _ in range(REPEATS))


class Forest:
    """The forest of the demo, 1,000 trees on 1,400 digits."""

    timeout = 600

    def setup(self):
        self.X, self.y = (rows[:1_400] for rows in load_digits(return_X_y=True))
        self.fleet = Fleet(n_workers=2)
        self.on_fleet()

    def teardown(self):
        self.fleet.close()

    def on_fleet(self):
        with parallel_config("skfleet", client=self.fleet.client):
            return _seconds(
                lambda: RandomForestClassifier(1_000, random_state=0).fit(self.X, self.y)
            )[0]

    def with_two_jobs(self):
        forest = RandomForestClassifier(1_000, random_state=0, n_jobs=2)
        return _seconds(lambda: forest.fit(self.X, self.y))[0]

    def track_speedup_over_two_jobs(self):
        ours, theirs = _medians(self.on_fleet, self.with_two_jobs)
        return theirs / ours


class Boosters:
    """A grid of LightGBM's, whose own threads must not be more than the workers' cores."""

    timeout = 600
    grid = {"num_leaves": [7, 15, 31], "learning_rate": [0.05, 0.1]}

    def setup(self):
        self.X, self.y = load_breast_cancer(return_X_y=True)
        self.fleet = Fleet(n_workers=2)
        self.on_fleet()

    def teardown(self):
        self.fleet.close()

    def on_fleet(self):
        search = model_selection.GridSearchCV(LGBMClassifier(verbose=-1), self.grid, cv=5)
        with self.fleet.client.as_current():
            return _seconds(lambda: search.fit(self.X, self.y))[0]

    def with_two_jobs(self):
        search = GridSearchCV(LGBMClassifier(verbose=-1, n_jobs=1), self.grid, cv=5, n_jobs=2)
        return _seconds(lambda: search.fit(self.X, self.y))[0]

    def track_speedup_over_two_jobs(self):
        ours, theirs = _medians(self.on_fleet, self.with_two_jobs)
        return theirs / ours
