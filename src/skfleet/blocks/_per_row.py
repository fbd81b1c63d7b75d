"""Which of the values that come with rows are one per row."""

from __future__ import annotations

from typing import Any

from skfleet.blocks._local import n_rows_of
from skfleet.blocks._outputs import is_lazy, known_n_rows

__all__ = ["split_per_row"]


def split_per_row(params: dict[str, Any], X: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split metadata into what has a value for each row of X, and all other."""
    per_row = {name: value for name, value in params.items() if _is_per_row(name, value, X)}
    return per_row, {name: value for name, value in params.items() if name not in per_row}


def _is_per_row(name: str, value: Any, X: Any) -> bool:
    """Say whether a value is one per row: a Dask collection, or as long as the rows."""
    if is_lazy(value):
        return True
    sized = hasattr(value, "__len__") or bool(getattr(value, "shape", ()))
    if not sized or isinstance(value, str | bytes | dict):
        return False
    n_rows = known_n_rows(X)
    if n_rows is None:
        raise ValueError(
            f"{name} must be a Dask collection for rows of unknown number. Got "
            f"{type(value).__name__} instead. Cut it like X, or make X's lengths known."
        )
    return n_rows_of(value) == n_rows
