"""Scores as reductions: what each block adds to an accuracy or a coefficient of determination."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn import metrics

from skfleet._array import to_host
from skfleet.blocks import Block, is_lazy, row_blocks
from skfleet.engine import Reduction, engine_for, map_reduce


def accuracy_score(
    y_true: Any, y_pred: Any, *, normalize: bool = True, sample_weight: Any = None
) -> float:
    """Fraction of labels that were predicted right.

    Parameters
    ----------
    y_true : array-like, Dask array or Series of shape (n_samples,)
        Labels.
    y_pred : array-like, Dask array or Series of shape (n_samples,)
        Predicted labels.
    normalize : bool, default=True
        Return the fraction of right predictions; otherwise their (weighted) number.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows.

    Returns
    -------
    float
        As :func:`sklearn.metrics.accuracy_score`, which does the work when nothing is lazy.

    Notes
    -----
    One pass over labels and predictions; two numbers a block come home.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.metrics import accuracy_score
    >>> accuracy_score(da.ones(4, chunks=2), da.from_array([1, 1, 0, 1], chunks=3))
    0.75
    """
    if not (is_lazy(y_true) or is_lazy(y_pred)):
        return metrics.accuracy_score(
            y_true, y_pred, normalize=normalize, sample_weight=sample_weight
        )
    right, total = _reduce(_right, y_true, y_pred, sample_weight)
    return right / total if normalize else right


def r2_score(y_true: Any, y_pred: Any, *, sample_weight: Any = None) -> float:
    """Coefficient of determination, averaged over outputs.

    Parameters
    ----------
    y_true : array-like, Dask array or Series of shape (n_samples,) or (n_samples, n_outputs)
        Targets.
    y_pred : array-like, Dask array or Series of shape (n_samples,) or (n_samples, n_outputs)
        Predictions.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows.

    Returns
    -------
    float
        As :func:`sklearn.metrics.r2_score`, which does the work when nothing is lazy. A constant
        target scores 1 if predicted exactly and 0 otherwise.

    Notes
    -----
    One pass over targets and predictions; deviations are taken from each block's own mean and
    merged exactly (Chan, Golub and LeVeque, 1983, The American Statistician 37).

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.metrics import r2_score
    >>> r2_score(da.arange(4, chunks=2), da.arange(4, chunks=3))
    1.0
    """
    if not (is_lazy(y_true) or is_lazy(y_pred)):
        return metrics.r2_score(y_true, y_pred, sample_weight=sample_weight)
    sums = _reduce(_squares, y_true, y_pred, sample_weight, combine=_merge_squares)
    constant = sums.total <= 0
    score = 1 - sums.residual / np.where(constant, 1.0, sums.total)
    return float(np.mean(np.where(constant, np.where(sums.residual > 0, 0.0, 1.0), score)))


def _reduce(per_block: Any, y_true: Any, y_pred: Any, sample_weight: Any, **how: Any) -> Any:
    """Make one pass over pairs of values, cut as the lazy one of them is cut."""
    first, second = (y_true, y_pred) if is_lazy(y_true) else (y_pred, y_true)
    rows = row_blocks(first, second, sample_weight, dtype=None)
    swapped = first is not y_true
    return map_reduce(engine_for(rows), Reduction(per_block, **how), rows, swapped)


def _pair(block: Block, swapped: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a block's true values, predictions and weights on the host."""
    true, predicted = (np.asarray(to_host(v)) for v in (block.X, block.y))
    if swapped:
        true, predicted = predicted, true
    weight = block.sample_weight
    weight = np.ones(len(true)) if weight is None else np.asarray(to_host(weight), dtype=np.float64)
    return true, predicted, weight


def _right(block: Block, swapped: bool) -> tuple[float, float]:
    """Return the weight of a block's right predictions, and of all its rows."""
    true, predicted, weight = _pair(block, swapped)
    return float(weight[true == predicted].sum()), float(weight.sum())


class _Squares(NamedTuple):
    """Sums of squares of a block, per output."""

    weight: float
    mean: np.ndarray
    total: np.ndarray
    residual: np.ndarray


def _squares(block: Block, swapped: bool) -> _Squares:
    """Return a block's sums of squares about its own mean, and of its residuals."""
    true, predicted, weight = _pair(block, swapped)
    true = true.reshape(len(true), -1).astype(np.float64)
    predicted = predicted.reshape(len(true), -1)
    total_weight = float(weight.sum())
    mean = weight @ true / total_weight if total_weight else np.zeros(true.shape[1])
    return _Squares(
        total_weight, mean, weight @ (true - mean) ** 2, weight @ (true - predicted) ** 2
    )


def _merge_squares(a: _Squares, b: _Squares) -> _Squares:
    """Merge the sums of two blocks."""
    weight = a.weight + b.weight
    share = b.weight / weight if weight else 0.0
    shift = b.mean - a.mean
    return _Squares(
        weight,
        a.mean + share * shift,
        a.total + b.total + a.weight * share * shift**2,
        a.residual + b.residual,
    )
