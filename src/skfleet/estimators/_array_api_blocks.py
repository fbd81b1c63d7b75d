"""Blocks of another array library than NumPy (CuPy's), for scikit-learn's estimators."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.utils import check_array

from skfleet._array import (
    FLOAT64,
    astype,
    is_floating,
    is_not_numpy,
    to_device_of,
    to_host_if_array,
    tree_to_host,
)
from skfleet.blocks import Block, is_frame, is_on_device, meta_of

# The methods of an estimator that scikit-learn computes with arrays of any library.
ARRAY_API_METHODS = frozenset(["fit", "transform", "inverse_transform"])


def array_api(X: Any) -> AbstractContextManager[None]:
    """Let scikit-learn compute with arrays of X's library inside a ``with``, if not NumPy's."""
    return config_context(array_api_dispatch=True) if is_not_numpy(X) else nullcontext()


def check_takes_device(estimator: Any, X: Any, method: str) -> None:
    """Raise for Dask rows on a device that a method does not take."""
    if not is_on_device(X):
        return
    frames = is_frame(meta_of(X))
    if method in estimator._device_methods and not frames:
        return
    name = type(estimator).__name__
    advice = "X.to_backend('pandas')" if frames else "X.map_blocks(cupy.asnumpy)"
    raise TypeError(
        f"X must be on the host for {name}.{method} with {estimator}. Got Dask "
        f"{'frames' if frames else 'arrays'} on a device instead. Copy them, with {advice} say."
    )


def reduce_device_block(call: Any, block: Block, *args: Any) -> Any:
    """Return call(block, *args) on the host, computed on the device of the block."""
    weight = to_host_if_array(block.sample_weight)
    weight = None if weight is None else to_device_of(np.asarray(weight), block.X)
    with array_api(block.X):
        return tree_to_host(call(block._replace(sample_weight=weight), *args))


def valid_floats(estimator: Any, X: Any, *, double: bool = False, allow_nan: bool = True) -> Any:
    """Return rows on a device as floats; scikit-learn raises for infinity, and for NaN."""
    X = astype(X, FLOAT64) if double or not is_floating(X) else X
    with array_api(X):
        return check_array(
            X,
            dtype=None,
            ensure_all_finite="allow-nan" if allow_nan else True,
            estimator=estimator,
            input_name="X",
        )


def valid_weights(block: Block) -> Any:
    """Return the weights of a block on a device, or None; scikit-learn raises for infinite ones."""
    if block.sample_weight is None:
        return None
    with array_api(block.sample_weight):
        return check_array(
            block.sample_weight, ensure_2d=False, dtype=None, input_name="sample_weight"
        )


def with_arrays_on_device(model: Any, rows: Any) -> Any:
    """Return a copy of a model whose arrays of numbers are on the device of rows."""
    model = copy.copy(model)
    vars(model).update({name: to_device_of(value, rows) for name, value in vars(model).items()})
    return model


class DeviceModel:
    """A transformer for blocks on a device."""

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def transform(self, X: Any) -> Any:
        """Return a transformed block."""
        return self.transformer._device_result("transform", X)

    def inverse_transform(self, X: Any) -> Any:
        """Return a block transformed back."""
        return self.transformer._device_result("inverse_transform", X)
