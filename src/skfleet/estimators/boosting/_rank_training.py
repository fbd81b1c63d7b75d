"""Training on ranks whose processes may die: segments of rounds, and a snapshot to go on from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from skfleet.estimators.boosting._checkpoint import BoostingCheckpoint
from skfleet.estimators.boosting._row_survey import StoredRows, deal_rows
from skfleet.exceptions import FleetError

logger = logging.getLogger("skfleet.estimators")

# Seconds of rounds between two answers of the ranks, and between two snapshots; and the rounds that
# a snapshot is worth at least.
ANSWER_SECONDS, SNAPSHOT_SECONDS, MIN_SNAPSHOT_ROUNDS = 2.0, 30.0, 10
# Seconds to wait for as many workers as before, after a loss.
RECOVERY_SECONDS = 15.0
# A wait may take this many times as long as the rounds before it, and the timeout.
PATIENCE = 4.0


# The parts of a rank's rows, whose futures tasks replace, and the other arguments of `RankRows`.
RowsArgument: TypeAlias = tuple[list[Any], dict[str, Any]]


class Monitor(Protocol):
    """The driver's part of training: prints metrics, and decides when to stop."""

    def update(self, number: int, scores: Any) -> bool:
        """Take the metrics of a round, and return whether training stops after it."""


@dataclass
class Snapshot:
    """The state after `n_done` rounds, from which a rank can go on."""

    model: bytes | None = None
    n_done: int = 0
    history: Any = None


@dataclass
class RankTraining:
    """Training of `n_rounds` rounds on the ranks of a launcher.

    1. Start the processes, and let them find one another.
    2. Each bins its rows, and loads the last snapshot.
    3. They train segments of rounds, after which the driver looks at the metrics.
    4. Now and then rank 0 sends a snapshot.
    5. Where a process is lost, end all, and go back to 1.
    """

    launcher: Any
    library: Any  # how the ranks of a library are linked and built
    rows: StoredRows
    evals: Sequence[StoredRows | None]
    n_rounds: int
    monitor: Monitor
    n_ranks: int
    max_retries: int
    interval: Any = "auto"
    checkpoint: BoostingCheckpoint | None = None

    def __post_init__(self) -> None:
        lengths = [survey.n_rows for survey in self.rows.surveys]
        threads = self.launcher.threads[: self.n_ranks]
        self._deal = deal_rows(lengths, threads, self.rows.query_starts)
        self._rank_options = self.library.rank_options(self.rows)
        self._snapshot, self._seconds_per_round = Snapshot(), 0.0
        self._n_seen = 0  # rounds that the monitor has seen
        self._n_final = self.n_rounds  # rounds of the final booster

    def run(self) -> bytes:
        """Train, and return the booster."""
        if self.checkpoint is not None:
            self._snapshot = self.checkpoint.load() or self._snapshot
            for number, scores in enumerate(self.library.rounds_of(self._snapshot.history)):
                self._update(number, scores)
        n_failures = 0
        while True:
            group = None
            n_done_before = self._snapshot.n_done
            try:
                group = self.launcher.start(self.n_ranks)
                return self._train(group)
            except self.launcher.lost_error as error:
                n_failures = 1 if self._snapshot.n_done > n_done_before else n_failures + 1
                if n_failures > self.max_retries:
                    raise FleetError(
                        f"training must keep its workers for a segment of rounds. Got "
                        f"{n_failures} losses after round {self._snapshot.n_done} instead, the "
                        f"last of them: {error}. Look in the workers' logs, give them more memory, "
                        "or raise max_retries or timeout."
                    ) from error
                logger.warning("%s; training goes on from round %d", error, self._snapshot.n_done)
            finally:
                if group is not None:
                    group.close()
            self.launcher.recover(self.n_ranks, RECOVERY_SECONDS)
            for part in (self.rows, *self.evals):
                if part is not None:
                    part.blocks = self.launcher.restore(part.blocks)

    def _train(self, group: Any) -> bytes:
        """Train from the last snapshot to the end, and return the booster."""
        # Every rank gets its own rows and what is common: each bins them, and loads the snapshot.
        snapshot = self._snapshot
        rows = [self._rows_of(rank) for rank in range(self.n_ranks)]
        links = self.library.link(group, rows)
        group.call(
            "build",
            [
                (
                    self.library.job,
                    links[rank],
                    rows[rank],
                    [self._eval_rows(number, rank) for number in range(len(self.evals))],
                    snapshot.model,
                    snapshot.n_done,
                    snapshot.history,
                )
                for rank in range(self.n_ranks)
            ],
        )
        # Segments: between them the ranks are known to live, and the driver may stop them.
        n_done = snapshot.n_done
        while n_done < self._n_final:
            n_segment, takes_snapshot = self._plan_segment(n_done)
            results = group.call(
                "advance",
                [(n_segment, takes_snapshot)] * self.n_ranks,
                seconds=PATIENCE * n_segment * self._seconds_per_round,
            )
            # Ranks have the same trees: one answers for all, but for metrics that only some have.
            first = results[0]
            log = self.library.collect(results, n_done)
            if log:
                self._seconds_per_round = first["seconds"] / len(log)
            # The monitor may end training within the segment, whose later rounds `finish` cuts off.
            for number, scores in enumerate(log, n_done):
                if number < self._n_final:
                    self._update(number, scores)
            n_done += len(log)
            if first["stops"]:
                self._n_final = min(self._n_final, n_done)
            # From here on a lost worker costs only the rounds that follow.
            if "snapshot" in first:
                self._snapshot = Snapshot(first["snapshot"], n_done, first["history"])
                if self.checkpoint is not None:
                    self.checkpoint.save(self._snapshot)
            logger.debug("round %d of %d", n_done, self.n_rounds)
        booster: bytes = group.call("finish", [(self._n_final,)] * self.n_ranks)[0]
        return booster

    def _update(self, number: int, scores: Any) -> None:
        """Pass a round's metrics to the monitor once: a round may be trained again."""
        if number >= self._n_seen:
            self._n_seen = number + 1
            if self.monitor.update(number, scores):
                self._n_final = number + 1

    def _plan_segment(self, n_done: int) -> tuple[int, bool]:
        """Return the rounds until the next answer, and whether a snapshot comes with it."""
        remaining, rate = self._n_final - n_done, self._seconds_per_round
        n_segment = max(1, int(ANSWER_SECONDS / rate)) if rate else 1
        if self.library.is_one_segment:
            return min(n_segment, remaining), False
        interval = self.interval
        if interval == "auto":
            interval = max(MIN_SNAPSHOT_ROUNDS, int(SNAPSHOT_SECONDS / rate) if rate else 0)
        due = self._snapshot.n_done + interval - n_done
        n_segment = max(1, min(n_segment, remaining, due))
        return n_segment, n_segment >= due and n_segment < remaining

    def _rows_of(self, rank: int) -> RowsArgument:
        parts = self._deal[rank]
        first = sum(high - low for part in self._deal[:rank] for _, low, high in part)
        rows = [(self.rows.blocks[number], low, high) for number, low, high in parts]
        options = {"row_offset": first, **self._rank_options}
        if self.rows.query_weights is not None and self.rows.query_starts is not None:
            last = first + sum(high - low for _, low, high in parts)
            low, high = np.searchsorted(self.rows.query_starts, [first, last])
            options["query_weights"] = self.rows.query_weights[low:high]
        return rows, options

    def _eval_rows(self, number: int, rank: int) -> RowsArgument | None:
        """Return a rank's rows of an evaluation set: all or none; None for the training rows."""
        stored = self.evals[number]
        if stored is None:
            return None
        has_all = self.library.eval_ranks[number] == rank
        parts = [
            (block, 0, survey.n_rows if has_all else 0)
            for block, survey in zip(stored.blocks, stored.surveys, strict=True)
        ]
        options = dict(self._rank_options)
        if stored.query_weights is not None:
            options["query_weights"] = stored.query_weights[: None if has_all else 0]
        return parts if has_all else parts[:1], options
