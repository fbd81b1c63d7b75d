"""Stochastic gradient descent of a linear model: how the batches of a block move its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import (
    asarray_like,
    astype,
    dtype_of,
    is_floating,
    is_not_numpy,
    namespace,
    to_device_of,
    to_host,
)
from skfleet._linalg import has_values, is_sparse, row_norms, rows_between
from skfleet.glm._sgd_losses import REGRESSION_LOSSES, SGD_LOSSES

# scikit-learn's bound of a loss's derivative, and how much slower intercepts of sparse rows learn.
STEEPEST = 1e12
SPARSE_INTERCEPT_SHARE = 0.01
# "auto": so many steps a block, but of no fewer and no more rows than these.
STEPS, FEWEST_ROWS, MOST_ROWS = 256, 8, 256


@dataclass(frozen=True)
class Descent:
    """What to descend and how: what is the same for all rows."""

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
    adds_up: bool  # the objective, for whoever asks whether it still falls

    def size_for(self, n_rows: int) -> int:
        """Return how many rows of a block of so many to learn at once."""
        if self.batch_size is not None:
            return min(self.batch_size, n_rows)
        return min(max(n_rows // STEPS, FEWEST_ROWS), MOST_ROWS, n_rows)

    def rates(self, t: float, n_rows: int) -> np.ndarray:
        """Return the learning rates of rows number t, t + 1, ..., the first of all being 1."""
        if self.learning_rate == "invscaling":
            return self.eta0 / (t + np.arange(n_rows)) ** self.power_t
        if self.learning_rate != "optimal":
            return np.full(n_rows, self.eta0)
        # Bottou's heuristic: the first step is as long as a weight is likely to be. That no loss
        # rises towards the truth spares scikit-learn's look at the derivative there.
        first = np.sqrt(1.0 / np.sqrt(self.alpha))
        return 1.0 / (self.alpha * (1.0 / (first * self.alpha) + t - 1.0 + np.arange(n_rows)))

    @property
    def is_passive_aggressive(self) -> bool:
        """Say whether a row's loss makes its step (Crammer et al., 2006)."""
        return self.learning_rate in ("pa1", "pa2")

    @property
    def is_limited(self) -> bool:
        """Say whether the sum of a batch's steps may be too long to be taken.

        It cannot be where the derivative is bounded and losses are flat beyond a margin, nor with
        the shrinkage that goes with "optimal" there (Pegasos).
        """
        if self.loss == "squared_hinge":
            return self.learning_rate != "optimal"
        return self.loss in REGRESSION_LOSSES or self.is_passive_aggressive


class Weights(NamedTuple):
    """What is learned, a row or a value per output, and what was added up over rows.

    `paid` is the L1 penalty that each coefficient has received, `owed` what it should have by now
    (q and u of Tsuruoka, Tsujii and Ananiadou, 2009). `rate` multiplies the rates.
    """

    coef: Any
    intercept: Any
    mean_coef: Any = None
    mean_intercept: Any = None
    paid: Any = None
    owed: Any = 0.0
    rate: Any = 1.0
    value: Any = 0.0  # sum of losses
    penalty: Any = 0.0  # sum of penalties, once a row
    t: float = 1.0
    n_rows: int = 0
    weight: float = 0.0


class Targets(NamedTuple):
    """What rows are to learn: numbers, or to tell each of some classes from others."""

    values: Any  # (n,): numbers, or codes of classes
    sample_weight: Any = None
    positive: np.ndarray | None = None  # (k,): the code of each output's own class
    side_weights: np.ndarray | None = None  # (2, k): weights of its own class, of the others


def descend(
    weights: Weights, X: Any, targets: Targets, how: Descent, order: np.ndarray | None = None
) -> Weights:
    """Learn the rows of X, batch by batch, in the order given; weights come and go on the host.

    In between nothing leaves the device of X, so that its queue never runs dry.
    """
    n_rows = X.shape[0]
    size = how.size_for(n_rows)
    # Weights that run away are found out at the end of the epoch.
    with np.errstate(all="ignore"):
        learner = _Learner(weights, X, targets, how, size)
        y, weight = _beside(targets.values, X), targets.sample_weight
        weight = None if weight is None else _beside(weight, X)
        places = None if order is None else asarray_like(order, X)
        if places is not None:
            xp = namespace(y)
            y = xp.take(y, places, axis=0)
            weight = None if weight is None else xp.take(weight, places, axis=0)
        for step, low in enumerate(range(0, n_rows, size)):
            here = slice(low, min(low + size, n_rows))
            if places is None:
                rows = rows_between(X, low, here.stop)
            elif is_not_numpy(X):
                rows = namespace(X).take(X, places[here], axis=0)
            else:
                rows = X[places[here]]
            learner.learn(step, here, rows, y[here], None if weight is None else weight[here])
        total = n_rows if weight is None else namespace(weight).sum(weight, dtype=learner.double)
        return learner.come_home(weights, n_rows, float(total))


def _beside(values: Any, X: Any) -> Any:
    """Bring values to where the rows are, numbers in the precision of the rows."""
    values = to_device_of(values, X)
    return astype(values, dtype_of(X)) if is_floating(values) else values


class _Learner:
    """Weights where the rows are, in float64, and all that is known of the steps beforehand."""

    coef: Any
    intercept: Any
    mean_coef: Any
    mean_intercept: Any
    paid: Any

    def __init__(self, weights: Weights, X: Any, targets: Targets, how: Descent, size: int) -> None:
        xp = namespace(X)
        self.xp, self.double, self.dtype, self.how = xp, xp.float64, dtype_of(X), how
        self.coef, self.intercept, self.mean_coef, self.mean_intercept, self.paid = (
            None if v is None else asarray_like(v, X, dtype=xp.float64) for v in weights[:5]
        )
        zero = np.zeros(len(weights.intercept))
        self.value = asarray_like(weights.value + zero, X, dtype=xp.float64)
        self.penalty = asarray_like(weights.penalty + zero, X, dtype=xp.float64)
        self.t = weights.t
        self.positive = None if targets.positive is None else asarray_like(targets.positive, X)
        sides = targets.side_weights
        self.sides = (
            None if sides is None else (asarray_like(sides[0], X), asarray_like(sides[1], X))
        )
        self.intercept_share = SPARSE_INTERCEPT_SHARE if is_sparse(X) else 1.0

        n_rows = X.shape[0]
        rate = np.atleast_1d(weights.rate)
        rate = rate[:1] if (rate == rate[0]).all() else rate
        eta = np.zeros((-(-n_rows // size) * size, len(rate)))
        eta[:n_rows] = how.rates(weights.t, n_rows)[:, None] * rate
        eta = eta.reshape(-1, size, len(rate))
        # An L2 penalty that would turn weights round makes them zero, as in scikit-learn.
        keep = np.maximum(0.0, 1.0 - how.l2 * eta)
        # What a row adds is shrunk by the rows of its batch that come after it.
        later = np.ones_like(keep)
        later[:, :-1] = np.cumprod(keep[:, :0:-1], axis=1)[:, ::-1]
        steps = later if how.is_passive_aggressive else eta * later
        owed = weights.owed + zero + np.cumsum(how.l1 * eta.sum(axis=1), axis=0)
        self.steps = asarray_like(steps.reshape(-1, len(rate))[:n_rows], X)
        self.keep = asarray_like(keep.prod(axis=1)[:, :, None], X, dtype=xp.float64)
        self.owed = asarray_like(owed[:, :, None], X, dtype=xp.float64)
        self.owed_at_last = owed[-1]

    def learn(self, step: int, here: slice, rows: Any, y: Any, weight: Any) -> None:
        """Make one step."""
        xp, how, n_rows = self.xp, self.how, here.stop - here.start
        loss = SGD_LOSSES[how.loss]
        p = rows @ astype(self.coef, self.dtype).T + astype(self.intercept, self.dtype)
        y = y[:, None]
        if self.positive is not None:
            y = 2 * xp.astype(y == self.positive, p.dtype) - 1
        if how.adds_up:
            self._add_up(loss.value(y, p, how.epsilon), n_rows)
        share = None if weight is None else weight[:, None]
        if self.sides is not None:
            own = xp.where(y > 0, *self.sides)
            share = own if share is None else own * share
        slope = self._slope(y, p, share)
        if how.is_passive_aggressive:
            length = self._length(rows, loss.value(y, p, how.epsilon))
            length = length if share is None else length * share
            change = -xp.sign(slope) * length * self.steps[here, ...]
        else:
            change = -slope * self.steps[here, ...]
        move = (rows.T @ change).T
        shift = xp.sum(change, axis=0) * (self.intercept_share if how.fit_intercept else 0.0)
        if how.is_limited and n_rows > 1:
            ahead = rows @ move.T + shift
            part = self._part(slope, self._slope(y, p + ahead, share), ahead, n_rows)
            move, shift = move * part[:, None], shift * part
        self.coef = self.coef * self.keep[step, ...] + move
        self.intercept = self.intercept + shift
        self.t += n_rows
        if how.average and self.t > how.average:
            self._average(n_rows)
        if how.l1:
            self._pay(self.owed[step, ...], has_values(rows))

    def _slope(self, y: Any, p: Any, share: Any) -> Any:
        """Return the derivative of the rows' losses, weighted."""
        slope = SGD_LOSSES[self.how.loss].gradient(y, p, self.how.epsilon)
        slope = self.xp.minimum(self.xp.maximum(slope, -STEEPEST), STEEPEST)
        return slope if share is None else slope * share

    def _length(self, rows: Any, value: Any) -> Any:
        """Return how far a passive-aggressive step goes along a row."""
        squares, eta0 = row_norms(rows)[:, None], self.how.eta0
        if self.how.learning_rate == "pa2":
            return value / (squares + 0.5 / eta0)
        some = squares > 0  # a row of zeros teaches nothing
        length = self.xp.minimum(value / self.xp.where(some, squares, 1.0), eta0)
        return self.xp.where(some, length, 0.0)

    def _part(self, slope: Any, slope_there: Any, ahead: Any, n_rows: int) -> Any:
        """Return which part of the sum of steps to go: what one after the other they would come to.

        Along the sum the loss's slope changes from `before` to `after`, by a share `bend` of it. So
        by the share bend / n with each of n steps, which makes the sum of their lengths a geometric
        series. It is 1 where the loss hardly bends, and at least 1 / n: one step for their mean.
        """
        xp = self.xp
        before, after = (
            xp.sum(there * ahead, axis=0, dtype=self.double) for there in (slope, slope_there)
        )
        bend = xp.maximum(1 - after / xp.where(before < 0, before, -1.0), 1e-9)
        each = xp.minimum(bend / n_rows, 1.0)
        return xp.maximum(-xp.expm1(n_rows * xp.log1p(-each)) / bend, 1.0 / n_rows)

    def _add_up(self, value: Any, n_rows: int) -> None:
        """Add the batch to the objective, at the weights that it found."""
        xp, how = self.xp, self.how
        self.value = self.value + xp.sum(value, axis=0, dtype=self.double)
        if how.l2:
            squares = xp.sum(self.coef * self.coef, axis=1)
            self.penalty = self.penalty + (n_rows * how.l2 / 2) * squares
        if how.l1:
            sizes = xp.sum(xp.abs(self.coef), axis=1)
            self.penalty = self.penalty + (n_rows * how.l1) * sizes

    def _average(self, n_rows: int) -> None:
        """Take the new weights into the mean, once for each row since averaging began."""
        n_averaged = self.t - self.how.average
        share = min(n_rows, n_averaged) / n_averaged
        self.mean_coef = self.mean_coef + share * (self.coef - self.mean_coef)
        self.mean_intercept = self.mean_intercept + share * (self.intercept - self.mean_intercept)

    def _pay(self, owed: Any, held: np.ndarray | None) -> None:
        """Take the L1 penalty that is owed off the coefficients of columns with values, to zero."""
        xp, coef = self.xp, self.coef
        lower = xp.maximum(coef - (owed + self.paid), 0.0)
        higher = xp.minimum(coef + (owed - self.paid), 0.0)
        left = xp.where(coef > 0, lower, xp.where(coef < 0, higher, coef))
        left = left if held is None else xp.where(held, left, coef)
        self.paid = self.paid + (left - coef)
        self.coef = left

    def come_home(self, weights: Weights, n_rows: int, weight: float) -> Weights:
        """Return the weights on the host."""
        learned = (self.coef, self.intercept, self.mean_coef, self.mean_intercept, self.paid)
        coef, intercept, *others = (None if v is None else to_host(v) for v in learned)
        return weights._replace(
            coef=coef,
            intercept=intercept,
            mean_coef=others[0],
            mean_intercept=others[1],
            paid=others[2],
            owed=self.owed_at_last,
            value=to_host(self.value),
            penalty=to_host(self.penalty),
            t=self.t,
            n_rows=weights.n_rows + n_rows,
            weight=weights.weight + weight,
        )
