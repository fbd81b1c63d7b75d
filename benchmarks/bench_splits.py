"""Splits of many rows: seconds next to a permutation of them, and memory in the driver.

``python benchmarks/bench_splits.py`` prints both for 100,000,000 rows in 1,000 blocks.
"""

import resource
import sys
import time

import dask.array as da
import numpy as np

from skfleet.model_selection import KFold, ShuffleSplit, split_rows, train_test_split


def plan(name, rows):
    """Make a split, or the splits of a cross-validation, and no pass over the rows."""
    if name == "train_test_split":
        return train_test_split(rows, random_state=0)
    if name == "train_test_split in order":
        return train_test_split(rows, shuffle=False)
    splitters = {
        "KFold": KFold(5),
        "KFold shuffled": KFold(5, shuffle=True, random_state=0),
        "ShuffleSplit": ShuffleSplit(1, random_state=0),
    }
    return list(split_rows(rows, cv=splitters[name]))


NAMES = (
    "train_test_split in order",
    "KFold",
    "train_test_split",
    "ShuffleSplit",
    "KFold shuffled",
)


class Plans:
    """Splits of rows in 1,000 blocks, which are not read."""

    params = (NAMES,)
    param_names = ("split",)
    n_rows = 10_000_000

    def setup(self, name):
        self.rows = da.zeros(self.n_rows, chunks=self.n_rows // 1000)

    def time_plan(self, name):
        plan(name, self.rows)

    def peakmem_plan(self, name):
        plan(name, self.rows)


def main(n_rows):
    """Print the seconds of each split, and the growth of this process's memory so far."""
    rows = da.zeros(n_rows, chunks=n_rows // 1000)
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in NAMES:
        start = time.perf_counter()
        plan(name, rows)
        seconds = time.perf_counter() - start
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle) / 1024
        print(f"{name:28}{seconds:8.2f} s{peak:8.0f} MB", flush=True)
    start = time.perf_counter()
    np.random.RandomState(0).permutation(n_rows)
    print(f"{'RandomState.permutation':28}{time.perf_counter() - start:8.2f} s")


if __name__ == "__main__":
    main(int(float(sys.argv[1])) if sys.argv[1:] else 100_000_000)
