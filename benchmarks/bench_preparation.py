"""Preparation of rows next to scikit-learn's in memory: seconds, ratios, growth of memory.

``python benchmarks/bench_preparation.py [NAME...]`` prints medians of interleaved runs. Memory is
the largest resident set of all processes, less that before the work.
"""

import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
from sklearn import compose as reference_compose
from sklearn import impute, preprocessing
from sklearn.feature_extraction import text as reference_text

from skfleet import Fleet, config_context
from skfleet.engine import counting
from skfleet.estimators import (
    ColumnTransformer,
    MaxAbsScaler,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
    TfidfVectorizer,
)

RUNS = 5
SCALERS = (
    preprocessing.StandardScaler, preprocessing.MinMaxScaler, preprocessing.MaxAbsScaler,
    impute.SimpleImputer, preprocessing.StandardScaler, preprocessing.MinMaxScaler,
    preprocessing.MaxAbsScaler, impute.SimpleImputer, preprocessing.StandardScaler,
    preprocessing.MinMaxScaler,
)  # fmt: skip


def medians(*functions):
    """Return the median seconds of functions that are called in turn."""
    seconds = [[] for _ in functions]
    for _ in range(RUNS):
        for function, times in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


def numbers(folder, n_rows=2_000_000, n_columns=100, n_files=20):
    """Write Parquet files of float64 numbers, and return their folder."""
    path = Path(folder) / f"numbers-{n_rows}-{n_columns}"
    path.mkdir()
    for i in range(n_files):
        values = np.random.default_rng(i).normal(size=(n_rows // n_files, n_columns))
        frame = pd.DataFrame(values, columns=[f"c{k}" for k in range(n_columns)])
        frame.to_parquet(path / f"{i:03}.parquet", index=False)
    return str(path)


def trips(folder, n_rows=5_000_000, n_files=20):
    """Write Parquet files of columns like those of taxi trips, and return their folder."""
    path = Path(folder) / "trips"
    path.mkdir()
    for i in range(n_files):
        rng, n = np.random.default_rng(i), n_rows // n_files
        zones = np.array([f"zone {k}" for k in range(200)])
        frame = pd.DataFrame(
            {
                "distance": rng.lognormal(size=n),
                "fare": rng.lognormal(2, size=n),
                "tip": rng.normal(size=n),
                "pickup": zones[rng.integers(0, 200, n)],
                "dropoff": zones[rng.integers(0, 200, n)],
                "color": np.array(["green", "yellow"])[rng.integers(0, 2, n)],
            }
        )
        frame.to_parquet(path / f"{i:03}.parquet", index=False)
    return str(path)


def max_abs(folder):
    """MaxAbsScaler.fit of 100,000 x 1,000 in 20 chunks, in this process."""
    X = np.random.default_rng(0).normal(size=(100_000, 1_000))
    rows = da.from_array(X, chunks=(5_000, 1_000))
    ours, theirs = medians(
        lambda: MaxAbsScaler().fit(rows), lambda: preprocessing.MaxAbsScaler().fit(X)
    )
    print(f"ours {ours:.2f} s, scikit-learn's {theirs:.2f} s, ratio {ours / theirs:.2f}")


def ten_transformers(folder):
    """A ColumnTransformer of ten on ten columns each, from Parquet, and its parts in memory."""
    rows = dd.read_parquet(numbers(folder))
    parts = [
        (f"part {i}", cls(), list(rows.columns[10 * i : 10 * i + 10]))
        for i, cls in enumerate(SCALERS)
    ]
    in_memory = rows.compute()

    def fit():
        ColumnTransformer(parts).fit(rows)

    def kernels():
        for _, part, columns in parts:
            part.fit(in_memory[columns])

    def read():
        dask.compute(rows.map_partitions(len, meta=("n", int)))

    ours, reading, computing = medians(fit, read, kernels)
    ratio = ours / (reading + computing)
    print(f"ours {ours:.2f} s, reading {reading:.2f} s, kernels {computing:.2f} s: {ratio:.2f}")


def quantiles(folder):
    """RobustScaler.fit of 2,000,000 x 10 from Parquet, and one reading pass.

    The rows fit into memory, where they are read once; then as if they did not.
    """
    rows = dd.read_parquet(numbers(folder, n_columns=10))

    def fit_out_of_core():
        with config_context(keep_blocks=False):
            RobustScaler().fit(rows)

    ours, out_of_core, reading = medians(
        lambda: RobustScaler().fit(rows),
        fit_out_of_core,
        lambda: dask.compute(rows.map_partitions(len, meta=("n", int))),
    )
    print(f"ours {ours:.2f} s, reading {reading:.2f} s: {ours / reading:.2f}")
    print(f"out of core {out_of_core:.2f} s: {out_of_core / reading:.2f}")


def one_hot(folder):
    """OneHotEncoder and StandardScaler of 5,000,000 trips from Parquet, two worker processes."""
    source = trips(folder)

    def ours():
        _one_hot_of_fleet(source)

    def theirs():
        _one_hot_in_memory(source)

    with Fleet(n_workers=2):
        ours()
        first, second = medians(ours, theirs)
        print(f"ours {first:.2f} s, scikit-learn's {second:.2f} s: {second / first:.2f} faster")
    with counting() as counts:
        ours()
    print(counts)
    for function in (_one_hot_of_fleet, _one_hot_in_memory):
        processes = multiprocessing.get_context("spawn")
        fresh = processes.Process(target=_growth, args=(function, source))
        fresh.start()
        fresh.join()


TEXTS, NUMBERS = ["pickup", "dropoff", "color"], ["distance", "fare", "tip"]


def _one_hot_of_fleet(source):
    rows = dd.read_parquet(source)
    model = ColumnTransformer(
        [("t", OneHotEncoder(dtype=np.float32), TEXTS), ("n", StandardScaler(), NUMBERS)]
    )
    return _sum_of(model.fit(rows).transform(rows))


def _one_hot_in_memory(source):
    rows = pd.read_parquet(source)
    model = reference_compose.ColumnTransformer(
        [
            ("t", preprocessing.OneHotEncoder(dtype=np.float32), TEXTS),
            ("n", preprocessing.StandardScaler(), NUMBERS),
        ]
    )
    return model.fit(rows).transform(rows).sum()


def _growth(function, source):
    """Print the growth of memory by a function in a fleet of two, or of scikit-learn's in none."""
    with Fleet(n_workers=2), peak_memory() as growth:
        function(source)
    print(f"{function.__name__}: memory grew by {growth[0] / 1e6:.0f} MB")


def _sum_of(X):
    sums = [da.map_blocks(_sum, block, dtype=float, chunks=(1, 1)) for block in X.blocks]
    return sum(x.item() for x in dask.compute(*sums))


def _sum(block):
    return np.full((1, 1), block.sum())


@contextmanager
def peak_memory(*, children=True):
    """Measure by how many bytes the resident sets of this process, and its children, grow."""
    own = psutil.Process()
    processes = [own, *(own.children(recursive=True) if children else ())]

    def size():
        return sum(p.memory_info().rss for p in processes)

    idle, growth, is_over = size(), [0], threading.Event()

    def watch():
        while not is_over.wait(0.02):
            growth[0] = max(growth[0], size() - idle)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield growth
    finally:
        is_over.set()
        watcher.join()


def categories(folder):
    """OneHotEncoder of ten million categories in 200 blocks, two worker processes."""
    n = 10_000_000
    numbers = da.arange(n, chunks=n // 200)[:, None] * 7919
    texts = numbers.astype("U15")
    kinds = {"integers": numbers, "strings": texts.astype(object), "NumPy's strings": texts}
    for name, rows in kinds.items():
        with Fleet(n_workers=2), peak_memory(children=False) as growth:
            start = time.perf_counter()
            encoder = OneHotEncoder().fit(rows)
            fitted = time.perf_counter()
            _sum_of(encoder.transform(rows)[: n // 20])
            end = time.perf_counter()
        print(
            f"{name}: fit {fitted - start:.1f} s, transform of 10 blocks {end - fitted:.1f} s, "
            f"this process grew by {growth[0] / 1e6:.0f} MB"
        )


def wide_one_hot(folder):
    """OneHotEncoder of 100,000 categories of 10,000,000 rows of text, two workers of 4 GB."""
    rows = da.concatenate(
        [da.from_delayed(dask.delayed(_zones)(i), (100_000, 1), dtype=object) for i in range(100)]
    )
    with Fleet(n_workers=2, memory_limit="4GB"), peak_memory() as growth:
        start = time.perf_counter()
        encoder = OneHotEncoder().fit(rows)
        fitted = time.perf_counter()
        blocks = encoder.transform(rows)
        total = _sum_of(blocks)
        end = time.perf_counter()
    print(
        f"{blocks.shape}, sum {total:.0f}: fit {fitted - start:.1f} s, transform "
        f"{end - fitted:.1f} s, all processes grew by {growth[0] / 1e6:.0f} MB"
    )


def _zones(seed):
    return np.random.default_rng(seed).integers(0, 100_000, (100_000, 1)).astype(str).astype(object)


def text(folder):
    """TfidfVectorizer of 100,000 documents of 100 words, two worker processes."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{k}" for k in rng.zipf(1.3, 10_000_000) % 200_000])
    documents = [" ".join(row) for row in words.reshape(100_000, 100)]
    bag = dask.bag.from_sequence(documents, npartitions=20)
    with Fleet(n_workers=2):
        bag = bag.persist()
        ours, theirs = medians(
            lambda: _sum_of(TfidfVectorizer().fit_transform(bag)),
            lambda: reference_text.TfidfVectorizer().fit_transform(documents),
        )
    print(f"ours {ours:.2f} s, scikit-learn's {theirs:.2f} s, ratio {ours / theirs:.2f}")


BENCHMARKS = {
    f.__name__: f
    for f in (max_abs, ten_transformers, quantiles, one_hot, categories, wide_one_hot, text)
}


class Fits:
    """Fits of transformers on Dask arrays in this process."""

    params = (["StandardScaler", "MaxAbsScaler", "RobustScaler"],)
    param_names = ("transformer",)

    def setup(self, name):
        cls = {"MaxAbsScaler": MaxAbsScaler, "RobustScaler": RobustScaler}.get(name, StandardScaler)
        X = np.random.default_rng(0).normal(size=(200_000, 50))
        self.rows, self.transformer = da.from_array(X, chunks=(20_000, 50)), cls()

    def time_fit(self, name):
        self.transformer.fit(self.rows)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for name in sys.argv[1:] or BENCHMARKS:
            print(f"{name}: {BENCHMARKS[name].__doc__}", flush=True)
            BENCHMARKS[name](directory)
