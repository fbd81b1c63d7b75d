"""Scalers from sums and extremes of columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn import preprocessing
from sklearn.base import clone

from skfleet._array import astype, dtype_of, is_not_numpy, namespace
from skfleet._linalg import is_sparse
from skfleet._sklearn_private import scale_from_variance
from skfleet._validation import check_total_weight
from skfleet.blocks import Block
from skfleet.engine import Passes
from skfleet.estimators._array_api_blocks import ARRAY_API_METHODS, valid_floats, valid_weights
from skfleet.estimators._blockwise import BlockwiseTransformer, blockwise
from skfleet.estimators._column_moments import (
    ColumnMoments,
    combine_column_moments,
    count_values,
    extremes_of_values,
    known_moments,
    moments_of_values,
)
from skfleet.estimators._method_dispatch import unchanged_on_failure


@blockwise
class StandardScaler(BlockwiseTransformer, preprocessing.StandardScaler):
    """On Dask rows ``fit`` is one pass, in which moments of blocks are merged (Chan et al.).

    It takes none behind a SimpleImputer of means, which knows the moments of its rows. Dask arrays
    of CuPy's are transformed on their device.
    """

    _device_methods = ARRAY_API_METHODS

    def _reduce_block(self, block: Block) -> ColumnMoments:
        if is_not_numpy(block.X):
            X, weights = valid_floats(self, block.X), valid_weights(block)
            if self.with_mean or self.with_std:
                return moments_of_values(X, weights)
            n = count_values(namespace(X).isnan(X))
            return ColumnMoments(n if weights is None else astype(n, dtype_of(X)), None, None)
        weights = block.sample_weight
        if weights is not None and not np.any(weights):  # which scikit-learn refuses
            part = clone(self).partial_fit(block.X)._statistics()
            if part.mean is None and not is_sparse(block.X):
                return part  # of which scikit-learn counts the rows, whatever their weights
            return ColumnMoments(*(None if v is None else np.zeros(v.shape) for v in part))
        return clone(self).partial_fit(block.X, sample_weight=weights)._statistics()

    def _combine(self, a: ColumnMoments, b: ColumnMoments) -> ColumnMoments:
        return combine_column_moments(a, b)

    def _fit_on_blocks(
        self, X: Any, y: Any = None, sample_weight: Any = None, **options: Any
    ) -> StandardScaler:
        known = known_moments(X) if sample_weight is None else None
        with unchanged_on_failure(self):
            super()._fit_on_blocks(X, y, sample_weight, known=known)
            # the mean of no values is NaN, that of values without weight is not
            if sample_weight is not None and (self.mean_ is None or not np.isnan(self.mean_).all()):
                check_total_weight(np.max(self.n_samples_seen_))
        return self

    def _begin_part_fit(self, meta: Any, cross_fit: bool, known: Any) -> Passes:
        return self._begin_fit(meta, known=known)

    def _fit_passes(self, meta: Any, known: ColumnMoments | None = None) -> Passes:
        if known is None:
            yield from super()._fit_passes(meta)
        else:
            self._set_statistics(known)

    def _statistics(self) -> ColumnMoments:
        width = self.n_features_in_
        n = np.broadcast_to(self.n_samples_seen_, (width,))
        if self.var_ is None:
            return ColumnMoments(n, self.mean_, None)
        return ColumnMoments(n, self.mean_, np.where(n > 0, self.var_ * n, 0.0))

    def _set_statistics(self, statistics: ColumnMoments) -> None:
        n, mean, squares = statistics
        self.n_samples_seen_ = n[0] if n.min() == n.max() else n
        self.mean_ = mean if self.with_mean or self.with_std else None
        self.var_ = self.scale_ = None
        squares = squares if self.with_std else None
        if squares is not None and mean is not None:
            with np.errstate(invalid="ignore"):
                self.var_ = np.where(n > 0, np.maximum(squares, 0.0) / n, np.nan)
            self.scale_ = scale_from_variance(mean, self.var_, self.n_samples_seen_)


class Extremes(NamedTuple):
    """Number of rows, and the least and the greatest value of each column, NaN without any."""

    n_rows: int
    low: np.ndarray
    high: np.ndarray


@blockwise
class MinMaxScaler(BlockwiseTransformer, preprocessing.MinMaxScaler):
    """On Dask rows ``fit`` is one pass.

    Dask arrays of CuPy's are transformed on their device.
    """

    _device_methods = ARRAY_API_METHODS

    def _reduce_block(self, block: Block) -> Extremes:
        if is_not_numpy(block.X):
            return Extremes(block.n_rows, *extremes_of_values(valid_floats(self, block.X)))
        return clone(self).partial_fit(block.X)._statistics()

    def _combine(self, a: Extremes, b: Extremes) -> Extremes:
        n_rows = a.n_rows + b.n_rows
        return Extremes(n_rows, np.fmin(a.low, b.low), np.fmax(a.high, b.high))

    def _statistics(self) -> Extremes:
        return Extremes(self.n_samples_seen_, self.data_min_, self.data_max_)

    def _set_statistics(self, statistics: Extremes) -> None:
        n_rows, low, high = statistics
        # scikit-learn's own fit on two rows of the same extremes
        fitted = preprocessing.MinMaxScaler(**self.get_params()).fit(np.stack([low, high]))
        names = ("data_min_", "data_max_", "data_range_", "scale_", "min_")
        vars(self).update({name: getattr(fitted, name) for name in names}, n_samples_seen_=n_rows)


class LargestMagnitude(NamedTuple):
    """Number of rows, and the largest magnitude of each column, NaN without any."""

    n_rows: int
    max_abs: np.ndarray


@blockwise
class MaxAbsScaler(BlockwiseTransformer, preprocessing.MaxAbsScaler):
    """On Dask rows ``fit`` is one pass.

    Dask arrays of CuPy's are transformed on their device.
    """

    _device_methods = ARRAY_API_METHODS

    def _reduce_block(self, block: Block) -> LargestMagnitude:
        if is_not_numpy(block.X):
            low, high = extremes_of_values(valid_floats(self, block.X))
            return LargestMagnitude(block.n_rows, namespace(low).maximum(-low, high))
        return clone(self).partial_fit(block.X)._statistics()

    def _combine(self, a: LargestMagnitude, b: LargestMagnitude) -> LargestMagnitude:
        return LargestMagnitude(a.n_rows + b.n_rows, np.fmax(a.max_abs, b.max_abs))

    def _statistics(self) -> LargestMagnitude:
        return LargestMagnitude(self.n_samples_seen_, self.max_abs_)

    def _set_statistics(self, statistics: LargestMagnitude) -> None:
        n_rows, max_abs = statistics
        fitted = preprocessing.MaxAbsScaler(**self.get_params()).fit(max_abs[None])
        self.max_abs_, self.scale_, self.n_samples_seen_ = fitted.max_abs_, fitted.scale_, n_rows
