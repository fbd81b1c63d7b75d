"""Measured: how often a logistic regression reads each block, by where the blocks are kept."""

import tempfile

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from _drawing import BLUE, ORANGE

from skfleet import Fleet, config_context
from skfleet.engine import counting
from skfleet.estimators import LogisticRegression

plt.rcParams["font.size"] = 10
N_FILES, COLUMNS = 6, ["a", "b", "c"]
PLACES = {
    "in the workers' memory": {"keep_blocks": True},
    "on the workers' disks": {"keep_blocks": False, "disk_cache": True},
    "nowhere": {"keep_blocks": False, "disk_cache": False},
}

rng = np.random.default_rng(0)
counts_by_place = {}
with tempfile.TemporaryDirectory() as folder, Fleet(n_workers=2, processes=False):
    for n in range(N_FILES):
        rows = pd.DataFrame(rng.normal(size=(2_000, 3)), columns=COLUMNS)
        rows["y"] = (rows["a"] + rng.logistic(size=len(rows)) > 0).astype(int)
        rows.to_parquet(f"{folder}/{n}.parquet")
    frame = dd.read_parquet(folder)
    for place, settings in PLACES.items():
        with config_context(single_task_below=0, **settings), counting() as counts:
            LogisticRegression().fit(frame[COLUMNS], frame["y"])
        counts_by_place[place] = counts

figure, axes = plt.subplots(figsize=(7.0, 2.6), layout="constrained")
names = list(counts_by_place)
loads = [counts.loads / N_FILES for counts in counts_by_place.values()]
reads = [counts.cache_reads / N_FILES for counts in counts_by_place.values()]
axes.barh(names, loads, 0.55, color=ORANGE, label="from its Parquet file")
axes.barh(names, reads, 0.55, left=loads, color=BLUE, label="from the disk of its worker")
axes.invert_yaxis()
axes.set_xlabel("times that a fit reads each block")
axes.set_ylabel("blocks are kept")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, loc="upper right")
