"""Seconds of a fit over the number of rows, from ``benchmarks/results``."""

import matplotlib.pyplot as plt
from _drawing import BLUE, GREY, ORANGE
from _results import cost_cells

NAMES = ("LogisticRegression", "KMeans", "GridSearchCV")
cells = cost_cells()
plt.rcParams["font.size"] = 10
figure, axes = plt.subplots(1, 3, figsize=(7.0, 3.6), sharex=True, sharey=True)


def draw(axis, name, container, place, label, **style):
    """Draw the seconds of one side, in order of the rows."""
    chosen = {c[3]: c[place] for c in cells if c[:3] == [name, "fit", container]}
    axis.plot(sorted(chosen), [chosen[n] for n in sorted(chosen)], label=label, **style)


for axis, name in zip(axes, NAMES, strict=True):
    for container, marker, dash in (("parquet", "o", "-"), ("numpy", "s", "--")):
        where = "files" if container == "parquet" else "NumPy rows"
        ours = BLUE if container == "parquet" else ORANGE
        draw(axis, name, container, 4, f"scikit-learn, {where}", color=GREY, marker=marker, ls=dash)
        draw(axis, name, container, 5, f"scikit-fleet, {where}", color=ours, marker=marker, ls=dash)
    axis.set(xscale="log", yscale="log", xlabel="rows", title=name)
    axis.set_title(name, fontsize=10)
    axis.grid(color="#e5e5e5")
    axis.set_axisbelow(True)
axes[0].set_ylabel("seconds of a fit")
figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncol=2, frameon=False)
figure.tight_layout(rect=(0, 0.16, 1, 1))
