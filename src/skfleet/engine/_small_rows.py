"""The point at which a fit of small rows on Dask leaves this process (`leave_if_small`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

# Of the fit that runs: whether its rows may be small, or it is known where it runs.
_stage: ContextVar[Literal["outside", "undecided", "decided"]] = ContextVar(
    "skfleet_small_rows", default="outside"
)


class SmallRows(BaseException):
    """Ends a fit that has checked its arguments and begins with its rows, which may be small."""


def leave_if_small() -> None:
    """Leave a fit that asks where to run, if its rows may be small."""
    if _stage.get() == "undecided":
        raise SmallRows


def is_fit_placed() -> bool:
    """Return whether the place of this fit, or of the one around it, is decided."""
    return _stage.get() != "outside"


@contextmanager
def fit_placement(*, is_decided: bool) -> Iterator[None]:
    """Set whether it is decided where the fit inside a ``with`` runs."""
    token = _stage.set("decided" if is_decided else "undecided")
    try:
        yield
    finally:
        _stage.reset(token)
