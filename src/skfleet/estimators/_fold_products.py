"""Sums of products by fold: every split's training and test sums from one pass over the rows."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import reduce
from typing import Any, NamedTuple

from sklearn.model_selection import check_cv

from skfleet._validation import check_total_weight
from skfleet.blocks import Block, Folds, RowBlocks, choose_rows, is_lazy, make_folds, rows_by_part
from skfleet.engine import Reduction, engine_for, map_reduce, with_starts
from skfleet.estimators._products import Products, merge_products, products


class SplitProducts(NamedTuple):
    """The sums of all rows, and for each split those to train on and to test on."""

    total: Products
    splits: list[tuple[Products, Products]]


def split_products(
    rows: RowBlocks, X: Any, y: Any, cv: Any, params: dict[str, Any], *, plain_tests: bool = False
) -> SplitProducts:
    """Return the sums of products of all splits, from one pass.

    With `plain_tests`, rows are tested on without their weights. `params` go to the splitter.
    """
    engine = engine_for(rows)
    with engine.hold(rows) if rows.lengths is None else nullcontext(rows) as rows:
        rows = with_starts(engine, rows)
        seen = (None, None) if is_lazy(X) else (X, y)
        folds = make_folds(check_cv(cv), rows.n_rows, *seen, **params)
        twice = plain_tests and any(block.sample_weight is not None for block in rows.blocks)
        reduction = Reduction(products_by_part, merge_by_part)
        found = map_reduce(engine, reduction, rows, folds, twice)
    total = _merged(weighted for weighted, _ in found.values())
    check_total_weight(total.weight)
    splits = []
    for i, (train, test) in enumerate(folds.splits):
        sums = (
            _merged(found[part][0] for part in train if part in found),
            _merged(found[part][int(twice)] for part in test if part in found),
        )
        for name, one in zip(("train", "test"), sums, strict=True):
            if one is None or one.weight == 0:
                raise ValueError(f"cv must {name} on rows with a weight. Got none in split {i}.")
        splits.append(sums)
    return SplitProducts(total, splits)


def products_by_part(
    block: Block, folds: Folds, twice: bool
) -> dict[int, tuple[Products, Products]]:
    """Return the products of a block's rows by part, with their weights and (if twice) without."""
    found = {}
    for part, chosen in rows_by_part(folds.of(block.start or 0, block.n_rows)):
        here = block if chosen is None else choose_rows(block, chosen)
        weighted = products(here)
        plain = products(here._replace(sample_weight=None)) if twice else weighted
        found[part] = (weighted, plain)
    return found


def merge_by_part(
    a: dict[int, tuple[Products, Products]], b: dict[int, tuple[Products, Products]]
) -> dict[int, tuple[Products, Products]]:
    """Merge the products of two blocks, part by part."""
    merged = a | b
    for part in a.keys() & b.keys():
        weighted = merge_products(a[part][0], b[part][0])
        same = a[part][1] is a[part][0]
        merged[part] = (weighted, weighted if same else merge_products(a[part][1], b[part][1]))
    return merged


def _merged(sums: Iterable[Products]) -> Any:
    """Merge any number of sums, None where there are none."""
    sums = list(sums)
    return reduce(merge_products, sums) if sums else None
