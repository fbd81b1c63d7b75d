"""Transformers of rows by themselves, which learn nothing but the columns."""

from __future__ import annotations

from operator import and_
from typing import Any

import numpy as np
from sklearn import preprocessing
from sklearn.utils import check_array

from skfleet._sklearn_private import is_close
from skfleet._validation import dtypes_of
from skfleet._warnings import warn
from skfleet.blocks import Block
from skfleet.engine import Passes
from skfleet.estimators._array_api_blocks import ARRAY_API_METHODS
from skfleet.estimators._blockwise import (
    BlockwiseTransformer,
    blockwise,
    learned_attributes,
    stock_estimator,
)
from skfleet.estimators._fleet_estimator import check_columns


@blockwise
class Normalizer(BlockwiseTransformer, preprocessing.Normalizer):
    """On Dask rows ``fit`` takes no pass.

    Dask arrays of CuPy's are transformed on their device.
    """

    _device_methods = ARRAY_API_METHODS


@blockwise
class Binarizer(BlockwiseTransformer, preprocessing.Binarizer):
    """On Dask rows ``fit`` takes no pass.

    Dask arrays of CuPy's are transformed on their device.
    """

    _device_methods = ARRAY_API_METHODS


@blockwise
class PolynomialFeatures(BlockwiseTransformer, preprocessing.PolynomialFeatures):
    """On Dask rows ``fit`` takes no pass.

    Dask arrays of CuPy's are transformed on their device.
    """

    _device_methods = ARRAY_API_METHODS

    def _fit_passes(self, meta: Any) -> Passes:
        yield from super()._fit_passes(meta)
        fitted = stock_estimator(self).fit(np.zeros((1, meta.shape[1])))
        vars(self).update(learned_attributes(fitted))


@blockwise
class FunctionTransformer(BlockwiseTransformer, preprocessing.FunctionTransformer):
    """On Dask rows the functions are applied to each block, and must take rows by themselves.

    ``fit`` takes no pass, or one if there are both functions to check: about 100 rows of each
    block.
    """

    def _check_meta(self, meta: Any, *, reset: bool) -> None:
        if self.validate:
            super()._check_meta(meta, reset=reset)
        elif reset:
            check_columns(self, meta, reset=True)

    def _fit_passes(self, meta: Any) -> Passes:
        if not self.check_inverse or self.func is None or self.inverse_func is None:
            return
        dtypes = [dtype for _, dtype in dtypes_of(meta)]
        if not all(isinstance(dtype, np.dtype) and dtype.kind in "iufc" for dtype in dtypes):
            raise ValueError(
                "'check_inverse' is only supported when all the elements in `X` is numerical."
            )
        if not (yield self._reduction(combine=and_)):
            warn(
                "The provided functions are not strictly inverse of each other. If you are sure "
                "you want to proceed regardless, set 'check_inverse=False'."
            )

    def _reduce_block(self, block: Block) -> bool:
        """Return whether the functions are inverse on a few rows of a block."""
        X = check_array(block.X, accept_sparse=self.accept_sparse) if self.validate else block.X
        rows, model = X[:: max(1, X.shape[0] // 100)], stock_estimator(self, check_inverse=False)
        back = model.inverse_transform(model.fit(rows).transform(rows))
        return bool(is_close(rows, back))
