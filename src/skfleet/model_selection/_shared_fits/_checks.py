"""What families ask of parameters and rows."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse

__all__ = [
    "check_end",
    "check_finite",
    "dense_rows",
    "penalty_problem",
    "refuse_more",
    "seed_problem",
    "size_problem",
]


def penalty_problem(name: str, value: Any) -> str | None:
    """Tell what is wrong with a penalty."""
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Real)
        or not 0 < float(value) < np.inf
    ):
        return f"{name} must be a positive number. Got {value!r} instead"
    return None


def size_problem(name: str, value: Any) -> str | None:
    """Tell what is wrong with a number of members."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        return f"{name} must be a positive integer. Got {value!r} instead"
    return None


def seed_problem(value: Any) -> str | None:
    """Tell why draws cannot be repeated."""
    if not isinstance(value, (int, np.integer)):
        return f"random_state must be an integer. Got {type(value).__name__} instead"
    return None


def refuse_more(fit_params: Mapping[str, Any]) -> None:
    """Raise for parameters of ``fit`` that nobody here knows."""
    if any(value is not None for value in fit_params.values()):
        raise NotImplementedError(f"fit must not be given {', '.join(sorted(fit_params))}")


def dense_rows(X: Any) -> np.ndarray:
    """Give rows as an array of doubles, or raise."""
    if sparse.issparse(X):
        raise NotImplementedError("rows must be dense")
    rows = np.asarray(X)
    if rows.dtype.kind not in "biuf" or rows.dtype.itemsize > 8 or rows.dtype == np.float32:
        raise NotImplementedError(f"rows must be float64 or integers. Got {rows.dtype} instead")
    rows = rows.astype(float, copy=False)
    check_finite(rows)
    return rows


def check_finite(values: np.ndarray) -> None:
    """Raise for what each fit is to refuse by itself."""
    if not np.isfinite(values.sum()):
        raise NotImplementedError("rows and targets must be finite")


def check_end(n_iter: int, max_iter: int) -> None:
    """Raise for a path that was left before its end: others would be left elsewhere."""
    if n_iter >= max_iter:
        raise NotImplementedError(f"it must converge within max_iter={max_iter} iterations")
