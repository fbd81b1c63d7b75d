"""What a first pass finds out: moments of columns, labels or targets, a sample of the rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._array import FLOAT64, astype, dtype_of, is_not_numpy, namespace, to_device_of, to_host
from skfleet._linalg import column_sums, is_sparse, vstack
from skfleet._validation import unique_labels
from skfleet.blocks import Block, row_uniform, take_to_host
from skfleet.glm._normal_equations import targets_of, weights_of


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
        squares = column_sums(X.multiply(X).tocsr()) - n_rows * mean**2
        return Moments(n_rows, mean, np.maximum(squares, 0.0))
    if not is_not_numpy(X) and X.dtype == np.float64:
        about_zero = column_sums(X * X)
        squares = about_zero - n_rows * mean**2
        if (about_zero <= MUCH_LARGER * squares).all():
            return Moments(n_rows, mean, squares)
    X = X - astype(mean, dtype_of(X))
    return Moments(n_rows, mean, column_sums(X * X))


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Merge the moments of two blocks (Chan, Golub and LeVeque, 1983)."""
    n_rows = a.n_rows + b.n_rows
    shift = b.mean - a.mean
    share = b.n_rows / n_rows
    squares = a.squares + b.squares + a.n_rows * share * shift**2
    return Moments(n_rows, a.mean + share * shift, squares)


# Sums of rows by label or target are cheap for up to so many columns and labels.
FEW_COLUMNS, FEW_LABELS = 2000, 100


class LabelCounts(NamedTuple):
    """Labels in order, with the number and weight of their rows, and (maybe) their sums of X."""

    labels: np.ndarray
    n_rows: np.ndarray
    weight: np.ndarray
    x: np.ndarray | None = None


def label_counts(block: Block, with_x: bool = False) -> LabelCounts:
    """Count the labels of a block, and sum its rows by label if asked to."""
    X, weight = block.X, weights_of(block)
    labels, codes = coded(block.y)
    codes, few = to_device_of(codes, X), len(labels) <= FEW_LABELS
    if few and is_not_numpy(codes):
        found = zip(*(_count(X, codes == k, weight) for k in range(len(labels))), strict=True)
        n_rows, counted, x = (to_host(namespace(X).stack(part)) for part in found)
        return LabelCounts(labels, n_rows, counted, x if with_x else None)
    codes, weight = to_host(codes), None if weight is None else to_host(weight)
    n_rows = np.bincount(codes, minlength=len(labels)).astype(np.float64)
    counted = n_rows if weight is None else np.bincount(codes, weight, len(labels))
    x = None
    if with_x and few:
        x = np.stack([_count(X, codes == k, weight)[2] for k in range(len(labels))])
    return LabelCounts(labels, n_rows, counted, x)


def coded(y: Any) -> tuple[np.ndarray, Any]:
    """Return the labels in y in order, on the host, and each row's place among them, where y is."""
    if not is_not_numpy(y):
        return unique_labels(y, return_inverse=True)
    found = namespace(y).unique_inverse(y)
    return to_host(found.values), found.inverse_indices


def _count(X: Any, chosen: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Return the number and the weight of chosen rows, and their weighted sum."""
    chosen = astype(chosen, FLOAT64)
    weight = chosen if weight is None else chosen * weight
    xp = namespace(chosen)
    return xp.sum(chosen), xp.sum(weight), column_sums(X, astype(weight, dtype_of(X)))


def merge_label_counts(a: LabelCounts, b: LabelCounts) -> LabelCounts:
    """Merge the counts of two blocks."""
    labels, codes = unique_labels(np.concatenate([a.labels, b.labels]), return_inverse=True)
    n_rows = np.bincount(codes, np.concatenate([a.n_rows, b.n_rows]))
    weight = np.bincount(codes, np.concatenate([a.weight, b.weight]))
    x = None
    if a.x is not None and b.x is not None and len(labels) <= FEW_LABELS:
        x = np.zeros((len(labels), a.x.shape[1]))
        np.add.at(x, codes, np.concatenate([a.x, b.x]))
    return LabelCounts(labels, n_rows, weight, x)


class TargetSums(NamedTuple):
    """Weighted sums of targets, and (maybe) of rows and of their products."""

    weight: Any
    y: np.ndarray
    x: np.ndarray | None = None
    xy: np.ndarray | None = None


def target_sums(block: Block, with_x: bool = False) -> TargetSums:
    """Sum a block's targets, and what else is asked for."""
    X, y, w = block.X, targets_of(block), weights_of(block)
    xp, dtype = namespace(y), dtype_of(X)
    wy = y if w is None else y * w[:, None]
    weight = float(block.n_rows) if w is None else xp.sum(w)
    if not with_x:
        return TargetSums(weight, xp.sum(wy, axis=0))
    xy = astype(X.T @ astype(wy, dtype), FLOAT64)
    x = column_sums(X, None if w is None else astype(w, dtype))
    return TargetSums(weight, xp.sum(wy, axis=0), x, xy)


def merge_target_sums(a: TargetSums, b: TargetSums) -> TargetSums:
    """Add the sums of two blocks."""
    if a.x is None or b.x is None or a.xy is None or b.xy is None:
        return TargetSums(a.weight + b.weight, a.y + b.y)
    return TargetSums(a.weight + b.weight, a.y + b.y, a.x + b.x, a.xy + b.xy)


class Sample(NamedTuple):
    """Rows drawn without replacement, with their targets and weights, and where they begin."""

    start: int
    X: Any
    y: np.ndarray | None
    sample_weight: np.ndarray | None


def sample(block: Block, share: float, seed: int = 0) -> Sample:
    """Draw a share of a block's rows, the same ones for every cut of the rows."""
    start = block.start or 0
    drawn = np.flatnonzero(row_uniform(seed, start, block.n_rows) < share)
    y, weight = (
        None if values is None else take_to_host(values, drawn)
        for values in (block.y, block.sample_weight)
    )
    return Sample(start, take_to_host(block.X, drawn), y, weight)


def join_samples(drawn: list[Sample]) -> Sample:
    """Make one of the samples of all blocks."""
    parts = sorted(drawn, key=lambda part: part.start)
    y, weight = (
        None if values[0] is None else np.concatenate(values)
        for values in zip(*((part.y, part.sample_weight) for part in parts), strict=True)
    )
    return Sample(0, vstack([part.X for part in parts]), y, weight)


class DataSummary(NamedTuple):
    """What a first pass finds out of columns and targets, and (maybe) rows that it draws."""

    columns: Moments
    targets: Any
    drawn: list[Sample]


def summarize(block: Block, share: float, check: Any) -> DataSummary:
    """Survey a block of rows, and draw a share of them.

    `check` may refuse targets; None stands for labels, which anything may be.
    """
    with_x = block.X.shape[1] <= FEW_COLUMNS
    drawn = [sample(block, share)] if share else []
    if check is None:
        return DataSummary(moments(block), label_counts(block, with_x), drawn)
    check(block.y)
    return DataSummary(moments(block), target_sums(block, with_x), drawn)


def combine_summaries(a: DataSummary, b: DataSummary) -> DataSummary:
    """Merge what is known of two blocks."""
    labels = isinstance(a.targets, LabelCounts)
    merged = (merge_label_counts if labels else merge_target_sums)(a.targets, b.targets)
    return DataSummary(merge_moments(a.columns, b.columns), merged, a.drawn + b.drawn)
