"""Checks of parameters and data that the shared fits have in common."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse


def name_set(names: str) -> frozenset[str]:
    """Return the names in a text, separated by spaces."""
    return frozenset(names.split())


def invalid_value(params: Mapping[str, Any], **required: Any) -> str | None:
    """Return which parameter has another value than required, or None."""
    for name, value in required.items():
        if params[name] != value:
            return f"{name} must be {value!r}. Got {params[name]!r} instead"
    return None


def invalid_penalty(name: str, value: Any) -> str | None:
    """Return why a penalty is not supported, or None."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < np.inf:
        return f"{name} must be a positive number. Got {value!r} instead"
    return None


def invalid_size(name: str, value: Any) -> str | None:
    """Return why a number of members is not supported, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        return f"{name} must be a positive integer. Got {value!r} instead"
    return None


def invalid_seed(value: Any) -> str | None:
    """Return why a random state does not give repeatable draws, or None."""
    if not isinstance(value, (int, np.integer)):
        return f"random_state must be an integer. Got {type(value).__name__} instead"
    return None


def check_no_fit_params(fit_params: Mapping[str, Any]) -> None:
    """Raise NotImplementedError for parameters of ``fit``."""
    if any(value is not None for value in fit_params.values()):
        raise NotImplementedError(f"fit must not be given {', '.join(sorted(fit_params))}")


def dense_float64(X: Any) -> np.ndarray:
    """Return rows as a float64 array, or raise NotImplementedError."""
    if sparse.issparse(X):
        raise NotImplementedError("rows must be dense")
    rows = np.asarray(X)
    if rows.dtype.kind not in "biuf" or rows.dtype.itemsize > 8 or rows.dtype == np.float32:
        raise NotImplementedError(f"rows must be float64 or integers. Got {rows.dtype} instead")
    rows = rows.astype(float, copy=False)
    check_finite(rows)
    return rows


def check_finite(values: np.ndarray) -> None:
    """Raise NotImplementedError for NaN and infinity, which each fit rejects by itself."""
    if not np.isfinite(values.sum()):
        raise NotImplementedError("rows and targets must be finite")


def check_converged(n_iter: int, max_iter: int) -> None:
    """Raise NotImplementedError for a solver that stopped at `max_iter`.

    A separate fit would stop at another point.
    """
    if n_iter >= max_iter:
        raise NotImplementedError(f"it must converge within max_iter={max_iter} iterations")
