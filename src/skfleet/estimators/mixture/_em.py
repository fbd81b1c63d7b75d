"""The EM algorithm: one pass over the rows per iteration, its stopping rule and its messages."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from skfleet.blocks import RowBlocks
from skfleet.engine import Engine, Reduction, map_reduce
from skfleet.estimators.mixture._expectation import expectation
from skfleet.estimators.mixture._gaussians import Gaussians, factors_of, maximize


class EMResult(NamedTuple):
    """Model of the last iteration, and the lower bounds of all of them."""

    model: Gaussians
    lower_bound: float
    lower_bounds: list[float]
    converged: bool


@dataclass
class IterationLog:
    """scikit-learn's messages of initialisations and iterations."""

    verbose: int
    interval: int
    _start: float = field(default=0.0, init=False)
    _last: float = field(default=0.0, init=False)

    def begin(self, number: int) -> None:
        """Print the number of an initialisation."""
        if self.verbose:
            print(f"Initialization {number}")
        self._start = self._last = time.perf_counter()

    def iteration(self, n_iter: int, change: float) -> None:
        """Print the number of an iteration, and how much it changed the lower bound."""
        if not self.verbose or n_iter % self.interval:
            return
        message, now = f"  Iteration {n_iter}", time.perf_counter()
        if self.verbose >= 2:
            message += f"\t time lapse {now - self._last:.5f}s\t ll change {change:.5f}"
        print(message)
        self._last = now

    def end(self, result: EMResult) -> None:
        """Print whether the iterations have converged."""
        message = f"Initialization {'converged' if result.converged else 'did not converge'}."
        if self.verbose >= 2:
            seconds = time.perf_counter() - self._start
            message += f" time lapse {seconds:.5f}s\t lower bound {result.lower_bound:.5f}."
        if self.verbose:
            print(message)


@dataclass
class EMSolver:
    """EM iterations over rows, from one initialisation after the other."""

    engine: Engine
    rows: RowBlocks
    reg_covar: float
    tol: float
    max_iter: int
    log: IterationLog

    def run(self, model: Gaussians, lower_bound: float = -np.inf) -> EMResult:
        """Iterate from a model, whose lower bound may be known, to convergence."""
        result = EMResult(model, lower_bound, [], False)
        while len(result.lower_bounds) < self.max_iter and not result.converged:
            result = self._iterate(result)
        if self.max_iter:
            self.log.end(result)
        return result

    def _iterate(self, before: EMResult) -> EMResult:
        model = before.model
        sums = map_reduce(self.engine, Reduction(expectation), self.rows, model)
        self.rows = replace(self.rows, checked=True)  # this pass has looked for NaN and infinity
        weights, means, covariances = maximize(
            model.kind, sums.components, model.origins, self.reg_covar
        )
        factors = factors_of(model.kind, covariances)
        model = Gaussians(model.kind, weights / weights.sum(), means, covariances, factors)
        lower_bound = float(sums.log_likelihood) / sums.n_rows
        change = lower_bound - before.lower_bound
        bounds = [*before.lower_bounds, lower_bound]
        self.log.iteration(len(bounds), change)
        return EMResult(model, lower_bound, bounds, abs(change) < self.tol)
