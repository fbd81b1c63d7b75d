"""A candidate of an adaptive search with its training state, and the listener of a search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from skfleet.engine import ANY_WORKER, ResourceRequest, Task
from skfleet.model_selection._adaptive._schedules import TrainInstruction
from skfleet.model_selection._adaptive._training_tasks import Failure, Record
from skfleet.model_selection._records._tokenize import content_key, unfitted

_NO_INSTRUCTION = TrainInstruction(-1, 0)


@dataclass
class Candidate:
    """Parameters, model and state of a candidate."""

    number: int
    params: Mapping[str, Any]
    resources: ResourceRequest = ANY_WORKER
    key: str = ""  # name of its models in the checkpoint
    model: Task | None = None  # after the last completed instruction
    n_calls: int = 0
    levels: list[int] = field(default_factory=list)  # numbers of calls at which it was scored
    instruction: TrainInstruction = _NO_INSTRUCTION  # the last one
    best: tuple[TrainInstruction, Record] | None = None  # with the best score
    best_score: float = math.nan
    best_model: Task | None = None
    n_tries: int = 0
    n_lost: int = 0
    may_kill_workers: bool = False
    is_stopped: bool = False
    failure: Failure | None = None


def candidate_key(number: int, params: Mapping[str, Any]) -> str:
    """Return the number of a candidate with a hash of its parameters."""
    return f"{number}-{content_key(unfitted(params))[:12]}"


class Score(NamedTuple):
    """A recorded score, and the number of instructions that were issued before it came."""

    n_instructions: int
    candidate: int
    n_calls: int


class Listener:
    """Receiver of the events of a search; this base class ignores them."""

    def past_scores(self) -> Iterable[Score]:
        """Return the scores in the checkpoint, in the order in which they came."""
        return ()

    def recorded(self, candidate: Candidate, instruction: TrainInstruction) -> Record | None:
        """Return the record of an instruction that need not be executed again, or None."""
        return None

    def on_record(
        self, candidate: Candidate, instruction: TrainInstruction, record: Record
    ) -> None:
        """Receive a record."""

    def on_stopped(self, candidate: Candidate) -> None:
        """Receive a candidate that is not trained any more."""
