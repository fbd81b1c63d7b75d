"""A Parquet table that the workers' memory does not hold is fitted, pass after pass."""

from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

from skfleet import Fleet, config_context
from skfleet.engine import counting
from skfleet.estimators import LogisticRegression

N_FILES, N_ROWS = 32, 80_000
COLUMNS = [f"x{i}" for i in range(40)]


def write(number):
    """Write a file of 13 MB, 26 in the memory as doubles, that has a column nobody reads."""
    rng = np.random.default_rng(number)
    rows = pd.DataFrame(rng.normal(size=(N_ROWS, 40)).astype("float32"), columns=COLUMNS)
    odds = 2 * rows.x0 - rows.x1 + 0.5 * rows.x2
    rows["label"] = (odds + rng.logistic(size=N_ROWS) > 0).astype("int8")
    rows["note"] = "of no use"
    rows.to_parquet(f"table/{number:02}.parquet")


def widen(part):
    return part.astype("float64")


if __name__ == "__main__":
    with Fleet(n_workers=2, memory_limit="750 MB"):
        Path("table").mkdir()
        dask.compute([dask.delayed(write)(i) for i in range(N_FILES)])
        table = dd.read_parquet("table")
        X = table[COLUMNS].map_partitions(widen)
        y = table["label"]
        with config_context(disk_cache=True), counting() as counts:
            model = LogisticRegression(C=1.0).fit(X, y)
        print("rows:", len(table), "bytes as doubles:", f"{len(table) * 40 * 8:,}")
        print("coefficients:", model.coef_[0, :4].round(1) + 0.0)
        print("passes:", 2 <= counts.passes <= 8, "read once:", counts.loads < 1.5 * N_FILES)
        print("blocks read from the workers' disks:", counts.cache_reads > 0)
        print("accuracy:", round(model.score(X, y), 2))
