"""What a search under way tells: its records, its log, and the bar on the screen."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from operator import itemgetter

from skfleet._progress_bar import ProgressBar, format_duration
from skfleet.model_selection._adaptive._loop import Run
from skfleet.model_selection._adaptive._model_store import Models
from skfleet.model_selection._adaptive._results import History
from skfleet.model_selection._adaptive._schedules import Train
from skfleet.model_selection._adaptive._trial import Candidate, Listener, Score
from skfleet.model_selection._adaptive._worker import Record
from skfleet.model_selection._checkpoint import Checkpoint, checkpoint_line
from skfleet.model_selection._tokenize import content_key, unfitted

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
        records: Checkpoint | None,
        models: Models | None,
        verbose: int = 0,
    ) -> None:
        self.history = history
        self.n_calls = 0
        self.run: Run
        self._n_planned, self._seconds_of = n_planned, seconds_of
        self._bar, self._records, self._models = bar, records, models
        self._verbose, self._has_resumed = verbose, False
        self._last_log = time.monotonic()
        self._fit_seconds = 0.0
        self._best: tuple[int, int] | None = None
        self._n_scores = 0  # that were recorded
        self._known: set[tuple[int, int]] = set()  # orders whose records were read and not made

    def known(self, candidate: Candidate, order: Train) -> Record | None:
        """Return what was recorded of an order by an earlier search."""
        if self._records is None:
            return None
        found = self._records.get(_key(candidate, order))
        if found is None:
            return None
        self._known.add((candidate.number, order.n_calls))
        return Record(**{name: found[name] for name in Record._fields})

    def course(self) -> list[Score]:
        """Return the scores that an earlier search recorded, as they came."""
        found = [] if self._records is None else list(self._records)
        found.sort(key=itemgetter("n_scores"))
        self._n_scores = 1 + max((one["n_scores"] for one in found), default=-1)
        return [Score(one["n_orders"], one["candidate"], one["order"]) for one in found]

    def on_record(self, candidate: Candidate, order: Train, record: Record) -> None:
        """Take note of a record."""
        before = self.history.n_calls.get(candidate.number, 0)
        n_new = record.n_calls - before if record.failure is None else 0
        self.history.add(candidate, order, record, self.run.seconds)
        self.n_calls += n_new
        self._fit_seconds += record.fit_time + record.score_time
        was_known = (candidate.number, order.n_calls) in self._known
        if self._records is not None and record.failure is None and not was_known:
            self._write(candidate, order, record)
        if was_known:
            self.history.n_checkpoint_calls += n_new
        else:
            self.tell_checkpoint()
        if record.failure is not None:
            logger.warning(
                "candidate %d failed after %d calls of partial_fit and is out: %r",
                candidate.number,
                before,
                record.failure.error,
            )
        logger.debug("candidate %d, %s: %s", candidate.number, order, dict(record.scores))
        if self._verbose > 1:
            print(score_line(candidate, record))
        if self._bar is not None:
            self._bar.set_total(self.n_expected - self.history.n_checkpoint_calls)
            self._bar.set_status(str(self), self.seconds_left())
            self._bar.advance(0 if was_known else n_new)
        elif time.monotonic() - self._last_log > _LOG_EVERY:
            self._last_log = time.monotonic()
            logger.info("%s", self.line())
        self._best = self._best_now()

    def tell_checkpoint(self) -> None:
        """Say once how much came from the checkpoint, when what remains begins to be made."""
        if self._has_resumed or not self.history.n_checkpoint_calls:
            return
        self._has_resumed = True
        text = checkpoint_line(
            self.history.n_checkpoint_calls, self._n_planned, "calls of partial_fit"
        )
        logger.info("%s", text)
        if self._verbose:
            print(text)

    def _write(self, candidate: Candidate, order: Train, record: Record) -> None:
        """Record a score, and drop the models that nobody will ask for again."""
        assert self._records is not None
        course = {"n_scores": self._n_scores, "n_orders": self.run.n_orders}
        course |= {"candidate": candidate.number, "order": order.n_calls}
        fields = record._asdict() | {"scores": dict(record.scores)} | course
        self._n_scores += 1
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
            if not other.is_gone:  # a worker may be further than its last score
                ahead = range(other.n_calls, other.order.n_calls + 1)
                wanted |= {(other.number, n_calls) for n_calls in ahead}
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
        about = "" if left is None else f", about {format_duration(left)} to go"
        return (
            f"{self.n_calls - self.history.n_checkpoint_calls} of "
            f"{self.n_expected - self.history.n_checkpoint_calls} calls of partial_fit in "
            f"{format_duration(self.run.seconds)}; {self}{about}"
        )

    @property
    def n_expected(self) -> int:
        """Calls that there will be: as planned, or more where a schedule ordered more."""
        ordered = (max(one.order.n_calls, one.n_calls) for one in self.run.candidates.values())
        return max(self._n_planned, self.n_calls, sum(ordered))

    def seconds_left(self) -> float | None:
        """Estimate the seconds to go by the calls so far; None before the first."""
        if not self.n_calls:
            return None
        whole = self._seconds_of(self._fit_seconds / self.n_calls, self.run.n_slots)
        return max(0.0, whole * (1 - self.n_calls / max(1, self.n_expected)))

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
    return f"{candidate.number}-{order.n_calls}-{content_key(unfitted(candidate.params))[:12]}"


def score_line(candidate: Candidate, record: Record) -> str:
    """Write a score as scikit-learn writes that of a fit."""
    params = ", ".join(f"{name}={value}" for name, value in candidate.params.items())
    if record.failure is not None:
        scores = f"failed: {record.failure.error!r}"
    else:
        scores = ", ".join(f"{name}={score:.3f}" for name, score in record.scores.items())
    seconds = format_duration(record.fit_time + record.score_time)
    return (
        f"[candidate {candidate.number}] END {params}; {record.n_calls} calls of partial_fit, "
        f"{scores}, total time={seconds}"
    )
