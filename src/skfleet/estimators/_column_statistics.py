"""Summary statistics of a first pass: column moments, label counts or target sums, a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import (
    FLOAT64,
    INT64,
    astype,
    dtype_of,
    is_floating,
    is_not_numpy,
    namespace,
    to_device_of,
    to_host,
    tree_to_host,
)
from skfleet._linalg import (
    column_sums,
    is_sparse,
    rows_between,
    square_sums,
    sums_down,
    transposed,
    vstack,
)
from skfleet._validation import unique_values
from skfleet.blocks import Block, row_uniform, take_to_host
from skfleet.estimators import _moments_kernel
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
    X, n_rows = block.X, block.n_rows
    if _moments_kernel.supports(X):
        return _kernel_moments(n_rows, _moments_kernel.row_sums(X))
    mean = column_sums(X) / n_rows
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


def _kernel_moments(n_rows: int, sums: _moments_kernel.RowSums) -> Moments:
    return Moments(n_rows, sums.moments[1, :], sums.moments[2, :])


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
# Rows of a product that sums by label (as many as single precision adds up), and their indicators.
MAX_RUN_ROWS, RUN_BYTES = 2**17, 2**26
# Whole numbers up to this one are float64's to the last digit.
MAX_EXACT = 2**53


class LabelCounts(NamedTuple):
    """Sorted labels, with the number and weight of their rows, and the sums of X if requested."""

    labels: np.ndarray
    n_rows: np.ndarray
    weight: np.ndarray
    x: np.ndarray | None = None


def label_counts(block: Block, with_x: bool = False) -> LabelCounts:
    """Count the labels of a block and, with `with_x`, sum its rows by label."""
    return _label_statistics(block, with_x, with_moments=False)[1]


def _label_statistics(
    block: Block, with_x: bool, *, with_moments: bool
) -> tuple[Moments | None, LabelCounts]:
    """Return the moments of a block, where asked, and its label counts.

    On a CUDA device both are of one read of the rows, and of one copy to the host. All is on the
    host, since the labels are.
    """
    X, weight = block.X, weights_of(block)
    labels, codes = _possible_labels(block.y)
    codes, is_summed = to_device_of(codes, X), len(labels) <= MAX_SUMMED_LABELS
    columns = None
    if not is_summed or not is_not_numpy(codes):
        counts = _host_label_counts(X, labels, to_host(codes), weight, with_x and is_summed)
    elif _moments_kernel.supports(X, len(labels)):
        sums = _moments_kernel.row_sums(
            X,
            moments=with_moments and with_x,
            codes=codes,
            k=len(labels),
            code_weights=weight,
            x_by_label=with_x,
        ).on_host()
        columns = None if sums.moments is None else _kernel_moments(block.n_rows, sums)
        counts = _from_table(labels, sums.by_label, with_x)
    else:
        table = _sums_by_label(X if with_x else None, codes, weight, len(labels))
        counts = _from_table(labels, to_host(table), with_x)
    if with_moments and columns is None:
        columns = tree_to_host(moments(block))
    return columns, counts


def _host_label_counts(
    X: Any, labels: np.ndarray, codes: np.ndarray, weight: Any, with_x: bool
) -> LabelCounts:
    """Return the label counts of codes on the host."""
    weight = None if weight is None else to_host(weight)
    n_rows = np.bincount(codes, minlength=len(labels)).astype(np.float64)
    class_weight = n_rows if weight is None else np.bincount(codes, weight, len(labels))
    if not with_x:
        return LabelCounts(labels, n_rows, class_weight)
    x = [_label_sums(X, codes == k, weight) for k in range(len(labels))]
    return LabelCounts(labels, n_rows, class_weight, np.stack(x))


def _label_sums(X: Any, mask: np.ndarray, weight: Any) -> np.ndarray:
    """Return the weighted sum of the rows of a mask."""
    mask = astype(mask, FLOAT64)
    return column_sums(X, astype(mask if weight is None else mask * weight, dtype_of(X)))


def _sums_by_label(X: Any, codes: Any, weight: Any, k: int) -> Any:
    """Return the sums of rows on a device by label, then those of weights and numbers.

    By products with indicators, a run of rows at a time; without X, of weights and numbers alone.
    """
    xp, n_rows = namespace(codes), codes.shape[0]
    numbers = to_device_of(np.arange(k), codes)
    step = max(1, min(MAX_RUN_ROWS, RUN_BYTES // (8 * k)))
    tables = []
    for low in range(0, n_rows, step):
        run = slice(low, min(low + step, n_rows))
        indicators = astype(codes[run][:, None] == numbers, FLOAT64)
        weighted = indicators if weight is None else indicators * weight[run][:, None]
        parts = [sums_down(weighted)[:, None], sums_down(indicators)[:, None]]
        if X is not None:
            rows = rows_between(X, low, run.stop)
            parts.insert(0, astype(astype(weighted, dtype_of(X)).T @ rows, FLOAT64))
        tables.append(xp.concat(parts, axis=1))
    return tables[0] if len(tables) == 1 else xp.sum(xp.stack(tables), axis=0)


def _from_table(labels: np.ndarray, table: np.ndarray, with_x: bool) -> LabelCounts:
    """Return the counts of the labels that rows have, from a table of sums by label."""
    has_rows = table[:, -1] > 0
    labels, table = labels[has_rows], table[has_rows]
    return LabelCounts(labels, table[:, -1], table[:, -2], table[:, :-2] if with_x else None)


def _possible_labels(y: Any) -> tuple[np.ndarray, Any]:
    """Return sorted labels on the host, among them all of y, and their indices on y's device.

    A few whole numbers on a device are known from the least and the greatest, without sorting y.
    """
    if not is_not_numpy(y):
        return unique_inverse(y)
    xp, dtype = namespace(y), dtype_of(y)
    if dtype.kind == "b":
        return np.array([False, True]), astype(y, INT64)
    ends = [xp.min(y), xp.max(y)]
    if is_floating(y):
        ends.append(astype(xp.all(y == xp.floor(y)), dtype))  # 0 if any is NaN
    low, high, *is_whole = to_host(xp.stack(ends)).tolist()
    is_exact = -MAX_EXACT <= low <= high <= MAX_EXACT and all(is_whole)
    if not is_exact or high - low >= MAX_SUMMED_LABELS:
        return unique_inverse(y)
    labels = (int(low) + np.arange(int(high - low) + 1)).astype(dtype)
    return labels, astype(y - low, INT64)


def unique_inverse(y: Any) -> tuple[np.ndarray, Any]:
    """Return the sorted labels of y on the host, and their indices on the device of y."""
    if not is_not_numpy(y):
        return unique_values(y, return_inverse=True)
    result = namespace(y).unique_inverse(y)
    return to_host(result.values), result.inverse_indices


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


def _target_statistics(block: Block, with_x: bool) -> tuple[Moments, TargetSums]:
    """Return the moments of a block, and the sums of its targets.

    Those of one target are of the same read of the rows on a CUDA device, but for a second one with
    weights, which the moments do not have.
    """
    X, y = block.X, targets_of(block)
    if not with_x or y.shape[1] != 1 or not _moments_kernel.supports(X, 1):
        return moments(block), target_sums(block, with_x)
    w, y, d, weight = weights_of(block), y[:, 0], X.shape[1], float(block.n_rows)
    sums = _moments_kernel.row_sums(X, k=1, code_weights=y if w is None else y * w)
    columns, of_y = _kernel_moments(block.n_rows, sums), sums.by_label[0, :]
    if w is None:
        return columns, TargetSums(weight, of_y[d : d + 1], columns.mean * weight, of_y[:d, None])
    of_w = _moments_kernel.row_sums(X, moments=False, k=1, code_weights=w).by_label[0, :]
    return columns, TargetSums(of_w[d], of_y[d : d + 1], of_w[:d], of_y[:d, None])


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
    is_drawn = row_uniform(seed, start, block.n_rows, block.X) < fraction
    indices = to_host(namespace(is_drawn).nonzero(is_drawn)[0])
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
        return DataSummary(*_label_statistics(block, with_x, with_moments=True), samples)
    check(block.y)
    return DataSummary(*_target_statistics(block, with_x), samples)


def summary_takes_whole(block: Block, *args: Any) -> bool:
    """Return whether a block is summarised without copies of its rows."""
    return _moments_kernel.supports(block.X, 1)


def combine_summaries(a: DataSummary, b: DataSummary) -> DataSummary:
    labels = isinstance(a.targets, LabelCounts)
    merged = (combine_label_counts if labels else combine_target_sums)(a.targets, b.targets)
    return DataSummary(combine_moments(a.columns, b.columns), merged, a.samples + b.samples)
