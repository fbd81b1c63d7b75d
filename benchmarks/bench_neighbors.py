"""Neighbours of rows on two workers next to scikit-learn's brute force in memory, in one run.

``python bench_neighbors.py [ROWS QUERIES]`` prints a table. Below a ratio of 1 we are faster.
"""

import statistics
import sys
import time
import warnings

import dask.array as da
import numpy as np
from distributed import wait
from sklearn.neighbors import NearestNeighbors as Reference

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import NearestNeighbors

N_ROWS, N_QUERIES, N_COLUMNS, N_BLOCKS = 1_000_000, 10_000, 20, 16
N_RUNS = 5


def compare(n_rows, n_queries, dtype):
    """Return the seconds of each run, in turns, the passes, and how far answers differ."""
    rng = np.random.default_rng(0)
    rows, queries = (rng.normal(size=(n, N_COLUMNS)).astype(dtype) for n in (n_rows, n_queries))
    theirs = Reference(n_neighbors=5, algorithm="brute").fit(rows)
    with Fleet(n_workers=2, threads_per_worker=1, dashboard_address=None):
        step = -(-n_rows // N_BLOCKS)
        with warnings.catch_warnings():  # of a large graph
            warnings.simplefilter("ignore")
            lazy = da.from_array(rows, chunks=(step, N_COLUMNS)).persist()
        wait(lazy)
        ours = NearestNeighbors(n_neighbors=5).fit(lazy)
        seconds, answers = {"ours": [], "theirs": []}, {}
        for _ in range(N_RUNS):
            for name, model in {"ours": ours, "theirs": theirs}.items():
                began = time.perf_counter()
                answers[name] = model.kneighbors(queries)
                seconds[name].append(time.perf_counter() - began)
        with counting() as counts:
            ours.kneighbors(queries[:10])
    (distances, numbers), (want, want_numbers) = answers["ours"], answers["theirs"]
    return {
        "seconds": seconds,
        "ratio": statistics.median(seconds["ours"]) / statistics.median(seconds["theirs"]),
        "error": float(np.max(np.abs(distances / want - 1))),
        "other_numbers": int(np.sum(numbers != want_numbers)),
        "passes": counts.passes,
    }


class AgainstScikitLearn:
    """Five neighbours of 10,000 queries among 1,000,000 x 20 rows on two worker processes."""

    params = ["float64", "float32"]
    param_names = ["dtype"]
    timeout = 1800

    def track_seconds_as_a_multiple_of_scikit_learns(self, dtype):
        return compare(N_ROWS, N_QUERIES, dtype)["ratio"]


if __name__ == "__main__":
    n_rows, n_queries = map(int, sys.argv[1:3] or (N_ROWS, N_QUERIES))
    print(f"{n_rows:,} x {N_COLUMNS} rows, {n_queries:,} queries, 5 neighbours, {N_RUNS} runs")
    print("dtype    ours (s)  scikit-learn (s)  ratio  error    other numbers  passes")
    for dtype in ("float64", "float32"):
        result = compare(n_rows, n_queries, dtype)
        ours, theirs = (statistics.median(result["seconds"][k]) for k in ("ours", "theirs"))
        print(
            f"{dtype}  {ours:8.2f}  {theirs:16.2f}  {result['ratio']:5.2f}  {result['error']:.1e}"
            f"  {result['other_numbers']:13d}  {result['passes']:6d}"
        )
