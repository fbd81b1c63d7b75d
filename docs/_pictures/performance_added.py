"""What scikit-fleet adds to scikit-learn's time: medians and quartiles of all cells."""

import matplotlib.pyplot as plt
import numpy as np
from _drawing import BLUE, GREY, ORANGE
from _results import cost_cells

COLOURS = {"numpy": ORANGE, "array": GREY, "parquet": BLUE}
LABELS = {"numpy": "NumPy array", "array": "Dask array", "parquet": "Parquet files"}
cells = cost_cells()
plt.rcParams["font.size"] = 10
figure, axis = plt.subplots(figsize=(7.0, 2.8))
ticks = []
for container, colour in COLOURS.items():
    for n in sorted({c[3] for c in cells if c[2] == container}):
        added = [1e3 * (c[5] - c[4]) for c in cells if (c[2], c[3]) == (container, n)]
        low, middle, high = np.percentile(added, [25, 50, 75])
        axis.barh(len(ticks), high - low, 0.6, left=low, color=colour)
        axis.plot([middle, middle], [len(ticks) - 0.3, len(ticks) + 0.3], color="black", lw=2)
        ticks.append(f"{LABELS[container]}, {n:,} rows")
axis.axvline(0, color="black", lw=0.8)
axis.set_yticks(range(len(ticks)), ticks)
axis.invert_yaxis()
axis.set_xlabel("milliseconds added to scikit-learn's time")
axis.grid(axis="x", color="#e5e5e5")
axis.set_axisbelow(True)
axis.spines[["top", "right", "left"]].set_visible(False)
axis.tick_params(left=False)
figure.tight_layout()
