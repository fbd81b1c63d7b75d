"""Numbers of rows whose class linear models predict rightly, by split, class and model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from skfleet._array import to_host
from skfleet._linalg import dot
from skfleet.blocks import Block, Folds

# Decision values that are computed at once.
_MAX_VALUES = 1 << 22


class RightPredictions(NamedTuple):
    """Numbers of right predictions of shape (2, n_splits, n_classes, n_models), and of close ones.

    First those of the rows to test on, then of those to train on. Predictions are close where
    rounding might change them.
    """

    n_right: np.ndarray
    n_close: int


def right_predictions(
    block: Block,
    folds: Folds,
    coefs: np.ndarray,
    intercepts: np.ndarray,
    roundings: np.ndarray,
    both: bool,
) -> RightPredictions:
    """Count the right predictions of a block.

    `roundings` are bounds of the errors of decision values, of shape (n_splits, n_models).
    """
    n_splits, n_targets, n_models, _ = coefs.shape
    n_classes = max(n_targets, 2)
    n_right, n_close = np.zeros((2, n_splits, n_classes, n_models)), 0
    for part, rows in folds.cut(block):
        targets = to_host(rows.y).reshape(rows.n_rows, -1)
        labels = targets.argmax(axis=1) if n_targets > 1 else (targets[:, 0] > 0).astype(int)
        for split, (train, test) in enumerate(folds.splits):
            sides = [side for side, parts in enumerate((test, train)) if part in parts]
            for side in sides if both else [side for side in sides if side == 0]:
                for chunk, values in _decisions(rows, coefs[split], intercepts[split]):
                    predicted, margin = _predict(values)
                    n_close += int((margin <= roundings[split]).sum())
                    is_right = predicted == labels[chunk][:, None]
                    for label in range(n_classes):
                        n_right[side, split, label] += is_right[labels[chunk] == label].sum(axis=0)
    return RightPredictions(n_right, n_close)


def _decisions(
    rows: Block, coefs: np.ndarray, intercepts: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield decision values of shape (n_rows, n_targets, n_models), of some rows at a time."""
    size = max(1, _MAX_VALUES // intercepts.size)
    models = coefs.reshape(-1, coefs.shape[-1]).T
    for start in range(0, rows.n_rows, size):
        chunk = slice(start, start + size)
        values = to_host(dot(rows.X[chunk], models)).reshape(-1, *intercepts.shape)
        yield chunk, values + intercepts


def _predict(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return classes by decision values, and by how much these may change without changing it."""
    if values.shape[1] == 1:
        return (values[:, 0] > 0).astype(int), abs(values[:, 0])
    largest = np.partition(values, -2, axis=1)[:, -2:]
    return values.argmax(axis=1), (largest[:, 1] - largest[:, 0]) / 2


def combine_predictions(a: RightPredictions, b: RightPredictions) -> RightPredictions:
    return RightPredictions(a.n_right + b.n_right, a.n_close + b.n_close)
