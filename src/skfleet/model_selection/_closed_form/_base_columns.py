"""Columns of rows before any split: numbers, gaps and categories, and their cross products."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse

from skfleet.blocks import Block, Folds, is_frame
from skfleet.glm import CrossProducts, block_cross_products, combine_products

# Products of more columns take more memory and time than fits.
MAX_COLUMNS = 2000

# A column's label: its kind ("number", "product", "gap" or "category"), its position (-1 of a
# product), and its category (None for missing ones) or the positions of its factors.
Label = tuple[str, int, Hashable]


class LabelledProducts(NamedTuple):
    """Cross products of base columns, by their labels, with the smallest and largest values.

    Also those with weights, where rows have some.
    """

    labels: tuple[Label, ...]
    products: CrossProducts
    low: np.ndarray
    high: np.ndarray
    weighted: CrossProducts | None = None


@dataclass(frozen=True)
class BaseColumns:
    """Columns that all preparations of a search are linear in.

    Numbers less a `pivot` near their means, 0 where they are missing; products of these; a column
    that is 1 where a number is missing; and a column for each category.
    """

    numeric: tuple[int, ...]
    pivot: np.ndarray
    categorical: tuple[int, ...] = ()
    products: tuple[tuple[int, ...], ...] = ()

    def pivot_of(self, labels: Sequence[Label]) -> np.ndarray:
        """Return what was taken off each base column."""
        pivots = dict(zip(self.numeric, self.pivot.tolist(), strict=True))
        return np.array([pivots[j] if kind == "number" else 0.0 for kind, j, _ in labels])

    def of(self, X: Any, centre: bool = False) -> tuple[tuple[Label, ...], Any, np.ndarray]:
        """Return the labels and the values of the base columns of rows, and what is off them.

        That is 0, or with `centre` about the means where the values are sparse: then it would not
        be taken off before they are multiplied.
        """
        labels: list[Label] = [("number", j, None) for j in self.numeric]
        labels += [("product", -1, factors) for factors in self.products]
        # Numbers. Sums of columns show both NaN and infinity without a matrix of flags.
        values = numbers_of(X, self.numeric)
        if not np.isfinite(values.sum(axis=0)).all():
            if np.isinf(values).any():
                raise NotImplementedError("rows must be finite")
            # A gap counts as the pivot, so that it adds 0, and by an indicator of its own.
            values = values - self.pivot
            gaps = np.isnan(values)
            has_gaps = np.flatnonzero(gaps.any(axis=0))
            values[gaps] = 0.0
            indicators = gaps[:, has_gaps].astype(np.float64)
            values = np.hstack([self._with_products(values), indicators])
            labels += [("gap", self.numeric[i], None) for i in has_gaps.tolist()]
        else:
            values = self._with_products(values - self.pivot if self.pivot.any() else values)
        # Numbers alone stay dense. With categories all are sparse, and numbers are centred before.
        shift = np.zeros(len(labels))
        if not self.categorical:
            return tuple(labels), values, shift
        if centre:
            shift = values.mean(axis=0)
            values = values - shift
        parts = [sparse.csr_matrix(values)]
        for j in self.categorical:
            # A column for each category of these rows; labels tell which it is in other blocks.
            column = column_of(X, j)
            codes, categories = pd.factorize(column)
            values_of_column: list[Hashable] = np.asarray(categories).tolist()
            is_missing = codes < 0
            if is_missing.any():
                gaps_of_column = column[is_missing].tolist()
                if not all(isinstance(value, float) or value is pd.NA for value in gaps_of_column):
                    raise NotImplementedError("missing categories must be NaN or NA")
                # A missing value is one more category, as encoders have it.
                codes[is_missing] = len(values_of_column)
                values_of_column.append(None)
            n_rows = len(codes)
            shape = n_rows, len(values_of_column)
            # Exactly one value in each row, so the matrix needs no sorting.
            ones = np.ones(n_rows)
            parts.append(sparse.csr_matrix((ones, codes, np.arange(n_rows + 1)), shape=shape))
            labels += [("category", j, value) for value in values_of_column]
            if len(labels) > MAX_COLUMNS:
                raise NotImplementedError(f"columns and categories must be at most {MAX_COLUMNS}")
        shift = np.append(shift, np.zeros(len(labels) - len(shift)))
        return tuple(labels), sparse.hstack(parts, format="csr"), shift

    def _with_products(self, values: np.ndarray) -> np.ndarray:
        """Return numbers and their products."""
        if not self.products:
            return values
        columns: dict[tuple[int, ...], np.ndarray] = {
            (j,): values[:, i] for i, j in enumerate(self.numeric)
        }
        for factors in self.products:  # those of fewer columns come first
            columns[factors] = columns[factors[:-1]] * columns[factors[-1:]]
        return np.stack(list(columns.values()), axis=1)


def numbers_of(X: Any, positions: Sequence[int]) -> np.ndarray:
    """Return columns of rows as a float64 matrix, rows themselves where they are one."""
    if is_frame(X):
        return X.iloc[:, list(positions)].to_numpy(dtype=np.float64, na_value=np.nan)
    is_whole = list(positions) == list(range(X.shape[1]))
    return (X if is_whole else X[:, list(positions)]).astype(np.float64, copy=False)


def check_precision(X: Any, positions: Sequence[int]) -> None:
    """Raise for columns in single precision, in which steps would compute."""
    kinds = [X.dtypes.iloc[j] if is_frame(X) else X.dtype for j in positions]
    for kind in kinds:
        kind = np.dtype(getattr(kind, "numpy_dtype", kind))
        if kind.kind not in "biuf" or (kind.kind == "f" and kind.itemsize != 8):
            raise NotImplementedError(f"numbers must be float64 or integers. Got {kind} instead")


def column_of(X: Any, position: int) -> np.ndarray:
    """Return a column of rows, with the values of categories."""
    column = X.iloc[:, position] if is_frame(X) else X[:, position]
    return np.asarray(column)


def products_by_group(block: Block, folds: Folds, base: BaseColumns) -> dict[int, LabelledProducts]:
    """Return the cross products of a block's base columns, by groups of rows."""
    labels, values, shift = base.of(block.X, centre=True)
    sums = {}
    for part, rows in folds.cut(block._replace(X=values)):
        low, high = _ranges(rows.X, labels, shift)
        products = _products(rows._replace(sample_weight=None), shift)
        weighted = None if rows.sample_weight is None else _products(rows, shift)
        sums[part] = LabelledProducts(labels, products, low + shift, high + shift, weighted)
    return sums


def _products(rows: Block, shift: np.ndarray) -> CrossProducts:
    """Return cross products of rows that are off their base columns by a shift."""
    weights = rows.sample_weight
    if weights is not None and not (np.isfinite(weights) & (np.asarray(weights) >= 0)).all():
        raise NotImplementedError("sample_weight must be finite, and not negative")
    products = block_cross_products(rows)
    return products._replace(x_mean=products.x_mean + shift)


def _ranges(
    values: Any, labels: Sequence[Label], shift: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest value of each column; of numbers that are not missing."""
    low, high = np.full(len(labels), np.inf), np.full(len(labels), -np.inf)
    n_numbers = sum(label[0] in ("number", "product") for label in labels)
    places = {label[1]: i for i, label in enumerate(labels) if label[0] == "number"}
    numbers = values[:, :n_numbers]
    if sparse.issparse(numbers):
        numbers = numbers.toarray()
    low[:n_numbers], high[:n_numbers] = numbers.min(axis=0), numbers.max(axis=0)
    for i, (kind, j, _) in enumerate(labels):
        if kind == "gap":
            gaps = values[:, [i]].toarray().ravel() if sparse.issparse(values) else values[:, i]
            present = numbers[gaps + shift[i] < 0.5, places[j]]
            low[places[j]] = present.min(initial=np.inf)
            high[places[j]] = present.max(initial=-np.inf)
    return low, high


def combine_groups(
    a: dict[int, LabelledProducts], b: dict[int, LabelledProducts]
) -> dict[int, LabelledProducts]:
    both = a.keys() & b.keys()
    return a | b | {part: combine_labelled(a[part], b[part]) for part in both}


def combine_labelled(a: LabelledProducts, b: LabelledProducts) -> LabelledProducts:
    """Combine the sums of two sets of rows, which may have different categories and gaps."""
    if a.labels != b.labels:
        labels = tuple(dict.fromkeys([*a.labels, *b.labels]))
        a, b = with_labels(a, labels), with_labels(b, labels)
    low, high = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
    products, weighted = combine_products(a.products, b.products), None
    if a.weighted is not None and b.weighted is not None:
        weighted = combine_products(a.weighted, b.weighted)
    return LabelledProducts(a.labels, products, low, high, weighted)


def with_labels(sums: LabelledProducts, labels: tuple[Label, ...]) -> LabelledProducts:
    """Return sums with further columns, which are zero in all these rows."""
    if sums.labels == labels:
        return sums
    places = {label: i for i, label in enumerate(labels)}
    index = np.array([places[label] for label in sums.labels], dtype=int)
    n = len(labels)

    def embedded(products: CrossProducts) -> CrossProducts:
        mean, gram = np.zeros(n), np.zeros((n, n))
        xy = np.zeros((n, products.xy.shape[1]))
        mean[index], xy[index] = products.x_mean, products.xy
        gram[np.ix_(index, index)] = products.gram
        return products._replace(x_mean=mean, gram=gram, xy=xy)

    low, high = np.full(n, np.inf), np.full(n, -np.inf)
    low[index], high[index] = sums.low, sums.high
    weighted = None if sums.weighted is None else embedded(sums.weighted)
    return LabelledProducts(labels, embedded(sums.products), low, high, weighted)
