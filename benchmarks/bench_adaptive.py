"""Adaptive searches: what they cost beside the training itself, on two workers.

The ideal is the time of the same schedule on an imagined fleet of two workers that takes no time
for anything but training: `python benchmarks/bench_adaptive.py` prints the shares of it.
"""

from __future__ import annotations

import gc
import time

import numpy as np
from scipy.stats import uniform
from sklearn.base import BaseEstimator, ClassifierMixin

from skfleet import Fleet
from skfleet.model_selection import HyperbandSearchCV, SuccessiveHalvingSearchCV
from skfleet.model_selection._adaptive._schedules import AsynchronousHalving, asynchronous_levels
from skfleet.model_selection._adaptive._simulation import SimulationResult, simulate


class Sleeper(ClassifierMixin, BaseEstimator):
    """A classifier whose calls of ``partial_fit`` only take time."""

    def __init__(self, quality: float = 0.5, seconds: float = 0.0) -> None:
        self.quality = quality
        self.seconds = seconds

    def partial_fit(self, X, y, classes=None):
        """Sleep."""
        self.classes_ = np.unique(y) if classes is None else classes
        self.n_features_in_ = X.shape[1]
        self.calls_ = getattr(self, "calls_", 0) + 1
        if self.seconds:
            time.sleep(self.seconds)
        return self

    def score(self, X, y):
        """Give a score that rises with the calls."""
        return self.quality * (1 - 0.5**self.calls_)


def search(name: str, seconds: float) -> HyperbandSearchCV | SuccessiveHalvingSearchCV:
    """Make a search whose calls take so many seconds."""
    common = {"random_state": 0, "n_jobs": None}
    estimator = Sleeper(seconds=seconds)
    parameters = {"quality": list(np.linspace(0, 1, 200))}
    if name.startswith("hyperband"):
        sampler = name.partition(", ")[2] or "random"
        parameters = {"quality": uniform(0, 1)} if sampler == "tpe" else parameters
        return HyperbandSearchCV(estimator, parameters, max_iter=27, sampler=sampler, **common)
    return SuccessiveHalvingSearchCV(
        estimator, parameters, n_initial_parameters=27, max_iter=27, **common
    )


def ideal(made: HyperbandSearchCV | SuccessiveHalvingSearchCV, seconds: float) -> float:
    """Return the seconds that the same schedule takes on two workers without any cost."""
    rng = np.random.default_rng(0)
    fleet = simulate(
        made._schedule(made.metadata["n_models"]),
        2,
        lambda order, before: (order.n_calls - before) * seconds,
        lambda order: rng.random(),
    )
    return fleet.makespan


def measure(name: str, seconds: float, *, repeats: int = 3) -> tuple[float, float, int]:
    """Return the seconds that a search took, those it would ideally take, and its calls."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1000, 20)), rng.integers(0, 2, size=1000)
    took = []
    for _ in range(repeats):
        made = search(name, seconds)
        gc.collect()  # what was imported is looked at now, which takes 100 ms, and not in between
        began = time.perf_counter()
        made.fit(X, y)
        took.append(time.perf_counter() - began)
    return min(took), ideal(made, seconds), made.metadata_["partial_fit_calls"]


class Overhead:
    """The share of the ideal, and milliseconds per call that does nothing."""

    params = (["hyperband", "hyperband, tpe", "halving"], [0.0, 0.02, 0.1])
    param_names = ("search", "seconds")
    timeout = 300

    def setup(self, name: str, seconds: float) -> None:
        self.fleet = Fleet(n_workers=2)

    def teardown(self, name: str, seconds: float) -> None:
        self.fleet.close()

    def track_share_of_ideal(self, name: str, seconds: float) -> float:
        """Percent of the ideal, or milliseconds per call where calls take no time."""
        took, best, n_calls = measure(name, seconds)
        return 100 * best / took if seconds else 1000 * took / n_calls


def imagined(n_workers: int, seed: int) -> SimulationResult:
    """Run ASHA with 1,000 candidates on an imagined fleet whose calls take longer by chance."""
    rng = np.random.default_rng(seed)
    quality = rng.random(1000)
    return simulate(
        AsynchronousHalving(1000, asynchronous_levels(1, 256, 4), 4),
        n_workers,
        lambda order, before: (order.n_calls - before) * (1 + rng.exponential(0.3)),
        lambda order: quality[order.candidate] + rng.normal() * 0.1 / order.n_calls**0.5,
    )


def print_scaling() -> None:
    """Print how long ASHA takes on more and more workers, next to what nobody can beat."""
    print("\nworkers   time    work / workers   longest candidate   share of the ideal")
    for n_workers in (1, 4, 16, 64, 256, 1000):
        told = [imagined(n_workers, seed) for seed in range(5)]
        time_, work, longest = (
            np.median([getattr(one, name) for one in told])
            for name in ("makespan", "work", "longest")
        )
        shares = [max(one.work / n_workers, one.longest) / one.makespan for one in told]
        print(
            f"{n_workers:7d} {time_:7.0f} {work / n_workers:14.0f} {longest:17.0f}"
            f" {100 * np.median(shares):17.0f} %"
        )


def main() -> None:
    """Print the shares as a table."""
    print("search          call    took    ideal   share   per call")
    with Fleet(n_workers=2):
        measure("hyperband", 0.0, repeats=1)  # what is imported on workers is imported now
        for name in Overhead.params[0]:
            for seconds in (0.0, 0.02, 0.1):
                took, best, n_calls = measure(name, seconds)
                share = f"{100 * best / took:5.1f} %" if seconds else "      -"
                print(
                    f"{name:15s} {1000 * seconds:3.0f} ms {took:6.3f} s {best:6.3f} s "
                    f"{share}   {1000 * (took - best) / n_calls:.2f} ms",
                    flush=True,
                )
    print_scaling()


if __name__ == "__main__":
    main()
