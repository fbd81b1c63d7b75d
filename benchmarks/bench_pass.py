"""The parts of a pass over blocks in the memory of two workers, and of a fit in one task.

Milliseconds, of the fastest of many passes and of the median one. The parts are told apart by the
clock of the machine, which its processes share: what a pass asks about its workers, what the client
does to send it, the way to the slower worker, the start of the work there (unpickling, a thread),
the arithmetic, the way back, and the rest, which merges the results.
"""

import sys
import time
from contextlib import contextmanager

import dask.array as da
import numpy as np
from distributed import Client, wait

from skfleet import Fleet, config_context
from skfleet.blocks import row_blocks
from skfleet.engine import Reduction, counting, engine_for, map_reduce
from skfleet.engine._dask import _engine
from skfleet.estimators import KMeans

N_ROWS, N_COLUMNS, N_BLOCKS, N_CENTERS = 100_000, 20, 8, 8
PARTS = ("ask", "send", "way there", "start", "arithmetic", "way back", "merge", "whole pass")


class StampedCenters:
    """Centres that know when a worker unpickled them."""

    def __init__(self, centers):
        self.centers = centers

    def __setstate__(self, state):
        self.__dict__.update(state, arrived=time.time())


def count_nearest(block, stamped):
    """How many rows are nearest to each centre: products of matrices, as in k-means."""
    started, centers = time.time(), stamped.centers
    X = np.asarray(block.X)
    distances = (centers**2).sum(axis=1) - 2 * X @ centers.T
    counts = np.bincount(distances.argmin(axis=1), minlength=len(centers))
    return [(stamped.arrived, started, time.time())], counts


def combine(a, b):
    """Of the slices of a worker the first start and the last end; of two workers both."""
    stamps, counts = [*a[0]], a[1] + b[1]
    for arrived, started, ended in b[0]:
        if stamps[-1][0] == arrived:
            stamps[-1] = arrived, stamps[-1][1], ended
        else:
            stamps.append((arrived, started, ended))
    return stamps, counts


@contextmanager
def timed(owner, name, seconds):
    """Note when a function was called last, and when it returned, inside the ``with``."""
    original = getattr(owner, name)

    def call(*args, **kwargs):
        began = time.time()
        try:
            return original(*args, **kwargs)
        finally:
            seconds.append((began, time.time()))

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)


def pass_parts(X, n_passes=100):
    """Milliseconds of the parts of each pass, in the order of `PARTS`."""
    stamped = StampedCenters(np.random.default_rng(0).normal(size=(N_CENTERS, N_COLUMNS)))
    rows, parts = row_blocks(X), []
    engine = engine_for(rows)
    asked, sent, gathered = [], [], []
    with (
        timed(_engine, "group_by_worker", asked),
        timed(Client, "get", sent),
        timed(_engine, "gather", gathered),
    ):
        for _ in range(n_passes):
            for calls in (asked, sent, gathered):
                calls.clear()
            began = time.time()
            stamps, _ = map_reduce(engine, Reduction(count_nearest, combine, list), rows, stamped)
            ended = time.time()
            arrived, started, done = max(stamps, key=lambda stamp: stamp[2])
            ask = sum(end - begin for begin, end in asked)
            points = [began + ask, sent[-1][1], arrived, started, done, gathered[-1][1], ended]
            # A worker may begin before the call that sent it work returns.
            points = np.maximum.accumulate([began, *points])
            parts.append([*np.diff(points), ended - began])
    return 1e3 * np.array(parts)


@contextmanager
def resident_rows(n_rows=N_ROWS):
    """Rows in the memory of two workers of one thread each."""
    values = np.random.default_rng(0).normal(size=(n_rows, N_COLUMNS))
    values *= 1 + np.arange(N_COLUMNS) / 10
    with Fleet(n_workers=2, threads_per_worker=1, dashboard_address=None):
        X = da.from_array(values, chunks=(n_rows // N_BLOCKS, N_COLUMNS)).persist()
        wait(X)
        yield X


class APass:
    """100,000 x 20 rows in eight blocks, in the memory of two workers of one thread each."""

    timeout = 600

    def setup(self):
        self.rows = resident_rows()
        self.X = self.rows.__enter__()

    def teardown(self):
        self.rows.__exit__(None, None, None)

    def track_milliseconds_of_the_fastest_pass(self):
        return pass_parts(self.X)[:, -1].min()

    def track_milliseconds_but_for_arithmetic(self):
        parts = pass_parts(self.X)
        return (parts[:, -1] - parts[:, PARTS.index("arithmetic")]).min()

    def track_tasks_a_pass(self):
        with config_context(single_task_below=0), counting() as counts:
            KMeans(N_CENTERS, random_state=0).fit(self.X)
        return counts.tasks / counts.passes


def main(n_rows=N_ROWS):
    """Print the table of the parts, and fits of k-means."""
    with resident_rows(n_rows) as X:
        print(f"{n_rows:,} x {N_COLUMNS} rows; ms of a pass: fastest (median)")
        table = pass_parts(X)
        for i, part in enumerate(PARTS):
            print(f"{part:12} {table[:, i].min():8.2f} ({np.median(table[:, i]):7.2f})")
        for where, limit in (("on blocks", 0), ("in one task", "auto")) * 2:
            with config_context(single_task_below=limit), counting() as counts:
                began = time.perf_counter()
                KMeans(N_CENTERS, random_state=0).fit(X)
                seconds = time.perf_counter() - began
            a_pass = f"{1e3 * seconds / counts.passes:.1f} ms a pass"
            print(f"k-means {where}: {counts.passes} passes, {seconds:.2f} s, {a_pass}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
