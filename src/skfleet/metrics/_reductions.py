"""Metrics as reductions: what a run of rows adds to each, several of them in one pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets

from skfleet._array import to_host
from skfleet._linalg import dense_rows, is_sparse
from skfleet._validation import (
    check_finite,
    check_target_type,
    check_weight_type,
    n_dims_of,
    unique_labels,
    weights_as_numbers,
)
from skfleet.blocks import (
    Block,
    RowBlocks,
    as_sized,
    fetch,
    is_lazy,
    n_rows_if_known,
    row_blocks,
)
from skfleet.engine import Reduction, add, engine_for, identity, map_reduce


@dataclass(frozen=True)
class Statistic:
    """What a metric needs of the rows.

    `part(true, predicted, weight)` makes a partial result of some rows on the host, `weight` None
    where there are no weights; `merge` is associative; `finish` makes the metric of the total.
    """

    part: Callable[[np.ndarray, np.ndarray, np.ndarray | None], Any]
    merge: Callable[[Any, Any], Any] = add
    finish: Callable[[Any], Any] = identity


def check_pair(
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    *,
    true_is_number: bool,
    predicted_is_number: bool,
) -> tuple[Any, Any, Any]:
    """Return values to compare, or raise if what is known without work tells that they cannot be.

    Values in this process are left to whoever compares them, but for their length.
    """
    named = {"y_true": y_true, "y_pred": y_pred, "sample_weight": sample_weight}
    numbers = {"y_true": true_is_number, "y_pred": predicted_is_number}
    for name, values in named.items():
        if name == "sample_weight" and values is None:
            continue
        if not is_lazy(values):
            values = as_sized(name, values)
            values = named[name] = values if hasattr(values, "shape") else np.asarray(values)
        if name == "sample_weight":
            check_weight_type(values)
            continue
        if n_dims_of(values) > 2:
            raise ValueError(
                f"{name} must have one dimension, or two. Got {n_dims_of(values)} instead."
            )
        check_target_type(values, numeric=numbers[name], name=name)
    check_lengths(*named.values())
    return named["y_true"], named["y_pred"], named["sample_weight"]


def check_lengths(y_true: Any, y_pred: Any, sample_weight: Any) -> None:
    """Raise if values are known to be not as many as true ones."""
    n_rows = n_rows_if_known(y_true)
    for name, values in (("y_pred", y_pred), ("sample_weight", sample_weight)):
        n_values = n_rows if values is None else n_rows_if_known(values)
        if n_rows is not None and n_values is not None and n_values != n_rows:
            raise ValueError(
                f"{name} must have as many rows as y_true. Got {n_values} instead of {n_rows}."
            )


def pair_rows(y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[RowBlocks, bool]:
    """Cut true values and predictions alike, as the lazy one is cut; say whether they are swapped.

    The first of both is the blocks' X, the other one their y.
    """
    check_lengths(y_true, y_pred, sample_weight)
    swapped = not is_lazy(y_true)
    first, second = (y_pred, y_true) if swapped else (y_true, y_pred)
    rows = row_blocks(first, second, sample_weight, dtype=None)
    return replace(rows, checked=True), swapped  # by name, when they are opened


def open_pair(block: Block, swapped: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return a block's true values, predictions and weights on the host."""
    first, second = (host_values(v) for v in (block.X, block.y))
    weight = block.sample_weight
    if weight is not None:
        weight = weights_as_numbers(host_values(weight))
    true, predicted = (second, first) if swapped else (first, second)
    for name, values in (("y_true", true), ("y_pred", predicted), ("sample_weight", weight)):
        check_finite(name, values)
    return true, predicted, weight


def host_values(values: Any) -> np.ndarray:
    """Return values on the host: dense, and a single column as a vector."""
    dense = dense_rows(values) if is_sparse(values) else np.asarray(to_host(values))
    return dense[:, 0] if dense.ndim == 2 and dense.shape[1] == 1 else dense


def measure(
    statistics: Sequence[Statistic], y_true: Any, y_pred: Any, sample_weight: Any = None
) -> list[Any]:
    """Return the metrics of all statistics, in one pass over pairs of values."""
    rows, swapped = pair_rows(y_true, y_pred, sample_weight)
    return measure_rows(statistics, rows, swapped)


def measure_rows(statistics: Sequence[Statistic], rows: RowBlocks, swapped: bool) -> list[Any]:
    """Return the metrics of all statistics, in one pass over rows that are pairs already."""
    every = tuple(statistics)
    reduction = Reduction(_Measure(every), _Merge(every))
    totals = map_reduce(engine_for(rows), reduction, rows, swapped)
    return [one.finish(total) for one, total in zip(every, totals, strict=True)]


@dataclass(frozen=True)
class _Measure:
    """Makes the partial results of several statistics of one block."""

    statistics: tuple[Statistic, ...]
    __name__ = "measure"

    def __call__(self, block: Block, swapped: bool) -> tuple[Any, ...]:
        true, predicted, weight = open_pair(block, swapped)
        return tuple(one.part(true, predicted, weight) for one in self.statistics)


@dataclass(frozen=True)
class _Merge:
    """Merges the partial results of several statistics."""

    statistics: tuple[Statistic, ...]

    def __call__(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(one.merge(x, y) for one, x, y in zip(self.statistics, a, b, strict=True))


def find_labels(y: Any) -> np.ndarray:
    """Return the sorted labels that occur in y, wherever y is.

    Parameters
    ----------
    y : values of shape (n_samples,)
        Labels in any container.

    Returns
    -------
    ndarray of shape (n_labels,)
        Each label once, in order.

    Notes
    -----
    One pass over y alone.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.metrics import find_labels
    >>> find_labels(da.from_array([2, 1, 2], chunks=2))
    array([1, 2])
    """
    if not is_lazy(y):
        labels = host_values(y)
        assert_all_finite(labels, input_name="y")
        return unique_labels(labels)
    rows = replace(row_blocks(y, dtype=None), checked=True)
    return map_reduce(engine_for(rows), Reduction(_labels, _merge_labels), rows)


def _labels(block: Block) -> np.ndarray:
    """Return the labels in a block."""
    labels = host_values(block.X)
    check_finite("y", labels)
    return unique_labels(labels)


def _merge_labels(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Merge the labels of two blocks."""
    return unique_labels(np.concatenate([a, b]))


def classes_for_partial_fit(model: Any, y: Any, classes: Any = None) -> dict[str, Any]:
    """Return what ``partial_fit`` is told of the labels: all of them, where it wants to know.

    They are the `classes` given, also as a Dask collection or a Future, or looked up in y unless
    the model knows them already.
    """
    takes = inspect.signature(model.partial_fit).parameters.values()
    takes_classes = any(p.name == "classes" or p.kind is p.VAR_KEYWORD for p in takes)
    if not takes_classes or not is_classifier(model):
        return {}
    if classes is not None:
        return {"classes": np.asarray(fetch(classes))}
    if hasattr(model, "classes_"):
        return {}
    labels = find_labels(y)
    check_classification_targets(labels)
    return {"classes": labels}
