"""The point at which a fit of small rows on Dask leaves this process (`leave_if_small`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

# Of the fit that runs: whether its rows may be small, or it is known where it runs.
_stage: ContextVar[Literal["outside", "undecided", "decided"]] = ContextVar(
    "skfleet_small_rows", default="outside"
)
# Of the rows in the task that has all of them: the number in each of their blocks.
_block_sizes: ContextVar[tuple[int, ...]] = ContextVar("skfleet_block_sizes", default=())


class SmallRows(BaseException):
    """Ends a fit that has checked its arguments and begins with its rows, which may be small."""


def leave_if_small() -> None:
    """Leave a fit that asks where to run, if its rows may be small."""
    if _stage.get() == "undecided":
        raise SmallRows


def is_fit_placed() -> bool:
    """Return whether the place of this fit, or of the one around it, is decided."""
    return _stage.get() != "outside"


def block_sizes_before(n_rows: int) -> list[int] | None:
    """Return the sizes of the blocks that all rows of this task were in; None for other rows."""
    return [*_block_sizes.get()] if sum(_block_sizes.get()) == n_rows else None


@contextmanager
def fit_placement(*, is_decided: bool, block_sizes: Iterable[int] = ()) -> Iterator[None]:
    """Set whether it is decided where the fit inside a ``with`` runs, and its rows' blocks."""
    tokens = _stage.set("decided" if is_decided else "undecided"), _block_sizes.set((*block_sizes,))
    try:
        yield
    finally:
        _stage.reset(tokens[0])
        _block_sizes.reset(tokens[1])
