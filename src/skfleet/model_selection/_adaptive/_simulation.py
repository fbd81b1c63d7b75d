"""An imagined fleet: what a schedule does on any number of workers, without training."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from skfleet.model_selection._adaptive._schedules import Schedule, Train

__all__ = ["Simulated", "simulate"]


@dataclass
class Simulated:
    """What happened: when it was over, the seconds of work, and the orders as they ended."""

    makespan: float = 0.0
    work: float = 0.0
    n_calls: int = 0
    orders: list[tuple[float, Train]] = field(default_factory=list)
    longest: float = 0.0  # seconds of work on one candidate


def simulate(
    schedule: Schedule,
    n_workers: int,
    seconds: Callable[[Train, int], float],
    score: Callable[[Train], float],
    *,
    until: float = math.inf,
) -> Simulated:
    """Run a schedule on workers that take no time for anything but training.

    Parameters
    ----------
    schedule : Schedule
        It is used up.
    n_workers : int
        How many orders are carried out at once.
    seconds : callable
        How long an order takes for a candidate that has had a number of calls before.
    score : callable
        The score at the end of an order, NaN for a failure.
    until : float, default=inf
        When to stop giving orders.
    """
    told = Simulated()
    had: dict[int, int] = {}
    spent: dict[int, float] = {}
    running: list[tuple[float, int, Train, int]] = []
    clock, n_given = 0.0, 0
    while True:
        while len(running) < n_workers and clock < until:
            order = schedule.next()
            if order is None:
                break
            before = had.get(order.candidate, 0)
            lasts = seconds(order, before)
            told.work += lasts
            spent[order.candidate] = spent.get(order.candidate, 0.0) + lasts
            heapq.heappush(running, (clock + lasts, n_given, order, before))
            n_given += 1
        if not running:
            break
        clock, _, order, before = heapq.heappop(running)
        had[order.candidate] = order.n_calls
        told.n_calls += order.n_calls - before
        told.orders.append((clock, order))
        schedule.on_score(order.candidate, score(order))
    told.makespan = clock
    told.longest = max(spent.values(), default=0.0)
    return told
