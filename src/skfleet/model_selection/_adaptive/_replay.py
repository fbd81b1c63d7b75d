"""Replay of the scores in a checkpoint, in the order in which they first came."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from skfleet.model_selection._adaptive._training_tasks import Record
from skfleet.model_selection._adaptive._trial import Candidate, Score


class Replay:
    """Recorded scores, each replayed after as many instructions as when it first came.

    The next instruction, and the parameters that a sampler chooses, may depend on which scores came
    before. So a resumed search makes the same decisions as long as all scores are in the
    checkpoint, whatever workers there are.
    """

    def __init__(self, past_scores: Iterable[Score]) -> None:
        self._past_scores = deque(past_scores)
        self._records: dict[tuple[int, int], tuple[Candidate, Record]] = {}

    def add(self, candidate: Candidate, record: Record) -> None:
        """Add the record of an instruction that was issued again."""
        self._records[candidate.number, candidate.instruction.n_calls] = candidate, record

    def has_instructions(self, n_instructions: int) -> bool:
        """Return whether more instructions were issued before the next score came."""
        pending = self._past_scores
        return bool(self._records or (pending and pending[0].n_instructions > n_instructions))

    def next(
        self, n_instructions: int, *, is_last: bool = False
    ) -> tuple[Candidate, Record] | None:
        """Return the next record to replay; None if a further instruction was issued before it.

        With `is_last` there is no further instruction. If the search takes another course, because
        an instruction failed or is another one, the records are returned without waiting.
        """
        pending = self._past_scores
        if pending and (self._records if is_last else pending[0].n_instructions <= n_instructions):
            score = pending.popleft()
            record = self._records.pop((score.candidate, score.n_calls), None)
            if record is not None:
                return record
            pending.clear()  # the course has changed: the order of past scores means nothing now
        if pending or not self._records:
            return None
        return self._records.pop(next(iter(self._records)))
