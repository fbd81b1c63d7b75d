"""Our seconds over scikit-learn's, for every cell of the benchmark of costs."""

import matplotlib.pyplot as plt
import numpy as np
from _drawing import BLUE, GREY, ORANGE
from _results import cost_cells

COLOURS = {"numpy": ORANGE, "array": GREY, "parquet": BLUE}
LABELS = {"numpy": "NumPy array", "array": "Dask array in memory", "parquet": "Parquet files"}
cells = cost_cells()
plt.rcParams["font.size"] = 10
figure, axis = plt.subplots(figsize=(7.0, 3.6))
for container, colour in COLOURS.items():
    theirs, ours = np.array([c[4:] for c in cells if c[2] == container]).T
    axis.scatter(theirs, ours, s=9, color=colour, label=LABELS[container])
seconds = np.logspace(-4.7, 1.05, 100)
axis.plot(seconds, seconds, color="black", lw=0.8, label="as fast as scikit-learn")
axis.plot(
    seconds, 1.2 * seconds + 0.05, color="black", lw=0.8, ls="--", label="1.2 times, and 50 ms"
)
axis.set(xscale="log", yscale="log", xlabel="seconds of scikit-learn", ylabel="of scikit-fleet")
axis.grid(color="#e5e5e5")
axis.set_axisbelow(True)
axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
figure.tight_layout()
