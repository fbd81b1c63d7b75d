"""Metrics as reductions: what a run of rows adds to each, several of them in one pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from skfleet._array import to_host
from skfleet._linalg import dense_rows, is_sparse
from skfleet.blocks import Block, RowBlocks, is_lazy, known_n_rows, row_blocks
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


def pair_rows(y_true: Any, y_pred: Any, sample_weight: Any = None) -> tuple[RowBlocks, bool]:
    """Cut true values and predictions alike, as the lazy one is cut; say whether they are swapped.

    The first of both is the blocks' X, the other one their y.
    """
    n_rows = known_n_rows(y_true)
    for name, values in (("y_pred", y_pred), ("sample_weight", sample_weight)):
        n_values = n_rows if values is None else known_n_rows(values)
        if n_rows is not None and n_values is not None and n_values != n_rows:
            raise ValueError(
                f"{name} must have as many rows as y_true. Got {n_values} instead of {n_rows}."
            )
    swapped = not is_lazy(y_true)
    first, second = (y_pred, y_true) if swapped else (y_true, y_pred)
    return row_blocks(first, second, sample_weight, dtype=None), swapped


def open_pair(block: Block, swapped: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return a block's true values, predictions and weights on the host."""
    first, second = (host_values(v) for v in (block.X, block.y))
    weight = block.sample_weight
    if weight is not None:
        weight = host_values(weight).astype(np.float64, copy=False)
    return (second, first, weight) if swapped else (first, second, weight)


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
        return np.unique(host_values(y))
    rows = row_blocks(y, dtype=None)
    return map_reduce(engine_for(rows), Reduction(_labels, _merge_labels), rows)


def _labels(block: Block) -> np.ndarray:
    """Return the labels in a block."""
    return np.unique(host_values(block.X))


def _merge_labels(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Merge the labels of two blocks."""
    return np.unique(np.concatenate([a, b]))


def told_labels(model: Any, y: Any, classes: Any = None) -> dict[str, Any]:
    """Return what ``partial_fit`` is told of the labels: all of them, where it wants to know.

    They are the `classes` given, or looked up in y unless the model knows them already.
    """
    takes = inspect.signature(model.partial_fit).parameters.values()
    takes_classes = any(p.name == "classes" or p.kind is p.VAR_KEYWORD for p in takes)
    if not takes_classes or not is_classifier(model):
        return {}
    if classes is not None:
        return {"classes": np.asarray(classes)}
    return {} if hasattr(model, "classes_") else {"classes": find_labels(y)}
