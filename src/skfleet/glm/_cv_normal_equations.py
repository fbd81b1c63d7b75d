"""Cross products of every training and test set of a splitter, from one pass."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import FLOAT64, asarray_like, astype, namespace
from skfleet._linalg import dot, reduce_down, sums_down
from skfleet._validation import check_total_weight
from skfleet.blocks import Block, Folds, RowBlocks, as_folds, is_lazy
from skfleet.engine import Reduction, engine_for, map_reduce, with_row_offsets
from skfleet.glm._normal_equations import (
    CrossProducts,
    block_cross_products,
    combine_products,
    targets_of,
)


class SplitProducts(NamedTuple):
    """Cross products of all rows, and of the training and test set of each split.

    With the rows and folds, for further passes. A set without a weight may have None.
    """

    total: CrossProducts
    splits: list[tuple[Any, Any]]
    rows: RowBlocks
    folds: Folds

    @property
    def fitted(self) -> list[CrossProducts]:
        """The cross products of the training sets."""
        return [train for train, _ in self.splits]

    @property
    def n_tested(self) -> list[int]:
        """The number of rows of each test set."""
        sizes = self.folds.sizes(self.rows.n_rows or 0)
        return [int(sizes[list(test)].sum()) for _, test in self.folds.splits]

    def reduce_models(
        self, reduction: Reduction, coefs: np.ndarray, intercepts: np.ndarray, *args: Any
    ) -> Any:
        """Return a statistic of linear models of each split, from one pass over the rows.

        `coefs` are of shape (n_splits, n_targets, n_models, n_features), `intercepts` without the
        last.
        """
        models = coefs, intercepts
        return map_reduce(engine_for(self.rows), reduction, self.rows, self.folds, *models, *args)


class Residuals(NamedTuple):
    """Sums and largest of absolute errors, each of shape (2, n_splits, n_targets, n_models).

    First those of the rows to test on, then of those to train on.
    """

    total: np.ndarray
    largest: np.ndarray


def split_products(
    rows: RowBlocks,
    X: Any,
    y: Any,
    cv: Any,
    params: dict[str, Any],
    *,
    allows_no_weight: bool = False,
) -> SplitProducts:
    """Return the sums of products of all splits, from one pass; `params` go to the splitter.

    A set without a weight has None where that is allowed, else it raises.
    """
    engine = engine_for(rows)
    # Local rows may stay on the device for the passes that follow.
    is_reused = rows.lengths is None or not rows.on_dask
    with engine.persist(rows) if is_reused else nullcontext(rows) as rows:
        rows = with_row_offsets(engine, rows)
        assert rows.n_rows is not None
        # Splitters may look at values in this process; lazy ones would have to be computed.
        data = (None, None) if is_lazy(X) else (X, y)
        folds = as_folds(cv, rows.n_rows, *data, **params)
        reduction = Reduction(cross_products_by_group, combine_by_group)
        products = map_reduce(engine, reduction, rows, folds)
    total = _combined(sums for group, sums in products.items() if folds.is_of_all_rows(group))
    check_total_weight(total.weight)
    splits = []
    for i, (train, test) in enumerate(folds.splits):
        sums = tuple(
            _combined(products[part] for part in side if part in products) for side in (train, test)
        )
        sums = tuple(None if side is None or side.weight == 0 else side for side in sums)
        for name, sums_of_side in zip(("train", "test"), sums, strict=True):
            if sums_of_side is None and not allows_no_weight:
                raise ValueError(f"cv must {name} on rows with a weight. Got none in split {i}.")
        splits.append(sums)
    return SplitProducts(total, splits, rows, folds)


def cross_products_by_group(block: Block, folds: Folds) -> dict[int, CrossProducts]:
    return {part: block_cross_products(rows) for part, rows in folds.cut(block)}


def residuals_by_split(
    block: Block, folds: Folds, coefs: np.ndarray, intercepts: np.ndarray, both: bool
) -> Residuals:
    """Return the residuals of a block on its device; those of rows to train on only if `both`."""
    xp = namespace(block.X)
    zeros = asarray_like(np.zeros(intercepts.shape[1:]), block.X, dtype=xp.float64)
    total = [[zeros] * len(folds.splits) for _ in range(2)]
    largest = [[zeros] * len(folds.splits) for _ in range(2)]
    for part, rows in folds.cut(block):
        y = targets_of(rows)[:, :, None]
        for split, (train, test) in enumerate(folds.splits):
            for side, parts in enumerate((test, train) if both else (test,)):
                if part not in parts:
                    continue
                # All models of a split share one product with the rows.
                models = coefs[split].reshape(-1, coefs.shape[-1])
                predicted = astype(dot(rows.X, models.T), FLOAT64)
                predicted = xp.reshape(predicted, (rows.n_rows, *zeros.shape))
                error = xp.abs(y - predicted - asarray_like(intercepts[split], y))
                total[side][split] = total[side][split] + sums_down(error)
                greatest = reduce_down(xp.max, error)
                largest[side][split] = xp.maximum(largest[side][split], greatest)
    return Residuals(*(xp.stack([xp.stack(s) for s in sides]) for sides in (total, largest)))


def combine_residuals(a: Residuals, b: Residuals) -> Residuals:
    return Residuals(a.total + b.total, namespace(a.largest).maximum(a.largest, b.largest))


def combine_by_group(
    a: dict[int, CrossProducts], b: dict[int, CrossProducts]
) -> dict[int, CrossProducts]:
    # A block need not have rows of every group.
    both = a.keys() & b.keys()
    return a | b | {part: combine_products(a[part], b[part]) for part in both}


def _combined(sums: Iterable[CrossProducts]) -> Any:
    sums = list(sums)
    return reduce(combine_products, sums) if sums else None
