"""Scaling by medians and quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.utils.validation import FLOAT_DTYPES, validate_data

from skfleet._array import is_not_numpy
from skfleet.blocks import Block
from skfleet.engine import Passes, SmallFitMixin
from skfleet.estimators._array_api_blocks import ARRAY_API_METHODS, valid_floats
from skfleet.estimators._blockwise import BlockwiseTransformer, blockwise
from skfleet.estimators.preprocessing._scalers import StandardScaler
from skfleet.quantiles import column_quantiles


@blockwise
class RobustScaler(SmallFitMixin, BlockwiseTransformer, preprocessing.RobustScaler):
    """On Dask rows ``fit`` is two passes: the quantiles are exact.

    The first one brings a sample of the rows to this process, the second one the values near the
    quantiles. Dask arrays of CuPy's are sorted and transformed on their device.
    """

    _device_methods = ARRAY_API_METHODS
    _is_repeated = True

    def _device_result(self, method: str, X: Any) -> Any:
        # scikit-learn computes the same on a device
        scaler = StandardScaler(with_mean=self.with_centering, with_std=self.with_scaling)
        scaler.n_features_in_, scaler.mean_ = self.n_features_in_, self.center_
        scaler.scale_ = scaler.var_ = self.scale_
        return scaler._device_result(method, X)

    def _columns(self, block: Block) -> tuple[Any, None]:
        if is_not_numpy(block.X):
            return valid_floats(self, block.X), None
        X = validate_data(
            self,
            block.X,
            accept_sparse="csc",
            dtype=FLOAT_DTYPES,
            ensure_all_finite="allow-nan",
        )
        return X, None

    def _fit_passes(self, meta: Any) -> Passes:
        # raises for an invalid range
        preprocessing.RobustScaler(quantile_range=self.quantile_range).fit(np.zeros((1, 1)))
        levels, methods = [50, *self.quantile_range], ["median", "linear", "linear"]
        first, end = 0 if self.with_centering else 1, 3 if self.with_scaling else 1
        summary, quantiles = yield from column_quantiles(
            f"fit-{type(self).__name__}",
            clone(self)._columns,
            levels[first:end],
            methods[first:end],
        )
        self.center_ = self.scale_ = None
        if self.with_centering:
            self.center_ = quantiles[0].astype(summary.low.dtype)
        if self.with_scaling:
            # scikit-learn's own fit on two rows with these extremes
            rows = preprocessing.RobustScaler(with_centering=False, quantile_range=(0, 100))
            self.scale_ = rows.fit(quantiles[-2:]).scale_
            if self.unit_variance:
                low, high = (stats.norm.ppf(level / 100.0) for level in self.quantile_range)
                self.scale_ = self.scale_ / (high - low)
