"""The average loss over blocks and its derivatives: the only bridge from solvers to engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import astype, is_foreign, like, namespace, to_host
from skfleet._linalg import fused_products, gram, is_sparse, take_columns, tdot
from skfleet.blocks import Block, RowBlocks, row_blocks
from skfleet.engine import Engine, LocalEngine, Reduction, map_reduce
from skfleet.glm._losses import Loss

# A mean of more deviations than these costs digits unless it is taken off the rows, which copies.
FAR = {"float64": 100.0, "float32": 1.0}


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


class Evaluation(NamedTuple):
    """The average loss at some coefficients, its gradient, and its Hessian where asked for."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray | None = None


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
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.n_features = len(scaling.scale)

    def evaluate(
        self, coef: np.ndarray, *, hessian: bool = False, columns: np.ndarray | None = None
    ) -> Evaluation:
        """Return the average loss, its gradient, and its Hessian (of some columns) if asked for.

        The Hessian of columns is in the order of `self.of_columns(columns)`.
        """
        reduction = Reduction(glm_hessian if hessian else glm_gradient)
        args = (coef, *self._how, columns) if hessian else (coef, *self._how)
        sums = map_reduce(self._engine, reduction, self._rows, *args)
        value, gradient, *rest = (part / self._total_weight for part in sums)
        return Evaluation(float(value), gradient.ravel(), rest[0] if rest else None)

    def of_columns(self, columns: np.ndarray) -> np.ndarray:
        """Return where the coefficients of some columns are, with the intercepts at the end."""
        size = self.n_features + self.fit_intercept
        each = np.append(columns, self.n_features) if self.fit_intercept else columns
        return (np.arange(self.loss.n_outputs)[:, None] * size + each).ravel()

    def rarest(self, y: np.ndarray) -> int:
        """Return how often the rarest class occurs among some targets; all of them, without."""
        classes = self._how[2].classes
        if classes is None:
            return len(y)
        return int(np.bincount(codes_of(y, classes), minlength=len(classes)).min())

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


def glm_gradient(block: Block, coef: np.ndarray, *how: Any) -> tuple[Any, ...]:
    """Return a block's sums of losses and of gradients."""
    return _evaluate(block, coef, *how)


def glm_hessian(block: Block, coef: np.ndarray, *how: Any) -> tuple[Any, ...]:
    """Return a block's sums of losses, of gradients and of Hessians."""
    return _evaluate(block, coef, *how[:-1], with_hessian=True, columns=how[-1])


def _evaluate(
    block: Block,
    coef: np.ndarray,
    loss: Loss,
    scaling: Scaling,
    labels: Labels,
    fit_intercept: bool,
    *,
    with_hessian: bool = False,
    columns: np.ndarray | None = None,
) -> tuple[Any, ...]:
    """Evaluate the losses of a block and their derivatives in one traversal.

    Scale and, where that costs no digits, shift go into the coefficients and out of the results, so
    that the rows need no copy and sparse ones keep their zeros.
    """
    X, n_features = block.X, block.X.shape[1]
    shift = scaling.shift / scaling.scale
    if not is_sparse(X) and np.abs(shift).max(initial=0.0) > FAR.get(_dtype_name(X), 1.0):
        X = X - like(scaling.shift, X)
        shift = np.zeros(n_features)
    moved = bool(shift.any())
    coef = coef.reshape(loss.n_outputs, n_features + fit_intercept)
    slopes = coef[:, :n_features]
    constant = coef[:, n_features] if fit_intercept else np.zeros(loss.n_outputs)
    if moved:
        constant = constant - slopes @ shift
    eta = X @ like(np.ascontiguousarray((slopes / scaling.scale).T), X)
    xp = namespace(eta)
    if constant.any():
        eta = eta + like(constant, eta)
    y, weight = targets(block, labels, eta)
    value, slope, mean = loss.evaluate(y, eta)
    if weight is not None:
        value, slope = value * weight, slope * weight[:, None]
    total = to_host(xp.sum(slope, axis=0, dtype=xp.float64))
    gradient = np.empty(coef.shape)
    gradient[:, :n_features] = to_host(tdot(X, slope)).T / scaling.scale
    if moved:
        gradient[:, :n_features] -= np.outer(total, shift)
    if fit_intercept:
        gradient[:, n_features] = total
    sums = float(xp.sum(value, dtype=xp.float64)), gradient
    if not with_hessian:
        return sums
    scale = scaling.scale
    if columns is not None:
        X, scale, shift = take_columns(X, columns), scale[columns], shift[columns]
    size = X.shape[1] + fit_intercept
    hessian = np.empty((loss.n_outputs, size, loss.n_outputs, size))
    for i in range(loss.n_outputs):
        for j in range(i + 1):
            curve = loss.curve(y, mean, i, j)
            curve = curve if weight is None else curve * weight
            part = _weighted_gram(X, curve, fit_intercept, scale, shift, positive=i == j)
            hessian[i, :, j, :] = part
            hessian[j, :, i, :] = part
    return *sums, hessian.reshape(loss.n_outputs * size, loss.n_outputs * size)


def _dtype_name(X: Any) -> str:
    """Return the name of the type of X's elements, whatever its library."""
    return str(X.dtype).rsplit(".", 1)[-1]


def _weighted_gram(
    X: Any,
    curve: Any,
    fit_intercept: bool,
    scale: np.ndarray,
    shift: np.ndarray,
    *,
    positive: bool,
) -> np.ndarray:
    """Return Z.T @ diag(curve) @ Z for rows Z = X / scale - shift, with a 1 for an intercept."""
    n_features, xp = X.shape[1], namespace(curve)
    if is_sparse(X) or not positive:
        product, sums = gram(X, curve), to_host(tdot(X, curve))
    else:
        root = xp.sqrt(curve)
        product, cross = fused_products(X, None, root, root[:, None])
        sums = cross[:, 0]
    product, sums = product / np.outer(scale, scale), sums / scale
    total = float(xp.sum(curve, dtype=xp.float64))
    if shift.any():
        product -= np.outer(sums, shift)
        product -= np.outer(shift, sums)
        product += total * np.outer(shift, shift)
        sums = sums - total * shift
    result = np.empty((n_features + fit_intercept, n_features + fit_intercept))
    result[:n_features, :n_features] = product
    if fit_intercept:
        result[n_features, :n_features] = result[:n_features, n_features] = sums
        result[n_features, n_features] = total
    return result


def codes_of(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the place of each label among the classes."""
    if y.dtype.kind in "biuf" and len(classes) <= 8:  # several times faster than a search
        codes = np.zeros(len(y), dtype=np.intp)
        for label in classes[1:]:
            codes += y >= label
        return codes
    return np.searchsorted(classes, y)


def targets(block: Block, labels: Labels, eta: Any) -> tuple[Any, Any]:
    """Return a block's targets and weights where its predictor is, None for weights of 1."""
    y, weight = block.y, block.sample_weight
    codes = None
    if labels.classes is not None:
        codes = codes_of(to_host(y), labels.classes)
        y = codes.astype(np.float64)
    if weight is not None:
        weight = astype(weight, np.dtype(np.float64)) if is_foreign(weight) else weight
        weight = like(to_host(weight).astype(np.float64), eta)
    if labels.class_weight is not None:
        codes = to_host(y).astype(np.intp) if codes is None else codes
        each = like(labels.class_weight[codes], eta)
        weight = each if weight is None else weight * each
    return like(to_host(y).astype(np.float64), eta), weight
