"""Sums of products by fold: every split's training and test sums from one pass over the rows."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import check_cv

from skfleet._array import to_host
from skfleet._linalg import dot
from skfleet._validation import check_total_weight
from skfleet.blocks import Block, Folds, RowBlocks, is_lazy, make_folds
from skfleet.engine import Reduction, engine_for, map_reduce, with_row_offsets
from skfleet.glm._normal_equations import CrossProducts, combine_products, products


class SplitProducts(NamedTuple):
    """The sums of all rows, and for each split those to train on and to test on.

    With the rows, each block's first one numbered, and how they are cut, for passes that follow.
    """

    total: CrossProducts
    splits: list[tuple[CrossProducts, CrossProducts]]
    rows: RowBlocks
    folds: Folds


class Residuals(NamedTuple):
    """Sums and largest of absolute errors, each of shape (2, n_splits, n_targets, n_models).

    First those of the rows to test on, then of those to train on.
    """

    total: np.ndarray
    largest: np.ndarray


def split_products(
    rows: RowBlocks, X: Any, y: Any, cv: Any, params: dict[str, Any]
) -> SplitProducts:
    """Return the sums of products of all splits, from one pass; `params` go to the splitter."""
    engine = engine_for(rows)
    # what a device of this process holds it may keep for the passes that follow
    several = rows.lengths is None or not rows.on_dask
    with engine.persist(rows) if several else nullcontext(rows) as rows:
        rows = with_row_offsets(engine, rows)
        assert rows.n_rows is not None
        seen = (None, None) if is_lazy(X) else (X, y)
        folds = make_folds(check_cv(cv), rows.n_rows, *seen, **params)
        reduction = Reduction(products_by_part, merge_by_part)
        found = map_reduce(engine, reduction, rows, folds)
    total = _merged(found.values())
    check_total_weight(total.weight)
    splits = []
    for i, (train, test) in enumerate(folds.splits):
        sums = tuple(
            _merged(found[part] for part in side if part in found) for side in (train, test)
        )
        for name, one in zip(("train", "test"), sums, strict=True):
            if one is None or one.weight == 0:
                raise ValueError(f"cv must {name} on rows with a weight. Got none in split {i}.")
        splits.append(sums)
    return SplitProducts(total, splits, rows, folds)


def products_by_part(block: Block, folds: Folds) -> dict[int, CrossProducts]:
    """Return the products of a block's rows by part."""
    return {part: products(rows) for part, rows in folds.cut(block)}


def split_residuals(
    found: SplitProducts, coefs: np.ndarray, intercepts: np.ndarray, *, both: bool
) -> Residuals:
    """Return what is known of the errors of linear models, from one pass over the rows.

    `coefs` are of shape (n_splits, n_targets, n_models, n_features), `intercepts` without the last;
    of rows to train on only if `both`.
    """
    reduction = Reduction(residuals_by_split, merge_residuals)
    return map_reduce(
        engine_for(found.rows), reduction, found.rows, found.folds, coefs, intercepts, both
    )


def residuals_by_split(
    block: Block, folds: Folds, coefs: np.ndarray, intercepts: np.ndarray, both: bool
) -> Residuals:
    """Return what is known of the errors in a block."""
    shape = (2, *intercepts.shape)
    total, largest = np.zeros(shape), np.zeros(shape)
    for part, rows in folds.cut(block):
        y = to_host(rows.y).astype(np.float64).reshape(rows.n_rows, -1, 1)
        for split, (train, test) in enumerate(folds.splits):
            for side, parts in enumerate((test, train) if both else (test,)):
                if part not in parts:
                    continue
                models = coefs[split].reshape(-1, coefs.shape[-1])
                predicted = to_host(dot(rows.X, models.T)).reshape(rows.n_rows, *shape[2:])
                error = np.abs(y - predicted - intercepts[split])
                total[side, split] += error.sum(axis=0)
                np.maximum(largest[side, split], error.max(axis=0), out=largest[side, split])
    return Residuals(total, largest)


def merge_residuals(a: Residuals, b: Residuals) -> Residuals:
    """Merge what is known of the errors in two blocks."""
    return Residuals(a.total + b.total, np.maximum(a.largest, b.largest))


def merge_by_part(
    a: dict[int, CrossProducts], b: dict[int, CrossProducts]
) -> dict[int, CrossProducts]:
    """Merge the products of two blocks, part by part."""
    both = a.keys() & b.keys()
    return a | b | {part: combine_products(a[part], b[part]) for part in both}


def _merged(sums: Iterable[CrossProducts]) -> Any:
    """Merge any number of sums, None where there are none."""
    sums = list(sums)
    return reduce(combine_products, sums) if sums else None
