"""Splits of rows by scikit-learn's splitters, as sets that need little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn import model_selection
from sklearn.utils import check_random_state

from skfleet._sklearn_private import validate_shuffle_split
from skfleet.blocks import RowSet, class_in_scikit_learn, row_numbers

Split = tuple[RowSet, RowSet]  # the rows to train on, and those to test on


def row_splits(splitter: Any, n_rows: int, y: Any = None, groups: Any = None) -> Iterator[Split]:
    """Yield the splits that a splitter of scikit-learn makes of so many rows.

    1. Ranges of rows, and parts of one permutation, become sets without arrays of indices.
    2. Any other splitter splits a matrix of no columns.
    """
    plan = None if groups is not None else _PLANS.get(class_in_scikit_learn(splitter))
    if plan is not None:
        yield from plan(splitter, n_rows)
        return
    for train, test in splitter.split(np.empty((n_rows, 0)), y, groups):
        parts = (row_numbers(part, n_rows) for part in (train, test))
        train, test = (RowSet.from_indices(part, n_rows) for part in parts)
        yield train, test


def _k_fold(splitter: Any, n_rows: int) -> Iterator[Split]:
    n_splits = splitter.n_splits
    if n_splits > n_rows:
        raise ValueError(
            f"Cannot have number of splits n_splits={n_splits} greater than the number of samples: "
            f"n_samples={n_rows}."
        )
    sizes = np.full(n_splits, n_rows // n_splits)
    sizes[: n_rows % n_splits] += 1
    order = None
    if splitter.shuffle:
        order = check_random_state(splitter.random_state).permutation(n_rows)
    high = 0
    for size in sizes.tolist():
        low, high = high, high + size
        if order is None:
            test = RowSet(n_rows, [(low, high)])
        else:
            test = RowSet.from_indices(order[low:high], n_rows)
        yield ~test, test


def _shuffle_split(splitter: Any, n_rows: int) -> Iterator[Split]:
    n_train, n_test = validate_shuffle_split(n_rows, splitter.test_size, splitter.train_size, 0.1)
    rng = check_random_state(splitter.random_state)
    for _ in range(splitter.n_splits):
        order = rng.permutation(n_rows)
        test = RowSet.from_indices(order[:n_test], n_rows)
        if n_train + n_test == n_rows:
            yield ~test, test
        else:
            yield RowSet.from_indices(order[n_test : n_test + n_train], n_rows), test


def _time_series_split(splitter: Any, n_rows: int) -> Iterator[Split]:
    n_splits, gap = splitter.n_splits, splitter.gap
    test_size = n_rows // (n_splits + 1) if splitter.test_size is None else splitter.test_size
    if n_splits + 1 > n_rows:
        raise ValueError(
            f"Cannot have number of folds={n_splits + 1} greater than the number of "
            f"samples={n_rows}."
        )
    if n_rows - gap - test_size * n_splits <= 0:
        raise ValueError(
            f"Too many splits={n_splits} for number of samples={n_rows} with "
            f"test_size={test_size} and gap={gap}."
        )
    for start in range(n_rows - n_splits * test_size, n_rows, test_size):
        end = start - gap
        first = max(0, end - splitter.max_train_size) if splitter.max_train_size else 0
        yield RowSet(n_rows, [(first, end)]), RowSet(n_rows, [(start, start + test_size)])


_PLANS: dict[type, Callable[[Any, int], Iterator[Split]]] = {
    model_selection.KFold: _k_fold,
    model_selection.ShuffleSplit: _shuffle_split,
    model_selection.TimeSeriesSplit: _time_series_split,
}
