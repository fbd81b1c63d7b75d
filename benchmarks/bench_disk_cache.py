"""Rows larger than memory: what later passes cost with and without the workers' disks.

`python bench_disk_cache.py` prints both; `python bench_disk_cache.py 20800000` takes so many rows.
"""

import sys
import tempfile
import time
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd

from skfleet import Fleet, config_context
from skfleet.blocks import row_blocks
from skfleet.engine import Reduction, counting, engine_for, map_reduce

N_ROWS, N_FILES, N_PASSES = 15_600_000, 120, 6
PAYMENTS = np.array(["card", "cash", "free", "none"])


def write_trips(folder, n_rows=N_ROWS):
    """Write Parquet files of journeys: times, distances, zones, ways of paying, fares."""
    rng = np.random.default_rng(0)
    n = n_rows // N_FILES
    for i in range(N_FILES):
        start = rng.integers(1_700_000_000, 1_730_000_000, n)
        miles = rng.gamma(2.0, 2.0, n).astype(np.float32)
        pd.DataFrame(
            {
                "pickup": pd.to_datetime(start, unit="s"),
                "dropoff": pd.to_datetime(start + (240 * miles).astype(int) + 60, unit="s"),
                "passengers": rng.integers(1, 7, n),
                "miles": miles,
                "zone": rng.integers(1, 266, n),
                "payment": rng.choice(PAYMENTS, n),
                "fare": (3 + 2.5 * miles + rng.normal(size=n)).astype(np.float32),
            }
        ).to_parquet(Path(folder) / f"trips-{i:03}.parquet", index=False)


def zones():
    """Return the borough of each of 265 zones."""
    boroughs = np.array(["Bronx", "Brooklyn", "EWR", "Manhattan", "Queens", "Staten Island"])
    return pd.DataFrame({"zone": np.arange(1, 266), "borough": boroughs[np.arange(265) % 6]})


def prepare(trips, zones):
    """Make 13 columns of numbers, and the target, as a script does it with Dask."""
    trips = trips.merge(zones, on="zone", how="left")
    seconds = (trips.dropoff - trips.pickup).dt.total_seconds()
    trips = trips[(seconds > 0) & (trips.miles > 0)]
    hour = 2 * np.pi * (trips.pickup.dt.hour + trips.pickup.dt.minute / 60) / 24
    day = 2 * np.pi * trips.pickup.dt.day_of_week / 7
    seconds = (trips.dropoff - trips.pickup).dt.total_seconds()
    columns = {
        "hour_sin": np.sin(hour),
        "hour_cos": np.cos(hour),
        "day_sin": np.sin(day),
        "day_cos": np.cos(day),
        "distance": np.log1p(trips.miles.astype(float)),
        "duration": np.log1p(seconds),
        "speed": trips.miles / seconds,
        "riders": trips.passengers.astype(float),
        **{way: (trips.payment == way).astype(float) for way in PAYMENTS},
        "airport": trips.borough.str.startswith("EWR").astype(float),
    }
    trips = trips.assign(**columns)
    return trips[list(columns)], trips.fare.astype(float)


def gram(block):
    """Return the products of the columns of a block: little next to reading it."""
    return block.X.T @ block.X


class LargerThanMemory:
    """13 columns prepared of Parquet, as float64 larger than two workers of 0.75 GB."""

    params = ("auto", False)
    param_names = ("disk_cache",)
    timeout = 1800

    def setup_cache(self):
        write_trips(".")
        return str(Path.cwd())

    def setup(self, folder, disk_cache):
        self.fleet = Fleet(
            n_workers=2, threads_per_worker=1, memory_limit="0.75 GB", dashboard_address=None
        )
        self.rows = row_blocks(*prepare(dd.read_parquet(folder), zones()))
        self.engine = engine_for(self.rows)

    def teardown(self, folder, disk_cache):
        self.fleet.close()

    def track_six_passes_by_one(self, folder, disk_cache):
        """Return the seconds of six passes, those of writing included, in units of one pass."""
        return self.measure(disk_cache)[0]

    def track_loads(self, folder, disk_cache):
        """Return how many blocks were loaded in six passes; there are 120."""
        return self.measure(disk_cache)[1]

    def measure(self, disk_cache):
        reduction = Reduction(gram)
        began = time.perf_counter()
        map_reduce(self.engine, reduction, self.rows)
        one = time.perf_counter() - began
        with config_context(disk_cache=disk_cache), counting() as counts:
            began = time.perf_counter()
            with self.engine.hold(self.rows) as rows:
                for _ in range(N_PASSES):
                    map_reduce(self.engine, reduction, rows)
            six = time.perf_counter() - began
        return six / one, counts.loads, one, six


def main():
    n_rows = int(sys.argv[1]) if len(sys.argv) > 1 else N_ROWS
    with tempfile.TemporaryDirectory() as folder:
        write_trips(folder, n_rows)
        bench = LargerThanMemory()
        for disk_cache in LargerThanMemory.params:
            bench.setup(folder, disk_cache)
            ratio, loads, one, six = bench.measure(disk_cache)
            print(
                f"disk_cache={disk_cache}: one pass {one:.1f} s, six {six:.1f} s, "
                f"ratio {ratio:.2f}, {loads} blocks loaded"
            )
            bench.teardown(folder, disk_cache)


if __name__ == "__main__":
    main()
