"""Fits of transformers on Dask rows and their splits, by the room of the estimators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from skfleet.blocks import RowSet
from skfleet.engine._reduce import Reduction


class FittedTransform(Protocol):
    """Fitted transformers of a pipeline."""

    pipeline: Any

    def prepare_all(self, X: Any) -> Any:
        """Return a transformed Dask collection, lazily."""


class StartedFit(Protocol):
    """A fit of transformers on Dask rows, whose first pass another computation makes too."""

    @property
    def reduction(self) -> Reduction:
        """The first pass, over the blocks as they are."""

    def finish(self, result: Any) -> FittedTransform:
        """Finish the fit with the result of the first pass."""


class SplitFits(Protocol):
    """Fits of pipelines of transformers on Dask rows, and on the training rows of splits."""

    def shares_passes(self, steps: Any) -> bool:
        """Return whether the fits of a pipeline on several splits can share their passes."""

    def fit_on_splits(
        self, fits: Sequence[tuple[Any, RowSet]], X: Any, y: Any
    ) -> list[FittedTransform]:
        """Fit clones of pipelines, each on a set of the rows, in shared passes."""

    def start_fit(self, steps: Any, X: Any, y: Any) -> StartedFit | None:
        """Start to fit a clone of a pipeline; None where it does not begin with a pass."""


_import: list[Callable[[], SplitFits]] = []


def set_split_fits(function: Callable[[], SplitFits]) -> None:
    """Set the function that imports the fits on splits."""
    _import[:] = [function]


def split_fits() -> SplitFits:
    """Return the fits on splits: of estimators, which are imported where there is one to fit."""
    return _import[0]()
