"""The average loss over blocks and its derivatives, one pass per evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from skfleet import _cuda_gram
from skfleet._array import (
    FLOAT64,
    asarray_like,
    astype,
    dtype_of,
    is_not_numpy,
    namespace,
    to_device_of,
)
from skfleet._linalg import (
    gram,
    is_sparse,
    products_down,
    sums_down,
    take_columns,
    transposed,
    weighted_gram,
)
from skfleet._typing import Array, Matrix, Rows, Values
from skfleet.blocks import Block, RowBlocks, as_numeric, open_block, row_blocks
from skfleet.engine import Engine, LocalEngine, Reduction, map_reduce
from skfleet.glm._loss_kernel import LossConstants, kernel_constants, loss_sums
from skfleet.glm._losses import Loss
from skfleet.glm._normal_equations import product_reduction

# A shift of more deviations costs digits unless the rows are centred, which copies them.
MAX_SHIFT = {"float64": 100.0, "float32": 1.0}


@dataclass(frozen=True)
class Scaling:
    """The shift and the scale of columns: solvers see (x - shift) / scale.

    The rows themselves are not changed. Sparse rows are scaled only, with a shift of 0.
    """

    shift: np.ndarray
    scale: np.ndarray


@dataclass(frozen=True)
class ClassEncoding:
    """Classes in the order of their codes, and their weights.

    `classes` is None where targets are numbers, or codes already. `class_weight` has a weight for
    each class. `token` names the fit whose encoded targets the caches of blocks may hold.
    """

    classes: np.ndarray | None = None
    class_weight: np.ndarray | None = None
    token: str = ""


class ObjectiveValue(NamedTuple):
    """The value of an objective at some coefficients, its gradient, and its Hessian if requested.

    Without a request `hessian` is None.
    """

    value: float
    gradient: np.ndarray
    hessian: np.ndarray | None = None


class HessianSums(NamedTuple):
    """Weighted sums for a pair of outputs: of products of columns, of columns, and of 1."""

    gram: Any
    columns: Any
    total: Any


class GradientSums(NamedTuple):
    """Sums over rows: losses, their gradients by output and by coefficient, and Hessian parts.

    Float64 arrays on the device of the rows, for columns as they are or about their means.
    """

    value: Any
    loss_gradient: Any
    coef_gradient: Any
    hessian_sums: tuple[HessianSums, ...] = ()


class LinearPredictor(NamedTuple):
    """Coefficients and constants by output of a pass, for unscaled columns less `center`."""

    coef: np.ndarray
    constant: np.ndarray
    center: np.ndarray | None  # subtracted from the rows, which copies them
    hessian_columns: np.ndarray | None  # None for all


class Objective:
    """The weighted average loss of rows as a function of coefficients on the host.

    Coefficients are a flat array of n_outputs rows of n_features (+ 1 for an intercept) numbers,
    for columns as `scaling` sees them. Every evaluation is one pass over the rows, by `engine`.
    `total_weight` is the sum of all weights, the number of rows without any. `labels` says what
    the targets are coded by.
    """

    def __init__(
        self,
        engine: Engine,
        rows: RowBlocks,
        loss: Loss,
        *,
        total_weight: float,
        scaling: Scaling,
        labels: ClassEncoding,
        fit_intercept: bool = True,
    ) -> None:
        self._engine = engine
        self._rows, self._encoding = _encoded(engine, rows, labels)
        self._class_encoding = labels
        self._scaling = scaling
        self._total_weight = total_weight
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.n_features = len(scaling.scale)

    def evaluate(
        self, coef: np.ndarray, *, hessian: bool = False, columns: np.ndarray | None = None
    ) -> ObjectiveValue:
        """Return the average loss, its gradient, and its Hessian (of some columns) if requested.

        The Hessian of columns is in the order of `self.coef_indices(columns)`. Scale and, where
        that costs no digits, shift are applied to coefficients and results, so that the rows are
        not copied and sparse rows stay sparse.
        """
        scale, shift, n_features = self._scaling.scale, self._shift, self.n_features
        coef = coef.reshape(self.loss.n_outputs, n_features + self.fit_intercept)
        feature_coef = coef[:, :n_features]
        constant = coef[:, n_features] if self.fit_intercept else np.zeros(self.loss.n_outputs)
        center = None if shift is not None else self._scaling.shift
        if shift is not None:
            constant = constant - feature_coef @ shift
        predictor = LinearPredictor(feature_coef / scale, constant, center, columns)
        reduction = Reduction(glm_gradient, takes_whole=_gradient_takes_whole)
        if hessian:
            reduction = product_reduction(glm_hessian, self._rows)
            reduction = replace(reduction, takes_whole=_hessian_takes_whole)
        args = (predictor, self.loss, self._encoding)
        sums: GradientSums = map_reduce(self._engine, reduction, self._rows, *args)
        gradient = np.empty(coef.shape)
        gradient[:, :n_features] = sums.coef_gradient / scale
        if shift is not None:
            gradient[:, :n_features] -= np.outer(sums.loss_gradient, shift)
        if self.fit_intercept:
            gradient[:, n_features] = sums.loss_gradient
        total = self._total_weight
        second = self._hessian(sums.hessian_sums, columns) / total if hessian else None
        return ObjectiveValue(float(sums.value) / total, gradient.ravel() / total, second)

    @property
    def _shift(self) -> np.ndarray | None:
        """Shift of the scaled columns; None where the rows are centred instead."""
        shift = self._scaling.shift / self._scaling.scale
        assert self._rows.dtype is not None
        far = np.abs(shift).max(initial=0.0) > MAX_SHIFT[self._rows.dtype.name]
        return None if far else shift

    def _hessian(
        self, hessian_sums: tuple[HessianSums, ...], columns: np.ndarray | None
    ) -> np.ndarray:
        """Return the Hessian, for columns as the scaling sees them and a 1 for an intercept."""
        scale, shift, n_outputs = self._scaling.scale, self._shift, self.loss.n_outputs
        shift = np.zeros(self.n_features) if shift is None else shift
        if columns is not None:
            scale, shift = scale[columns], shift[columns]
        n_features = len(scale)
        size = n_features + self.fit_intercept
        hessian = np.empty((n_outputs, size, n_outputs, size))
        # The Hessian is symmetric in the outputs: half of the pairs will do.
        pairs = [(i, j) for i in range(n_outputs) for j in range(i + 1)]
        for (i, j), (product, sums, total) in zip(pairs, hessian_sums, strict=True):
            part = np.empty((size, size))
            sums = sums / scale
            # Products of shifted columns follow from sums, so that the rows need not be copied.
            moved = sums - total * shift
            part[:n_features, :n_features] = product / np.outer(scale, scale)
            part[:n_features, :n_features] -= np.outer(sums, shift) + np.outer(shift, moved)
            if self.fit_intercept:
                part[n_features, :n_features] = part[:n_features, n_features] = moved
                part[n_features, n_features] = total
            hessian[i, :, j, :] = hessian[j, :, i, :] = part
        return hessian.reshape(n_outputs * size, n_outputs * size)

    def coef_indices(self, columns: np.ndarray) -> np.ndarray:
        """Return the indices of the coefficients of some columns, and of the intercepts."""
        size = self.n_features + self.fit_intercept
        each = np.append(columns, self.n_features) if self.fit_intercept else columns
        return (np.arange(self.loss.n_outputs)[:, None] * size + each).ravel()

    def min_class_count(self, y: np.ndarray) -> int:
        """Return the count of the rarest class in y; len(y) for a regression."""
        classes = self._class_encoding.classes
        if classes is None:
            return len(y)
        return int(np.bincount(encode_labels(y, classes), minlength=len(classes)).min())

    def on_sample(self, X: Rows, y: np.ndarray, sample_weight: Values | None) -> Objective:
        """Return the same objective for a few rows in this process, for a warm start."""
        labels = self._class_encoding
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


def glm_gradient(block: Block, *args: Any) -> GradientSums:
    return _sums(block, *args, hessian=False)


def glm_hessian(block: Block, *args: Any) -> GradientSums:
    return _sums(block, *args, hessian=True)


def _sums(
    block: Block, predictor: LinearPredictor, loss: Loss, labels: ClassEncoding, *, hessian: bool
) -> GradientSums:
    """Sum up the losses of a block and their derivatives in one traversal."""
    kernel = kernel_constants(block.X, loss, centered=predictor.center is not None)
    if kernel is not None:
        return _sums_by_kernel(block, predictor, kernel, labels, hessian=hessian)
    X = block.X if predictor.center is None else block.X - asarray_like(predictor.center, block.X)
    eta = X @ asarray_like(np.ascontiguousarray(predictor.coef.T), X)
    xp = namespace(eta)
    if predictor.constant.any():
        eta = eta + asarray_like(predictor.constant, eta)
    y, weight = _cached_targets(block, labels, eta)
    # A step too far has an infinite value, from which line searches turn back.
    with np.errstate(over="ignore", invalid="ignore"):
        value, slope, mean = loss.evaluate(y, eta)
    if weight is not None:
        value, slope = value * weight, slope * weight[:, None]
    sums = GradientSums(
        xp.sum(value, dtype=xp.float64),
        sums_down(slope),
        products_down(X, slope).T,
    )
    if not hessian:
        return sums
    if predictor.hessian_columns is not None:
        X = take_columns(X, predictor.hessian_columns)
    hessian_sums = []
    for i in range(loss.n_outputs):
        for j in range(i + 1):
            curve = loss.hessian(y, mean, i, j)
            curve = curve if weight is None else curve * weight
            hessian_sums.append(_hessian_sums(X, curve, positive=i == j))
    return sums._replace(hessian_sums=tuple(hessian_sums))


def _sums_by_kernel(
    block: Block,
    predictor: LinearPredictor,
    kernel: LossConstants,
    labels: ClassEncoding,
    *,
    hessian: bool,
) -> GradientSums:
    """Return the sums by one launch that reads rows once, and products of rows by another."""
    center, columns = predictor.center, predictor.hessian_columns
    constants = [predictor.coef[0], predictor.constant, np.empty(0) if center is None else center]
    copies = hessian and _hessian_copies(block.X, predictor)
    sums = loss_sums(
        kernel,
        block.X,
        np.concatenate(constants),
        *_cached_targets(block, labels, block.X),
        hessian=hessian,
        scaled=copies,
        columns=columns,
    )
    gradient_sums = GradientSums(sums.value, sums.loss_gradient, sums.coef_gradient)
    if not hessian:
        return gradient_sums
    if copies:
        product = gram(sums.scaled_rows)
    else:
        shift = None if center is None else asarray_like(center, block.X)
        product = _cuda_gram.products(block.X, shift, sums.roots, None)[0]
    second = HessianSums(product, sums.columns, sums.curve)
    return gradient_sums._replace(hessian_sums=(second,))


def _hessian_copies(X: Matrix, predictor: LinearPredictor) -> bool:
    """Return whether a Hessian of rows on a device takes a scaled copy of them."""
    if predictor.hessian_columns is not None:
        return True
    is_centered = predictor.center is not None
    return not _cuda_gram.supports(X, 0, centered=is_centered, weighted=True)


def _gradient_takes_whole(
    block: Block, predictor: LinearPredictor, loss: Loss, labels: ClassEncoding
) -> bool:
    """Return whether a kernel sums up a block without copies of its rows."""
    return kernel_constants(block.X, loss, centered=predictor.center is not None) is not None


def _hessian_takes_whole(block: Block, predictor: LinearPredictor, *args: Any) -> bool:
    """Return whether kernels do, and multiply rows without copies."""
    is_read = _gradient_takes_whole(block, predictor, *args)
    return is_read and not _hessian_copies(block.X, predictor)


def _hessian_sums(X: Matrix, curve: Array, *, positive: bool) -> HessianSums:
    """Return X.T @ diag(curve) @ X, X.T @ curve and the sum of curve."""
    xp = namespace(curve)
    # Blocks off the diagonal have negative curvature, which has no root to scale rows by.
    if is_sparse(X) or not positive:
        product, sums = gram(X, curve), astype(transposed(X) @ curve, FLOAT64)
    else:
        root = xp.sqrt(curve)
        product, cross = weighted_gram(X, None, root, root[:, None])
        sums = cross[:, 0]
    return HessianSums(product, sums, xp.sum(curve, dtype=xp.float64))


def encode_labels(y: Any, classes: np.ndarray) -> Any:
    """Return the codes of labels in sorted classes, on the device of the labels."""
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


def _encoded(
    engine: Engine, rows: RowBlocks, labels: ClassEncoding
) -> tuple[RowBlocks, ClassEncoding]:
    """Replace the labels of rows in this process by codes, once for all passes.

    On a device they are of the rows' type, and so are weights.
    """
    classes, dtype = labels.classes, rows.dtype
    if dtype is None:
        return rows, labels
    if rows.on_dask:
        # To replace them ahead would take a pass: the first one leaves them in caches on devices.
        if not rows.on_device:
            return rows, labels
        return engine.with_block_cache(rows), replace(labels, token=uuid4().hex)
    if all(is_not_numpy(block.X) and dtype_of(block.X) == dtype for block in rows.blocks):
        pairs = [
            encode_targets(as_numeric(open_block(block), dtype), labels, block.X)
            for block in rows.blocks
        ]
        moved = (
            block._replace(y=y, sample_weight=weight)
            for block, (y, weight) in zip(rows.blocks, pairs, strict=True)
        )
        return replace(rows, blocks=tuple(moved)), ClassEncoding()
    if classes is None:
        return rows, labels
    blocks = (
        block._replace(y=astype(to_device_of(encode_labels(block.y, classes), block.X), dtype))
        for block in rows.blocks
    )
    return replace(rows, blocks=tuple(blocks)), replace(labels, classes=None)


def _cached_targets(block: Block, labels: ClassEncoding, ref: Array) -> tuple[Array, Array | None]:
    """Return targets and weights as `encode_targets` does, once for all passes of a fit."""
    if not labels.token or block.cache is None or block.row_offset is None:
        return encode_targets(block, labels, ref)
    key = "targets", block.row_offset, block.n_rows
    token, y, weight = block.cache.get(key, ("", None, None))
    if token != labels.token:
        y, weight = encode_targets(block, labels, ref)
        block.cache[key] = labels.token, y, weight
    return y, weight


def encode_targets(block: Block, labels: ClassEncoding, eta: Array) -> tuple[Array, Array | None]:
    """Return targets and weights of a block, on the device and of the type of eta.

    Weights of 1 are None.
    """
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
