"""Measured: the calls of joblib.Parallel on four workers, with and without a bound of two."""

import time

import joblib
import matplotlib.pyplot as plt
from _drawing import BLUE, ORANGE
from distributed import get_worker

from skfleet import Fleet

plt.rcParams["font.size"] = 10
SECONDS = [0.16, 0.06, 0.1, 0.06, 0.12, 0.1, 0.06, 0.1, 0.12, 0.06, 0.1, 0.06]


def call(seconds):
    """Wait, and return the worker, the begin and the length of this call."""
    begin = time.perf_counter()
    time.sleep(seconds)
    return get_worker().address, begin, time.perf_counter() - begin


def calls(n_jobs):
    """Return worker, begin and length of each call, counted from the first begin."""
    done = joblib.Parallel(n_jobs=n_jobs, batch_size=1)(joblib.delayed(call)(s) for s in SECONDS)
    first = min(begin for _, begin, _ in done)
    return [(worker, begin - first, length) for worker, begin, length in done]


with Fleet(n_workers=4, processes=False), joblib.parallel_config("skfleet"):
    calls(-1)  # the first call on a worker imports what it needs
    runs = {"n_jobs=-1": calls(-1), "n_jobs=2": calls(2)}

figure, panels = plt.subplots(2, sharex=True, layout="constrained")
for axes, color, (title, run) in zip(panels, (BLUE, ORANGE), runs.items(), strict=True):
    rows = {worker: row for row, worker in enumerate(sorted({worker for worker, _, _ in run}))}
    for number, (worker, begin, length) in enumerate(run, start=1):
        axes.barh(rows[worker], length, left=begin, color=color, edgecolor="white")
        axes.text(begin + length / 2, rows[worker], number, ha="center", va="center", size=8)
    axes.set_yticks(range(4), [f"worker {row + 1}" for row in range(4)])
    axes.set_ylim(3.6, -0.6)
    axes.set_title(title, loc="left", size=10)
    axes.spines[["top", "right"]].set_visible(False)
panels[1].set_xlabel("seconds since the first call began")
