"""Fit parameters with a value per sample: detection and checks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

import numpy as np

from skfleet import _linalg
from skfleet._typing import Rows, Values, Weights
from skfleet._validation import check_target_shape, check_weight_type, n_dims_of, warn_of_column
from skfleet._warnings import warn
from skfleet.blocks._containers import as_sized, n_rows_of
from skfleet.blocks._lazy import is_lazy, n_rows_if_known

# Modules of the frames between a pipeline and the step that it calls directly.
_CALLING_MODULES = (
    "skfleet.estimators",
    "skfleet.engine._fit_progress",
    "skfleet.engine._single_task",
    "skfleet._delegation",
    "sklearn",
    "contextlib",
)


def separate_per_sample(
    params: Mapping[str, Any], X: Rows
) -> tuple[dict[str, Values], dict[str, Any]]:
    """Return the parameters with a value for each row of X, and all other parameters."""
    per_sample = {name: value for name, value in params.items() if _is_per_sample(name, value, X)}
    return per_sample, {name: value for name, value in params.items() if name not in per_sample}


def _is_per_sample(name: str, value: Any, X: Rows) -> bool:
    """Return whether a parameter is a Dask collection or as long as the rows."""
    if is_lazy(value):
        return True
    has_length = hasattr(value, "__len__") or bool(getattr(value, "shape", ()))
    if not has_length or isinstance(value, str | bytes | dict):
        return False
    n_rows = n_rows_if_known(X)
    if n_rows is None:
        raise ValueError(
            f"{name} must be a Dask collection for rows of unknown number. Got "
            f"{type(value).__name__} instead. Cut it like X, or make X's lengths known."
        )
    return n_rows_of(value) == n_rows


def check_per_row(
    X: Rows, y: Values | None, sample_weight: Values | None, per_sample: Mapping[str, Values]
) -> tuple[Rows, Values | None, Values | None, dict[str, Values]]:
    """Return X, y, sample_weight and per_sample, each with an element per row, or raise.

    Dask collections are checked by their metadata only; nothing is computed.
    """
    columns: dict[str, Any] = {"X": X, "y": y, "sample_weight": sample_weight, **per_sample}
    for name, values in columns.items():
        if not is_lazy(values) and (values is not None or name == "X"):
            columns[name] = as_sized(name, values)
    X, y, sample_weight = (columns.pop(name) for name in ("X", "y", "sample_weight"))
    if not (sample_weight is None or is_lazy(sample_weight) or hasattr(sample_weight, "shape")):
        sample_weight = np.asarray(sample_weight)
    if hasattr(type(sample_weight), "shape"):
        check_weight_type(sample_weight)
    return X, y, sample_weight, columns


def target_column(y: Any, *, several: bool = False) -> Any:
    """Return targets of one dimension; of shape (n, 1) the column, with scikit-learn's warning.

    Others of two dimensions are returned if `several` are allowed, or refused.
    """
    if n_dims_of(y) != 2 or y.shape[1] != 1 or _linalg.is_sparse(y):
        check_target_shape(y, several=several)
        return y
    warn_of_column()
    return y.iloc[:, 0] if hasattr(y, "iloc") else y[:, 0]


def warn_of_trip(X: Rows, y: Values | None = None, sample_weight: Weights | None = None) -> None:
    """Warn of rows in this process that were a Dask collection.

    A transformer that supports arrays alone has computed them silently. That shows in targets or
    weights that are still lazy, or in the X of the pipeline around the estimator.
    """
    if is_lazy(X):
        return
    if is_lazy(y) or is_lazy(sample_weight):
        name = "y" if is_lazy(y) else "sample_weight"
        reason = f"{name} is a Dask collection. If a step before has computed X here"
    elif _pipeline_has_lazy_rows():
        reason = "its Pipeline was given a Dask collection. A step before has computed X here"
    else:
        return
    size = n_rows_of(X) * _linalg.row_bytes(X if hasattr(X, "shape") else np.asarray(X)) / 1e6
    warn(
        f"X is in this process ({size:,.1f} MB), and {reason}, a transformer of scikit-learn in a "
        "Pipeline say: take that of skfleet.estimators of the same name, so that rows stay on the "
        "workers."
    )


def _pipeline_has_lazy_rows() -> bool:
    """Return whether the calling pipeline, if any, was called with a Dask collection.

    A step has no reference to its pipeline, so the frames of the call are searched, up to the first
    one of Dask or joblib, which run other calls.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module == "sklearn.pipeline" and is_lazy(frame.f_locals.get("X")):
            return True
        if not module.startswith(_CALLING_MODULES):
            return False
        frame = frame.f_back
    return False
