"""The data of an adaptive search whose candidates are fitted: all rows, whole on each worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.model_selection import check_cv

from skfleet.blocks import Block, BlockRef, RowBlocks, concat_rows, take_block_rows
from skfleet.engine import Engine, Holdout
from skfleet.model_selection._adaptive._data import (
    BatchOrder,
    PlacedData,
    open_rows,
    place_data,
    split_holdout,
)
from skfleet.model_selection._adaptive._training_tasks import RowSplit

DEFAULT_FOLDS = 5


def n_folds_of(cv: Any) -> int:
    """Return the number of splits, before the rows are known."""
    return int(check_cv(DEFAULT_FOLDS if cv is None else cv).get_n_splits())


def draw_splits(search: Any, X: Any, y: Any, seed: int, groups: Any = None) -> list[RowSplit]:
    """Return the splits that all candidates have, drawn once.

    Where a level is a fraction of the rows, those to train on are in an order of which every first
    part is stratified.
    """
    cv = check_cv(
        DEFAULT_FOLDS if search.cv is None else search.cv,
        y,
        classifier=is_classifier(search.estimator),
    )
    splits = [RowSplit(train, test) for train, test in cv.split(X, y, groups)]
    if search.resource != "n_samples":
        return splits
    labels = np.asarray(y) if is_classifier(search.estimator) else None
    return [RowSplit(train[nested_order(train, labels, seed)], test) for train, test in splits]


def nested_order(rows: np.ndarray, labels: np.ndarray | None, seed: int) -> np.ndarray:
    """Return a random order of some rows, every first part of which is stratified.

    Each of the labels is among the first rows, as many as there are labels.
    """
    order = np.random.default_rng(seed).permutation(len(rows))
    if labels is None or labels.ndim > 1:
        return order
    codes = np.unique(labels[rows][order], return_inverse=True)[1]
    by_label = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    ranks = np.empty(len(rows))
    ranks[by_label] = np.concatenate([np.arange(n) / n for n in counts])
    return order[np.argsort(ranks, kind="stable")]


def place_whole_rows(
    engine: Engine,
    rows: RowBlocks,
    y: Any,
    *,
    test_size: float | int | None,
    stratify: bool,
    seed: int,
    is_nested: bool,
    n_splits: int,
) -> PlacedData:
    """Place the training rows as one block, and those of a holdout unless there are splits."""
    if rows.on_dask:
        data = place_data(
            engine, rows, y, test_size=test_size, stratify=stratify, batch_size=None, seed=seed
        )
        seed_of_order = seed if is_nested else None
        args = (list(data.blocks), data.holdout, seed_of_order, stratify)
        joined = BlockRef(engine.submit(_join_training_rows, *args, name="join-training-rows"))
        return replace(data, blocks=(joined,), joined=(joined,), batches=BatchOrder(seed, (1,)))
    block = Block(*rows.blocks[0])
    if n_splits:
        return _placed(engine, [block], seed, block.n_rows, 0)
    train, test = split_holdout(block, test_size, stratify, seed)
    if is_nested:
        labels = np.asarray(block.y) if stratify else None
        train = train[nested_order(train, labels, seed)]
    parts = [take_block_rows(block, train), take_block_rows(block, test)]
    return _placed(engine, parts, seed, len(train), len(test))


def _placed(
    engine: Engine, parts: Sequence[Block], seed: int, n_train: int, n_test: int
) -> PlacedData:
    """Scatter training rows and, if there are any, test rows."""
    scattered = tuple(map(engine.scatter, parts))
    train, *test = (BlockRef(part, number=i) for i, part in enumerate(scattered))
    return PlacedData(
        (train,), BatchOrder(seed, (1,)), tuple(test), n_train, n_test, scattered=scattered
    )


def _join_training_rows(
    block_refs: Sequence[BlockRef], holdout: Holdout, seed: int | None, stratify: bool
) -> Block:
    """Return the training rows of all blocks as one, with a seed in a random nested order."""
    blocks = [open_rows(ref) for ref in block_refs]
    rows = concat_rows([take_block_rows(block, ~holdout.mask(block)) for block in blocks])
    if seed is None:
        return rows
    labels = np.asarray(rows.y) if stratify else None
    return take_block_rows(rows, nested_order(np.arange(rows.n_rows), labels, seed))
