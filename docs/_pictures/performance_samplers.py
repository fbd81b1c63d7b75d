"""Regret over evaluations of samplers and schedules, from ``benchmarks/results``."""

import matplotlib.pyplot as plt
from _drawing import BLUE, GREY, ORANGE
from _results import load

GREEN = "#4b9b5f"
LINES = {
    "random": ("random", GREY, "-"),
    "optuna": ("Optuna's own loop", GREEN, "--"),
    "tpe": ("TPE", GREEN, "-"),
    "hyperband": ("Hyperband", BLUE, "--"),
    "bohb": ("Hyperband with TPE", BLUE, "-"),
    "asha": ("ASHA", ORANGE, "--"),
    "asha_tpe": ("ASHA with TPE", ORANGE, "-"),
}
content = load("samplers-2026-11-28.json")
curves = content["curves"]["evaluations"]
plt.rcParams["font.size"] = 10
figure, axes = plt.subplots(1, 2, figsize=(7.0, 4.0), sharey=True)
for axis, n_workers in zip(axes, (1, 16), strict=True):
    for method, (label, color, dash) in LINES.items():
        axis.plot(content["grid"], curves[str(n_workers)][method], dash, color=color, label=label)
    axis.set(xlabel="full evaluations", yscale="log", xlim=(1, content["budget"]))
    axis.set_title("1 worker" if n_workers == 1 else f"{n_workers} workers", fontsize=10)
    axis.grid(color="#e5e5e5", which="both")
    axis.set_axisbelow(True)
    axis.set_yticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
    axis.minorticks_off()
axes[0].set_ylabel("mean regret")
figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncol=3, frameon=False)
figure.tight_layout(rect=(0, 0.2, 1, 1))
