"""The average loss over blocks and its derivatives: the only bridge from solvers to engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skfleet._array import astype, is_foreign, like, namespace, to_host
from skfleet._linalg import gram, is_sparse, tdot
from skfleet.blocks import Block, RowBlocks, row_blocks
from skfleet.engine import Engine, LocalEngine, Reduction, map_reduce
from skfleet.glm._losses import Loss


@dataclass(frozen=True)
class Scaling:
    """Columns as solvers see them: (x - shift) / scale. Sparse rows are scaled only (shift 0)."""

    shift: np.ndarray
    scale: np.ndarray


@dataclass(frozen=True)
class Labels:
    """How labels become targets: their order, and a weight for each class."""

    classes: np.ndarray | None = None
    class_weight: np.ndarray | None = None


class Objective:
    """The weighted average loss of rows as a function of coefficients, which live on the host.

    Coefficients are a flat array of n_outputs rows of n_features (+ 1 for an intercept) numbers,
    for columns as `scaling` sees them. Every evaluation is one pass over the rows.
    """

    def __init__(
        self,
        engine: Engine,
        rows: RowBlocks,
        loss: Loss,
        *,
        total_weight: float,
        scaling: Scaling,
        labels: Labels,
        fit_intercept: bool = True,
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._how = (loss, scaling, labels, fit_intercept)
        self._total_weight = total_weight

    def value_and_gradient(self, coef: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the average loss and its gradient."""
        value, gradient, _ = self._pass(coef, with_hessian=False)
        return value, gradient

    def value_gradient_hessian(self, coef: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the average loss, its gradient and its Hessian, from one traversal."""
        return self._pass(coef, with_hessian=True)

    def on_sample(self, X: Any, y: Any, sample_weight: Any) -> Objective:
        """Return the same objective for a few rows in this process."""
        loss, scaling, labels, fit_intercept = self._how
        weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        if labels.class_weight is not None and labels.classes is not None:
            weight = weight * labels.class_weight[np.searchsorted(labels.classes, y)]
        return Objective(
            LocalEngine(1),
            row_blocks(X, y, sample_weight),
            loss,
            total_weight=float(weight.sum()),
            scaling=scaling,
            labels=labels,
            fit_intercept=fit_intercept,
        )

    def _pass(self, coef: np.ndarray, *, with_hessian: bool) -> tuple[float, np.ndarray, Any]:
        """Evaluate in one pass."""
        reduction = Reduction(glm_hessian if with_hessian else glm_gradient)
        sums = map_reduce(self._engine, reduction, self._rows, coef, *self._how)
        value, gradient, *rest = (part / self._total_weight for part in sums)
        return float(value), gradient.ravel(), rest[0] if rest else None


def glm_gradient(block: Block, coef: np.ndarray, *how: Any) -> tuple[Any, ...]:
    """Return a block's sums of losses and of gradients."""
    return _evaluate(block, coef, *how, with_hessian=False)


def glm_hessian(block: Block, coef: np.ndarray, *how: Any) -> tuple[Any, ...]:
    """Return a block's sums of losses, of gradients and of Hessians."""
    return _evaluate(block, coef, *how, with_hessian=True)


def _evaluate(
    block: Block,
    coef: np.ndarray,
    loss: Loss,
    scaling: Scaling,
    labels: Labels,
    fit_intercept: bool,
    *,
    with_hessian: bool,
) -> tuple[Any, ...]:
    """Evaluate the losses of a block and their derivatives in one traversal."""
    n_features = block.X.shape[1]
    coef = coef.reshape(loss.n_outputs, n_features + fit_intercept)
    slopes = coef[:, :n_features]
    # Sparse rows keep their zeros: their scale goes into the coefficients and out of the results.
    scaled_later = is_sparse(block.X)
    if scaled_later:
        X, slopes = block.X, slopes / scaling.scale
    else:
        X = (block.X - like(scaling.shift, block.X)) / like(scaling.scale, block.X)
    eta = X @ like(np.ascontiguousarray(slopes.T), X)
    xp = namespace(eta)
    if fit_intercept:
        eta = eta + like(coef[:, n_features], eta)
    y, weight = targets(block, labels, eta)
    value = loss.value(y, eta)
    slope = loss.gradient(y, eta)
    if weight is not None:
        value, slope = value * weight, slope * weight[:, None]
    gradient = np.empty(coef.shape)
    gradient[:, :n_features] = to_host(tdot(X, slope)).T
    if scaled_later:
        gradient[:, :n_features] /= scaling.scale
    if fit_intercept:
        gradient[:, n_features] = to_host(xp.sum(slope, axis=0, dtype=xp.float64))
    total = float(xp.sum(value, dtype=xp.float64))
    if not with_hessian:
        return total, gradient
    mean = loss.mean(eta)
    size = n_features + fit_intercept
    hessian = np.empty((loss.n_outputs, size, loss.n_outputs, size))
    for i in range(loss.n_outputs):
        for j in range(i + 1):
            curve = loss.hessian(mean, i, j)
            curve = curve if weight is None else curve * weight
            part = _weighted_gram(X, curve, fit_intercept, scaling.scale if scaled_later else None)
            hessian[i, :, j, :] = part
            hessian[j, :, i, :] = part
    return total, gradient, hessian.reshape(loss.n_outputs * size, loss.n_outputs * size)


def _weighted_gram(X: Any, curve: Any, fit_intercept: bool, scale: np.ndarray | None) -> np.ndarray:
    """Return Z.T @ diag(curve) @ Z for the rows Z with their scale, and a 1 for an intercept."""
    n_features = X.shape[1]
    result = np.empty((n_features + fit_intercept, n_features + fit_intercept))
    result[:n_features, :n_features] = gram(X, curve)
    if fit_intercept:
        xp = namespace(curve)
        result[n_features, :n_features] = to_host(tdot(X, curve))
        result[:n_features, n_features] = result[n_features, :n_features]
        result[n_features, n_features] = float(xp.sum(curve, dtype=xp.float64))
    if scale is not None:
        result[:n_features] /= scale[:, None]
        result[:, :n_features] /= scale
    return result


def targets(block: Block, labels: Labels, eta: Any) -> tuple[Any, Any]:
    """Return a block's targets and weights where its predictor is, None for weights of 1."""
    y, weight = block.y, block.sample_weight
    codes = None
    if labels.classes is not None:
        codes = np.searchsorted(labels.classes, to_host(y))
        y = codes.astype(np.float64)
    if weight is not None:
        weight = astype(weight, np.dtype(np.float64)) if is_foreign(weight) else weight
        weight = like(to_host(weight).astype(np.float64), eta)
    if labels.class_weight is not None:
        codes = to_host(y).astype(np.intp) if codes is None else codes
        each = like(labels.class_weight[codes], eta)
        weight = each if weight is None else weight * each
    return like(to_host(y).astype(np.float64), eta), weight
