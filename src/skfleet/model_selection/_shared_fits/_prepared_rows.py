"""Cross products of the rows of each split after the first steps of pipelines, from one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
from sklearn.model_selection import check_cv

from skfleet.blocks import Block, Folds, RowBlocks, is_lazy, make_folds, meta_of, row_blocks
from skfleet.engine import Reduction, engine_for, map_reduce, with_row_offsets
from skfleet.model_selection._shared_fits._base_columns import (
    BaseColumns,
    Label,
    LabelledProducts,
    check_precision,
    combine_groups,
    combine_labelled,
    numbers_of,
    products_by_group,
    with_labels,
)
from skfleet.model_selection._shared_fits._column_algebra import BaseSums, LinearColumns
from skfleet.model_selection._shared_fits._from_gram import ScoredFromGram, check_lengths
from skfleet.model_selection._shared_fits._preparation import input_columns, prepare_columns

# Rows by which columns are chosen, and from which the pivots of those with gaps are found.
N_HEAD_ROWS = 1000


@dataclass(frozen=True)
class PreparedRows:
    """Cross products of base columns, of the training and the test set of each split."""

    splits: list[tuple[LabelledProducts, LabelledProducts]]
    base: BaseColumns
    rows: RowBlocks
    folds: Folds
    head: Any  # a few rows


def prepare_rows(
    X: Any,
    y: Any,
    splits: Sequence[tuple[Any, Any]],
    pipelines: Sequence[Sequence[Any]],
    shared_fits: Sequence[ScoredFromGram],
    n_slots: int,
) -> PreparedRows:
    """Compute the cross products of the base columns of each fold, in one pass.

    `pipelines` are lists of first steps, and `shared_fits` score what follows them.
    """
    if not hasattr(X, "shape"):
        X = np.asarray(X)
    kinds = {shared_fit.targets for shared_fit in shared_fits}
    if len(kinds) > 1:
        raise NotImplementedError("models must be all classifiers, or all regressors")
    rows = row_blocks(X, kinds.pop()(y), dtype=None)
    head = meta_of(X) if is_lazy(X) else X[:N_HEAD_ROWS]
    numeric, categorical = input_columns(pipelines, head)
    check_precision(head, numeric)
    for shared_fit in shared_fits:
        shared_fit.check_rows(rows, len(numeric) + len(categorical), len(splits), n_slots)
    pivot = np.zeros(len(numeric)) if is_lazy(X) else _pivot(head, numeric)
    base = BaseColumns(numeric, pivot, categorical)
    engine = engine_for(rows)
    rows = with_row_offsets(engine, rows)
    assert rows.n_rows is not None
    data = (None, None) if is_lazy(X) else (X, y)
    folds = make_folds(check_cv(splits), rows.n_rows, *data)
    sums = map_reduce(engine, Reduction(products_by_group, combine_groups), rows, folds, base)
    labels = tuple(dict.fromkeys(label for part in sums.values() for label in part.labels))
    sums = {part: with_labels(value, labels) for part, value in sums.items()}
    sides = [(_joined(sums, train), _joined(sums, test)) for train, test in folds.splits]
    return PreparedRows(sides, base, rows, folds, head)


def products_after(
    prepared: PreparedRows, steps: Sequence[Any], accepts_sparse: bool
) -> PipelineProducts:
    """Return the cross products of the rows of each split after the first steps of a pipeline."""
    columns, splits = [], []
    for train, test in prepared.splits:
        pivot = prepared.base.pivot_of(train.labels)
        sums = BaseSums(train.labels, pivot, *train[1:], test)
        prepared_columns = prepare_columns(steps, sums, prepared.head)
        prepared_columns.check_complete()
        if prepared_columns.is_sparse and not accepts_sparse:
            raise NotImplementedError("prepared rows must be dense")
        columns.append(prepared_columns)
        products_of = prepared_columns.products_of
        splits.append((products_of(train.products), products_of(test.products)))
    check_lengths(splits)
    return PipelineProducts(splits, columns, prepared)


@dataclass(frozen=True)
class PipelineProducts:
    """Cross products of prepared rows; stands in for `SplitProducts`."""

    splits: list[Any]
    columns: list[LinearColumns]
    prepared: PreparedRows

    def parts(self) -> Iterator[tuple[list[int], PipelineProducts]]:
        """Yield splits with as many columns each: some training sets lack a category."""
        widths = [len(columns.offset) for columns in self.columns]
        for width in dict.fromkeys(widths):
            numbers = [j for j, other in enumerate(widths) if other == width]
            folds = self.prepared.folds
            chosen = replace(folds, splits=tuple(folds.splits[j] for j in numbers))
            yield (
                numbers,
                PipelineProducts(
                    [self.splits[j] for j in numbers],
                    [self.columns[j] for j in numbers],
                    replace(self.prepared, folds=chosen),
                ),
            )

    def reduce_models(
        self,
        reduction: Reduction,
        coefs: np.ndarray,
        intercepts: np.ndarray,
        *args: Any,
    ) -> Any:
        """Return a statistic of linear models of each split, from one pass over the rows."""
        prepared, labels = self.prepared, self.prepared.splits[0][0].labels
        pairs = list(zip(coefs, self.columns, strict=True))
        base = np.stack([coef @ columns.dense_matrix for coef, columns in pairs])
        offsets = [coef @ columns.offset for coef, columns in pairs]
        reduction = replace(reduction, per_block=partial(_of_base_columns, reduction.per_block))
        models = labels, base, intercepts + np.stack(offsets)
        return map_reduce(
            engine_for(prepared.rows),
            reduction,
            prepared.rows,
            prepared.folds,
            prepared.base,
            *models,
            *args,
        )


def _of_base_columns(
    per_block: Callable[..., Any],
    block: Block,
    folds: Folds,
    base: BaseColumns,
    labels: tuple[Label, ...],
    coefs: np.ndarray,
    *args: Any,
) -> Any:
    """Return a statistic of a block of rows, of models of base columns."""
    own, values, _ = base.of(block.X)
    index = [labels.index(label) for label in own]
    return per_block(block._replace(X=values), folds, coefs[..., index], *args)


def _pivot(X: Any, positions: Sequence[int]) -> np.ndarray:
    """Return numbers near the means of columns with gaps."""
    values = numbers_of(X, positions)
    if np.isfinite(values).all():
        return np.zeros(len(positions))
    finite = np.where(np.isfinite(values), values, 0.0)
    return finite.sum(axis=0) / np.maximum(np.isfinite(values).sum(axis=0), 1)


def _joined(sums: Mapping[int, LabelledProducts], parts: Sequence[int]) -> LabelledProducts:
    return reduce(combine_labelled, [sums[part] for part in parts if part in sums])
