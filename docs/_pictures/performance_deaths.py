"""Boosting while workers die: seconds, and rounds in all, from ``benchmarks/results``."""

from statistics import median

import matplotlib.pyplot as plt
import numpy as np
from _drawing import BLUE, GREY, ORANGE
from _results import load

LIBRARIES = {"xgboost": ("XGBoost", BLUE), "lightgbm": ("LightGBM", ORANGE)}
LABELS = ["no death", "one death", "two deaths"]
results = load("boosting-deaths-2026-11-28.json")
plt.rcParams["font.size"] = 10
figure, (left, right) = plt.subplots(1, 2, figsize=(7.0, 3.6))
for place, (library, (label, colour)) in enumerate(LIBRARIES.items()):
    case = results[f"deaths-{library}"]
    positions = np.arange(len(LABELS)) + 0.4 * (place - 0.5)
    seconds = [median(training["seconds"]) for training in case["trainings"]]
    bars = left.bar(positions, seconds, 0.37, color=colour, label=label)
    left.bar_label(bars, [f"{height:.1f}" for height in seconds], fontsize=9, padding=1)
    rounds = [median(training["rounds"]) for training in case["trainings"]]
    right.bar(positions, case["rounds"], 0.37, color=colour, label=f"{label}, in the model")
    again = np.array(rounds) - case["rounds"]
    bars = right.bar(positions, again, 0.37, case["rounds"], color="white", ec=GREY, hatch="////")
    right.bar_label(bars, [f"{height:.0f}" for height in rounds], fontsize=9, padding=1)
bars.set_label("made again")
for axis in (left, right):
    axis.set_xticks(range(len(LABELS)), LABELS)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.45)
    axis.legend(frameon=False, loc="upper left", fontsize=9)
left.set_ylabel("seconds of a training")
right.set_ylabel("rounds in all")
figure.tight_layout()
