"""Summary statistics of a first pass: column moments, label counts or target sums, a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import FLOAT64, astype, dtype_of, is_not_numpy, namespace, to_device_of, to_host
from skfleet._linalg import column_sums, is_sparse, square_sums, sums_down, transposed, vstack
from skfleet._validation import unique_values
from skfleet.blocks import Block, row_uniform, take_to_host
from skfleet.glm import targets_of, weights_of


class Moments(NamedTuple):
    """Weight, mean and sum of squared deviations of rows, per column."""

    n_rows: float
    mean: np.ndarray
    squares: np.ndarray


# Squares about zero lose the digits by which they exceed those about the mean.
MUCH_LARGER = 1e3


def moments(block: Block) -> Moments:
    """Return the moments of a block about its own mean."""
    n_rows = block.n_rows
    mean = column_sums(block.X) / n_rows
    X = block.X
    if is_sparse(X):
        # About zero, since to take off the mean would fill the matrix.
        squares = square_sums(X) - n_rows * mean**2
        return Moments(n_rows, mean, np.maximum(squares, 0.0))
    # Squares about zero save a copy of the rows, and in float64 seldom lose digits that count.
    if not is_not_numpy(X) and X.dtype == np.float64:
        about_zero = column_sums(X * X)
        squares = about_zero - n_rows * mean**2
        if (about_zero <= MUCH_LARGER * squares).all():
            return Moments(n_rows, mean, squares)
    X = X - astype(mean, dtype_of(X))
    return Moments(n_rows, mean, column_sums(X * X))


def moments_of_columns(columns_of: Callable[[Block], tuple[Any, Any]], block: Block) -> Moments:
    """Return the moments of the columns that a function makes, beside weights, of a block."""
    return moments(Block(astype(columns_of(block)[0], FLOAT64)))


def combine_moments(a: Moments, b: Moments) -> Moments:
    """Combine the moments of two blocks (Chan, Golub and LeVeque, 1983)."""
    n_rows = a.n_rows + b.n_rows
    delta = b.mean - a.mean
    fraction = b.n_rows / n_rows
    squares = a.squares + b.squares + a.n_rows * fraction * delta**2
    return Moments(n_rows, a.mean + fraction * delta, squares)


# Sums of rows by label or target cost little up to these sizes.
MAX_SUMMED_COLUMNS, MAX_SUMMED_LABELS = 2000, 100


class LabelCounts(NamedTuple):
    """Sorted labels, with the number and weight of their rows, and the sums of X if requested."""

    labels: np.ndarray
    n_rows: np.ndarray
    weight: np.ndarray
    x: np.ndarray | None = None


def label_counts(block: Block, with_x: bool = False) -> LabelCounts:
    """Count the labels of a block and, with `with_x`, sum its rows by label."""
    X, weight = block.X, weights_of(block)
    labels, codes = unique_inverse(block.y)
    codes, is_summed = to_device_of(codes, X), len(labels) <= MAX_SUMMED_LABELS
    if is_summed and is_not_numpy(codes):
        # By masks on the device, with one copy to the host for all labels.
        sums = [_label_sums(X, codes == k, weight, with_x) for k in range(len(labels))]
        table = to_host(namespace(X).stack(sums))
        return LabelCounts(labels, table[:, 0], table[:, 1], table[:, 2:] if with_x else None)
    codes, weight = to_host(codes), None if weight is None else to_host(weight)
    n_rows = np.bincount(codes, minlength=len(labels)).astype(np.float64)
    class_weight = n_rows if weight is None else np.bincount(codes, weight, len(labels))
    x = None
    if with_x and is_summed:
        x = np.stack([_label_sums(X, codes == k, weight, True)[2:] for k in range(len(labels))])
    return LabelCounts(labels, n_rows, class_weight, x)


def unique_inverse(y: Any) -> tuple[np.ndarray, Any]:
    """Return the sorted labels of y on the host, and their indices on the device of y."""
    if not is_not_numpy(y):
        return unique_values(y, return_inverse=True)
    result = namespace(y).unique_inverse(y)
    return to_host(result.values), result.inverse_indices


def _label_sums(X: Any, mask: Any, weight: Any, with_x: bool) -> Any:
    """Return the number and the weight of the rows of a mask and, with_x, their weighted sum."""
    mask = astype(mask, FLOAT64)
    weight = mask if weight is None else mask * weight
    xp = namespace(mask)
    counts = xp.stack([xp.sum(mask), xp.sum(weight)])
    return xp.concat([counts, column_sums(X, astype(weight, dtype_of(X)))]) if with_x else counts


def combine_label_counts(a: LabelCounts, b: LabelCounts) -> LabelCounts:
    """Combine the counts of two blocks."""
    labels, codes = unique_values(np.concatenate([a.labels, b.labels]), return_inverse=True)
    n_rows = np.bincount(codes, np.concatenate([a.n_rows, b.n_rows]))
    weight = np.bincount(codes, np.concatenate([a.weight, b.weight]))
    x = None
    if a.x is not None and b.x is not None and len(labels) <= MAX_SUMMED_LABELS:
        x = np.zeros((len(labels), a.x.shape[1]))
        np.add.at(x, codes, np.concatenate([a.x, b.x]))
    return LabelCounts(labels, n_rows, weight, x)


class TargetSums(NamedTuple):
    """Weighted sums of targets and, if requested, of rows and of their products."""

    weight: Any
    y: np.ndarray
    x: np.ndarray | None = None
    xy: np.ndarray | None = None


def target_sums(block: Block, with_x: bool = False) -> TargetSums:
    """Sum the targets of a block and, with `with_x`, its rows and their products."""
    X, y, w = block.X, targets_of(block), weights_of(block)
    xp, dtype = namespace(y), dtype_of(X)
    wy = y if w is None else y * w[:, None]
    weight = float(block.n_rows) if w is None else xp.sum(w)
    if not with_x:
        return TargetSums(weight, sums_down(wy))
    xy = astype(transposed(X) @ astype(wy, dtype), FLOAT64)
    x = column_sums(X, None if w is None else astype(w, dtype))
    return TargetSums(weight, sums_down(wy), x, xy)


def combine_target_sums(a: TargetSums, b: TargetSums) -> TargetSums:
    if a.x is None or b.x is None or a.xy is None or b.xy is None:
        return TargetSums(a.weight + b.weight, a.y + b.y)
    return TargetSums(a.weight + b.weight, a.y + b.y, a.x + b.x, a.xy + b.xy)


class RowSample(NamedTuple):
    """Rows sampled without replacement, with targets, weights and the offset of their block."""

    start: int
    X: Any
    y: np.ndarray | None
    sample_weight: np.ndarray | None


def sample(block: Block, fraction: float, seed: int = 0) -> RowSample:
    """Sample a fraction of the rows of a block, the same rows for every partition."""
    start = block.row_offset or 0
    indices = np.flatnonzero(row_uniform(seed, start, block.n_rows) < fraction)
    y, weight = (
        None if values is None else take_to_host(values, indices)
        for values in (block.y, block.sample_weight)
    )
    return RowSample(start, take_to_host(block.X, indices), y, weight)


def concat_samples(samples: list[RowSample]) -> RowSample:
    """Concatenate the samples of all blocks, in the order of the rows."""
    parts = sorted(samples, key=lambda part: part.start)
    y, weight = (
        None if values[0] is None else np.concatenate(values)
        for values in zip(*((part.y, part.sample_weight) for part in parts), strict=True)
    )
    return RowSample(0, vstack([part.X for part in parts]), y, weight)


class DataSummary(NamedTuple):
    """Moments of the columns, statistics of the targets, and row samples where requested."""

    columns: Moments
    targets: Any
    samples: list[RowSample]


def summarize(block: Block, fraction: float, check: Any) -> DataSummary:
    """Summarise a block of rows, and sample a fraction of them.

    `check` raises for invalid targets; None stands for class labels.
    """
    with_x = block.X.shape[1] <= MAX_SUMMED_COLUMNS
    samples = [sample(block, fraction)] if fraction else []
    if check is None:
        return DataSummary(moments(block), label_counts(block, with_x), samples)
    check(block.y)
    return DataSummary(moments(block), target_sums(block, with_x), samples)


def combine_summaries(a: DataSummary, b: DataSummary) -> DataSummary:
    labels = isinstance(a.targets, LabelCounts)
    merged = (combine_label_counts if labels else combine_target_sums)(a.targets, b.targets)
    return DataSummary(combine_moments(a.columns, b.columns), merged, a.samples + b.samples)
