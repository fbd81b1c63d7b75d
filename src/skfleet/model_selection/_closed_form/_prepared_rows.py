"""Cross products of the rows of each split after the first steps of pipelines, from one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from skfleet.blocks import (
    Block,
    BlockRef,
    Folds,
    RowBlocks,
    as_folds,
    is_frame,
    is_lazy,
    meta_of,
    open_block,
    row_blocks,
    slice_block,
    with_pandas_text,
)
from skfleet.engine import (
    Engine,
    NamedCall,
    Reduction,
    engine_for,
    join_reductions,
    map_reduce,
    with_row_offsets,
)
from skfleet.glm import CrossProducts
from skfleet.model_selection._closed_form._base_columns import (
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
from skfleet.model_selection._closed_form._column_algebra import BaseSums, LinearColumns
from skfleet.model_selection._closed_form._from_gram import ScoredFromGram, check_lengths
from skfleet.model_selection._closed_form._preparation import (
    column_paths,
    input_columns,
    prepare_columns,
)
from skfleet.model_selection._closed_form._weighted_steps import NO_STEPS, WeightedSteps

# Rows from which pivots are computed.
N_HEAD_ROWS = 1000

# Numbers of products of columns that are in memory at a time.
MAX_PIECE = 1 << 24


@dataclass(frozen=True)
class BaseProducts:
    """Cross products of base columns, of the training and the test set of each split."""

    splits: list[tuple[LabelledProducts, LabelledProducts]]
    base: BaseColumns
    rows: RowBlocks
    folds: Folds
    head: Any  # no rows, but columns and types
    results: list[Any]  # of further reductions


def base_products(
    X: Any,
    y: Any,
    splits: Sequence[tuple[Any, Any]],
    pipelines: Sequence[Sequence[Any]],
    shared_fits: Sequence[ScoredFromGram],
    n_slots: int,
    sample_weight: Any = None,
    further: Sequence[Reduction] = (),
) -> BaseProducts:
    """Compute the cross products of the base columns of each fold, in one pass.

    `pipelines` are lists of first steps, and `shared_fits` score what follows them. The pass makes
    further reductions of the rows too.
    """
    if not hasattr(X, "shape"):
        X = np.asarray(X)
    # One pass has one kind of targets: numbers, or indicators of labels.
    kinds = {shared_fit.targets for shared_fit in shared_fits}
    if len(kinds) > 1:
        raise NotImplementedError("models must be all classifiers, or all regressors")
    rows = row_blocks(X, kinds.pop()(y), sample_weight, dtype=None)
    # Columns and types suffice to see what first steps make of the rows, before any pass.
    if is_lazy(X):
        head = with_pandas_text(meta_of(X))
    else:
        head = X.iloc[:0] if is_frame(X) else X[:0]
    columns = input_columns(pipelines, head)
    check_precision(head, columns.numeric)
    n_columns = sum(map(len, columns[:3]))
    # Rows that workers must fit, or would have fitted sooner, are refused.
    for shared_fit in shared_fits:
        shared_fit.check_rows(rows, n_columns, len(splits), n_slots)
    # Pivots near the means keep digits that large offsets would cost.
    engine = engine_for(rows)
    # gaps are columns, and infinite numbers are refused there
    rows = replace(with_row_offsets(engine, rows), checked=True)
    assert rows.n_rows is not None
    pivot = np.zeros(len(columns.numeric))
    if columns.needs_pivot:
        pivot = _pivot(engine, rows, columns.numeric)
    base = BaseColumns(columns.numeric, pivot, columns.categorical, columns.products)
    data = (None, None) if is_lazy(X) else (X, y)
    # Sums by groups of rows, of which the training and the test rows of each split consist.
    folds = as_folds(splits, rows.n_rows, *data)
    products = _with_refusals(_by_pieces(Reduction(products_by_group, combine_groups), base))
    reductions = [
        products,
        *(replace(r, per_block=partial(_of_rows, r.per_block)) for r in further),
    ]
    reduction = join_reductions(reductions, products.name)
    sums, *results = map_reduce(engine, reduction, rows, folds, base)
    # Groups may lack categories that others have: zeros in their sums.
    labels = tuple(dict.fromkeys(label for part in sums.values() for label in part.labels))
    sums = {part: with_labels(value, labels) for part, value in sums.items()}
    sides = [(_joined(sums, train), _joined(sums, test)) for train, test in folds.splits]
    return BaseProducts(sides, base, rows, folds, head, results)


def products_after(
    summary: BaseProducts,
    steps: Sequence[Any],
    accepts_sparse: bool,
    weighted: WeightedSteps = NO_STEPS,
) -> PipelineProducts:
    """Return the cross products of the rows of each split after the first steps of a pipeline."""
    columns, splits, fitted = [], [], []
    paths = column_paths(steps, summary.head)
    for train, test in summary.splits:
        pivot = summary.base.pivot_of(train.labels)
        sums = BaseSums(train.labels, pivot, *train[1:], test, weighted.first)
        prepared_columns = prepare_columns(steps, paths, sums)
        prepared_columns.check_complete()
        if prepared_columns.is_sparse and not accepts_sparse:
            raise NotImplementedError("prepared rows must be dense")
        columns.append(prepared_columns)
        products_of = prepared_columns.products_of
        splits.append((products_of(train.products), products_of(test.products)))
        if weighted.has_last:
            assert train.weighted is not None
            fitted.append(products_of(train.weighted))
    check_lengths(splits)
    return PipelineProducts(splits, fitted or [train for train, _ in splits], columns, summary)


@dataclass(frozen=True)
class PipelineProducts:
    """Cross products of prepared rows; stands in for `SplitProducts`."""

    splits: list[Any]
    fitted: list[CrossProducts]  # of the training sets, weighted as the models are fitted
    columns: list[LinearColumns]
    summary: BaseProducts

    def parts(self) -> Iterator[tuple[list[int], PipelineProducts]]:
        """Yield splits with as many columns each: some training sets lack a category."""
        widths = [len(columns.offset) for columns in self.columns]
        for width in dict.fromkeys(widths):
            numbers = [j for j, other in enumerate(widths) if other == width]
            folds = self.summary.folds
            chosen = replace(folds, splits=tuple(folds.splits[j] for j in numbers))
            yield (
                numbers,
                PipelineProducts(
                    [self.splits[j] for j in numbers],
                    [self.fitted[j] for j in numbers],
                    [self.columns[j] for j in numbers],
                    replace(self.summary, folds=chosen),
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
        summary, labels = self.summary, self.summary.splits[0][0].labels
        pairs = list(zip(coefs, self.columns, strict=True))
        base = np.stack([coef @ columns.dense_matrix for coef, columns in pairs])
        offsets = [coef @ columns.offset for coef, columns in pairs]
        reduction = replace(reduction, per_block=partial(_of_base_columns, reduction.per_block))
        reduction = _by_pieces(reduction, summary.base)
        models = labels, base, intercepts + np.stack(offsets)
        return map_reduce(
            engine_for(summary.rows),
            reduction,
            summary.rows,
            summary.folds,
            summary.base,
            *models,
            *args,
        )


def _of_rows(per_block: Callable[[Block], Any], block: Block, *args: Any) -> Any:
    """Return a statistic of a block that depends on nothing else."""
    return per_block(block)


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


def _by_pieces(reduction: Reduction, base: BaseColumns) -> Reduction:
    """Return a reduction that has the products of columns of a few rows in memory at a time."""
    if not base.products:
        return reduction
    n_rows = max(1, MAX_PIECE // len(base.products))
    return replace(reduction, per_block=partial(_reduce_pieces, reduction, n_rows))


def _reduce_pieces(reduction: Reduction, n_rows: int, block: Block, *args: Any) -> Any:
    """Reduce a block, a number of rows at a time."""
    starts = range(0, block.n_rows, n_rows)
    pieces = (slice_block(block, low, min(low + n_rows, block.n_rows)) for low in starts)
    return reduce(reduction.combine, (reduction.per_block(piece, *args) for piece in pieces))


def _with_refusals(reduction: Reduction) -> Reduction:
    """Return a reduction that raises in the driver what it raises for rows that it does not take.

    A task that failed would be reported, though the fits that are then made may succeed.
    """
    return replace(
        reduction,
        per_block=NamedCall(reduction.name, _reduce_or_refuse, reduction.per_block),
        combine=partial(_combine_or_refuse, reduction.combine),
        finalize=_raise_refusal,
    )


def _reduce_or_refuse(per_block: Callable[..., Any], block: Block, *args: Any) -> Any:
    try:
        return per_block(block, *args)
    except NotImplementedError as refusal:
        return refusal


def _combine_or_refuse(combine: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    refusals = [part for part in (a, b) if isinstance(part, NotImplementedError)]
    return refusals[0] if refusals else combine(a, b)


def _raise_refusal(result: Any) -> Any:
    if isinstance(result, NotImplementedError):
        raise result
    return result


def _pivot(engine: Engine, rows: RowBlocks, positions: Sequence[int]) -> np.ndarray:
    """Return numbers near the means of columns, from the first rows."""
    assert rows.lengths is not None
    blocks = [ref for ref, n in zip(rows.blocks, rows.lengths, strict=True) if n]
    tasks = engine.map(_first_means, [blocks[:1]], positions, name="first-means")
    (pivot,) = engine.gather(tasks)
    return np.asarray(pivot)


def _first_means(block_refs: Sequence[BlockRef], positions: Sequence[int]) -> np.ndarray:
    """Return the means of the first rows of a block, without gaps; 0 for columns of gaps."""
    block = open_block(block_refs[0]._replace(to_device=False))
    values = numbers_of(slice_block(block, 0, min(block.n_rows, N_HEAD_ROWS)).X, positions)
    is_finite = np.isfinite(values)
    sums = np.where(is_finite, values, 0.0).sum(axis=0)
    means: np.ndarray = sums / np.maximum(is_finite.sum(axis=0), 1)
    return means


def _joined(sums: Mapping[int, LabelledProducts], parts: Sequence[int]) -> LabelledProducts:
    return reduce(combine_labelled, [sums[part] for part in parts if part in sums])
