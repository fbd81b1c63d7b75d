"""Fitted preprocessing steps with their outputs, and those of earlier batches of a search."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from skfleet._array import copy_of, is_equal, is_not_numpy
from skfleet._fall_back import fall_back
from skfleet.engine import MMAP_THRESHOLD, Pickled, ProcessShared


class CachedRows:
    """Rows that several fits get, each as an object of its own.

    Small ones are copied. From `MMAP_THRESHOLD` on all objects are read-only views of one memory.
    """

    def __init__(self, rows: Any) -> None:
        # the items of a list may be shared, as in any list that is cut from another
        self._list = rows if type(rows) is list else None
        self._device_rows = rows if is_not_numpy(rows) else None
        is_pickled = self._list is None and self._device_rows is None
        self._pickled = Pickled.dumps(rows if is_pickled else None)
        self.is_read_only = self._pickled.nbytes >= MMAP_THRESHOLD
        self._is_of_copy = False

    @property
    def n_bytes(self) -> float:
        """Bytes of the rows; infinite for a list and for rows on a device."""
        is_pickled = self._list is None and self._device_rows is None
        return self._pickled.nbytes if is_pickled else math.inf

    def copy(self) -> Any:
        """Return an object with these rows."""
        if self._list is not None:
            return list(self._list)
        if self._device_rows is not None:
            return copy_of(self._device_rows)
        return self._pickled.loads(readonly=self.is_read_only)

    def is_content_of(self, rows: Any) -> bool:
        """Return whether a copy of these rows is as it was: a fit or a scorer may write into it."""
        if self._device_rows is not None:
            return is_equal(rows, self._device_rows)
        if not self._is_of_copy:
            # a copy may be pickled in other words than the rows that it is of
            self._pickled, self._is_of_copy = Pickled.dumps(self.copy()), True
        return self._pickled.is_equal(Pickled.dumps(rows))


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
