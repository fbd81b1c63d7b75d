"""Imputation from statistics of columns, and indicators of missing values."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn import impute
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from skfleet._array import dtype_of, is_not_numpy
from skfleet._linalg import is_sparse
from skfleet._sklearn_private import rows_to_impute
from skfleet._validation import dtypes_of, is_numeric
from skfleet.blocks import Block, as_collection, with_objects
from skfleet.engine import Passes
from skfleet.estimators._blockwise import (
    BlockwiseTransformer,
    base_class,
    blockwise,
    learned_attributes,
    stock_estimator,
)
from skfleet.estimators._column_moments import (
    ColumnMoments,
    combine_column_moments,
    count_values,
    name_of,
    set_known_moments,
)
from skfleet.estimators.impute._array_api_imputation import (
    has_device_marker,
    impute_on_device,
    indicate_on_device,
    missing_columns,
    rows_and_mask,
    sums_of_values,
    two_rows,
    without_missing,
)
from skfleet.inference import call_transform
from skfleet.quantiles import column_quantiles

STRATEGIES_OF_ANY_DTYPE = ("most_frequent", "constant")


class ColumnFill(NamedTuple):
    """Dtype of rows, and of each column: whether values miss, and the number of the other ones.

    `values` are their sums for the mean, the median, or for the most frequent the number of each;
    `moments` are those of float64 rows for the mean.
    """

    dtype: np.dtype
    is_missing: np.ndarray
    n_values: np.ndarray
    values: Any = None
    is_sparse: bool = False
    n_rows: int = 0
    moments: ColumnMoments | None = None


@blockwise
class SimpleImputer(BlockwiseTransformer, impute.SimpleImputer):
    """On Dask rows ``fit`` is one pass, or two for the exact medians of many rows (seldom three).

    For ``strategy="most_frequent"`` the distinct values of each column, with their counts, come to
    the driver. A callable is not possible. With another strategy and ``missing_values`` that is a
    number, Dask arrays of CuPy's are imputed on their device.
    """

    _state_of_blocks = ("_fitted_rows",)

    @property
    def _device_methods(self) -> frozenset[str]:
        takes = has_device_marker(self) and self.strategy in ("mean", "median", "constant")
        fill = self.fill_value if self.strategy == "constant" else None
        takes &= fill is None or isinstance(fill, Real)
        return frozenset(["fit", "transform"] if takes else [])

    _as_read = staticmethod(with_objects)

    def _device_result(self, method: str, X: Any) -> Any:
        return impute_on_device(self, X)

    @property
    def _is_repeated(self) -> bool:
        return bool(self.strategy == "median")

    @property
    def _takes_numbers(self) -> bool:
        return self.strategy not in STRATEGIES_OF_ANY_DTYPE

    def _check_meta(self, meta: Any, *, reset: bool) -> None:
        if reset and callable(self.strategy):
            raise TypeError(
                "strategy must be 'mean', 'median', 'most_frequent' or 'constant' for Dask rows. "
                f"Got {self.strategy!r} instead, which needs whole columns. Choose one of these, "
                "or compute X."
            )
        try:
            super()._check_meta(meta, reset=reset)
        except ValueError as error:
            if "could not convert" not in str(error):
                raise
            message = f"Cannot use {self.strategy} strategy with non-numeric data:\n{error}"
            raise ValueError(message) from None
        if reset:
            _check_dtypes(self, meta)

    def _fit_passes(self, meta: Any) -> Passes:
        if self.strategy != "median":
            yield from super()._fit_passes(meta)
            return
        name, columns_of = f"fit-{type(self).__name__}", clone(self)._columns
        summary, medians = yield from column_quantiles(name, columns_of, [50], "median")
        rows, n_values = summary.sample.rows, summary.n_values
        is_missing = n_values < summary.n_rows
        self._set_statistics(
            ColumnFill(rows.dtype, is_missing, n_values, medians[0], is_sparse(rows))
        )

    def _columns(self, block: Block) -> tuple[Any, None]:
        """Return the rows with NaN where values are missing, which have no weights."""
        if is_not_numpy(block.X):
            return without_missing(*rows_and_mask(self, block.X)), None
        X, mask = rows_to_impute(stock_estimator(self, copy=False), with_objects(block.X))
        if not isinstance(self.missing_values, Real) or np.isnan(self.missing_values):
            return X, None
        if is_sparse(X):
            X = X.copy()
            X.data[mask.data] = np.nan
            return X, None
        return np.where(mask, X.dtype.type(np.nan), X), None

    def _reduce_block(self, block: Block) -> ColumnFill:
        if is_not_numpy(block.X):
            X, mask = rows_and_mask(self, block.X)
            sums = sums_of_values(X, mask) if self.strategy == "mean" else None
            return ColumnFill(dtype_of(X), missing_columns(mask), count_values(mask), sums)
        X, mask = rows_to_impute(stock_estimator(self, copy=False), with_objects(block.X))
        n_missing = np.asarray(mask.sum(axis=0)).ravel()
        n_values, is_missing = X.shape[0] - n_missing, n_missing > 0
        if is_sparse(X) and self.strategy == "constant":  # zeros are no values then
            n_values = np.diff(X.indptr) - n_missing
        values: Any = None
        if self.strategy == "mean":
            values = _column_sums(X, mask)
        elif self.strategy == "most_frequent":
            values = _counts_of_sparse(X, mask) if is_sparse(X) else _counts(X, mask)
        fill = ColumnFill(X.dtype, is_missing, n_values, values, is_sparse(X), X.shape[0])
        if self.strategy != "mean" or is_sparse(X) or X.dtype != np.float64:
            return fill
        return fill._replace(moments=_moments(X, mask, n_values, values))

    def _combine(self, a: ColumnFill, b: ColumnFill) -> ColumnFill:
        values: Any = None
        if self.strategy == "mean":
            values = a.values + b.values
        elif self.strategy == "most_frequent":
            values = list(map(_combine_counts, a.values, b.values))
        return ColumnFill(
            np.result_type(a.dtype, b.dtype),
            a.is_missing | b.is_missing,
            a.n_values + b.n_values,
            values,
            a.is_sparse,
            a.n_rows + b.n_rows,
            a.moments and b.moments and combine_column_moments(a.moments, b.moments),
        )

    def _set_statistics(self, statistics: ColumnFill) -> None:
        fitted = stock_estimator(self).fit(self._rows_like(statistics))
        has_value = statistics.n_values > 0
        fill: Any = fitted.statistics_
        if self.strategy == "mean":
            fill[has_value] = statistics.values[has_value] / statistics.n_values[has_value]
        elif self.strategy == "median":
            fill[has_value] = statistics.values[has_value]
        elif self.strategy == "most_frequent":
            for i in np.flatnonzero(has_value):
                fill[i] = self._most_frequent(statistics.values[i])
        vars(self).update(learned_attributes(fitted), _imputed=None)
        is_in_result = has_value | self.keep_empty_features
        if statistics.moments is not None and is_in_result.all() and not self.add_indicator:
            n_rows = np.full(len(fill), float(statistics.n_rows))
            self._imputed = statistics.moments._replace(n=n_rows, mean=fill)

    def _fit_on_blocks(
        self, X: Any, y: Any = None, sample_weight: Any = None, **options: Any
    ) -> SimpleImputer:
        super()._fit_on_blocks(X, y, sample_weight, **options)
        self._fitted_rows = name_of(as_collection(X))
        return self

    def _transform_on_blocks(self, X: Any, copy: Any = None) -> Any:
        output = super()._transform_on_blocks(X)
        if getattr(self, "_fitted_rows", None) == name_of(as_collection(X)):
            set_known_moments(output, self._imputed)
        return output

    def _training_moments(self) -> ColumnMoments | None:
        return self._imputed

    def _rows_like(self, statistics: ColumnFill) -> Any:
        """Return two rows in whose columns values miss, or all of them, as in those of a fit."""
        has_value, is_missing = statistics.n_values > 0, statistics.is_missing
        rows: Any = np.full((2, len(has_value)), self._any_value(statistics.dtype))
        rows = rows.astype(statistics.dtype)
        marker: Any = self.missing_values
        if rows.dtype != object and not isinstance(marker, Real):
            marker = np.nan
        for row, mask in zip(rows, (is_missing & ~has_value, is_missing), strict=True):
            if mask.any():
                row[mask] = marker
        return _stored(rows, has_value | is_missing) if statistics.is_sparse else rows

    def _any_value(self, dtype: np.dtype) -> Any:
        """Return a value of a dtype that is not missing."""
        values = ("", "value") if dtype.kind == "O" else (0, 1)
        is_first = isinstance(self.missing_values, Real | str) and self.missing_values == values[0]
        return values[1] if is_first else values[0]

    def _most_frequent(self, counts: Any) -> Any:
        """Return the value of the highest count, and of several the one that scikit-learn takes."""
        if not isinstance(counts, Counter):
            values, n_rows = counts
            return values[np.argmax(n_rows)]
        highest = max(counts.values())
        tied = [value for value, n_rows in counts.items() if n_rows == highest]
        column = np.empty((len(tied), 1), dtype=object)
        for i, value in enumerate(tied):
            column[i, 0] = value
        return stock_estimator(self, add_indicator=False).fit(column).statistics_[0]

    def _example_rows(self, rows: Any) -> Any:
        if self.strategy in STRATEGIES_OF_ANY_DTYPE:
            return None
        if not hasattr(rows, "columns"):
            return np.ones(rows.shape) if rows.dtype == object else None
        texts = [name for name, dtype in dtypes_of(rows) if str(dtype) == "object"]
        return rows.astype(dict.fromkeys(texts, bool)).astype(dict.fromkeys(texts, float))

    def _inverse_transform_on_blocks(self, X: Any) -> Any:
        check_is_fitted(self)
        if not self.add_indicator:
            return self.inverse_transform(np.empty((0, 0)))  # raises
        return call_transform(self, InverseOfBlocks(self), "inverse_transform", as_collection(X))


class InverseOfBlocks:
    """The inverse of an imputer for a block, in which a column may have missing values only.

    scikit-learn's takes such a column for one that the imputer drops, so one more row says which
    it does drop.
    """

    def __init__(self, imputer: SimpleImputer) -> None:
        self.imputer = imputer

    def inverse_transform(self, X: Any) -> Any:
        imputer = self.imputer
        is_dropped = np.zeros(imputer.n_features_in_, dtype=bool)
        if not imputer.keep_empty_features:
            is_dropped = np.array([value != value for value in imputer.statistics_])
        flags = is_dropped[imputer.indicator_.features_]
        row = np.concatenate([np.zeros(X.shape[1] - len(flags)), flags])
        # a method of scikit-learn's, for rows in this process
        return base_class(type(imputer)).inverse_transform(imputer, np.vstack([X, row]))[:-1]


@blockwise
class MissingIndicator(BlockwiseTransformer, impute.MissingIndicator):
    """On Dask rows ``fit`` is one pass.

    With ``missing_values`` that is a number, and a dense result, Dask arrays of CuPy's are looked
    through on their device.
    """

    _takes_numbers = False
    _as_read = staticmethod(with_objects)

    @property
    def _device_methods(self) -> frozenset[str]:
        takes = has_device_marker(self) and self.sparse is not True
        return frozenset(["fit", "transform"] if takes else [])

    def _device_result(self, method: str, X: Any) -> Any:
        return indicate_on_device(self, X)

    def _check_meta(self, meta: Any, *, reset: bool) -> None:
        super()._check_meta(meta, reset=reset)
        if reset:
            _check_dtypes(self, meta)

    def _reduce_block(self, block: Block) -> dict[str, Any]:
        X = block.X
        if is_not_numpy(X):
            _, mask = rows_and_mask(self, X)
            X = two_rows(self.missing_values, missing_columns(mask))
        return learned_attributes(stock_estimator(self).fit(with_objects(X)))

    def _combine(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        return a | {"features_": np.union1d(a["features_"], b["features_"])}

    def _set_statistics(self, statistics: dict[str, Any]) -> None:
        vars(self).update(statistics)


def _check_dtypes(transformer: Any, meta: Any) -> None:
    """Raise for numbers what scikit-learn raises for a single row of the same dtype."""
    dtypes = [dtype for _, dtype in dtypes_of(meta)]
    if all(isinstance(dtype, np.dtype) and is_numeric(dtype) for dtype in dtypes):
        row: Any = np.ones((1, meta.shape[1]), dtype=np.result_type(*dtypes))
        stock_estimator(transformer).fit(type(meta)(row) if is_sparse(meta) else row)


def _column_sums(X: Any, mask: Any) -> np.ndarray:
    """Return the sums of the values of each column that do not miss."""
    if is_sparse(X):
        X = X.copy()
        X.data[mask.data] = 0
        return np.asarray(X.sum(axis=0, dtype=np.float64)).ravel()
    return X.sum(axis=0, dtype=np.float64, where=~mask)


def _moments(X: Any, mask: Any, n_values: np.ndarray, sums: np.ndarray) -> ColumnMoments:
    """Return the moments of the values of each column that do not miss."""
    mean = np.divide(sums, n_values, out=np.zeros_like(sums), where=n_values > 0)
    return ColumnMoments(n_values, mean, np.square(X - mean).sum(axis=0, where=~mask))


def _counts(X: np.ndarray, mask: np.ndarray) -> list[Any]:
    """Return the distinct values of each column with their counts; of objects, a Counter."""
    columns = [column[~is_missing] for column, is_missing in zip(X.T, mask.T, strict=True)]
    if X.dtype == object:
        return [Counter(column) for column in columns]
    return [np.unique(column, return_counts=True) for column in columns]


def _counts_of_sparse(X: Any, mask: Any) -> list[Any]:
    """Return the distinct values of each column of a CSC matrix with their counts."""
    counts = []
    for low, high in pairwise(X.indptr):
        values = X.data[low:high][~mask.data[low:high]]
        n_zeros = np.array([X.shape[0] - (high - low)])
        n_zeros = n_zeros[n_zeros > 0]
        zeros = np.zeros(len(n_zeros), dtype=X.dtype)
        counts.append(_combine_counts(np.unique(values, return_counts=True), (zeros, n_zeros)))
    return counts


def _combine_counts(a: Any, b: Any) -> Any:
    if isinstance(a, Counter):
        return a + b
    values, inverse = np.unique(np.concatenate([a[0], b[0]]), return_inverse=True)
    n_rows = np.zeros(len(values), dtype=np.int64)
    np.add.at(n_rows, inverse, np.concatenate([a[1], b[1]]))
    return values, n_rows


def _stored(rows: np.ndarray, is_stored: np.ndarray) -> Any:
    """Return two rows as a CSC array that stores, zero or not, the values of the columns."""
    n_stored = np.count_nonzero(is_stored)
    starts = np.concatenate([[0], np.cumsum(2 * is_stored)])
    values = rows[:, is_stored].T.ravel()
    return sparse.csc_array((values, np.tile([0, 1], n_stored), starts), shape=rows.shape)
