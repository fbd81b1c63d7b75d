"""Generated rows next to scikit-learn's: speed as ratios in one run, and passes.

A ratio above 1 says that we are faster. Both make all rows in the memory of one process.
"""

import dask
import sklearn.datasets as reference

from benchmarks.bench_cluster import best
from skfleet import datasets
from skfleet.engine import counting

CALLS = {
    "make_blobs": {"n_features": 20, "centers": 10},
    "make_classification": {"n_features": 20, "n_informative": 5},
    "make_regression": {"n_features": 20, "noise": 1.0},
    "make_low_rank_matrix": {"n_features": 20},
}


class AgainstScikitLearn:
    """500,000 x 20 rows, on one thread and on all."""

    params = (list(CALLS), ["sync", "threads"])
    param_names = ("function", "scheduler")
    timeout = 300

    def setup(self, function, scheduler):
        self.options = {"n_samples": 500_000, "random_state": 0, **CALLS[function]}

    def track_speedup(self, function, scheduler):
        ours, theirs = getattr(datasets, function), getattr(reference, function)
        with dask.config.set(scheduler=scheduler):
            seconds, _ = best(
                lambda: dask.compute(ours(**self.options, chunks=50_000)),
                lambda: theirs(**self.options),
            )
        return seconds[1] / seconds[0]


class Passes:
    """Passes over the rows of a call, which draws none of them later."""

    params = list(CALLS)
    param_names = ["function"]

    def track_passes(self, function):
        with counting() as counts:
            getattr(datasets, function)(100_000, chunks=10_000, random_state=0)
        return counts.passes


if __name__ == "__main__":
    for function in CALLS:
        ratios = []
        for scheduler in ("sync", "threads"):
            bench = AgainstScikitLearn()
            bench.setup(function, scheduler)
            ratios.append(bench.track_speedup(function, scheduler))
        print(f"{function}: {ratios[0]:.2f} on one thread, {ratios[1]:.2f} on all")
