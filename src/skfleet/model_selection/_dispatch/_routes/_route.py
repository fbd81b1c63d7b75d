"""The protocol of routes, and the outcome of a fit on one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from skfleet._joblib import BatchResult
from skfleet.model_selection._dispatch._requests import FitRequest


class Outcome(NamedTuple):
    """The result of a fit for joblib, and what the progress bar shows of it.

    ``seconds`` are those of the fit without the steps that it shares; None where it was not made.
    It is reused where another fit of the call had its result.
    """

    fit: FitRequest
    result: BatchResult
    seconds: float | None = None
    is_reused: bool = False

    @property
    def is_new(self) -> bool:
        """True for a result that this call has computed."""
        return self.result.ok and self.result.has_run and not self.result.from_checkpoint


class Route(Protocol):
    """A way in which fits get their results."""

    def offer(self, fit: FitRequest) -> bool:
        """Take a fit; return False to leave it to the next route."""
        ...

    def run(self) -> Sequence[Outcome] | None:
        """Return the outcomes of the next fits; None where there is nothing to do here.

        A route whose results arrive later reports them by itself, and returns None.
        """
        ...

    def clear(self) -> list[FitRequest]:
        """Remove the fits that have not begun, with what was prepared for them; return them."""
        ...

    def __bool__(self) -> bool:
        """Return whether fits wait."""
        ...


def offer_in_turn(fits: Iterable[FitRequest], routes: Sequence[Route]) -> None:
    """Offer fits to routes in turn, until one takes them."""
    for fit in fits:
        next(route for route in routes if route.offer(fit))
