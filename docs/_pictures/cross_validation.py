"""Which rows of a Dask DataFrame four splitters train and test on."""

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from _drawing import BLUE, ORANGE
from matplotlib.patches import Patch

from skfleet.model_selection import GroupKFold, KFold, ShuffleSplit, TimeSeriesSplit

plt.rcParams["font.size"] = 10

n_rows, n_partitions = 40, 5
frame = pd.DataFrame({"x": np.arange(n_rows), "patient": np.arange(n_rows) // 3})
rows = dd.from_pandas(frame, npartitions=n_partitions)
splitters = {
    "KFold": KFold(4),
    "ShuffleSplit": ShuffleSplit(4, test_size=10, random_state=0),
    "GroupKFold, 3 rows a group": GroupKFold(4),
    "TimeSeriesSplit": TimeSeriesSplit(4),
}
figure, grid = plt.subplots(2, 2, figsize=(7, 3.6), sharex=True, sharey=True)
for axes, (name, splitter) in zip(grid.flat, splitters.items(), strict=True):
    groups = rows["patient"] if isinstance(splitter, GroupKFold) else None
    for number, parts in enumerate(splitter.split(rows, groups=groups), 1):
        for colour, part in zip((BLUE, ORANGE), parts, strict=True):
            spans = [(row, 1) for row in np.asarray(part)]
            axes.broken_barh(
                spans, (number - 0.4, 0.8), facecolor=colour, edgecolor="white", lw=0.3
            )
    for border in range(0, n_rows + 1, n_rows // n_partitions):
        axes.axvline(border, color="black", lw=1, ls="--")
    axes.set_title(name, fontsize=10, loc="left")
    axes.set(yticks=[1, 2, 3, 4], xlim=(-0.2, n_rows + 0.2), ylim=(4.6, 0.4))
    axes.spines[["top", "right"]].set_visible(False)
for axes in grid[:, 0]:
    axes.set_ylabel("split")
for axes in grid[1]:
    axes.set_xlabel("row of the frame")
handles = [
    Patch(color=BLUE, label="rows to train on"),
    Patch(color=ORANGE, label="rows to test on"),
    plt.Line2D([], [], color="black", lw=1, ls="--", label="border of a partition"),
]
figure.tight_layout(rect=(0, 0.08, 1, 1))
figure.legend(handles=handles, ncols=3, loc="lower center", frameon=False)
