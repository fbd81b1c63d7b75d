"""What is known of a candidate while it is searched for the best, and who hears of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from skfleet.engine import ANY_WORKER, ResourceRequest, Task
from skfleet.model_selection._adaptive._schedules import Train
from skfleet.model_selection._adaptive._worker import Failure, Record

__all__ = ["Candidate", "Listener", "Score"]

_NO_ORDER = Train(-1, 0)


@dataclass
class Candidate:
    """What is known of a candidate."""

    number: int
    params: Mapping[str, Any]
    resources: ResourceRequest = ANY_WORKER
    model: Task | None = None  # as it was after the last order that was carried out
    n_calls: int = 0
    order: Train = _NO_ORDER  # the last one
    best: tuple[Train, Record] | None = None  # when its score was best
    best_score: float = math.nan
    best_model: Task | None = None  # as it was then, where anybody may ask for it
    seconds: float = math.nan  # of one call
    n_tries: int = 0
    n_lost: int = 0
    is_suspect: bool = False
    is_gone: bool = False  # it is not trained any more
    failure: Failure | None = None


class Score(NamedTuple):
    """That a score came, and how many orders had been given until then."""

    n_orders: int
    candidate: int
    n_calls: int


class Listener:
    """Hears of a search under way; this one does nothing with it."""

    def course(self) -> Iterable[Score]:
        """Return the scores that are known already, as they came."""
        return ()

    def known(self, candidate: Candidate, order: Train) -> Record | None:
        """Return what is known of an order already, so that it need not be carried out."""
        return None

    def on_record(self, candidate: Candidate, order: Train, record: Record) -> None:
        """Take note of a record."""

    def on_gone(self, candidate: Candidate) -> None:
        """Take note of a candidate that will not be trained any more."""
