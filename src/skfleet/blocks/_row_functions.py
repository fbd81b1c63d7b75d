"""Functions of partitions that do to some rows of one what they do to all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_BY_ROWS: set[Callable[..., Any]] = set()


def by_rows(func: Function) -> Function:
    """Register a function of partitions that makes each row of one row."""
    _BY_ROWS.add(func)
    return func


def is_by_rows(func: Callable[..., object]) -> bool:
    """Return whether a function of partitions is known to make each row of one row."""
    return func in _BY_ROWS
