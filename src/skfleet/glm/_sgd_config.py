"""Settings, weights and targets of stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from skfleet.glm._sgd_losses import REGRESSION_LOSSES

# batch_size="auto".
STEPS_PER_BLOCK, MIN_BATCH_ROWS, MAX_BATCH_ROWS = 256, 8, 256


@dataclass(frozen=True)
class SGDConfig:
    """Loss, penalty, learning rate and batch size of a descent.

    `loss` is a name of `SGD_LOSSES`, with its `epsilon`. `l1` and `l2` are strengths of penalties.
    `learning_rate`, `alpha`, `eta0` and `power_t` are those of scikit-learn's estimators.
    `average` is the row from which on weights are averaged, 0 for never. `batch_size` None takes
    a 256th of a block, of 8 to 256 rows. `track_objective` sums up the objective, for early
    stopping.
    """

    loss: str
    epsilon: float
    l1: float
    l2: float
    learning_rate: str
    alpha: float
    eta0: float
    power_t: float
    fit_intercept: bool
    average: int  # the row from which on to average; 0 for never
    batch_size: int | None
    track_objective: bool  # sums the objective, for early stopping

    def batch_rows(self, n_rows: int) -> int:
        """Return the batch size for a block of n_rows."""
        if self.batch_size is not None:
            return min(self.batch_size, n_rows)
        return min(max(n_rows // STEPS_PER_BLOCK, MIN_BATCH_ROWS), MAX_BATCH_ROWS, n_rows)

    def rates(self, t: float, n_rows: int) -> np.ndarray:
        """Return the learning rates of rows number t, t + 1, ..., the first of all being 1."""
        if self.learning_rate == "invscaling":
            return self.eta0 / (t + np.arange(n_rows)) ** self.power_t
        if self.learning_rate != "optimal":
            return np.full(n_rows, self.eta0)
        return 1.0 / (self.alpha * (self.optimal_offset(t) + np.arange(n_rows)))

    def optimal_offset(self, t: float) -> float:
        """Return 1 / (alpha * rate) of row number t, where rates are "optimal"."""
        # Bottou's heuristic: the first step has the expected size of a weight. scikit-learn divides
        # by the loss gradient there if that is above 1, which it is for no loss.
        first = np.sqrt(1.0 / np.sqrt(self.alpha))
        return float(1.0 / (first * self.alpha) + t - 1.0)

    @property
    def is_passive_aggressive(self) -> bool:
        """True where the loss of a row sets its step (Crammer et al., 2006)."""
        return self.learning_rate in ("pa1", "pa2")

    @property
    def is_limited(self) -> bool:
        """True where the sum of the steps of a batch may overshoot.

        It cannot where the gradient is bounded and the loss is flat beyond a margin, nor with the
        shrinkage of "optimal" rates there (Pegasos).
        """
        if self.loss == "squared_hinge":
            return self.learning_rate != "optimal"
        return self.loss in REGRESSION_LOSSES or self.is_passive_aggressive


class SGDWeights(NamedTuple):
    """Coefficients and intercepts, a row or a value per output, with sums over the rows.

    `mean_coef` and `mean_intercept` are their averages, where these are asked for. `value` and
    `penalty` are sums of losses and of penalties, `t` is the number of the next row, and `n_rows`
    and `weight` count the rows so far and their weights. `l1_applied` is the L1 penalty that each
    coefficient has received, `l1_due` what it should have received by now (q and u of Tsuruoka,
    Tsujii and Ananiadou, 2009). `rate` multiplies the rates.
    """

    coef: Any
    intercept: Any
    mean_coef: Any = None
    mean_intercept: Any = None
    l1_applied: Any = None
    l1_due: Any = 0.0
    rate: Any = 1.0
    value: Any = 0.0  # sum of losses
    penalty: Any = 0.0  # sum of penalties, once a row
    t: float = 1.0
    n_rows: int = 0
    weight: float = 0.0


class SGDTargets(NamedTuple):
    """Targets of the rows: numbers, or codes of classes for one-vs-rest outputs.

    `values` has one for each row, and `sample_weight` their weights or None. For classes `positive`
    is the code of each output's positive class, and `side_weights`, of shape (2, n_outputs), has
    the weights of the positive class and of the rest.
    """

    values: Any  # (n,): numbers, or codes of classes
    sample_weight: Any = None
    positive: np.ndarray | None = None  # (k,): the code of each output's positive class
    side_weights: np.ndarray | None = None  # (2, k): weights of the positive class, of the rest
