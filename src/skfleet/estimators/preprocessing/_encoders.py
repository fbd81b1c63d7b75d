"""Encoders of categories, which are the distinct values of each column."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from skfleet._array import is_not_numpy
from skfleet._sklearn_private import (
    block_categories,
    check_encoder_columns,
    encoded_widths,
    fit_on_categories,
    map_infrequent,
    transform_with_categories,
)
from skfleet.blocks import Block, is_frame, n_rows_of, take_rows
from skfleet.engine import Passes
from skfleet.estimators._blockwise import (
    BlockwiseTransformer,
    base_class,
    blockwise,
    stock_estimator,
)
from skfleet.estimators.preprocessing._array_api_categories import (
    device_categories,
    encode_on_device,
)
from skfleet.estimators.preprocessing._categories import (
    Parts,
    SortedValues,
    add_counts,
    add_parts,
    join_parts,
)
from skfleet.estimators.preprocessing._category_index import (
    CategoryIndex,
    sorted_text,
    text_codes,
)


class ColumnCategories(NamedTuple):
    """Number of rows, and the categories of each column with their counts where needed."""

    n_rows: int
    columns: list[Parts]


class CategoryEncoder(BlockwiseTransformer):
    """Base of transformers of categories, which tasks look up in tables of their process."""

    _takes_numbers = False
    categories: Any
    categories_: Any

    # Overrides scikit-learn's method of this name, which makes a set and a dict of the categories
    # on each call. Its own code reports unknown categories, of the rows that have any.
    def _transform(
        self, X: Any, handle_unknown: str = "error", ignore_category_indices: Any = None, **kwargs
    ) -> tuple[np.ndarray, np.ndarray]:
        options = {"handle_unknown": handle_unknown, **kwargs}
        index = self.categories_
        if not isinstance(index, CategoryIndex):
            options["ignore_category_indices"] = ignore_category_indices
            return base_class(type(self))._transform(self, X, **options)
        validate_data(self, X=X, reset=False, skip_check_array=True)
        codes = np.column_stack(self._look_up(X))
        is_known = codes >= 0
        unknown_rows = np.flatnonzero(~is_known.all(axis=1))
        if len(unknown_rows):
            of_rows = codes[unknown_rows]
            present = [
                known[np.union1d(0, column[column >= 0])]
                for known, column in zip(index, of_rows.T, strict=True)
            ]
            rows = take_rows(X if is_frame(X) else np.asarray(X), unknown_rows)
            transform_with_categories(self, base_class(type(self)), rows, present, options)
            codes[~is_known] = 0
        map_infrequent(self, codes, is_known, ignore_category_indices)
        return codes, is_known

    def _look_up(self, X: Any) -> list[np.ndarray]:
        """Return the codes of each column."""
        index = self.categories_
        codes: dict[int, np.ndarray] = {}
        other_columns = list(range(len(index)))
        if is_frame(X):
            for i in other_columns:
                text = text_codes(X.iloc[:, i])
                if text is not None:
                    codes[i] = index.codes(i, text[0])[text[1]]
            other_columns = [i for i in other_columns if i not in codes]
            X = X.iloc[:, other_columns]
        if other_columns:
            arrays = check_encoder_columns(self, X)
            codes |= {
                i: index.codes(i, values) for i, values in zip(other_columns, arrays, strict=True)
            }
        return [codes[i] for i in range(len(index))]

    def _task_model(self) -> Any:
        model = copy.copy(self._without_local_params())
        model.categories_ = CategoryIndex.for_tasks(self.categories_)
        return model

    def _check_predefined(self, meta: Any) -> None:
        """Raise for predefined categories that no rows of these columns fit."""
        rows = np.zeros((1, meta.shape[1]))
        if self.categories == "auto":
            return
        encoder = preprocessing.OneHotEncoder(categories=self.categories, handle_unknown="ignore")
        if len(self.categories) == meta.shape[1]:
            dtypes = list(meta.dtypes) if is_frame(meta) else [meta.dtype] * meta.shape[1]
            dtypes = [d if isinstance(d, np.dtype) and d.kind in "iufb" else object for d in dtypes]
            columns = [
                np.array([c[0]], dtype=d) for c, d in zip(self.categories, dtypes, strict=True)
            ]
            rows = np.column_stack(columns)
            if is_frame(meta):  # which has a dtype for each column
                rows = type(meta)(dict(enumerate(columns)))
        encoder.fit(rows)

    def _example_rows(self, rows: Any) -> Any:
        first = [categories[:1] for categories in self.categories_]
        n_rows = n_rows_of(rows)
        if is_frame(rows):
            columns = {
                name: np.repeat(values, n_rows)
                for name, values in zip(rows.columns, first, strict=True)
            }
            return type(rows)(columns, index=rows.index)
        example = np.empty((n_rows, len(first)), dtype=object)
        example[:] = [values[0] for values in first]
        return example if rows.dtype == object else example.astype(rows.dtype)

    def _example_result(self, method: str, rows: Any) -> Any:
        model = copy.copy(self)
        model.categories_ = CategoryIndex(self.categories_, n_indexed=1)
        if method == "transform":
            return model.transform(self._example_rows(rows))
        first = np.array([[categories[0] for categories in self.categories_]], dtype=object)
        encoded = copy.deepcopy(model).set_output(transform="default").transform(first)
        has_width = rows.shape[1] == encoded.shape[1]  # else an error
        return self.inverse_transform(encoded if has_width else rows)


class SetOfCategories(CategoryEncoder):
    """Base of encoders whose fit is the categories of each column, and their counts if needed."""

    handle_unknown: str
    min_frequency: Any
    max_categories: Any
    dtype: Any

    @property
    def _device_methods(self) -> frozenset[str]:
        takes = isinstance(self.categories, str) and np.dtype(self.dtype).kind in "biuf"
        takes &= not getattr(self, "sparse_output", False)
        return frozenset(["fit", "transform"] if takes else [])

    def _device_result(self, method: str, X: Any) -> Any:
        return encode_on_device(self, self.transform, X, encoded_widths(self))

    def _fit_passes(self, meta: Any) -> Passes:
        options = {"categories": "auto", "min_frequency": None, "max_categories": None}
        options |= {"drop": None} if hasattr(self, "drop") else {}
        # raises for parameters that no rows fit
        example = stock_estimator(self, **options)
        example.fit(np.zeros((1, meta.shape[1])))
        self._check_predefined(meta)
        self._set_statistics((yield self._reduction()))

    def _needs_counts(self) -> bool:
        return self.min_frequency is not None or self.max_categories is not None

    def _reduce_block(self, block: Block) -> ColumnCategories:
        options = {"min_frequency": None, "max_categories": None}
        encoder = clone(self).set_params(**options)
        if is_not_numpy(block.X):
            of_columns = device_categories(self, block.X, with_counts=self._needs_counts())
            return ColumnCategories(block.n_rows, [[column] for column in of_columns])
        columns = categories_of(encoder, block.X, self.handle_unknown, self._needs_counts())
        return ColumnCategories(block.n_rows, [[column] for column in columns])

    def _combine(self, a: ColumnCategories, b: ColumnCategories) -> ColumnCategories:
        add = add_parts if self.categories == "auto" else add_predefined
        columns = [add(x, y, add_counts) for x, y in zip(a.columns, b.columns, strict=True)]
        return ColumnCategories(a.n_rows + b.n_rows, columns)

    def _set_statistics(self, statistics: ColumnCategories) -> None:
        columns = [join_parts(parts, add_counts) for parts in statistics.columns]
        counts = [column.statistics for column in columns] if self._needs_counts() else None
        categories = [column.values for column in columns]
        fit_on_categories(self, base_class(type(self)), categories, counts, statistics.n_rows)


def categories_of(
    encoder: Any, X: Any, handle_unknown: str, with_counts: bool
) -> list[SortedValues]:
    """Return the categories of each column of rows, with their counts if needed."""
    columns: dict[int, SortedValues] = {}
    if is_frame(X):
        n_columns = X.shape[1]
        is_automatic = isinstance(encoder.categories, str)
        for i in range(n_columns) if is_automatic else ():
            text = text_codes(X.iloc[:, i])
            if text is not None:
                columns[i] = sorted_text(*text, with_counts=with_counts)
        other_columns = [i for i in range(n_columns) if i not in columns]
        X = X.iloc[:, other_columns] if columns else X
    else:
        X = np.asarray(X)
        other_columns = list(range(X.shape[1]))
    if other_columns:
        values, counts = block_categories(encoder, X, handle_unknown, with_counts=with_counts)
        for i, column, n in zip(other_columns, values, counts or [None] * len(values), strict=True):
            columns[i] = SortedValues(column, n)
    return [columns[i] for i in sorted(columns)]


def add_predefined(a: Parts, b: Parts, merge_statistics: Any) -> Parts:
    """Return predefined categories, which are the same in all blocks, with the sums of counts."""
    (x,), (z,) = a, b
    values = x.values
    if x.values.dtype != z.values.dtype:
        values = x.values.astype(np.concatenate([x.values[:0], z.values[:0]]).dtype)
    if x.statistics is None:
        return [SortedValues(values)]
    return [SortedValues(values, x.statistics + z.statistics)]


@blockwise
class OneHotEncoder(SetOfCategories, preprocessing.OneHotEncoder):
    """On Dask rows ``fit`` is one pass, of which the distinct values of columns come to the driver.

    ``transform`` is lazy: an array of sparse chunks, or of dense ones and frames where
    ``sparse_output=False``. Unknown categories are reported for each block. With that and
    ``categories="auto"``, Dask arrays of CuPy's are encoded on their device; the distinct values of
    each block go to the host.
    """


@blockwise
class OrdinalEncoder(SetOfCategories, preprocessing.OrdinalEncoder):
    """On Dask rows ``fit`` is one pass, of which the distinct values of columns come to the driver.

    ``transform`` is lazy. Unknown categories are reported for each block. With
    ``categories="auto"``, Dask arrays of CuPy's are encoded on their device; the distinct values of
    each block go to the host.
    """
