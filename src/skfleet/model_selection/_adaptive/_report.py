"""What a search under way tells: its records, its log, and the bar on the screen."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from skfleet._progress import ProgressBar
from skfleet.model_selection._adaptive._candidate import Candidate, Listener
from skfleet.model_selection._adaptive._models import Models
from skfleet.model_selection._adaptive._results import History
from skfleet.model_selection._adaptive._run import Run
from skfleet.model_selection._adaptive._schedules import Train
from skfleet.model_selection._adaptive._train import Record
from skfleet.model_selection._checkpoint import Records, content_key

__all__ = ["Report"]

logger = logging.getLogger("skfleet.model_selection")

# Seconds between two lines of the log.
_LOG_EVERY = 5.0


class Report(Listener):
    """Hears of every record, writes it down, and says how it is going."""

    def __init__(
        self,
        history: History,
        *,
        n_planned: int,
        seconds_of: Callable[[float, int], float],
        bar: ProgressBar | None,
        records: Records | None,
        models: Models | None,
    ) -> None:
        self.history = history
        self.n_calls = 0
        self.run: Run
        self._n_planned, self._seconds_of = n_planned, seconds_of
        self._bar, self._records, self._models = bar, records, models
        self._last_log = time.monotonic()
        self._fit_seconds = 0.0
        self._best: tuple[int, int] | None = None
        self._was_known = False  # whether the record that is to come was read and not made

    def known(self, candidate: Candidate, order: Train) -> Record | None:
        """Return what was recorded of an order by an earlier search."""
        if self._records is None:
            return None
        found = self._records.get(_key(candidate, order))
        self._was_known = found is not None
        return None if found is None else Record(**found)

    def on_record(self, candidate: Candidate, order: Train, record: Record) -> None:
        """Take note of a record."""
        before = self.history.n_calls.get(candidate.number, 0)
        n_new = record.n_calls - before if record.failure is None else 0
        self.history.add(candidate, order, record, self.run.seconds)
        self.n_calls += n_new
        self._fit_seconds += record.fit_time + record.score_time
        if self._records is not None and record.failure is None and not self._was_known:
            self._write(candidate, order, record)
        self._was_known, self._best = False, self._best_now()
        if record.failure is not None:
            logger.warning(
                "candidate %d failed after %d calls of partial_fit and is out: %r",
                candidate.number,
                before,
                record.failure.error,
            )
        logger.debug("candidate %d, %s: %s", candidate.number, order, dict(record.scores))
        if self._bar is not None:
            self._bar.note(str(self))
            self._bar.advance(n_new)
        elif time.monotonic() - self._last_log > _LOG_EVERY:
            self._last_log = time.monotonic()
            logger.info("%s", self.line())

    def _write(self, candidate: Candidate, order: Train, record: Record) -> None:
        """Record a score, and drop the models that nobody will ask for again."""
        assert self._records is not None
        fields = record._asdict() | {"scores": dict(record.scores)}
        self._records.add([(_key(candidate, order), fields)])
        if self._models is None:
            return
        before = self._best
        self._best = self._best_now()
        wanted = {(candidate.number, record.n_calls)}
        wanted |= {self._best} if self._best is not None else set()
        self._models.keep(wanted, candidate.number)
        if before is not None and before != self._best and before[0] != candidate.number:
            other = self.run.candidates[before[0]]
            wanted |= set() if other.is_gone else {(other.number, other.n_calls)}
            self._models.keep(wanted, other.number)

    def on_gone(self, candidate: Candidate) -> None:
        """Drop the recorded model of a candidate that is out, unless it is the best."""
        if self._models is not None:
            best = self._best_now()
            self._models.keep(set() if best is None else {best}, candidate.number)

    def _best_now(self) -> tuple[int, int] | None:
        """Return the number of the best candidate, and after how many calls it was that."""
        best = self.run.best
        return None if best is None or best.best is None else (best.number, best.best[1].n_calls)

    def line(self, *, is_over: bool = False) -> str:
        """Say how it is going, with how long it took or may still take."""
        left = None if is_over else self.seconds_left()
        about = "" if left is None else f", about {_duration(left)} to go"
        return (
            f"{self.n_calls} of {self._n_planned} calls of partial_fit in "
            f"{_duration(self.run.seconds)}; {self}{about}"
        )

    def seconds_left(self) -> float | None:
        """Estimate the seconds to go by the calls so far; None before the first."""
        if not self.n_calls:
            return None
        whole = self._seconds_of(self._fit_seconds / self.n_calls, self.run.n_slots)
        return max(0.0, whole * (1 - self.n_calls / max(1, self._n_planned)))

    def __str__(self) -> str:
        alive = Counter(one.order.rung for one in self.run.candidates.values() if not one.is_gone)
        told = []
        if alive:
            told.append("alive " + "/".join(str(alive[rung]) for rung in range(max(alive) + 1)))
        if self.run.best is not None:
            told.append(f"best {self.run.best.best_score:.4g}")
        return ", ".join(told)


def _key(candidate: Candidate, order: Train) -> str:
    """Name a record: its candidate, with its parameters, and how long it was trained."""
    return f"{candidate.number}-{order.n_calls}-{content_key(dict(candidate.params))[:12]}"


def _duration(seconds: float) -> str:
    """Write seconds as people do."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
