"""Metrics as reductions over aligned blocks of true values and predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from operator import or_
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from sklearn.utils import assert_all_finite

from skfleet._array import to_host
from skfleet._linalg import dense_rows, is_sparse
from skfleet._validation import (
    check_finite,
    check_target_type,
    check_weight_type,
    n_dims_of,
    unique_values,
    weights_as_numbers,
)
from skfleet.blocks import Block, RowBlocks, as_sized, is_lazy, n_rows_if_known, row_blocks
from skfleet.engine import (
    Passes,
    Reduction,
    add,
    engine_for,
    identity,
    map_reduce,
    run_in_one_task,
    run_passes,
    share_passes,
    small_bytes,
)

T = TypeVar("T")

# What is measured may be made of rows of twenty columns, which one task then loads. Values that are
# sorted take several passes over blocks: `roc_curve` of a million .4 s, and .2 s in one task.
SMALL_BYTES, SMALL_SORTED_BYTES = 4 * 2**20, 32 * 2**20
# One pass over more of them takes less time than to load them in vain.
MAX_UNKNOWN_BLOCKS = 2


@dataclass(frozen=True)
class MetricReduction:
    """A metric as a reduction over blocks.

    `per_block(true, predicted, weight)` returns a partial result of a block on the host, with
    `weight` None for no weights; `combine` is associative; `finalize` returns the metric.
    """

    per_block: Callable[[np.ndarray, np.ndarray, np.ndarray | None], Any]
    combine: Callable[[Any, Any], Any] = add
    finalize: Callable[[Any], Any] = identity
    is_one_pass: ClassVar[bool] = True

    def on_blocks(self) -> Reduction:
        """Return the reduction of blocks of true values and predictions."""
        return Reduction(partial(_measure, self.per_block), self.combine, self.finalize)

    def passes(self) -> Passes:
        """Return the only pass of the metric."""
        return (yield self.on_blocks())


class Metric(Protocol):
    """A metric of aligned rows."""

    is_one_pass: ClassVar[bool]

    def passes(self) -> Passes:
        """Return passes over blocks on the host: X are true values, y predictions."""


def check_pair(
    y_true: Any, y_pred: Any, sample_weight: Any, *, true_is_number: bool, predicted_is_number: bool
) -> tuple[Any, Any, Any]:
    """Return values to compare; raise for invalid types, dimensions or lengths.

    Of values in this process only dimensions and lengths are checked.
    """
    values_by_name = {"y_true": y_true, "y_pred": y_pred, "sample_weight": sample_weight}
    numbers = {"y_true": true_is_number, "y_pred": predicted_is_number}
    for name, values in values_by_name.items():
        if name == "sample_weight" and values is None:
            continue
        if not is_lazy(values):
            values = as_sized(name, values)
            values = values if hasattr(values, "shape") else np.asarray(values)
            values_by_name[name] = values
        if name == "sample_weight":
            check_weight_type(values)
            continue
        if n_dims_of(values) > 2:
            raise ValueError(
                f"{name} must have one dimension, or two. Got {n_dims_of(values)} instead."
            )
        check_target_type(values, numeric=numbers[name], name=name)
    check_lengths(*values_by_name.values())
    return tuple(values_by_name.values())


def check_lengths(y_true: Any, y_pred: Any, sample_weight: Any) -> None:
    """Raise for lengths that are known to differ."""
    n_rows = n_rows_if_known(y_true)
    for name, values in (("y_pred", y_pred), ("sample_weight", sample_weight)):
        n_values = n_rows if values is None else n_rows_if_known(values)
        if n_rows is not None and n_values is not None and n_values != n_rows:
            raise ValueError(
                f"{name} must have as many rows as y_true. Got {n_values} instead of {n_rows}."
            )


def align_pairs(y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[RowBlocks, bool]:
    """Align true values and predictions by the chunks of the lazy one.

    The lazy one is X of the blocks, the other one y. Also return whether predictions are X.
    """
    check_lengths(y_true, y_pred, sample_weight)
    pred_first = not is_lazy(y_true)
    first, second = (y_pred, y_true) if pred_first else (y_true, y_pred)
    rows = row_blocks(first, second, sample_weight, dtype=None)
    return replace(rows, checked=True), pred_first  # by name, when they are opened


def open_pair(block: Block, pred_first: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return true values, predictions and weights of a block on the host."""
    first, second = (host_values(v) for v in (block.X, block.y))
    weight = block.sample_weight
    if weight is not None:
        weight = host_values(weight)
        if weight.dtype.kind not in "iu":  # of whole numbers scikit-learn returns such sums
            weight = weights_as_numbers(weight)
    true, predicted = (second, first) if pred_first else (first, second)
    for name, values in (("y_true", true), ("y_pred", predicted), ("sample_weight", weight)):
        check_finite(name, values)
    return true, predicted, weight


def host_values(values: Any) -> np.ndarray:
    """Return values as a dense NumPy array, a single column as a vector."""
    dense = dense_rows(values) if is_sparse(values) else np.asarray(to_host(values))
    return dense[:, 0] if dense.ndim == 2 and dense.shape[1] == 1 else dense


def measure_rows(metrics: Sequence[Metric], rows: RowBlocks, pred_first: bool) -> list[Any]:
    """Return all metrics of aligned rows, in as many passes as the longest takes.

    Rows are persisted for several passes.
    """
    all_metrics = [_WEIGHT_CHECK, *metrics]  # which raises before the others divide by no weight
    passes = share_passes([metric.passes() for metric in all_metrics], "measure")
    engine = engine_for(rows)
    is_one_pass = all(metric.is_one_pass for metric in metrics)
    with nullcontext(rows) if is_one_pass else engine.persist(rows) as persisted:
        results, _ = run_passes(passes, engine, persisted, partial(_host_pair, pred_first))
    return list(results[1:])


def measure_small_rows(
    measure: Callable[..., T],
    rows: RowBlocks,
    pred_first: bool,
    name: str,
    *,
    limit: float | None = None,
    n_estimated: float = math.inf,
) -> T | None:
    """Return measure(true, predicted, weight, rows, pred_first), called in one task.

    None, where aligned rows are not small. In the task all are in its process. Of few bytes, as
    they are estimated, it loads any number of blocks.
    """
    limit = small_bytes(SMALL_BYTES if limit is None else limit)
    return run_in_one_task(
        engine_for(rows),
        partial(_measure_block, measure, pred_first),
        [rows],
        limit=limit,
        name=name,
        max_unknown_blocks=len(rows.blocks) if n_estimated <= limit else MAX_UNKNOWN_BLOCKS,
    )


def _measure_block(measure: Callable[..., T], pred_first: bool, blocks: Sequence[Block]) -> T:
    """Call a measure with the only block of aligned rows."""
    first, second, weight = blocks[0].X, blocks[0].y, blocks[0].sample_weight
    true, predicted = (second, first) if pred_first else (first, second)
    return measure(true, predicted, weight, *align_pairs(true, predicted, weight))


def _has_weight(true: Any, predicted: Any, weight: Any) -> bool:
    return weight is None or bool(np.any(weight))


def _check_weight(has_weight: bool) -> None:
    if not has_weight:
        raise ValueError("Sample weights must contain at least one non-zero number.")


_WEIGHT_CHECK = MetricReduction(_has_weight, or_, _check_weight)


def _host_pair(pred_first: bool, block: Block) -> Block:
    true, predicted, weight = open_pair(block, pred_first)
    return block._replace(X=true, y=predicted, sample_weight=weight)


def _measure(per_block: Callable[..., Any], block: Block) -> Any:
    return per_block(block.X, block.y, block.sample_weight)


def unique_labels(y: Any) -> np.ndarray:
    """Return the sorted unique labels of y, an array or a Dask collection.

    Parameters
    ----------
    y : array-like, Dask array or Dask Series of shape (n_samples,)
        Class labels.

    Returns
    -------
    ndarray of shape (n_labels,)
        Sorted unique labels.

    Notes
    -----
    One pass over y alone.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.metrics import unique_labels
    >>> unique_labels(da.from_array([2, 1, 2], chunks=2))
    array([1, 2])
    """
    if not is_lazy(y):
        labels = host_values(y)
        assert_all_finite(labels, input_name="y")
        return unique_values(labels)
    rows = replace(row_blocks(y, dtype=None), checked=True)
    return map_reduce(engine_for(rows), Reduction(_labels, _combine_labels), rows)


def _labels(block: Block) -> np.ndarray:
    labels = host_values(block.X)
    check_finite("y", labels)
    return unique_values(labels)


def _combine_labels(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return unique_values(np.concatenate([a, b]))
