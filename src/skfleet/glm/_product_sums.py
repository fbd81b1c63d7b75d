"""The choice between products in single and in double precision, and a factor of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from scipy import linalg

from skfleet._array import FLOAT64
from skfleet._typing import Array
from skfleet._validation import check_total_weight
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import engine_for, map_reduce
from skfleet.glm._dense_solvers import equilibrate
from skfleet.glm._normal_equations import (
    CrossProducts,
    combine_products,
    cross_products,
    product_reduction,
    products_take_whole,
    targets_of,
    weights_of,
)
from skfleet.glm._row_factor import RowFactor, combine_row_factors, row_factor

T = TypeVar("T")
# What least squares follow from: products of columns, or rows with the same products.
Products = CrossProducts | RowFactor

# Condition numbers of products, with columns at unit length, up to which their rounding does not
# show in solutions.
MAX_CONDITIONS = {"float32": 1e3, "float64": 1e9}
# Beyond this, a condition number of products in single precision is rounding itself.
MAX_KNOWN_CONDITION = 1e5
# Squares of numbers near the smallest ones in single precision are lost.
MIN_SINGLE_SQUARE = 1e-30
# The factor of more columns takes minutes to combine, unless rows are few.
MAX_FACTOR_COLUMNS = 5000


@dataclass(frozen=True)
class ProductKind:
    """A way to sum up products: cross products, or a factor of the rows.

    `of_rows` returns the result of the rows of a block with targets and weights, and `combine`
    combines the results of two blocks.
    """

    of_rows: Callable[[Block, Array, Array | None], Any]
    combine: Callable[[Any, Any], Any]


GRAM = ProductKind(cross_products, combine_products)
FACTOR = ProductKind(row_factor, combine_row_factors)


def block_products(block: Block, kind: ProductKind) -> Products:
    """Return the products of a block about its own means."""
    products: Products = kind.of_rows(block, targets_of(block), weights_of(block))
    return products


def compute_products(
    rows: RowBlocks, *, centred: bool, alpha: float | np.ndarray = 0.0, has_l1: bool = False
) -> Products:
    """Return the products of all rows, from which least squares with a penalty follow.

    They are `CrossProducts`, or a factor of the rows where the rounding of products would show in
    solutions: that takes a second pass. Both are about the means. `centred` is whether models have
    an intercept; without one, the products about zero must be accurate too. `alpha` is the L2
    penalty, and `has_l1` whether there is an L1 penalty, as in `accurate_products`.
    """

    def reduce_rows(kind: ProductKind, rows: RowBlocks) -> Products:
        whole = products_take_whole(rows) if kind is GRAM else None
        reduction = product_reduction(block_products, rows, kind.combine, whole)
        products: Products = map_reduce(engine_for(rows), reduction, rows, kind)
        check_total_weight(products.weight)
        return products

    def systems(products: Products) -> list[Products]:
        return [products if centred else products.uncentered()]

    return accurate_products(rows, rows.n_rows, reduce_rows, systems, alpha=alpha, has_l1=has_l1)


def accurate_products(
    rows: RowBlocks,
    n_rows: int | None,
    reduce_rows: Callable[[ProductKind, RowBlocks], T],
    systems: Callable[[T], Iterable[Products]],
    *,
    alpha: float | np.ndarray = 0.0,
    has_l1: bool = False,
) -> T:
    """Return products by the cheapest kind of pass whose rounding does not show in solutions.

    `reduce_rows` makes a pass of a kind, and `systems` lists the products in its result that are to
    be solved. Products of single precision are summed up again in double precision where their
    condition number is large, and rows are factorised where products would lose their digits: a
    second pass. Where `n_rows`, those of the smallest training set, are no more than the columns,
    rows are factorised at once. `alpha` is the L2 penalty. `has_l1` says that an L1 penalty keeps
    coefficients from growing along short directions.
    """
    double = replace(rows, dtype=FLOAT64)
    if n_rows is not None and n_rows <= rows.n_features:
        return reduce_rows(FACTOR, double)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = reduce_rows(GRAM, rows)
        least = float(np.min(alpha))
        condition = max(_condition(system, rows, least) for system in systems(sums))
    assert rows.dtype is not None
    is_single = rows.dtype != FLOAT64
    if condition <= MAX_CONDITIONS[rows.dtype.name] or (has_l1 and not is_single):
        return sums
    double = replace(double, checked=True)
    if has_l1 or condition <= MAX_KNOWN_CONDITION or rows.n_features > MAX_FACTOR_COLUMNS:
        return reduce_rows(GRAM, double) if is_single else sums
    return reduce_rows(FACTOR, double)


def _condition(sums: Products, rows: RowBlocks, alpha: float) -> float:
    """Return the condition number of products with a penalty, and columns at unit length."""
    squares = np.diag(sums.gram)
    is_used = squares > 0
    if rows.is_sparse and rows.n_features:
        # Means are taken off these products, and leave their rounding.
        assert rows.dtype is not None
        rounding = np.finfo(rows.dtype).eps * sums.weight * sums.x_mean**2
        if (squares + alpha < MAX_CONDITIONS["float32"] * rounding).any():
            return np.inf
    if rows.dtype != FLOAT64 and (squares[is_used] < MIN_SINGLE_SQUARE).any():
        return np.inf
    unit, _ = equilibrate(sums.gram + alpha * np.eye(len(squares)))
    # Constant columns do not matter to others.
    unit[np.diag_indices_from(unit)] = 1.0
    if not np.isfinite(unit).all():
        return np.inf
    root, failure = linalg.lapack.dpotrf(unit, lower=1)
    if failure:
        return np.inf
    reciprocal = linalg.lapack.dpocon(root, np.abs(unit).sum(axis=0).max(initial=0.0), uplo="L")[0]
    return 1 / reciprocal if reciprocal > 0 else np.inf
