"""Fitted preprocessing steps of earlier batches of a search, in the processes of its workers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from skfleet._fall_back import fall_back
from skfleet.engine import Pickled, ProcessShared
from skfleet.model_selection._dispatch._cached_rows import CachedRows


@dataclass(eq=False)
class CachedStep:
    """A fitted step, its output for the training rows, and the seconds that it took."""

    key: bytes
    fitted: Any
    output: CachedRows
    seconds: float
    transformed: dict[str, tuple[CachedRows, float]] = field(default_factory=dict)  # by part


class StepCache(ProcessShared):
    """Fitted preprocessing steps of a search, in any process that unpickles this object.

    When the steps take more than they may, the least recently used are dropped.
    """

    def __init__(self, name: str | None = None) -> None:
        self._steps: OrderedDict[Hashable, CachedStep] = OrderedDict()  # with pickled steps
        self._lock = threading.Lock()
        super().__init__(name)

    def on_split(self, parts: Sequence[Any], max_bytes: int) -> SplitSteps:
        """Return the steps that were fitted on a split, all of which may take so many bytes."""
        return SplitSteps(self, Pickled.dumps(tuple(parts)).digest(), max_bytes)

    def get(self, key: Hashable) -> CachedStep | None:
        """Return a new copy of a step with its outputs, which counts as a use."""
        with self._lock:
            stored = self._steps.get(key)
            if stored is None:
                return None
            self._steps.move_to_end(key)
        return replace(stored, fitted=stored.fitted.loads())

    def add(self, key: Hashable, step: CachedStep, max_bytes: int) -> None:
        """Store a step, unless it cannot be pickled or takes too many bytes."""
        with fall_back("a fitted step that cannot be pickled is not stored"):
            stored = replace(step, fitted=Pickled.dumps(step.fitted))
            if _n_bytes(stored) <= max_bytes:
                with self._lock:
                    self._steps[key] = stored
                self.trim(max_bytes)

    def trim(self, max_bytes: int) -> None:
        """Drop the least recently used steps, until all take no more than so many bytes."""
        with self._lock:
            while sum(map(_n_bytes, self._steps.values())) > max_bytes:
                self._steps.popitem(last=False)

    def close(self) -> None:
        """Drop all steps in this process."""
        with self._lock:
            self._steps.clear()


def _n_bytes(step: CachedStep) -> float:
    """Return the bytes of a pickled step and its outputs; infinite where they are unknown."""
    outputs = [step.output, *(rows for rows, _ in list(step.transformed.values()))]
    return step.fitted.nbytes + sum(rows.n_bytes for rows in outputs)


class SplitSteps(NamedTuple):
    """The steps of a cache that were fitted on the training rows of one split."""

    cache: StepCache
    split: bytes
    max_bytes: int

    def get(self, keys: Hashable) -> CachedStep | None:
        """Return a step by its key and those of the steps before it."""
        return self.cache.get((self.split, keys))

    def add(self, keys: Hashable, step: CachedStep) -> None:
        """Store a step by its key and those of the steps before it."""
        self.cache.add((self.split, keys), step, self.max_bytes)

    def trim(self) -> None:
        """Make room after a step has got another output."""
        self.cache.trim(self.max_bytes)
