"""Steps of stochastic gradient descent, batch by batch, in the library of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from skfleet._array import (
    asarray_like,
    astype,
    dtype_of,
    in_row_order,
    is_floating,
    namespace,
    to_device_of,
    to_host,
)
from skfleet._linalg import has_values, is_sparse, row_norms, rows_at, rows_between
from skfleet._typing import Array, Matrix
from skfleet.glm._sgd_config import SGDConfig, SGDTargets, SGDWeights
from skfleet.glm._sgd_losses import SGD_LOSSES

# As in scikit-learn: the bound of a loss gradient, and the rate of intercepts of sparse rows.
MAX_SLOPE = 1e12
SPARSE_INTERCEPT_RATE = 0.01
# Numbers of rows, predictions and coefficients that are held for the batches of a stretch.
STRETCH_VALUES = 2**17
# Bytes of rows in column order, as frames have them, that are copied before rows are drawn of them.
MAX_COPY_BYTES = 2**28
# The fields that move to the device of the rows.
_ARRAYS = ("coef", "intercept", "mean_coef", "mean_intercept", "l1_applied")


def descend_by_batches(
    weights: SGDWeights,
    X: Matrix,
    targets: SGDTargets,
    config: SGDConfig,
    order: np.ndarray | None = None,
) -> SGDWeights:
    """Return the weights after descending on the rows of X, by array operations."""
    n_rows = X.shape[0]
    size = config.batch_rows(n_rows)
    # Diverging weights are detected at the end of the epoch.
    with np.errstate(all="ignore"):
        updater = SGDUpdater(weights, X, targets, config, size)
        y, weight = to_device_as(targets.values, X), targets.sample_weight
        weight = None if weight is None else to_device_as(weight, X)
        device_order = None if order is None else asarray_like(order, X)
        # Targets are small and shuffled at once; rows some batches at a time, without a second copy
        # of X.
        if device_order is not None:
            xp = namespace(y)
            y = xp.take(y, device_order, axis=0)
            weight = None if weight is None else xp.take(weight, device_order, axis=0)
            X = in_row_order(X, MAX_COPY_BYTES)
        for steps in updater.stretches():
            low, high = steps.start * size, min(steps.stop * size, n_rows)
            if device_order is None:
                rows = rows_between(X, low, high)
            else:
                rows = rows_at(X, device_order[low:high])
            row_weights = None if weight is None else weight[low:high]
            updater.descend(steps, rows, y[low:high], row_weights)
        total = n_rows if weight is None else namespace(weight).sum(weight, dtype=updater.double)
        return updater.to_host(weights, n_rows, float(total))


def to_device_as(values: Array, X: Matrix) -> Array:
    """Return values on the device of X, floats in the precision of X."""
    values = to_device_of(values, X)
    return astype(values, dtype_of(X)) if is_floating(values) else values


class SGDUpdater:
    """Float64 weights on the device of the rows, with precomputed steps of all batches."""

    coef: Any
    intercept: Any
    mean_coef: Any
    mean_intercept: Any
    l1_applied: Any

    def __init__(
        self, weights: SGDWeights, X: Matrix, targets: SGDTargets, config: SGDConfig, size: int
    ) -> None:
        xp = namespace(X)
        self.xp, self.double, self.dtype, self.config = xp, xp.float64, dtype_of(X), config
        for name, values in zip(_ARRAYS, weights, strict=False):
            values = None if values is None else asarray_like(values, X, dtype=xp.float64)
            setattr(self, name, values)
        zero = np.zeros(len(weights.intercept))
        self.value = asarray_like(weights.value + zero, X, dtype=xp.float64)
        self.penalty = asarray_like(weights.penalty + zero, X, dtype=xp.float64)
        self.rows_dtype = X.dtype  # by its own library
        self.t, self.loss = weights.t, SGD_LOSSES[config.loss]
        self.positive = None if targets.positive is None else asarray_like(targets.positive, X)
        sides = targets.side_weights
        self.sides = None if sides is None else [asarray_like(side, X) for side in sides]
        self.intercept_rate = SPARSE_INTERCEPT_RATE if is_sparse(X) else 1.0

        n_rows, d = X.shape
        self.n_rows, self.size, self.n_steps = n_rows, size, -(-n_rows // size)
        self.n_values = size * d + len(zero) * max(size, d)  # of a batch
        rate = np.atleast_1d(weights.rate)
        # One column of rates serves all outputs until "adaptive" decays make them differ.
        rate = rate[:1] if (rate == rate[0]).all() else rate
        # Rates of 0 fill up the last batch: they neither step nor decay.
        eta: np.ndarray = np.zeros((-(-n_rows // size) * size, len(rate)))
        eta[:n_rows] = config.rates(weights.t, n_rows)[:, None] * rate
        eta = eta.reshape(-1, size, len(rate))
        # An L2 step that would change the sign of weights sets them to zero, as in scikit-learn.
        decay = np.maximum(0.0, 1.0 - config.l2 * eta)
        # The step of a row is shrunk by the later rows of its batch.
        shrinkage = np.ones_like(decay)
        shrinkage[:, :-1] = np.cumprod(decay[:, :0:-1], axis=1)[:, ::-1]
        steps = shrinkage if config.is_passive_aggressive else eta * shrinkage
        l1_due = weights.l1_due + zero + np.cumsum(config.l1 * eta.sum(axis=1), axis=0)
        self.steps = asarray_like(steps.reshape(-1, len(rate))[:n_rows], X)
        self.decay = asarray_like(decay.prod(axis=1)[:, :, None], X, dtype=xp.float64)
        self.l1_due = asarray_like(l1_due[:, :, None], X, dtype=xp.float64)
        self.l1_due_at_end = l1_due[-1]

    def stretches(self) -> Iterator[range]:
        """Yield the numbers of the batches whose rows are gathered at once, one after the other."""
        n = max(1, STRETCH_VALUES // max(1, self.n_values))
        for low in range(0, self.n_steps, n):
            yield range(low, min(low + n, self.n_steps))

    def descend(self, steps: range, rows: Matrix, y: Array, weight: Array | None) -> None:
        """Update the weights with the rows of a stretch, batch after batch."""
        xp, config, size = self.xp, self.config, self.size
        y = y[:, None]
        # Codes become -1 and 1 here, so that no matrix of all rows by outputs exists.
        if self.positive is not None:
            y = 2 * xp.astype(y == self.positive, self.rows_dtype) - 1
        row_weights = None if weight is None else weight[:, None]
        if self.sides is not None:
            own = xp.where(y > 0, *self.sides)
            row_weights = own if row_weights is None else own * row_weights
        # The objective of all of them is summed up at the end: it takes as long for one.
        predictions, coefs, offset = [], [], steps.start * size
        for step in steps:
            low = step * size - offset
            batch = slice(low, min(low + size, rows.shape[0]))
            if config.track_objective:
                coefs.append(self.coef)
            p = self._step(
                step,
                rows if len(steps) == 1 else rows_between(rows, low, batch.stop),
                y[batch, ...],
                None if row_weights is None else row_weights[batch, ...],
            )
            if config.track_objective:
                predictions.append(p)
        if config.track_objective:
            self._add_to_objective(y, xp.concat(predictions), coefs)

    def _step(self, step: int, rows: Matrix, y: Array, row_weights: Array | None) -> Array:
        """Update the weights with one batch, and return the predictions before that."""
        xp, config, n_rows = self.xp, self.config, rows.shape[0]
        # Products are made in the precision of the rows; the weights stay float64, where small
        # steps add up.
        p = rows @ astype(self.coef, self.dtype).T + astype(self.intercept, self.dtype)
        # The steps along the rows: gradient times rate, or of a passive-aggressive length.
        gradient = self._loss_gradient(y, p, row_weights)
        row_steps = self.steps[step * self.size : step * self.size + n_rows, ...]
        if config.is_passive_aggressive:
            length = self._passive_aggressive_length(rows, self.loss.value(y, p, config.epsilon))
            length = length if row_weights is None else length * row_weights
            change = -xp.sign(gradient) * length * row_steps
        else:
            change = -gradient * row_steps
        # Summed over the batch, which is one step where rows alone would have made many.
        move = (rows.T @ change).T
        shift = xp.sum(change, axis=0) * (self.intercept_rate if config.fit_intercept else 0.0)
        # The step of a single row needs no limit: it is scikit-learn's.
        if config.is_limited and n_rows > 1:
            ahead = rows @ move.T + shift
            gradient_ahead = self._loss_gradient(y, p + ahead, row_weights)
            fraction = self._step_fraction(gradient, gradient_ahead, ahead, n_rows)
            move, shift = move * fraction[:, None], shift * fraction
        # The L2 penalty is a decay of the weights, of which `steps` has the part after each row.
        self.coef = self.coef * self.decay[step, ...] + move
        self.intercept = self.intercept + shift
        self.t += n_rows
        # Averages and the L1 penalty see the weights after the step.
        if config.average and self.t > config.average:
            self._average(n_rows)
        if config.l1:
            self._apply_l1(self.l1_due[step, ...], has_values(rows))
        return p

    def _loss_gradient(self, y: Array, p: Array, row_weights: Array | None) -> Array:
        """Return the derivative of the rows' losses, weighted."""
        gradient = self.loss.gradient(y, p, self.config.epsilon)
        if not self.loss.is_bounded:
            gradient = self.xp.minimum(self.xp.maximum(gradient, -MAX_SLOPE), MAX_SLOPE)
        return gradient if row_weights is None else gradient * row_weights

    def _passive_aggressive_length(self, rows: Matrix, value: Array) -> Array:
        """Return the length of a passive-aggressive step along a row."""
        squares, eta0 = row_norms(rows)[:, None], self.config.eta0
        if self.config.learning_rate == "pa2":
            return value / (squares + 0.5 / eta0)
        is_nonzero = squares > 0  # a row of zeros teaches nothing
        length = self.xp.minimum(value / self.xp.where(is_nonzero, squares, 1.0), eta0)
        return self.xp.where(is_nonzero, length, 0.0)

    def _step_fraction(
        self, gradient: Array, gradient_ahead: Array, ahead: Array, n_rows: int
    ) -> Array:
        """Return the fraction of the summed steps that sequential steps would add up to.

        Along the sum the loss's slope changes from `before` to `after`, by a fraction `bend` of it.
        So by the fraction bend / n with each of n steps, which makes the sum of their lengths a
        geometric series. It is 1 where the loss hardly bends, and at least 1 / n: one step for
        their mean.
        """
        xp = self.xp
        before, after = self._sums_along(gradient, ahead), self._sums_along(gradient_ahead, ahead)
        bend = xp.maximum(1 - after / xp.where(before < 0, before, -1.0), 1e-9)
        each = xp.minimum(bend / n_rows, 1.0)
        return xp.maximum(-xp.expm1(n_rows * xp.log1p(-each)) / bend, 1.0 / n_rows)

    def _sums_along(self, gradient: Array, ahead: Array) -> Array:
        """Return the sums of products down the columns, in double precision."""
        if gradient.shape[1] == 1 and gradient.dtype == self.double:
            return (gradient.T @ ahead)[0, ...]  # half the time of two operations
        return self.xp.sum(gradient * ahead, axis=0, dtype=self.double)

    def _add_to_objective(self, y: Array, p: Array, coefs: Sequence[Array]) -> None:
        """Add batches to the objective, each at the weights before its step."""
        xp, config, n_rows = self.xp, self.config, p.shape[0]
        loss = self.loss.value(y, p, config.epsilon)
        self.value = self.value + xp.sum(loss, axis=0, dtype=self.double)
        if not config.l1 and not config.l2:
            return
        stacked = xp.stack(list(coefs))
        penalties = config.l2 / 2 * xp.sum(stacked * stacked, axis=2)
        if config.l1:
            penalties = penalties + config.l1 * xp.sum(xp.abs(stacked), axis=2)
        whole = self.size * xp.sum(penalties, axis=0)
        n_missing = len(coefs) * self.size - n_rows  # rows that the last batch has less
        self.penalty = self.penalty + whole - n_missing * penalties[-1, ...]

    def _average(self, n_rows: int) -> None:
        """Update the averaged weights, once for each row since averaging began."""
        n_averaged = self.t - self.config.average
        fraction = min(n_rows, n_averaged) / n_averaged
        self.mean_coef = self.mean_coef + fraction * (self.coef - self.mean_coef)
        shift = self.intercept - self.mean_intercept
        self.mean_intercept = self.mean_intercept + fraction * shift

    def _apply_l1(self, l1_due: Array, has_values_in_batch: np.ndarray | None) -> None:
        """Apply the due L1 penalty to the coefficients of columns with values."""
        xp, coef = self.xp, self.coef
        lower = xp.maximum(coef - (l1_due + self.l1_applied), 0.0)
        higher = xp.minimum(coef + (l1_due - self.l1_applied), 0.0)
        clipped = xp.where(coef > 0, lower, xp.where(coef < 0, higher, coef))
        if has_values_in_batch is not None:
            # A column without values in this batch catches up later, as `l1_due` is cumulative.
            clipped = xp.where(has_values_in_batch, clipped, coef)
        self.l1_applied = self.l1_applied + (clipped - coef)
        self.coef = clipped

    def to_host(self, weights: SGDWeights, n_rows: int, weight: float) -> SGDWeights:
        """Return the weights on the host."""
        learned = {name: getattr(self, name) for name in _ARRAYS}
        return weights._replace(
            **{name: None if v is None else to_host(v) for name, v in learned.items()},
            l1_due=self.l1_due_at_end,
            value=to_host(self.value),
            penalty=to_host(self.penalty),
            t=self.t,
            n_rows=weights.n_rows + n_rows,
            weight=weights.weight + weight,
        )
