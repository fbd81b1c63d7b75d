"""Missing values of blocks on a device: masks of them, and the values that take their place."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from skfleet._array import FLOAT64, asarray_like, astype, is_floating, namespace, to_host
from skfleet._linalg import hstack, reduce_down, sums_down, take_columns
from skfleet.estimators._array_api_blocks import valid_floats


def has_device_marker(transformer: Any) -> bool:
    """Return whether the values that stand for missing ones are numbers, as a device has them."""
    return isinstance(transformer.missing_values, Real)


def rows_and_mask(transformer: Any, X: Any) -> tuple[Any, Any]:
    """Return the numbers of a block, and which are missing; raise for others that are NaN.

    Integers are made floats where something else than a constant is to take their place.
    """
    marker: Any = transformer.missing_values
    if not is_floating(X) and getattr(transformer, "strategy", "") == "constant":
        return X, astype(X, FLOAT64) == asarray_like(float(marker), astype(X, FLOAT64))
    if np.isnan(marker):
        X = valid_floats(transformer, X)
        return X, namespace(X).isnan(X)
    X = valid_floats(transformer, X, allow_nan=False)
    return X, asarray_like(float(marker), X) == X


def missing_columns(mask: Any) -> np.ndarray:
    """Return which columns of a mask have any, on the host."""
    return to_host(reduce_down(namespace(mask).any, mask))


def two_rows(marker: Any, has_missing: np.ndarray) -> np.ndarray:
    """Return rows on the host of which columns have missing values."""
    value = 1.0 if marker == 0 else 0.0
    return np.where(np.stack([np.zeros_like(has_missing), has_missing]), float(marker), value)


def sums_of_values(X: Any, mask: Any) -> Any:
    """Return the sums of the values of each column that a mask does not mark."""
    return sums_down(namespace(X).where(mask, asarray_like(0.0, X), X))


def without_missing(X: Any, mask: Any) -> Any:
    """Return rows with NaN where values are missing."""
    return namespace(X).where(mask, asarray_like(np.nan, X), X)


def impute_on_device(imputer: Any, X: Any) -> Any:
    """Return a block with a fitted imputer's values in the place of missing ones."""
    X, mask = rows_and_mask(imputer, X)
    xp, fill = namespace(X), np.asarray(imputer.statistics_, dtype=np.float64)
    columns = np.arange(len(fill))
    if not imputer.keep_empty_features:
        columns = np.flatnonzero(~np.isnan(fill))
    values, is_missing = (
        v if len(columns) == len(fill) else take_columns(v, columns) for v in (X, mask)
    )
    result = xp.where(is_missing, asarray_like(fill[columns], X, dtype=X.dtype), values)
    if not imputer.add_indicator:
        return result
    flags = take_columns(mask, imputer.indicator_.features_)
    return hstack([result, xp.astype(flags, result.dtype)])


def indicate_on_device(indicator: Any, X: Any) -> Any:
    """Return the mask of a block's missing values in the columns of a fitted indicator."""
    _, mask = rows_and_mask(indicator, X)
    if indicator.features == "missing-only" and indicator.error_on_new:
        indicator.transform(two_rows(indicator.missing_values, missing_columns(mask)))  # may raise
    return take_columns(mask, indicator.features_)
