"""Selection of columns by their variance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn import feature_selection
from sklearn.utils import check_array
from sklearn.utils.sparsefuncs import mean_variance_axis, min_max_axis

from skfleet._linalg import is_sparse
from skfleet.blocks import Block
from skfleet.estimators._blockwise import BlockwiseTransformer, blockwise


class ColumnSpread(NamedTuple):
    """Number of rows; of each column that of values, their mean, squares about it, and extremes.

    The extremes of a column with NaN are NaN.
    """

    n_rows: int
    n_values: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray


@blockwise
class VarianceThreshold(BlockwiseTransformer, feature_selection.VarianceThreshold):
    """On Dask rows ``fit`` is one pass, in which moments of blocks are merged (Chan et al.)."""

    def _reduce_block(self, block: Block) -> ColumnSpread:
        X: Any = check_array(
            block.X,
            accept_sparse=("csr", "csc"),
            dtype=np.float64,
            ensure_all_finite="allow-nan",
            estimator=self,
            input_name="X",
        )
        if is_sparse(X):
            mean, variance, n_values = mean_variance_axis(X, axis=0, return_sum_weights=True)
            low, high = min_max_axis(X, axis=0)
            is_empty = n_values == 0
            squares = np.where(is_empty, 0.0, variance * n_values)
            return ColumnSpread(
                X.shape[0], n_values, np.where(is_empty, 0.0, mean), squares, low, high
            )
        n_values = np.count_nonzero(~np.isnan(X), axis=0)
        # about the first value, so that the squares of a constant column are zero
        origin = np.nan_to_num(X[0])
        shifted = X - origin
        mean = np.nansum(shifted, axis=0) / np.maximum(n_values, 1)
        squares = np.nansum((shifted - mean) ** 2, axis=0)
        return ColumnSpread(
            X.shape[0], n_values, origin + mean, squares, X.min(axis=0), X.max(axis=0)
        )

    def _combine(self, a: ColumnSpread, b: ColumnSpread) -> ColumnSpread:
        n_values = a.n_values + b.n_values
        fraction = b.n_values / np.maximum(n_values, 1)
        delta = b.mean - a.mean
        return ColumnSpread(
            a.n_rows + b.n_rows,
            n_values,
            a.mean + fraction * delta,
            a.squares + b.squares + a.n_values * fraction * delta**2,
            np.minimum(a.low, b.low),
            np.maximum(a.high, b.high),
        )

    def _set_statistics(self, statistics: ColumnSpread) -> None:
        n_rows, n_values, _, squares, low, high = statistics
        with np.errstate(invalid="ignore"):
            variances = squares / n_values
        if self.threshold == 0:  # a range of zero is exact
            variances = np.fmin(variances, high - low)
        if not (variances > self.threshold).any():
            rows = np.zeros((min(n_rows, 2), 1))
            feature_selection.VarianceThreshold(self.threshold).fit(rows)  # its error
        self.variances_ = variances
