"""The course that an earlier search took, for one that goes on where it stood."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from skfleet.model_selection._adaptive._trial import Candidate, Score
from skfleet.model_selection._adaptive._worker import Record

__all__ = ["Replay"]


class Replay:
    """Gives scores that are known when they came, as orders are given once more.

    What is ordered next, and what a sampler asks for, may depend on which scores came before. So a
    search takes the same course again as long as all is known, whatever workers there are.

    Parameters
    ----------
    course : iterable of Score
        The scores that are known, as they came.
    """

    def __init__(self, course: Iterable[Score]) -> None:
        self._course = deque(course)
        self._known: dict[tuple[int, int], tuple[Candidate, Record]] = {}

    def add(self, candidate: Candidate, record: Record) -> None:
        """Take the record of an order that was given again."""
        self._known[candidate.number, candidate.order.n_calls] = candidate, record

    def has_orders(self, n_orders: int) -> bool:
        """Say whether more orders than these had been given before the next score came."""
        return bool(self._known or (self._course and self._course[0].n_orders > n_orders))

    def next(self, n_orders: int, *, is_last: bool = False) -> tuple[Candidate, Record] | None:
        """Return the record that came after so many orders; None where another order came first.

        With `is_last` no other order comes first. When the course cannot be taken, because an order
        failed or is another one, records are given at once.
        """
        if self._course and (self._known if is_last else self._course[0].n_orders <= n_orders):
            score = self._course.popleft()
            known = self._known.pop((score.candidate, score.n_calls), None)
            if known is not None:
                return known
            self._course.clear()
        if self._course or not self._known:
            return None
        return self._known.pop(next(iter(self._known)))
