"""Means and deviations of columns, and counts of labels, merged exactly across blocks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._array import like, to_host
from skfleet._linalg import column_sums, is_sparse
from skfleet.blocks import Block


class Moments(NamedTuple):
    """Weight, mean and sum of squared deviations of rows, per column."""

    n_rows: float
    mean: np.ndarray
    squares: np.ndarray


def moments(block: Block) -> Moments:
    """Return the moments of a block about its own mean."""
    n_rows = block.n_rows
    mean = column_sums(block.X) / n_rows
    if is_sparse(block.X):
        squares = column_sums(block.X.multiply(block.X).tocsr()) - n_rows * mean**2
        return Moments(n_rows, mean, np.maximum(squares, 0.0))
    X = block.X - like(mean, block.X)
    return Moments(n_rows, mean, column_sums(X * X))


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Merge the moments of two blocks (Chan, Golub and LeVeque, 1983)."""
    n_rows = a.n_rows + b.n_rows
    shift = b.mean - a.mean
    share = b.n_rows / n_rows
    squares = a.squares + b.squares + a.n_rows * share * shift**2
    return Moments(n_rows, a.mean + share * shift, squares)


class LabelCounts(NamedTuple):
    """Labels in order, with the number and the weight of their rows."""

    labels: np.ndarray
    n_rows: np.ndarray
    weight: np.ndarray


def label_counts(block: Block) -> LabelCounts:
    """Count the labels of a block."""
    labels, codes = np.unique(to_host(block.y), return_inverse=True)
    weight = None if block.sample_weight is None else to_host(block.sample_weight)
    n_rows = np.bincount(codes, minlength=len(labels)).astype(np.float64)
    counted = n_rows if weight is None else np.bincount(codes, weight, len(labels))
    return LabelCounts(labels, n_rows, counted)


def merge_label_counts(a: LabelCounts, b: LabelCounts) -> LabelCounts:
    """Merge the counts of two blocks."""
    labels, codes = np.unique(np.concatenate([a.labels, b.labels]), return_inverse=True)
    n_rows = np.bincount(codes, np.concatenate([a.n_rows, b.n_rows]))
    return LabelCounts(labels, n_rows, np.bincount(codes, np.concatenate([a.weight, b.weight])))


def columns_and_labels(block: Block) -> tuple[Moments, LabelCounts]:
    """Return the moments of a block's columns and the counts of its labels."""
    return moments(block), label_counts(block)


def merge_columns_and_labels(a: Any, b: Any) -> tuple[Moments, LabelCounts]:
    """Merge the moments and the counts of two blocks."""
    return merge_moments(a[0], b[0]), merge_label_counts(a[1], b[1])
