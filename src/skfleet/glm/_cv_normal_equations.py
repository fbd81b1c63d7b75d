"""Cross products of every training and test set of a splitter, from one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import FLOAT64, asarray_like, astype, namespace
from skfleet._linalg import dot, reduce_down, sums_down
from skfleet._typing import Rows, Splitter, Values
from skfleet._validation import check_total_weight
from skfleet.blocks import Block, Folds, RowBlocks, as_folds, is_lazy
from skfleet.engine import Reduction, engine_for, map_reduce, with_row_offsets
from skfleet.glm._normal_equations import product_reduction, targets_of
from skfleet.glm._product_sums import (
    GRAM,
    ProductKind,
    Products,
    accurate_products,
    block_products,
)

# Of absolute errors of models on a piece of rows.
ERROR_BYTES = 2**28


class SplitProducts(NamedTuple):
    """Cross products of all rows, and of the training and test set of each split.

    `total` is that of all rows, and `splits` has a pair for each split. A set without a weight may
    have None. `rows` and `folds` are for further passes.
    """

    total: Products
    splits: list[tuple[Any, Any]]
    rows: RowBlocks
    folds: Folds

    @property
    def fitted(self) -> list[Products]:
        """The cross products of the training sets."""
        return [train for train, _ in self.splits]

    @property
    def n_tested(self) -> list[int]:
        """The number of rows of each test set."""
        sizes = self.folds.sizes(self.rows.n_rows or 0)
        return [int(sizes[list(test)].sum()) for _, test in self.folds.splits]

    def reduce_models(
        self, reduction: Reduction, coefs: np.ndarray, intercepts: np.ndarray, *args: object
    ) -> Any:
        """Return a statistic of linear models of each split, from one pass over the rows.

        `coefs` are of shape (n_splits, n_targets, n_models, n_features), `intercepts` without the
        last.
        """
        models = coefs, intercepts
        return map_reduce(engine_for(self.rows), reduction, self.rows, self.folds, *models, *args)


class Residuals(NamedTuple):
    """Sums of absolute errors, and the largest ones, of shape (2, n_splits, n_targets, n_models).

    First for the rows to test on, then for the rows to train on.
    """

    total: np.ndarray
    largest: np.ndarray


def split_products(
    rows: RowBlocks,
    X: Rows,
    y: Values | None,
    cv: Splitter,
    params: Mapping[str, Any],
    *,
    centred: bool = True,
    alpha: float | np.ndarray = 0.0,
    has_l1: bool = False,
    allows_no_weight: bool = False,
) -> SplitProducts:
    """Return the products of all training and test sets, from which least squares follow.

    One pass, or a second one where products would lose digits, as in `compute_products`, which
    `centred`, `alpha` and `has_l1` are for. `params` go to the splitter. A set without a weight
    has None with `allows_no_weight`, else it raises.
    """

    def systems(products: SplitProducts) -> list[Products]:
        fitted = [products.total, *(train for train in products.fitted if train is not None)]
        return fitted if centred else [sums.uncentered() for sums in fitted]

    with _folded_rows(rows, X, y, cv, params) as (rows, folds):
        assert rows.n_rows is not None
        sizes = folds.sizes(rows.n_rows)
        n_rows = min((int(sizes[list(train)].sum()) for train, _ in folds.splits), default=0)

        def reduce_rows(kind: ProductKind, rows: RowBlocks) -> SplitProducts:
            return _products_of_splits(kind, rows, folds, allows_no_weight=allows_no_weight)

        return accurate_products(rows, n_rows, reduce_rows, systems, alpha=alpha, has_l1=has_l1)


def split_cross_products(rows: RowBlocks, X: Rows, y: Values | None, cv: Splitter) -> SplitProducts:
    """Return the cross products of all splits, whatever their condition, from one pass.

    For callers that judge themselves whether rounding would show.
    """
    with _folded_rows(rows, X, y, cv, {}) as (rows, folds):
        return _products_of_splits(GRAM, rows, folds, allows_no_weight=False)


@contextmanager
def _folded_rows(
    rows: RowBlocks, X: Rows, y: Values | None, cv: Splitter, params: Mapping[str, Any]
) -> Iterator[tuple[RowBlocks, Folds]]:
    """Yield rows of known lengths, and their folds."""
    engine = engine_for(rows)
    # Local rows may stay on the device for the passes that follow.
    is_reused = rows.lengths is None or not rows.on_dask
    with engine.persist(rows) if is_reused else nullcontext(rows) as rows:
        rows = with_row_offsets(engine, rows)
        assert rows.n_rows is not None
        # Splitters may look at values in this process; lazy ones would have to be computed.
        data = (None, None) if is_lazy(X) else (X, y)
        yield rows, as_folds(cv, rows.n_rows, *data, **params)


def _products_of_splits(
    kind: ProductKind, rows: RowBlocks, folds: Folds, *, allows_no_weight: bool
) -> SplitProducts:
    """Return the products of all splits, from one pass."""
    combine = partial(combine_by_group, kind.combine)
    reduction = product_reduction(products_by_group, rows, combine)
    products = map_reduce(engine_for(rows), reduction, rows, folds, kind)
    of_all_rows = (sums for group, sums in products.items() if folds.is_of_all_rows(group))
    total = _combined(kind, of_all_rows)
    check_total_weight(total.weight)
    splits = []
    for i, (train, test) in enumerate(folds.splits):
        sums = tuple(
            _combined(kind, (products[part] for part in side if part in products))
            for side in (train, test)
        )
        sums = tuple(None if side is None or side.weight == 0 else side for side in sums)
        for name, sums_of_side in zip(("train", "test"), sums, strict=True):
            if sums_of_side is None and not allows_no_weight:
                raise ValueError(f"cv must {name} on rows with a weight. Got none in split {i}.")
        splits.append(sums)
    return SplitProducts(total, splits, rows, folds)


def products_by_group(block: Block, folds: Folds, kind: ProductKind) -> dict[int, Products]:
    return {part: block_products(rows, kind) for part, rows in folds.cut(block)}


def residuals_by_split(
    block: Block, folds: Folds, coefs: np.ndarray, intercepts: np.ndarray, both: bool
) -> Residuals:
    """Return sums of absolute errors of linear models in a block, and the largest ones.

    `coefs` are of shape (n_splits, n_targets, n_models, n_features), `intercepts` without the last.
    Both results are of shape (2, n_splits, n_targets, n_models), on the device of the block: first
    for the rows to test on, then for the rows to train on, which stay 0 unless `both` is true.
    """
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
                sums, greatest = _absolute_errors(rows.X, y, coefs[split], intercepts[split])
                total[side][split] = total[side][split] + sums
                largest[side][split] = xp.maximum(largest[side][split], greatest)
    return Residuals(*(xp.stack([xp.stack(s) for s in sides]) for sides in (total, largest)))


def _absolute_errors(X: Any, y: Any, coefs: np.ndarray, intercepts: np.ndarray) -> tuple[Any, Any]:
    """Return sums and largest of the absolute errors of models, of shape (n_targets, n_models)."""
    xp, (n_targets, n_models, _) = namespace(y), coefs.shape
    # As many models share one product with the rows as their errors have room.
    step = max(1, ERROR_BYTES // (8 * n_targets * max(1, X.shape[0])))
    sums, largest = [], []
    for low in range(0, n_models, step):
        models = coefs[:, low : low + step]
        predicted = astype(dot(X, models.reshape(-1, models.shape[-1]).T), FLOAT64)
        predicted = xp.reshape(predicted, (X.shape[0], n_targets, -1))
        error = xp.abs(y - predicted - asarray_like(intercepts[:, low : low + step], y))
        sums.append(sums_down(error))
        largest.append(reduce_down(xp.max, error))
    return xp.concat(sums, axis=1), xp.concat(largest, axis=1)


def combine_residuals(a: Residuals, b: Residuals) -> Residuals:
    """Add up the residuals of two blocks, and take the larger of the largest ones."""
    return Residuals(a.total + b.total, namespace(a.largest).maximum(a.largest, b.largest))


def combine_by_group(
    combine: Callable[[Products, Products], Products],
    a: dict[int, Products],
    b: dict[int, Products],
) -> dict[int, Products]:
    # A block need not have rows of every group.
    both = a.keys() & b.keys()
    return a | b | {part: combine(a[part], b[part]) for part in both}


def _combined(kind: ProductKind, sums: Iterable[Products]) -> Any:
    sums = list(sums)
    return reduce(kind.combine, sums) if sums else None
