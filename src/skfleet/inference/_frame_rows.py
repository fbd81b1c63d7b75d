"""Dask arrays that a transformer makes of a frame, and the index of their rows for predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def set_frame_rows(array: Any, source: Callable[..., Any]) -> None:
    """Record on a Dask array the function that makes a frame's partitions of its rows.

    A partition is a box of rows and their index. Called with True, the function makes them for a
    step that takes columns in parts.
    """
    array._frame_rows = array.name, source


def frame_rows(X: Any) -> Callable[..., Any] | None:
    """Return the function that was recorded of a Dask array; None of any that was changed since."""
    name, source = getattr(X, "_frame_rows", (None, None))
    return source if name is not None and name == X.name else None
