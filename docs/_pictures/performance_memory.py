"""The largest memory of a worker by the number of rows, from ``benchmarks/results``."""

import matplotlib.pyplot as plt
from _drawing import BLUE, GREY, ORANGE
from _results import load

CASES = {
    "ColumnTransformer, Ridge": ("Ridge, columns encoded", BLUE, "o"),
    "ColumnTransformer, LogisticRegression": ("LogisticRegression,\ncolumns encoded", BLUE, "s"),
    "predict to Parquet": ("its predictions,\nwritten to Parquet", BLUE, "^"),
    "PCA": ("PCA(5)", ORANGE, "o"),
    "GaussianNB": ("GaussianNB", ORANGE, "s"),
}
layouts = load("larger-2026-11-28.json")["layouts"]
rows = [layout["rows"] for layout in layouts]
plt.rcParams["font.size"] = 10
figure, axis = plt.subplots(figsize=(7.0, 3.6))
frames = [layout["bytes_in_memory"] / 1e6 for layout in layouts]
axis.plot(rows, frames, color=GREY, marker="D", label="all rows as a frame")
limits = [layout["limit_bytes"] / 1e6 for layout in layouts]
axis.plot(rows, limits, color="black", ls="--", label="limit of a worker")
for name, (label, colour, marker) in CASES.items():
    peaks = {
        layout["rows"]: case["peak_bytes"] / 1e6
        for layout in layouts
        for case in layout["cases"]
        if case["case"] == name
    }
    axis.plot(peaks.keys(), peaks.values(), color=colour, marker=marker, lw=1, label=label)
axis.set(xscale="log", yscale="log", xlabel="million rows", ylabel="MB of memory")
axis.set_xticks(rows, [f"{n / 1e6:g}" for n in rows])
axis.set_xticks([], minor=True)
ticks = (250, 500, 1000, 2000, 4000)
axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
axis.set_yticks([], minor=True)
axis.grid(color="#e5e5e5")
axis.set_axisbelow(True)
axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
figure.tight_layout()
