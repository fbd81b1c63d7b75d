"""The transformation to a uniform or normal distribution by quantiles."""

from __future__ import annotations

from operator import or_
from typing import Any

import numpy as np
from scipy import sparse
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.utils import check_random_state, resample
from sklearn.utils.validation import FLOAT_DTYPES, validate_data

from skfleet._linalg import is_sparse
from skfleet._warnings import without_warnings
from skfleet.blocks import Block
from skfleet.engine import NamedCall, Passes, Reduction, SmallFitMixin, join_reductions
from skfleet.estimators._blockwise import (
    BlockwiseTransformer,
    blockwise,
    learned_attributes,
    stock_estimator,
)
from skfleet.estimators._drawn_rows import count_lengths, drawn_rows
from skfleet.quantiles import (
    ColumnsOf,
    ColumnSummary,
    column_quantiles,
    quantiles_after,
    summary_reduction,
)


@blockwise
class QuantileTransformer(SmallFitMixin, BlockwiseTransformer, preprocessing.QuantileTransformer):
    """On Dask rows ``fit`` brings scikit-learn's own subsample to this process, in two passes.

    One pass suffices for up to `subsample` rows. Of sparse rows, up to `subsample` values of each
    column are brought. With ``subsample=None`` the quantiles are exact; that takes two passes, or
    three where more values lie near the quantiles than should come to this process.
    """

    _is_repeated = True

    def _columns(self, block: Block) -> tuple[Any, None]:
        X = validate_data(
            self,
            block.X,
            accept_sparse="csc",
            dtype=FLOAT_DTYPES,
            ensure_all_finite="allow-nan",
        )
        if is_sparse(X) and not self.ignore_implicit_zeros and (X.data < 0).any():
            # scikit-learn's own error
            stock_estimator(self, n_quantiles=1).fit(sparse.csc_array([[-1.0]]))
        return X, None

    def _fit_passes(self, meta: Any) -> Passes:
        name, columns_of = f"fit-{type(self).__name__}", clone(self)._columns
        with without_warnings():
            stock_estimator(self).fit(np.zeros((1, 1)))  # raises for too many quantiles
        fitted = stock_estimator(self, subsample=None)
        if self.subsample is None:
            implicit_zeros = not self.ignore_implicit_zeros
            summary = yield summary_reduction(name, columns_of, implicit_zeros=implicit_zeros)
            _fit_references(fitted, summary.n_rows, meta)
            fitted.quantiles_ = yield from quantiles_after(
                name,
                columns_of,
                summary,
                fitted.references_ * 100,
                implicit_zeros=implicit_zeros,
            )
            _fill_empty(fitted.quantiles_, summary, meta)
        elif is_sparse(meta):
            yield from _fit_sparse_sample(self, fitted, name, columns_of, meta)
        else:
            counts = yield count_lengths(name, columns_of, self.subsample)
            rows = counts.all_rows()
            if rows is None:
                indices = resample(
                    np.arange(counts.n_rows),
                    replace=False,
                    n_samples=self.subsample,
                    random_state=self.random_state,
                )
                rows = yield from drawn_rows(name, columns_of, counts.lengths, indices)
            fitted.fit(rows)
        vars(self).update(learned_attributes(fitted))


def _fit_references(
    fitted: preprocessing.QuantileTransformer, n_rows: int, meta: Any
) -> preprocessing.QuantileTransformer:
    """Fit on made-up rows, which sets the levels of the quantiles, and warns as for all rows."""
    rows = np.zeros((min(n_rows, fitted.n_quantiles), 1))
    return fitted.fit(sparse.csc_array(rows) if is_sparse(meta) else rows)


def _fill_empty(quantiles: np.ndarray, summary: ColumnSummary, meta: Any) -> None:
    """Set the quantiles of sparse columns without values, as scikit-learn does."""
    if is_sparse(meta):
        quantiles[:, (summary.n_values == 0) & (summary.n_missing == 0)] = 0.0


def _fit_sparse_sample(
    transformer: QuantileTransformer,
    fitted: preprocessing.QuantileTransformer,
    name: str,
    columns_of: ColumnsOf,
    meta: Any,
) -> Passes:
    """Fit on the values that scikit-learn draws of each sparse column."""
    subsample, ignores_zeros = transformer.subsample, transformer.ignore_implicit_zeros
    explicit = Reduction(NamedCall(name, _count_explicit, columns_of), or_)
    counts, n_explicit = yield join_reductions(
        [count_lengths(name, columns_of, subsample), explicit], name
    )
    rows = counts.all_rows()
    if rows is not None:
        return fitted.fit(rows)
    n_rows, numbers = counts.n_rows, sorted(n_explicit)
    ends = np.cumsum([n_explicit[number] for number in numbers], axis=0)
    totals, generator = ends[-1], check_random_state(transformer.random_state)
    # In the order of the columns from one generator, as scikit-learn draws.
    draws: dict[int, np.ndarray] = {}
    for j in np.flatnonzero(totals > subsample):
        size = subsample if ignores_zeros else subsample * totals[j] // n_rows
        draws[int(j)] = np.sort(generator.choice(totals[j], size=size, replace=False))
    starts = {number: ends[i] - n_explicit[number] for i, number in enumerate(numbers)}
    per_block = NamedCall(name, _take_explicit, columns_of, starts, draws)
    columns = yield Reduction(per_block, _concatenate_columns)
    _fit_references(fitted, n_rows, meta)
    is_drawn = totals > subsample
    quantiles = np.zeros((fitted.n_quantiles_, len(columns)))
    # a column that is drawn from has as many rows as the subsample
    for mask, height, zeros in (
        (~is_drawn, n_rows, not ignores_zeros),
        (is_drawn, subsample, True),
    ):
        chosen = np.flatnonzero(mask)
        if chosen.size:
            part = _csc_of([columns[j] for j in chosen], height)
            fit = column_quantiles(name, _whole, fitted.references_ * 100, implicit_zeros=zeros)
            summary, values = _run_on_block(fit, Block(part))
            _fill_empty(values, summary, meta)
            quantiles[:, chosen] = values
    fitted.quantiles_ = quantiles
    return fitted


def _whole(block: Block) -> tuple[Any, None]:
    return block.X, None


def _run_on_block(fit: Passes, block: Block) -> Any:
    result: Any = None
    while True:
        try:
            reduction: Any = fit.send(result)
        except StopIteration as end:
            return end.value
        result = reduction.finalize(reduction.per_block(block))


def _csc_of(columns: list[np.ndarray], n_rows: int) -> Any:
    lengths = [len(column) for column in columns]
    indices = np.concatenate([np.arange(n) for n in lengths])
    indptr = np.cumsum([0, *lengths])
    return sparse.csc_array(
        (np.concatenate(columns), indices, indptr), shape=(n_rows, len(columns))
    )


def _count_explicit(columns_of: ColumnsOf, block: Block) -> dict[int, np.ndarray]:
    return {block.number: np.diff(columns_of(block)[0].indptr).astype(np.int64)}


def _take_explicit(
    columns_of: ColumnsOf,
    starts: dict[int, np.ndarray],
    draws: dict[int, np.ndarray],
    block: Block,
) -> list[np.ndarray]:
    """Return the drawn values of each column: all, where none are drawn."""
    X, _ = columns_of(block)
    X.sort_indices()
    columns = []
    for j in range(X.shape[1]):
        values = X.data[X.indptr[j] : X.indptr[j + 1]]
        if j in draws:
            places = draws[j] - starts[block.number][j]
            values = values[places[(places >= 0) & (places < len(values))]]
        columns.append(values)
    return columns


def _concatenate_columns(a: list[np.ndarray], b: list[np.ndarray]) -> list[np.ndarray]:
    return [np.concatenate([x, z]) for x, z in zip(a, b, strict=True)]
