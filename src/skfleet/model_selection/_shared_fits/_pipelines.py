"""Pipelines scored from sums: each split's preparation is algebra on cross products of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import check_cv
from sklearn.pipeline import Pipeline

from skfleet.blocks import Block, Folds, RowBlocks, is_lazy, make_folds, meta_of, row_blocks
from skfleet.engine import Pickled, Reduction, engine_for, map_reduce, with_row_offsets
from skfleet.glm import Residuals, combine_residuals, residuals_by_split
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
from skfleet.model_selection._shared_fits._from_gram import (
    ScoredFromGram,
    ScoreOnly,
    check_lengths,
    numeric_targets,
)
from skfleet.model_selection._shared_fits._preparation import (
    input_columns,
    is_algebra,
    prepare_columns,
)
from skfleet.model_selection._shared_fits._registry import ParamSets, SharedFit

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


class ScoredPipeline(ScoreOnly):
    """A pipeline whose preparation is algebra, in front of least squares scored from sums."""

    def __init__(self, pipeline: Pipeline, last: ScoredFromGram) -> None:
        self._pipeline, self._last = pipeline, last
        self.parameters, self.known, self.scorings = last.parameters, last.known, last.scorings

    @classmethod
    def of(cls, pipeline: Pipeline, last: SharedFit) -> ScoredPipeline | None:
        """Return the scores of a pipeline, None where a step is no algebra."""
        steps = [step for _, step in pipeline.steps[:-1]]
        if not is_algebra(steps) or not isinstance(last, ScoredFromGram):
            return None
        return None if pipeline.memory is not None else cls(pipeline, last)

    def prepare(
        self, X: Any, y: Any, splits: Sequence[tuple[Any, Any]], n_slots: int
    ) -> PreparedRows:
        """Compute the cross products of the base columns of each fold, in one pass."""
        rows = row_blocks(X, numeric_targets(y), dtype=None)
        steps = [step for _, step in self._pipeline.steps[:-1]]
        head = meta_of(X) if is_lazy(X) else X[:N_HEAD_ROWS]
        numeric, categorical = input_columns(steps, head)
        check_precision(head, numeric)
        n_columns = len(numeric) + len(categorical)
        self._last.check_rows(rows, n_columns, len(splits), n_slots)
        pivot = np.zeros(len(numeric)) if is_lazy(X) else _pivot(head, numeric)
        base = BaseColumns(numeric, pivot, categorical)
        engine = engine_for(rows)
        rows = with_row_offsets(engine, rows)
        assert rows.n_rows is not None
        data = (None, None) if is_lazy(X) else (X, y)
        folds = make_folds(check_cv(splits), rows.n_rows, *data)
        reduction = Reduction(products_by_group, combine_groups)
        sums = map_reduce(engine, reduction, rows, folds, base)
        labels = tuple(dict.fromkeys(label for part in sums.values() for label in part.labels))
        sums = {part: with_labels(value, labels) for part, value in sums.items()}
        sides = [(_joined(sums, train), _joined(sums, test)) for train, test in folds.splits]
        return PreparedRows(sides, base, rows, folds, head)

    def score(
        self,
        prepared: PreparedRows,
        params: ParamSets,
        scorings: Sequence[str],
        *,
        train_scores: bool,
    ) -> np.ndarray:
        """Score each split and candidate; equal preparations are made once."""
        groups: dict[bytes, list[int]] = {}
        for n, candidate in enumerate(params):
            groups.setdefault(Pickled.dumps(self._cut(candidate)[0]).digest(), []).append(n)
        scores = np.empty((2, len(scorings), len(prepared.splits), len(params)))
        for group in groups.values():
            steps, _ = self._cut(params[group[0]])
            last = [self._cut(params[n])[1] for n in group]
            for numbers, part in self._products(prepared, steps, last).parts():
                scores[np.ix_([0, 1], range(len(scorings)), numbers, group)] = self._last.score(
                    part, last, scorings, train_scores=train_scores
                )
        return scores

    def _cut(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the searched parameters of the first steps, and all those of the last one."""
        name, estimator = self._pipeline.steps[-1]
        prefix = f"{name}__"
        own = {k.removeprefix(prefix): v for k, v in params.items() if k.startswith(prefix)}
        steps = {k: v for k, v in params.items() if not k.startswith(prefix)}
        return steps, estimator.get_params(deep=False) | own

    def _products(
        self, prepared: PreparedRows, params: Mapping[str, Any], last: ParamSets
    ) -> PipelineProducts:
        """Return the cross products of the prepared rows of each split."""
        pipeline = clone(self._pipeline).set_params(**params)
        steps = [step for _, step in pipeline.steps[:-1]]
        accepts_sparse = all(map(self._last.accepts_sparse, last))
        columns, splits = [], []
        for train, test in prepared.splits:
            pivot = prepared.base.pivot_of(train.labels)
            sums = BaseSums(train.labels, pivot, *train[1:], test.products)
            sums.check_means()
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

    def residuals(self, coefs: np.ndarray, intercepts: np.ndarray, *, both: bool) -> Any:
        """Return the residuals of linear models, from one pass over the rows."""
        prepared, labels = self.prepared, self.prepared.splits[0][0].labels
        pairs = list(zip(coefs, self.columns, strict=True))
        base = np.stack([coef @ columns.dense_matrix for coef, columns in pairs])
        offsets = [coef @ columns.offset for coef, columns in pairs]
        reduction = Reduction(residuals_of_base, combine_residuals)
        args = prepared.folds, prepared.base, labels, base, intercepts + np.stack(offsets), both
        return map_reduce(engine_for(prepared.rows), reduction, prepared.rows, *args)


def residuals_of_base(
    block: Block,
    folds: Folds,
    base: BaseColumns,
    labels: tuple[Label, ...],
    coefs: np.ndarray,
    intercepts: np.ndarray,
    both: bool,
) -> Residuals:
    """Return the residuals of a block of rows, of models of base columns."""
    own, values, _ = base.of(block.X)
    index = [labels.index(label) for label in own]
    return residuals_by_split(block._replace(X=values), folds, coefs[..., index], intercepts, both)


def _pivot(X: Any, positions: Sequence[int]) -> np.ndarray:
    """Return numbers near the means of columns with gaps."""
    values = numbers_of(X, positions)
    if np.isfinite(values).all():
        return np.zeros(len(positions))
    finite = np.where(np.isfinite(values), values, 0.0)
    return finite.sum(axis=0) / np.maximum(np.isfinite(values).sum(axis=0), 1)


def _joined(sums: Mapping[int, LabelledProducts], parts: Sequence[int]) -> LabelledProducts:
    return reduce(combine_labelled, [sums[part] for part in parts if part in sums])
