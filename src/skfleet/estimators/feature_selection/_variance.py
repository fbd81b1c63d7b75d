"""Selection of columns by their variance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn import feature_selection
from sklearn.utils import check_array
from sklearn.utils.sparsefuncs import mean_variance_axis, min_max_axis

from skfleet._array import is_not_numpy, namespace
from skfleet._linalg import is_sparse, reduce_down
from skfleet.blocks import Block
from skfleet.estimators._array_api_blocks import valid_floats
from skfleet.estimators._blockwise import BlockwiseTransformer, blockwise
from skfleet.estimators._column_moments import (
    ColumnMoments,
    combine_column_moments,
    moments_of_values,
)
from skfleet.estimators.feature_selection._array_api_selection import select_on_device


class ColumnSpread(NamedTuple):
    """Number of rows, the moments of the values of each column, and its extremes.

    The extremes of a column with NaN are NaN.
    """

    n_rows: int
    moments: ColumnMoments
    low: np.ndarray
    high: np.ndarray


@blockwise
class VarianceThreshold(BlockwiseTransformer, feature_selection.VarianceThreshold):
    """On Dask rows ``fit`` is one pass, in which moments of blocks are merged (Chan et al.).

    Dask arrays of CuPy's are selected from on their device.
    """

    _device_methods = frozenset(["fit", "transform"])

    def _device_result(self, method: str, X: Any) -> Any:
        return select_on_device(self, X)

    def _reduce_block(self, block: Block) -> ColumnSpread:
        if is_not_numpy(block.X):
            return _dense_spread(valid_floats(self, block.X, double=True))
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
            squares = np.where(n_values > 0, variance * n_values, 0.0)
            return ColumnSpread(X.shape[0], ColumnMoments(n_values, mean, squares), low, high)
        return _dense_spread(X)

    def _combine(self, a: ColumnSpread, b: ColumnSpread) -> ColumnSpread:
        return ColumnSpread(
            a.n_rows + b.n_rows,
            combine_column_moments(a.moments, b.moments),
            np.minimum(a.low, b.low),
            np.maximum(a.high, b.high),
        )

    def _set_statistics(self, statistics: ColumnSpread) -> None:
        n_rows, moments, low, high = statistics
        with np.errstate(invalid="ignore"):
            variances = moments.squares / moments.n
        if self.threshold == 0:  # a range of zero is exact
            variances = np.fmin(variances, high - low)
        if not (variances > self.threshold).any():
            rows = np.zeros((min(n_rows, 2), 1))
            feature_selection.VarianceThreshold(self.threshold).fit(rows)  # its error
        self.variances_ = variances


def _dense_spread(X: Any) -> ColumnSpread:
    """Return the moments and extremes of the columns of X, on the device of X."""
    xp = namespace(X)
    low, high = reduce_down(xp.min, X), reduce_down(xp.max, X)
    return ColumnSpread(X.shape[0], moments_of_values(X), low, high)
