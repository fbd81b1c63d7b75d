"""The listener of a running adaptive search: history, checkpoint, log and progress bar."""

from __future__ import annotations

import logging
import time
from collections import Counter
from operator import itemgetter

from skfleet._progress_bar import TIME_LEFT_SECONDS, ProgressBar, UpdateTimer, format_duration
from skfleet.model_selection._adaptive._loop import AdaptiveLoop
from skfleet.model_selection._adaptive._model_store import ModelStore
from skfleet.model_selection._adaptive._results import History
from skfleet.model_selection._adaptive._schedules import TrainInstruction
from skfleet.model_selection._adaptive._training_tasks import Record
from skfleet.model_selection._adaptive._training_times import PendingInstruction, TrainingTimes
from skfleet.model_selection._adaptive._trial import Candidate, Listener, Score, candidate_key
from skfleet.model_selection._dispatch._time_left import Params
from skfleet.model_selection._records._checkpoint import Checkpoint, report_recorded
from skfleet.model_selection._samplers._candidate_source import FixedCandidates

logger = logging.getLogger("skfleet.model_selection")

_LOG_SECONDS = 5.0


class Report(Listener):
    """Listener that records every score, writes the checkpoint, and reports the progress."""

    def __init__(
        self,
        history: History,
        *,
        n_planned: int,
        bar: ProgressBar | None,
        checkpoint: Checkpoint | None,
        models: ModelStore | None,
        unit: str = "calls of partial_fit",
        last_level: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.history = history
        self.n_calls = 0
        self.loop: AdaptiveLoop
        self._n_planned, self._times = n_planned, TrainingTimes()
        self._last_level = last_level  # whose models a search with a higher one may go on from
        self._bar, self._checkpoint, self._models = bar, checkpoint, models
        self._unit, self._verbose, self._has_resumed = unit, verbose, False
        self._last_log = time.monotonic()
        self._timer = UpdateTimer(TIME_LEFT_SECONDS)
        self._unscored: list[PendingInstruction] = []
        self._best: tuple[str, int] | None = None
        self._n_scores = 0  # in the checkpoint
        self._replayed: set[tuple[int, int]] = set()  # candidate and n_calls

    def recorded(self, candidate: Candidate, instruction: TrainInstruction) -> Record | None:
        """Return the record of an instruction in the checkpoint, or None."""
        results = {} if self._checkpoint is None else self._checkpoint.results
        fields = results.get(_key(candidate, instruction)) if results else None
        if fields is None:
            return None
        self._replayed.add((candidate.number, instruction.n_calls))
        return Record(**{name: fields[name] for name in Record._fields})

    def past_scores(self) -> list[Score]:
        """Return the scores in the checkpoint, in the order in which they came."""
        results = {} if self._checkpoint is None else self._checkpoint.results
        rows = sorted(results.values(), key=itemgetter("n_scores"))
        self._n_scores = 1 + rows[-1]["n_scores"] if rows else 0
        return [Score(row["n_orders"], row["candidate"], row["order"]) for row in rows]

    def on_record(
        self, candidate: Candidate, instruction: TrainInstruction, record: Record
    ) -> None:
        """Record a score or a failure, and report the progress."""
        n_before = self.history.n_calls.get(candidate.number, 0)
        n_new = record.n_calls - n_before if record.failure is None else 0
        self.history.add(candidate, instruction, record, self.loop.seconds)
        self.n_calls += n_new
        was_replayed = (candidate.number, instruction.n_calls) in self._replayed
        self._unscored = [PendingInstruction(instruction, instruction.n_calls)]
        if record.failure is None:
            score = self.loop.decide(record.scores)
            times = record.fit_time, record.score_time
            self._times.record(instruction, candidate.params, n_new, *times, score)
        if self._checkpoint is not None and record.failure is None and not was_replayed:
            self._write(candidate, instruction, record)
        if was_replayed:
            self.history.n_checkpoint_calls += n_new
        else:
            self.report_checkpoint()
        if record.failure is not None:
            text = "candidate %d failed after %d %s and is out: %r"
            error = record.failure.error
            logger.warning(text, candidate.number, n_before, self._unit, error)
        logger.debug("candidate %d, %s: %s", candidate.number, instruction, dict(record.scores))
        if self._verbose > 1:
            print(score_line(candidate, record, self._unit))
        if self._bar is not None:
            self._bar.state.total = self.n_expected - self.history.n_checkpoint_calls
            self._bar.set_status(str(self))
            self._show_time_left(self._bar)
            self._bar.advance(0 if was_replayed else n_new)
        elif time.monotonic() - self._last_log > _LOG_SECONDS:
            self._last_log = time.monotonic()
            logger.info("%s", self.line())
        self._best = self._current_best()

    def report_checkpoint(self) -> None:
        """Log once how many calls were in the checkpoint, before the first new score."""
        n_calls = self.history.n_checkpoint_calls
        if not self._has_resumed and n_calls:
            self._has_resumed = True
            is_printed = bool(self._verbose)
            report_recorded(n_calls, self._n_planned, self._unit, is_printed=is_printed)

    def _write(self, candidate: Candidate, instruction: TrainInstruction, record: Record) -> None:
        """Write a score to the checkpoint, and delete the models that are not needed any more."""
        assert self._checkpoint is not None
        position = {"n_scores": self._n_scores, "n_orders": self.loop.n_instructions}
        position |= {"candidate": candidate.number, "order": instruction.n_calls}
        fields = record._asdict() | {"scores": dict(record.scores)} | position
        self._n_scores += 1
        self._checkpoint.add([(_key(candidate, instruction), fields)])
        if self._models is None:
            return
        previous = self._best
        self._best = self._current_best()
        needed = {(candidate.key, record.n_calls)} | self._needed_after(candidate)
        self._models.prune(needed, candidate.key)
        if previous is not None and previous != self._best and previous[0] != candidate.key:
            previous_best = self.loop.candidates[int(previous[0].partition("-")[0])]
            needed |= self._needed_after(previous_best)
            if not previous_best.is_stopped:  # a worker may be further than its last score
                running = range(previous_best.n_calls, previous_best.instruction.n_calls + 1)
                needed |= {(previous_best.key, n_calls) for n_calls in running}
            self._models.prune(needed, previous_best.key)

    def on_stopped(self, candidate: Candidate) -> None:
        """Delete the stored models of a stopped candidate, but for the best model."""
        if self._models is not None:
            self._models.prune(self._needed_after(candidate), candidate.key)

    def _needed_after(self, candidate: Candidate) -> set[tuple[str, int]]:
        """Return the stored models that are needed when a candidate is not trained any more."""
        best = self._current_best()
        needed = set() if best is None else {best}
        return needed | ({(candidate.key, self._last_level)} if self._last_level else set())

    def _current_best(self) -> tuple[str, int] | None:
        """Return the key of the best candidate, and the calls that its best model had."""
        best = self.loop.best
        return None if best is None or best.best is None else (best.key, best.best[1].n_calls)

    def line(self, *, is_over: bool = False) -> str:
        """Return one line of progress: calls, elapsed time, best score, estimated time left."""
        seconds_left = None if is_over else self.seconds_left()
        about = "" if seconds_left is None else f", about {format_duration(seconds_left)} to go"
        return (
            f"{self.n_calls - self.history.n_checkpoint_calls} of "
            f"{self.n_expected - self.history.n_checkpoint_calls} {self._unit} in "
            f"{format_duration(self.loop.seconds)}; {self}{about}"
        )

    @property
    def n_expected(self) -> int:
        """Expected number of calls: as planned, or more where the schedule instructed more."""
        candidates = self.loop.candidates.values()
        n_instructed = sum(max(c.instruction.n_calls, c.n_calls) for c in candidates)
        return max(self._n_planned, self.n_calls, n_instructed)

    def seconds_left(self) -> float | None:
        """Estimate the remaining seconds from the calls so far; None before the first."""
        loop = self.loop
        # the schedule gets the latest score only after this
        pending = [*loop.pending, *self._unscored]
        drawn = loop.source.candidates if isinstance(loop.source, FixedCandidates) else ()
        candidates: dict[int, Params] = dict(enumerate(drawn))
        candidates |= {number: candidate.params for number, candidate in loop.candidates.items()}
        seconds = self._times.seconds_left(loop.schedule, pending, candidates, loop.n_slots)
        if seconds is None or loop.time_budget is None:
            return seconds
        return min(seconds, max(0.0, loop.time_budget - loop.seconds))

    def _show_time_left(self, bar: ProgressBar) -> None:
        """Update the seconds left on the progress bar, at intervals."""
        with self._timer.update_if_due() as is_due:
            if is_due:
                bar.set_seconds_left(self.seconds_left())

    def __str__(self) -> str:
        candidates = self.loop.candidates.values()
        alive = Counter(c.instruction.rung for c in candidates if not c.is_stopped)
        parts = []
        if alive:
            parts.append("alive " + "/".join(str(alive[rung]) for rung in range(max(alive) + 1)))
        if self.loop.best is not None:
            parts.append(f"best {self.loop.best.best_score:.4g}")
        return ", ".join(parts)


def _key(candidate: Candidate, instruction: TrainInstruction) -> str:
    """Return the key of a record: candidate number, number of calls, hash of the parameters."""
    number, _, digest = candidate_key(candidate.number, candidate.params).partition("-")
    return f"{number}-{instruction.n_calls}-{digest}"


def score_line(candidate: Candidate, record: Record, unit: str) -> str:
    """Format a score like the line that scikit-learn prints for a fit."""
    params = ", ".join(f"{name}={value}" for name, value in candidate.params.items())
    if record.failure is not None:
        scores = f"failed: {record.failure.error!r}"
    else:
        scores = ", ".join(f"{name}={score:.3f}" for name, score in record.scores.items())
    seconds = format_duration(record.fit_time + record.score_time)
    return (
        f"[candidate {candidate.number}] END {params}; {record.n_calls} {unit}, "
        f"{scores}, total time={seconds}"
    )
