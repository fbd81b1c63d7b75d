"""The average loss over blocks and its derivatives: the only bridge from solvers to engines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import (
    FLOAT64,
    asarray_like,
    astype,
    dtype_of,
    is_not_numpy,
    namespace,
    to_device_of,
)
from skfleet._linalg import gram, is_sparse, take_columns, weighted_gram
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


class Curves(NamedTuple):
    """Weighted sums for a pair of outputs: of products of columns, of columns, and of 1."""

    gram: Any
    columns: Any
    total: Any


class Sums(NamedTuple):
    """Sums over rows: losses, slopes by output, slopes times columns, and maybe second derivatives.

    Float64 arrays where the rows are, of columns as they are or about their means.
    """

    value: Any
    slopes: Any
    columns: Any
    curves: tuple[Curves, ...] = ()


class Terms(NamedTuple):
    """What a pass is to sum up.

    Parameters
    ----------
    slopes, constant : ndarray of shape (n_outputs, n_features) and (n_outputs,)
        The linear predictor, of columns as they are after `about` is taken off.
    about : ndarray of shape (n_features,) or None
        What is taken off the rows, at the price of a copy.
    chosen : ndarray of int, default=None
        Of which columns second derivatives are wanted, where they are; None for all.
    """

    slopes: np.ndarray
    constant: np.ndarray
    about: np.ndarray | None
    chosen: np.ndarray | None = None


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
        self._rows, self._known = _encoded(rows, labels)
        self._labels = labels
        self._scaling = scaling
        self._total_weight = total_weight
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.n_features = len(scaling.scale)

    def evaluate(
        self, coef: np.ndarray, *, hessian: bool = False, columns: np.ndarray | None = None
    ) -> Evaluation:
        """Return the average loss, its gradient, and its Hessian (of some columns) if asked for.

        The Hessian of columns is in the order of `self.of_columns(columns)`. Scale and, where that
        costs no digits, shift go into the coefficients and out of the results, so that the rows
        need no copy and sparse ones keep their zeros.
        """
        scale, shift, n_features = self._scaling.scale, self._shift, self.n_features
        coef = coef.reshape(self.loss.n_outputs, n_features + self.fit_intercept)
        slopes = coef[:, :n_features]
        constant = coef[:, n_features] if self.fit_intercept else np.zeros(self.loss.n_outputs)
        about = None if shift is not None else self._scaling.shift
        if shift is not None:
            constant = constant - slopes @ shift
        terms = Terms(slopes / scale, constant, about, columns)
        reduction = Reduction(glm_hessian if hessian else glm_gradient)
        sums: Sums = map_reduce(self._engine, reduction, self._rows, terms, self.loss, self._known)
        gradient = np.empty(coef.shape)
        gradient[:, :n_features] = sums.columns / scale
        if shift is not None:
            gradient[:, :n_features] -= np.outer(sums.slopes, shift)
        if self.fit_intercept:
            gradient[:, n_features] = sums.slopes
        total = self._total_weight
        found = self._hessian(sums.curves, columns) / total if hessian else None
        return Evaluation(float(sums.value) / total, gradient.ravel() / total, found)

    @property
    def _shift(self) -> np.ndarray | None:
        """What columns at unit deviation are moved by; None where the rows are moved instead."""
        shift = self._scaling.shift / self._scaling.scale
        assert self._rows.dtype is not None
        far = np.abs(shift).max(initial=0.0) > FAR[self._rows.dtype.name]
        return None if far else shift

    def _hessian(self, curves: tuple[Curves, ...], columns: np.ndarray | None) -> np.ndarray:
        """Return the Hessian, for columns as the scaling sees them and a 1 for an intercept."""
        scale, shift, n_outputs = self._scaling.scale, self._shift, self.loss.n_outputs
        shift = np.zeros(self.n_features) if shift is None else shift
        if columns is not None:
            scale, shift = scale[columns], shift[columns]
        n_features = len(scale)
        size = n_features + self.fit_intercept
        hessian = np.empty((n_outputs, size, n_outputs, size))
        pairs = [(i, j) for i in range(n_outputs) for j in range(i + 1)]
        for (i, j), (product, sums, total) in zip(pairs, curves, strict=True):
            part = np.empty((size, size))
            sums = sums / scale
            moved = sums - total * shift
            part[:n_features, :n_features] = product / np.outer(scale, scale)
            part[:n_features, :n_features] -= np.outer(sums, shift) + np.outer(shift, moved)
            if self.fit_intercept:
                part[n_features, :n_features] = part[:n_features, n_features] = moved
                part[n_features, n_features] = total
            hessian[i, :, j, :] = hessian[j, :, i, :] = part
        return hessian.reshape(n_outputs * size, n_outputs * size)

    def of_columns(self, columns: np.ndarray) -> np.ndarray:
        """Return where the coefficients of some columns are, with the intercepts at the end."""
        size = self.n_features + self.fit_intercept
        each = np.append(columns, self.n_features) if self.fit_intercept else columns
        return (np.arange(self.loss.n_outputs)[:, None] * size + each).ravel()

    def rarest(self, y: np.ndarray) -> int:
        """Return how often the rarest class occurs among some targets; all of them, without."""
        classes = self._labels.classes
        if classes is None:
            return len(y)
        return int(np.bincount(encode_labels(y, classes), minlength=len(classes)).min())

    def on_sample(self, X: Any, y: Any, sample_weight: Any) -> Objective:
        """Return the same objective for a few rows in this process."""
        labels = self._labels
        weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        if labels.class_weight is not None and labels.classes is not None:
            weight = weight * labels.class_weight[np.searchsorted(labels.classes, y)]
        return Objective(
            LocalEngine(1),
            row_blocks(X, y, sample_weight),
            self.loss,
            total_weight=float(weight.sum()),
            scaling=self._scaling,
            labels=labels,
            fit_intercept=self.fit_intercept,
        )


def glm_gradient(block: Block, *how: Any) -> Sums:
    """Return a block's sums of losses and of gradients."""
    return _sums(block, *how, with_curves=False)


def glm_hessian(block: Block, *how: Any) -> Sums:
    """Return a block's sums of losses, of gradients and of second derivatives."""
    return _sums(block, *how, with_curves=True)


def _sums(block: Block, terms: Terms, loss: Loss, labels: Labels, *, with_curves: bool) -> Sums:
    """Sum up the losses of a block and their derivatives in one traversal."""
    X = block.X if terms.about is None else block.X - asarray_like(terms.about, block.X)
    eta = X @ asarray_like(np.ascontiguousarray(terms.slopes.T), X)
    xp = namespace(eta)
    if terms.constant.any():
        eta = eta + asarray_like(terms.constant, eta)
    y, weight = targets(block, labels, eta)
    value, slope, mean = loss.evaluate(y, eta)
    if weight is not None:
        value, slope = value * weight, slope * weight[:, None]
    sums = Sums(
        xp.sum(value, dtype=xp.float64),
        xp.sum(slope, axis=0, dtype=xp.float64),
        astype(X.T @ slope, FLOAT64).T,
    )
    if not with_curves:
        return sums
    if terms.chosen is not None:
        X = take_columns(X, terms.chosen)
    curves = []
    for i in range(loss.n_outputs):
        for j in range(i + 1):
            curve = loss.curve(y, mean, i, j)
            curve = curve if weight is None else curve * weight
            curves.append(_curves(X, curve, positive=i == j))
    return sums._replace(curves=tuple(curves))


def _curves(X: Any, curve: Any, *, positive: bool) -> Curves:
    """Return X.T @ diag(curve) @ X, X.T @ curve and the sum of curve."""
    xp = namespace(curve)
    if is_sparse(X) or not positive:
        product, sums = gram(X, curve), astype(X.T @ curve, FLOAT64)
    else:
        root = xp.sqrt(curve)
        product, cross = weighted_gram(X, None, root, root[:, None])
        sums = cross[:, 0]
    return Curves(product, sums, xp.sum(curve, dtype=xp.float64))


def encode_labels(y: Any, classes: np.ndarray) -> Any:
    """Return the place of each label among the classes, where the labels are."""
    if is_not_numpy(y):
        xp = namespace(y)
        if xp.isdtype(y.dtype, "bool"):
            y = xp.astype(y, xp.int8)
        return xp.searchsorted(asarray_like(classes, y, dtype=y.dtype), y)
    if y.dtype.kind in "biuf" and len(classes) <= 8:  # several times faster than a search
        codes = np.zeros(len(y), dtype=np.intp)
        for label in classes[1:]:
            codes += y >= label
        return codes
    return np.searchsorted(classes, y)


def _encoded(rows: RowBlocks, labels: Labels) -> tuple[RowBlocks, Labels]:
    """Put codes in place of the labels of rows in this process, once for all passes."""
    classes, dtype = labels.classes, rows.dtype
    if rows.on_dask or classes is None or dtype is None:
        return rows, labels
    blocks = (
        block._replace(y=astype(to_device_of(encode_labels(block.y, classes), block.X), dtype))
        for block in rows.blocks
    )
    return replace(rows, blocks=tuple(blocks)), replace(labels, classes=None)


def targets(block: Block, labels: Labels, eta: Any) -> tuple[Any, Any]:
    """Return a block's targets and weights where its predictor is, None for weights of 1."""
    xp, dtype = namespace(eta), dtype_of(eta)
    y, weight = block.y, block.sample_weight
    if labels.classes is not None:
        y = encode_labels(y, labels.classes)
    y = to_device_of(y, eta)
    weight = None if weight is None else astype(to_device_of(weight, eta), dtype)
    if labels.class_weight is not None:
        each = xp.take(asarray_like(labels.class_weight, eta), astype(y, np.dtype(np.int64)))
        weight = each if weight is None else weight * each
    return astype(y, dtype), weight
