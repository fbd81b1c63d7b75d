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

N_ROWS, N_FILES, N_PASSES = 20_800_000, 120, 6
PAYMENTS = np.array(["credit card", "cash", "no charge"])
BOROUGHS = np.array(["Bronx", "Brooklyn", "Manhattan", "Queens", "Staten Island"])
ZONES = np.array([f"{BOROUGHS[i % 5]} {i}{' Airport' * (i % 90 == 3)}" for i in range(265)])


def write_trips(folder, n_rows=N_ROWS):
    """Write Parquet files of taxi trips as they come from CSV: times and zones are text."""
    rng = np.random.default_rng(0)
    n = n_rows // N_FILES
    for i in range(N_FILES):
        start = rng.integers(1_700_000_000, 1_730_000_000, n)
        miles = rng.gamma(2.0, 2.0, n).astype(np.float32)
        end = start + (240 * miles).astype(int) + 60
        pd.DataFrame(
            {
                "pickup": np.datetime_as_string(start.astype("M8[s]")),
                "dropoff": np.datetime_as_string(end.astype("M8[s]")),
                "passengers": rng.integers(1, 7, n),
                "distance": miles,
                "fare": (3 + 2.5 * miles + rng.normal(size=n)).astype(np.float32),
                "color": rng.choice(["yellow", "green"], n),
                "payment": rng.choice(PAYMENTS, n),
                "pickup_zone": rng.choice(ZONES, n),
                "dropoff_zone": rng.choice(ZONES, n),
            }
        ).to_parquet(Path(folder) / f"trips-{i:03}.parquet", index=False)


def places(end):
    """Return where each zone lies, for one end of a trip."""
    rng = np.random.default_rng(1)
    lat, lon = rng.uniform(40.5, 40.9, len(ZONES)), rng.uniform(-74.2, -73.7, len(ZONES))
    return pd.DataFrame({f"{end}_zone": ZONES, f"{end}_lat": lat, f"{end}_lon": lon})


def haversine(trips):
    """Return how far the ends of trips are apart, in kilometres."""
    lat, to_lat = np.radians(trips.pickup_lat), np.radians(trips.dropoff_lat)
    lon = np.radians(trips.dropoff_lon - trips.pickup_lon)
    a = np.sin((to_lat - lat) / 2) ** 2 + np.cos(lat) * np.cos(to_lat) * np.sin(lon / 2) ** 2
    return 12742 * np.arcsin(np.sqrt(a))


def prepare(trips):
    """Make 13 columns of numbers, and the target, as a script does it with Dask."""
    for end in ("pickup", "dropoff"):
        trips = trips.merge(places(end), on=f"{end}_zone")
        trips[end] = dd.to_datetime(trips[end])
    trips["seconds"] = (trips.dropoff - trips.pickup).dt.total_seconds()
    trips = trips[(trips.seconds > 0) & (trips.distance > 0)]
    hour = 2 * np.pi * (trips.pickup.dt.hour + trips.pickup.dt.minute / 60) / 24
    day = 2 * np.pi * trips.pickup.dt.day_of_week / 7
    columns = {
        "hour_sin": np.sin(hour),
        "hour_cos": np.cos(hour),
        "day_sin": np.sin(day),
        "day_cos": np.cos(day),
        "miles": np.log1p(trips.distance.astype(float)),
        "crow": haversine(trips),
        "duration": np.log1p(trips.seconds),
        "riders": trips.passengers.astype(float),
        "cash": (trips.payment == "cash").astype(float),
        "card": trips.payment.str.startswith("credit").astype(float),
        "yellow": (trips.color == "yellow").astype(float),
        "from_airport": trips.pickup_zone.str.contains("Airport").astype(float),
        "to_airport": trips.dropoff_zone.str.contains("Airport").astype(float),
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
        self.rows = row_blocks(*prepare(dd.read_parquet(folder)))
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
            with self.engine.persist(self.rows) as rows:
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
