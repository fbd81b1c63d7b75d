"""Simulation of a schedule on any number of workers, without training."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from skfleet.model_selection._adaptive._schedules import Schedule, TrainInstruction


@dataclass
class SimulationResult:
    """Makespan, seconds of work, and the instructions with the times at which they ended."""

    makespan: float = 0.0
    work: float = 0.0
    n_calls: int = 0
    instructions: list[tuple[float, TrainInstruction]] = field(default_factory=list)
    longest: float = 0.0  # seconds of work on one candidate


def simulate(
    schedule: Schedule,
    n_workers: int,
    seconds: Callable[[TrainInstruction, int], float],
    score: Callable[[TrainInstruction], float],
    *,
    until: float = math.inf,
    pending: Iterable[tuple[TrainInstruction, int]] = (),
) -> SimulationResult:
    """Run a schedule on simulated workers without any overhead.

    ``seconds`` is the duration of an instruction, given the number of calls that the candidate had
    before; ``score`` its score, NaN for a failure. None is started after the time ``until``.
    Instructions that the schedule gave before are ``pending``, each with the calls before it.
    """
    result = SimulationResult()
    queue = deque(pending)
    n_calls = {instruction.candidate: n_before for instruction, n_before in queue}
    work_of: dict[int, float] = {}
    running: list[tuple[float, int, TrainInstruction, int]] = []
    clock, n_started = 0.0, 0
    while True:
        while len(running) < n_workers and clock < until:
            instruction = queue.popleft()[0] if queue else schedule.next()
            if instruction is None:
                break
            candidate = instruction.candidate
            n_before = n_calls.get(candidate, 0)
            duration = seconds(instruction, n_before)
            result.work += duration
            work_of[candidate] = work_of.get(candidate, 0.0) + duration
            heapq.heappush(running, (clock + duration, n_started, instruction, n_before))
            n_started += 1
        if not running:
            break
        clock, _, instruction, n_before = heapq.heappop(running)
        n_calls[instruction.candidate] = instruction.n_calls
        result.n_calls += instruction.n_calls - n_before
        result.instructions.append((clock, instruction))
        schedule.on_score(instruction.candidate, score(instruction))
    result.makespan = clock
    result.longest = max(work_of.values(), default=0.0)
    return result
