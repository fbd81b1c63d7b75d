"""Pipelines scored from sums: each split's preparation is algebra on cross products of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

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
    no_algebra,
    prepare_columns,
)
from skfleet.model_selection._shared_fits._registry import (
    ParamSets,
    inherited_shared_fit,
    unsupported_reason,
)

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


class PipelineVariant(NamedTuple):
    """A pipeline with the parameters of some candidates, but for those of its last step."""

    steps: list[Any]  # but the last
    last: Any
    refused: str | None

    @classmethod
    def of(cls, pipeline: Pipeline, params: Mapping[str, Any]) -> PipelineVariant:
        """Return the pipeline with these parameters, or the reason why it is not scored."""
        try:
            pipeline = clone(pipeline).set_params(**clone(dict(params), safe=False))
        except Exception as error:
            return cls([], None, str(error))
        steps, last = [step for _, step in pipeline.steps[:-1]], pipeline.steps[-1][1]
        refused = no_algebra(steps)
        if pipeline.memory is not None or pipeline.transform_input is not None:
            refused = "memory and transform_input must be None"
        return cls(steps, last, refused)

    @property
    def shared_fit(self) -> ScoredFromGram | None:
        """The scores of the last step."""
        shared_fit = inherited_shared_fit(self.last)
        return shared_fit if isinstance(shared_fit, ScoredFromGram) else None


class ScoredPipeline(ScoreOnly):
    """Pipelines whose preparation is algebra, in front of least squares scored from sums.

    The candidates may differ in all parameters, and in their steps.
    """

    def __init__(self, pipeline: Pipeline, candidates: ParamSets) -> None:
        self._pipeline = pipeline
        self._variants: dict[bytes, PipelineVariant] = {}
        self.parameters = tuple(dict.fromkeys(name for params in candidates for name in params))
        for params in candidates:
            self._variant(params)
        scorings = [fit.scorings for v in self._variants.values() if (fit := v.shared_fit)]
        self.scorings = frozenset().union(*scorings)

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Return why a candidate must be fitted, or None if it can be scored."""
        _, variant, own = self._variant(params)
        if variant.refused is not None:
            return variant.refused
        if variant.shared_fit is None:
            return f"the last step must be least squares. Got {type(variant.last).__name__} instead"
        return unsupported_reason(variant.last, own)

    def prepare(
        self, X: Any, y: Any, splits: Sequence[tuple[Any, Any]], n_slots: int
    ) -> PreparedRows:
        """Compute the cross products of the base columns of each fold, in one pass."""
        rows = row_blocks(X, numeric_targets(y), dtype=None)
        head = meta_of(X) if is_lazy(X) else X[:N_HEAD_ROWS]
        scored = [
            (v.steps, v.shared_fit)
            for v in self._variants.values()
            if v.refused is None and v.shared_fit is not None
        ]
        numeric, categorical = input_columns([steps for steps, _ in scored], head)
        check_precision(head, numeric)
        n_columns = len(numeric) + len(categorical)
        for shared_fit in {shared_fit for _, shared_fit in scored}:
            shared_fit.check_rows(rows, n_columns, len(splits), n_slots)
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
        candidates = [self._variant(candidate) for candidate in params]
        for n, (digest, _, _) in enumerate(candidates):
            groups.setdefault(digest, []).append(n)
        scores = np.empty((2, len(scorings), len(prepared.splits), len(params)))
        for group in groups.values():
            variant, last = candidates[group[0]][1], [candidates[n][2] for n in group]
            shared_fit = variant.shared_fit
            assert shared_fit is not None
            accepts_sparse = all(map(shared_fit.accepts_sparse, last))
            for numbers, part in _products(prepared, variant.steps, accepts_sparse).parts():
                scores[np.ix_([0, 1], range(len(scorings)), numbers, group)] = shared_fit.score(
                    part, last, scorings, train_scores=train_scores
                )
        return scores

    def _variant(self, params: Mapping[str, Any]) -> tuple[bytes, PipelineVariant, dict[str, Any]]:
        """Return a candidate's variant, with its digest, and all parameters of its last step."""
        prefix = f"{self._pipeline.steps[-1][0]}__"
        # other steps may have other names
        names = () if "steps" in params else [name for name in params if name.startswith(prefix)]
        first = {name: value for name, value in params.items() if name not in names}
        digest = Pickled.dumps(first).digest()
        if digest not in self._variants:
            self._variants[digest] = PipelineVariant.of(self._pipeline, first)
        variant = self._variants[digest]
        own = {name.removeprefix(prefix): params[name] for name in names}
        if variant.last is not None:
            own = variant.last.get_params(deep=False) | own
        return digest, variant, own


def _products(
    prepared: PreparedRows, steps: Sequence[Any], accepts_sparse: bool
) -> PipelineProducts:
    """Return the cross products of the prepared rows of each split."""
    columns, splits = [], []
    for train, test in prepared.splits:
        pivot = prepared.base.pivot_of(train.labels)
        sums = BaseSums(train.labels, pivot, *train[1:], test.products)
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
