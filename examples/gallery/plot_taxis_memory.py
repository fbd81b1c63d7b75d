"""
Rows larger than the memory of a worker
=======================================

A worker that runs out of memory is the most common way for a large fit to fail. Scikit-fleet reads
large Parquet files in small pieces, so a worker never holds more than a few of them. This example
trains a pipeline on taxi trips that are larger than the memory limit of each worker, watches the
memory of both workers, and draws it.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import psutil
from distributed import Client
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import (
    ColumnTransformer,
    OneHotEncoder,
    Ridge,
    SimpleImputer,
    StandardScaler,
)

BLUE, ORANGE, GREY = "#3499cd", "#f79a3b", "#5b5b5b"
MB = 1_000_000
MEMORY_LIMIT = 600 * MB

# %%
# The trips
# ---------
#
# The made trips have nineteen numbers, such as distances, times and the weather of the hour, and
# the borough where they begin. Some times are missing. Each file has 480,000 trips.

NUMBERS = [
    *["km", "minutes", "waiting", "tolls", "passengers", "hour", "weekday"],
    *["pickup_x", "pickup_y", "dropoff_x", "dropoff_y"],
    *["temperature", "rain", "snow", "wind", "humidity", "pressure", "clouds", "visibility"],
]
BOROUGHS = ["Bronx", "Brooklyn", "Manhattan", "Queens", "Staten Island"]


def make_trips(number, n_rows=480_000):
    """Return made trips, whose numbers lie between 0 and 1."""
    rng = np.random.default_rng(number)
    trips = pd.DataFrame(rng.random((len(NUMBERS), n_rows)).T, columns=NUMBERS)
    fare = 3 + 30 * trips["km"] + 8 * trips["minutes"] + 2 * rng.standard_normal(n_rows)
    trips.loc[rng.integers(n_rows, size=n_rows // 50), "minutes"] = np.nan
    borough = pd.Categorical.from_codes(rng.integers(5, size=n_rows), BOROUGHS)
    return trips.assign(borough=borough, fare=fare)


folder = tempfile.TemporaryDirectory()
source = Path(folder.name)
n_bytes = 0
for number in range(8):
    trips = make_trips(number)
    n_bytes += trips.memory_usage().sum()
    trips.to_parquet(
        source / f"{number}.parquet",
        compression=None,
        row_group_size=50_000,
        use_dictionary=["borough"],
    )
del trips
print(f"all trips: {n_bytes / MB:.0f} MB in memory; limit of a worker: {MEMORY_LIMIT / MB:.0f} MB")

# %%
# Two worker processes
# --------------------
#
# A memory limit needs workers that are processes of their own. In a script you would write
# ``Fleet(n_workers=2, memory_limit="600 MB")`` below ``if __name__ == "__main__":``. A page like
# this one has no such place, so the next function starts a scheduler and two workers with Dask's
# commands, as you would on other machines.
#
# More than half of the limit is taken before a worker reads a single row: Python and the libraries
# need that much. Dask pauses a worker at 80 % of its limit. The two variables set what a fleet's
# own workers have: results are written to the disk at 80 %, and a worker pauses at 90 %.


@contextmanager
def worker_processes(n_workers, memory_limit):
    """Run a scheduler and workers on this machine while a ``with`` block runs."""
    environment = os.environ | {
        "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "0.8",
        "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "0.9",
    }

    def start(*command):
        command = [sys.executable, "-m", "dask", *command, "--host", "127.0.0.1", "--no-dashboard"]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, env=environment, **silent)

    with tempfile.TemporaryDirectory() as directory:
        file = ["--scheduler-file", f"{directory}/scheduler.json"]
        limits = f"--nworkers {n_workers} --nthreads 1 --memory-limit {memory_limit}".split()
        scheduler = start("scheduler", *file, "--port", "0")
        workers = start("worker", *file, *limits, "--local-directory", directory)
        try:
            with Client(scheduler_file=file[1], timeout=60) as client:
                client.wait_for_workers(n_workers, timeout=60)
                address = client.scheduler.address
            yield address
        finally:
            for process in (workers, scheduler):
                process.terminate()
                process.wait()


# %%
# Watch the memory
# ----------------
#
# The operating system knows how much memory a process has. A thread asks it twenty times a second.


@contextmanager
def watched_memory(client):
    """Yield a list that gets the time and the megabytes of each worker, again and again."""
    processes = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
    samples, done = [], threading.Event()

    def watch():
        start = time.perf_counter()
        while not done.wait(0.05):
            megabytes = [process.memory_info().rss / MB for process in processes]
            samples.append([time.perf_counter() - start, *megabytes])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


# %%
# Fit and score
# -------------
#
# The pipeline is an ordinary one, and nothing in it speaks of memory. A *pass* reads all rows once.
# The first pass finds means, deviations and boroughs, the second one fits the model. The score
# takes a third one: it predicts piece by piece, and adds up the errors.

with worker_processes(2, MEMORY_LIMIT) as address, Fleet(address) as client:
    rows = dd.read_parquet(source)
    X, y = rows.drop(columns="fare"), rows["fare"]
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    preparation = ColumnTransformer(
        [("numbers", numbers, NUMBERS), ("borough", OneHotEncoder(), ["borough"])]
    )
    with watched_memory(client) as samples:
        with counting() as counts:
            model = make_pipeline(preparation, Ridge()).fit(X, y)
        end_of_fit = samples[-1][0]
        score = model.score(X, y)

seconds, *workers = np.transpose(samples)
folder.cleanup()
print(f"{counts.passes} passes, which read {counts.loads} pieces of the files")
print(
    f"largest memory of a worker: {max(map(max, workers)) / (MEMORY_LIMIT / MB):.0%} of its limit"
)
print(f"R² of the fares: {score:.3f}")

# %%
# The picture
# -----------
#
# Look at the distance between the curves and the dashed line. The memory rises while the libraries
# are imported. Then it stays about the same however many rows have been read, because each piece is
# dropped before the next one is needed. With ten times as many files, the curves would be longer,
# not higher.

figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for worker, color, name in zip(workers, [BLUE, ORANGE], ["worker 1", "worker 2"], strict=True):
    axes.plot(seconds, worker, color=color, label=name)
axes.axhline(MEMORY_LIMIT / MB, color=GREY, linestyle="dashed", label="limit of each worker")
axes.axhline(n_bytes / MB, color=GREY, label="all rows, as a frame in memory")
axes.vlines(end_of_fit, 0, MEMORY_LIMIT / MB, color=GREY, linestyle="dotted")
axes.text(end_of_fit, 20, "fit  ", ha="right")
axes.text(end_of_fit, 20, "  score", ha="left")
axes.set(xlabel="seconds", ylabel="memory (MB)", ylim=(0, 1.45 * n_bytes / MB))
axes.legend(frameon=False, ncols=2, loc="upper center")
plt.show()

# %%
# When this does not help
# -----------------------
#
# Pieces are made of Parquet files, where each row of the frame comes from one row of a file. A
# chunk of a Dask array, or the result of ``map_partitions``, is loaded whole. Choose such chunks so
# that a worker can hold several of them. Models that keep rows, such as forests and boosting, need
# memory for these rows too.
#
# * :doc:`/guide/memory`: memory and passes, with the settings that matter.
# * :doc:`/how_it_works/larger_than_memory`: how much memory a worker needs, for each model.
# * :func:`skfleet.config_context` has ``block_bytes``, the size of a piece.
