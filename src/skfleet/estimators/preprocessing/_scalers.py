"""Scalers from sums and extremes of columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn import preprocessing
from sklearn.base import clone

from skfleet._sklearn_private import scale_from_variance
from skfleet.blocks import Block
from skfleet.engine import attributes_to_host
from skfleet.estimators._blockwise import BlockwiseTransformer, blockwise
from skfleet.estimators._device_blocks import ARRAY_API_METHODS

# Relative difference of means below which they are taken as equal.
ROUNDING = 8 * np.finfo(np.float64).eps


class ColumnMoments(NamedTuple):
    """Number or weight of the values of each column, their mean, and squares about it."""

    n: np.ndarray
    mean: np.ndarray | None
    squares: np.ndarray | None


@blockwise
class StandardScaler(BlockwiseTransformer, preprocessing.StandardScaler):
    """On Dask rows ``fit`` is one pass, in which moments of blocks are merged (Chan et al.).

    Dask arrays of CuPy's are transformed on their device.
    """

    _device_methods = ARRAY_API_METHODS

    def _reduce_block(self, block: Block) -> ColumnMoments:
        part = clone(self).partial_fit(block.X, sample_weight=block.sample_weight)
        attributes_to_host(part)
        return part._statistics()

    def _combine(self, a: ColumnMoments, b: ColumnMoments) -> ColumnMoments:
        n = a.n + b.n
        if a.mean is None or b.mean is None:
            return ColumnMoments(n, None, None)
        with np.errstate(invalid="ignore", divide="ignore"):
            fraction = np.where(n > 0, b.n / n, 0.0)
        a_mean, b_mean = np.where(a.n > 0, a.mean, b.mean), np.where(b.n > 0, b.mean, a.mean)
        # means of equal values differ by rounding
        is_equal = np.abs(b_mean - a_mean) <= ROUNDING * np.abs(a_mean)
        shift, squares = np.where(is_equal, 0.0, b_mean - a_mean), None
        if a.squares is not None and b.squares is not None:
            between = np.where((a.n > 0) & (b.n > 0), a.n * fraction * shift**2, 0.0)
            squares = a.squares + b.squares + between
        return ColumnMoments(n, a_mean + fraction * shift, squares)

    def _statistics(self) -> ColumnMoments:
        width = self.n_features_in_
        n = np.broadcast_to(self.n_samples_seen_, (width,))
        if self.var_ is None:
            return ColumnMoments(n, self.mean_, None)
        return ColumnMoments(n, self.mean_, np.where(n > 0, self.var_ * n, 0.0))

    def _set_statistics(self, statistics: ColumnMoments) -> None:
        n, mean, squares = statistics
        self.n_samples_seen_ = n[0] if n.min() == n.max() else n
        self.mean_, self.var_, self.scale_ = mean, None, None
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
        part = clone(self).partial_fit(block.X)
        attributes_to_host(part)
        return part._statistics()

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
        part = clone(self).partial_fit(block.X)
        attributes_to_host(part)
        return part._statistics()

    def _combine(self, a: LargestMagnitude, b: LargestMagnitude) -> LargestMagnitude:
        return LargestMagnitude(a.n_rows + b.n_rows, np.fmax(a.max_abs, b.max_abs))

    def _statistics(self) -> LargestMagnitude:
        return LargestMagnitude(self.n_samples_seen_, self.max_abs_)

    def _set_statistics(self, statistics: LargestMagnitude) -> None:
        n_rows, max_abs = statistics
        fitted = preprocessing.MaxAbsScaler(**self.get_params()).fit(max_abs[None])
        self.max_abs_, self.scale_, self.n_samples_seen_ = fitted.max_abs_, fitted.scale_, n_rows
