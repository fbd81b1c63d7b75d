"""Seconds of fits on a GPU, from ``benchmarks/results``."""

import matplotlib.pyplot as plt
import numpy as np
from _drawing import BLUE, GREY, ORANGE
from _results import load

FITS = {
    "ridge": "Ridge",
    "pca": "PCA(10)",
    "logistic": "Logistic\nRegression",
    "kmeans": "KMeans(100),\n20 iterations",
}
BARS = {"skfleet": BLUE, "cuml": ORANGE, "floor": GREY}
LABELS = {"skfleet": "scikit-fleet", "cuml": "cuML", "floor": "lower bound"}
cases = load("gpu-bench-20261127-191325.json")["cases"]
plt.rcParams["font.size"] = 10
figure, axis = plt.subplots(figsize=(7.0, 3.6))


def seconds(case, who):
    """Return the seconds of a case, or its bound: what it must read, or multiply."""
    entries = {entry["who"]: entry for entry in cases[case]["entries"]}
    if who != "floor":
        return entries[who]["seconds"]
    return entries["skfleet"]["floor_reading"] + entries["skfleet"]["floor_arithmetic"]


for place, (who, colour) in enumerate(BARS.items()):
    heights = [seconds(case, who) for case in FITS]
    bars = axis.bar(
        np.arange(len(FITS)) + 0.27 * (place - 1), heights, 0.25, color=colour, label=LABELS[who]
    )
    texts = [
        f"{1e3 * height:.0f}" if height >= 0.01 else f"{1e3 * height:.1f}" for height in heights
    ]
    axis.bar_label(bars, texts, fontsize=9, padding=1)
axis.set_xticks(range(len(FITS)), FITS.values())
axis.set(yscale="log", ylabel="seconds (labels: ms)", ylim=(2e-3, 15))
axis.legend(frameon=False, ncol=3, loc="upper left")
axis.spines[["top", "right"]].set_visible(False)
figure.tight_layout()
