"""Regret of searches over what they spent, and ratios of mean regrets with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

GRID = np.arange(1, 51)
AT = (10, 20, 50)
DRAWN = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 30, 35, 40, 45, 50)
N_BOOTSTRAP = 2000


@dataclass
class Trace:
    """The scores of a search in the order in which they came."""

    evaluations: np.ndarray  # the calls that were complete, in full evaluations
    seconds: np.ndarray
    scores: np.ndarray
    trained: np.ndarray  # the scores of the same candidates after all calls


class Key(NamedTuple):
    """What a trace is of."""

    scenario: str
    task: str
    seed: int
    n_workers: int
    method: str


class Reference(NamedTuple):
    """Of random candidates in full: the mean score, the best one, and the mean seconds."""

    mean: float
    best: float
    seconds: float


class Chart(NamedTuple):
    """A kind of regret (`seen`, `trained`) over an axis (`evaluations`, `seconds`)."""

    kind: str
    axis: str
    scenario: str
    n_workers: int

    def __str__(self) -> str:
        return f"{self.kind} over {self.axis}, {self.scenario}, {self.n_workers} workers"


CHARTS = [("seen", "evaluations"), ("seen", "seconds"), ("trained", "evaluations")]


def _curve(trace: Trace, kind: str, axis: str, seconds: float, n_workers: int) -> np.ndarray:
    """Return the best score at each point of the grid; NaN before the first one.

    A point of the seconds is as much time of all workers as so many full evaluations of random
    candidates take in the mean.
    """
    if axis == "evaluations":
        spent = trace.evaluations
    else:
        spent = trace.seconds * n_workers / seconds
    best = np.maximum.accumulate(trace.scores)
    if kind == "trained":
        is_new = np.r_[True, best[1:] > best[:-1]]
        best = trace.trained[np.maximum.accumulate(np.where(is_new, np.arange(len(best)), 0))]
    places = np.searchsorted(spent, GRID + 1e-9, side="right") - 1
    return np.where(places < 0, np.nan, best[np.maximum(places, 0)])


def regrets(
    traces: Mapping[Key, Trace], references: Mapping[tuple[str, str], Reference]
) -> dict[Chart, dict[str, np.ndarray]]:
    """Return for each chart and method the regrets of shape (tasks, seeds, points of the grid)."""
    best = {task: reference.best for task, reference in references.items()}
    for key, trace in traces.items():
        task = key.scenario, key.task
        best[task] = max(best[task], trace.scores.max(), trace.trained.max())
    scenarios = list(dict.fromkeys(key.scenario for key in traces))
    seeds = sorted({key.seed for key in traces})
    methods = list(dict.fromkeys(key.method for key in traces))
    table: dict[Chart, dict[str, np.ndarray]] = {}
    for n_workers in sorted({key.n_workers for key in traces}):
        for kind, axis in CHARTS:
            for scenario in scenarios:
                tasks = list(dict.fromkeys(k.task for k in traces if k.scenario == scenario))
                arrays = {}
                for method in methods:
                    array = np.empty((len(tasks), len(seeds), len(GRID)))
                    for i, task in enumerate(tasks):
                        mean, _, seconds = references[scenario, task]
                        for j, seed in enumerate(seeds):
                            trace = traces[Key(scenario, task, seed, n_workers, method)]
                            curve = _curve(trace, kind, axis, seconds, n_workers)
                            goal = best[scenario, task]
                            array[i, j] = (goal - curve) / (goal - mean)
                    # Before the first score: as a random candidate.
                    arrays[method] = np.where(np.isnan(array), 1.0, array)
                table[Chart(kind, axis, scenario, n_workers)] = arrays
            if len(scenarios) > 1:
                parts = [table[Chart(kind, axis, name, n_workers)] for name in scenarios]
                table[Chart(kind, axis, "all", n_workers)] = {
                    method: np.concatenate([part[method] for part in parts]) for method in methods
                }
    return table


class _Bootstrap:
    """Draws of tasks, and of seeds within each."""

    def __init__(self, n_tasks: int, n_seeds: int) -> None:
        rng = np.random.default_rng(0)
        self._tasks = rng.integers(n_tasks, size=(N_BOOTSTRAP, n_tasks, 1))
        self._seeds = rng.integers(n_seeds, size=(N_BOOTSTRAP, n_tasks, n_seeds))

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of each draw."""
        return values[self._tasks, self._seeds].mean(axis=(1, 2))


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(float(value), 4) for value in values]


def _interval(draws: np.ndarray) -> dict[str, list[float]]:
    """Return the interval of 95 % of draws of shape (draws, points)."""
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    return {"low": _rounded(low), "high": _rounded(high)}


def summaries(
    arrays: Mapping[str, np.ndarray], ratios: Sequence[tuple[str, str]]
) -> dict[str, dict[str, list[float]]]:
    """Return the mean of each method at the points `AT`, and the ratios of two, with intervals."""
    bootstrap = _Bootstrap(*next(iter(arrays.values())).shape[:2])
    values = {method: array[:, :, np.array(AT) - 1] for method, array in arrays.items()}
    draws = {method: bootstrap.means(value) for method, value in values.items()}
    means = {method: value.mean(axis=(0, 1)) for method, value in values.items()}
    rows = {name: {"mean": _rounded(means[name])} | _interval(draws[name]) for name in means}
    for method, base in ratios:
        with np.errstate(divide="ignore", invalid="ignore"):  # few tasks, all at their best
            ratio, drawn = means[method] / means[base], draws[method] / draws[base]
        rows[f"{method} / {base}"] = {"ratio": _rounded(ratio)} | _interval(drawn)
    return rows


def curves(arrays: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """Return the mean of each method at the points `DRAWN`."""
    places = np.array(DRAWN) - 1
    return {name: _rounded(array.mean(axis=(0, 1))[places]) for name, array in arrays.items()}
