"""Admission of batches to a worker process, one after the other where memory is short."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple


class MemoryAllowance(NamedTuple):
    """Bytes of one fit, and the fits at a time of each worker process by its name."""

    fit: int
    n_fits: Mapping[str, int]


class MemoryGate:
    """Gate of a process: those inside take no more bytes than a budget, or there is only one."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._n_inside = self._bytes_inside = 0

    @contextmanager
    def inside(self, n_bytes: int, budget: int) -> Iterator[None]:
        """Wait until there is room, and hold it inside the ``with``."""
        with self._condition:
            self._condition.wait_for(
                lambda: not self._n_inside or self._bytes_inside + n_bytes <= budget
            )
            self._n_inside += 1
            self._bytes_inside += n_bytes
        try:
            yield
        finally:
            with self._condition:
                self._n_inside -= 1
                self._bytes_inside -= n_bytes
                self._condition.notify_all()


_gate = MemoryGate()


@contextmanager
def memory_allowance(allowance: MemoryAllowance | None, process: str) -> Iterator[None]:
    """Run a fit inside the gate of this process; without an allowance at once."""
    if allowance is None:
        yield
        return
    n_fits = allowance.n_fits.get(process) or min(allowance.n_fits.values())
    with _gate.inside(allowance.fit, n_fits * allowance.fit):
        yield
