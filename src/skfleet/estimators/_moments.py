"""What a first pass finds out: moments of columns, counts of labels, a sample of the rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._array import like, to_host
from skfleet._linalg import column_sums, is_sparse
from skfleet.blocks import Block, DrawnRows, merge_smallest, row_uniforms, smallest


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


class Sample(NamedTuple):
    """Rows drawn without replacement, with their labels and weights."""

    drawn: DrawnRows
    y: np.ndarray
    sample_weight: np.ndarray | None


def sample(block: Block, n: int, seed: int) -> Sample:
    """Draw up to n rows of a block, the same ones for every cut of the rows."""
    drawn = smallest(row_uniforms(seed, block.start, block.n_rows), block.start, block.X, n)
    here = drawn.numbers - block.start
    weight = None if block.sample_weight is None else to_host(block.sample_weight)[here]
    return Sample(drawn, to_host(block.y)[here], weight)


def merge_samples(a: Sample, b: Sample, n: int) -> Sample:
    """Merge the draws of two blocks."""
    numbers = np.concatenate([a.drawn.numbers, b.drawn.numbers])
    drawn = merge_smallest(a.drawn, b.drawn, n)
    order = np.argsort(numbers)
    place = order[np.searchsorted(numbers, drawn.numbers, sorter=order)]
    weight = None
    if a.sample_weight is not None:
        weight = np.concatenate([a.sample_weight, b.sample_weight])[place]
    return Sample(drawn, np.concatenate([a.y, b.y])[place], weight)


def survey(block: Block, n: int, seed: int) -> tuple[Moments, LabelCounts, Sample | None]:
    """Return the moments of a block's columns, the counts of its labels, and n rows (if n)."""
    return moments(block), label_counts(block), sample(block, n, seed) if n else None


def merge_surveys(a: Any, b: Any, n: int) -> tuple[Moments, LabelCounts, Sample | None]:
    """Merge what is known of two blocks."""
    drawn = merge_samples(a[2], b[2], n) if n else None
    return merge_moments(a[0], b[0]), merge_label_counts(a[1], b[1]), drawn
