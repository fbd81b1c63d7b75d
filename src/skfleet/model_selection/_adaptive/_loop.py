"""The only loop of adaptive search: it carries out a schedule's orders on an engine."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain as chain_of
from itertools import groupby
from typing import Any

from skfleet._captured_output import output_replayer
from skfleet.engine import ANY_WORKER, Call, Engine, ResourceRequest, Task, TaskResult
from skfleet.exceptions import FleetError
from skfleet.model_selection._adaptive._data import Rows
from skfleet.model_selection._adaptive._replay import Replay
from skfleet.model_selection._adaptive._samplers import CandidateSource
from skfleet.model_selection._adaptive._schedules import Schedule, Train
from skfleet.model_selection._adaptive._trial import Candidate, Listener
from skfleet.model_selection._adaptive._worker import (
    Failure,
    Record,
    Setting,
    answer,
    failure_of,
    fit_head,
    learn_more,
    news_of,
    score_answers,
    train,
)

__all__ = ["Run"]

logger = logging.getLogger("skfleet.model_selection")

# A task that trains takes about so many seconds at most: what a lost worker costs, and how long
# it takes to hear of the end of the time.
TASK_SECONDS = 2.0
# Below these a slot has its next task before it has ended one.
AHEAD_BELOW = 1.0
# Seconds from the end of a task until the next one has come to its worker; and how many wait there
# at most.
TRIP, MOST_AHEAD = 0.03, 6
# How often, in seconds, the fleet is looked at; and for how long it may have no worker.
LOOK_EVERY, PATIENCE = 1.0, 60.0
# Messages within a few milliseconds of one another wait: what need not be said at once is said when
# nothing has arrived for so many seconds, or when there is much of it.
QUIET, MOST_OUTLIVED = 0.02, 200
# How often what was lost with a worker is sent again.
N_RESENDS = 10


@dataclass
class Run:
    """A search under way."""

    engine: Engine
    schedule: Schedule
    source: CandidateSource
    setting: Setting
    rows: Rows
    decide: Callable[[Mapping[str, float]], float]
    name: str
    placement_of: Callable[[Mapping[str, Any]], ResourceRequest]
    head_of: Callable[[Mapping[str, Any]], Any] | None = None
    keep_all: bool = False
    n_jobs: int | None = None
    retries: int = 0
    time_budget: float | None = None
    raises: bool = False
    listener: Listener = field(default_factory=Listener)

    def __post_init__(self) -> None:
        self.candidates: dict[int, Candidate] = {}
        self._begin = time.monotonic()
        self.n_orders = 0
        self._replay = Replay(self.listener.course())
        self._shared = self.engine.scatter(self.setting)
        self._heads: dict[Any, Task] = {}
        self._running: dict[int, Candidate] = {}  # by the identity of the last task
        self._chains: dict[int, list[Task]] = {}
        self._waiting: dict[ResourceRequest, deque[Candidate]] = {}
        self._outlived: list[Task] = []  # tasks that nobody needs any more
        self._suspects: deque[Candidate] = deque()
        self._slots: dict[ResourceRequest, int] = {}
        self._looked = -math.inf
        self._alone_since: float | None = None
        self.best: Candidate | None = None
        self._error: BaseException | None = None
        self._lasted: deque[float] = deque(maxlen=32)

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._begin

    @property
    def n_slots(self) -> int:
        """How many candidates are trained at once."""
        slots = self._slots.get(ANY_WORKER, 1)
        return slots if self.n_jobs is None else min(slots, self.n_jobs)

    def __call__(self) -> None:
        """Carry out what the schedule orders until it orders no more, or time is up."""
        self._watch = self.engine.completion_queue()
        with output_replayer() as self._replay_output:
            try:
                self._loop()
            finally:
                self._give_up()

    def _loop(self) -> None:
        """Give orders and take what comes of them."""
        while True:
            self._give_orders()
            if not self._running:
                break
            self._look()
            left = math.inf if self.time_budget is None else self.time_budget - self.seconds
            if left <= 0:
                break
            self._take_all(self._watch.next(min(left, QUIET if self._outlived else LOOK_EVERY)))
            if self._error is not None:
                raise self._error  # from here, where no frame of it holds on to tasks

    def _give_up(self) -> None:
        """Cancel what is under way."""
        under_way = [task for chain in self._chains.values() for task in chain]
        if under_way:
            self.engine.cancel(under_way)
        self._running.clear()
        self._chains.clear()

    # -- orders ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look at the fleet now and then: how many tasks it can run, and that it is still there."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        placements = {ANY_WORKER, *(c.resources for c in self.candidates.values())}
        self._slots = {resources: self.engine.count_slots(resources) for resources in placements}
        wanted = {one.resources for one in self._running.values()} or {ANY_WORKER}
        missing = [resources for resources in wanted if not self._slots[resources]]
        if not missing:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > PATIENCE:
            asked = " or ".join(sorted(str(one) for one in missing if one != ANY_WORKER))
            offering = f" that offer {asked}" if asked else ""
            raise FleetError(
                f"a search must have workers. Got none{offering} for {PATIENCE:.0f} s. Start "
                "workers, and look in the logs of those that died; with checkpoint= the search "
                "goes on where it stood."
            )

    def _room(self, resources: ResourceRequest) -> int:
        """Return how many more orders may be under way with a placement.

        Where orders are carried out in less time than it takes to send the next one, several wait
        at each slot; and so do those to begin with, of which nobody knows.
        """
        if resources not in self._slots:
            self._slots[resources] = self.engine.count_slots(resources)
        n_under_way = sum(c.resources == resources for c in self._running.values())
        if self.n_jobs is not None:
            return self.n_jobs - len(self._running)
        mean = sum(self._lasted) / len(self._lasted) if self._lasted else 0.0
        ahead = 0 if mean > AHEAD_BELOW else min(MOST_AHEAD, 1 + math.ceil(TRIP / max(mean, 1e-3)))
        # Without a worker an order waits for one, and the look at the fleet sees to the end of it.
        return max(1, self._slots[resources]) * (1 + ahead) - n_under_way

    def _give_orders(self) -> None:
        """Submit what there is room for. Orders that must wait for a slot of theirs wait."""
        if self._suspects or any(one.is_suspect for one in self._running.values()):
            # It is found out alone whether it kills its workers.
            if not self._running:
                self._submit([self._suspects.popleft()])
            return
        self._send_waiting()
        while self._replay.has_orders(self.n_orders) or self._wants_orders():
            if (past := self._replay.next(self.n_orders)) is not None:
                self._conclude(*past)
                continue
            order = self.schedule.next()
            if order is None:
                if (past := self._replay.next(self.n_orders, is_last=True)) is None:
                    break
                self._conclude(*past)
                continue
            self.n_orders += 1
            candidate = self._candidate(order)
            candidate.order = order
            known = self.listener.known(candidate, order)
            if known is not None:
                self._replay.add(candidate, known)
                continue
            self._waiting.setdefault(candidate.resources, deque()).append(candidate)
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Submit the orders that were waiting for a slot, all in one go."""
        for resources, waiting in self._waiting.items():
            together: list[Candidate] = []
            while waiting and self._room(resources) > len(together):
                together.append(waiting.popleft())
            for _, alike in groupby(together, key=_priority):
                self._submit(list(alike))

    def _wants_orders(self) -> bool:
        """Say whether some kind of slot has nothing to do, nor anything that waits for it.

        Of what must wait there is never more than the fleet can run at once.
        """
        excess = sum(max(0, len(waiting) - self._room(p)) for p, waiting in self._waiting.items())
        if excess > sum(self._slots.values()):
            return False
        placements = {c.resources for c in self.candidates.values()} or {ANY_WORKER}
        return any(self._room(p) > len(self._waiting.get(p, ())) for p in placements)

    def _candidate(self, order: Train) -> Candidate:
        """Return the candidate of an order, asking for its parameters when it begins."""
        number = order.candidate
        if number not in self.candidates:
            pending = {c.number: c.params for c in self._running.values()}
            params = dict(self.source.ask(order, pending))
            resources = self.placement_of(params)
            self.engine.check(resources)
            self.candidates[number] = Candidate(number, params, resources)
        return self.candidates[number]

    def _submit(self, candidates: Sequence[Candidate]) -> None:
        """Submit orders of one placement: for each a chain of tasks, the last of which tells."""
        chains = []
        for candidate in candidates:
            chain = self._train_until(candidate, candidate.order.n_calls, is_scored=True)
            chains.append([*chain[:-1], chain[-1]._replace(summarize=news_of)])
        calls = list(chain_of.from_iterable(chains))
        priority, resources = _priority(candidates[0]), candidates[0].resources
        tasks = iter(self.engine.submit_all(calls, priority=priority, resources=resources))
        for candidate, chain in zip(candidates, chains, strict=True):
            submitted = [next(tasks) for _ in chain]
            self._chains[candidate.number] = submitted
            self._running[id(submitted[-1])] = candidate
            self._watch.add(submitted[-1], news_of)

    def _train_until(
        self, candidate: Candidate, n_calls: int, *, is_scored: bool = False
    ) -> list[Call]:
        """Return the calls that train a candidate until it has learned so often, and score it."""
        low = candidate.n_calls if candidate.model is not None else 0
        state: Any = candidate.model if candidate.model is not None else candidate.params
        head = self._head(candidate) if candidate.model is None else None
        chain: list[Call] = []
        while low < n_calls:
            calls = range(low, min(n_calls, low + self._chunk(candidate)))
            scores_now = is_scored and calls.stop == n_calls and len(self.rows.test) == 1
            blocks = [self.rows.blocks[n] for n in self.rows.lessons.blocks_of(calls)]
            test = self.rows.test[0] if scores_now else None
            what = (state, head, calls, self.rows.lessons, blocks, test)
            state = Call(train, (self._shared, candidate.number, *what), f"train-{self.name}")
            chain.append(state)
            low, head = calls.stop, None
        if is_scored and len(self.rows.test) > 1:
            answers = [
                Call(answer, (self._shared, state, part), f"answer-{self.name}")
                for part in self.rows.test
            ]
            what = (self._shared, candidate.number, state, *answers)
            chain += [*answers, Call(score_answers, what, f"score-{self.name}")]
        return chain

    def _chunk(self, candidate: Candidate) -> int:
        """Return how many calls one task makes."""
        if not self.rows.are_everywhere:
            return 1  # the model goes to where the next rows are
        seconds = candidate.seconds
        if math.isnan(seconds):
            known = [c.seconds for c in self.candidates.values() if not math.isnan(c.seconds)]
            if not known:
                return 1
            seconds = sorted(known)[len(known) // 2]
        return max(1, int(TASK_SECONDS / max(seconds, 1e-9)))

    def _head(self, candidate: Candidate) -> Task | None:
        """Return the fitted steps before the last, which candidates with the same ones share."""
        if self.head_of is None:
            return None
        key = self.head_of(candidate.params)
        if key not in self._heads:
            blocks = list(self.rows.blocks if self.rows.are_everywhere else self.rows.blocks[:1])
            self._heads[key] = self.engine.submit(
                fit_head,
                self._shared,
                candidate.params,
                blocks,
                name=f"fit-steps-of-{self.name}",
                priority=1,
                resources=candidate.resources,
            )
        return self._heads[key]

    # -- what comes of them ---------------------------------------------------------------------

    def _take_all(self, arrived: Sequence[TaskResult]) -> None:
        """Take what has ended, and let go of the tasks before when there is time for it."""
        for ended in arrived:
            self._take(ended)
        if not arrived or len(self._outlived) > MOST_OUTLIVED:
            self._outlived.clear()

    def _take(self, ended: TaskResult) -> None:
        """Take what has ended: a record, or the news that there will be none."""
        self._alone_since = None
        candidate = self._running.pop(id(ended.task), None)
        if candidate is None:
            return
        chain = self._chains.pop(candidate.number)
        self._outlived += [*chain, candidate.model]
        if ended.was_lost and candidate.n_lost < N_RESENDS:
            candidate.n_lost += 1
            self._begin_anew(candidate)
            self._submit([candidate])
        elif ended.killed_workers and not candidate.is_suspect:
            # Perhaps another one beside it killed their worker.
            candidate.is_suspect = True
            self._begin_anew(candidate)
            self._suspects.append(candidate)
        elif ended.error is not None:
            self._fail(candidate, self._failure(candidate, ended))
        else:
            record, notes = ended.value
            self._replay_output(notes)
            self._take_record(candidate, record, chain[-1])

    def _take_record(self, candidate: Candidate, record: Record, model: Task) -> None:
        """Take what came of an order that was carried out, or try again."""
        if record.failure is None:
            candidate.model, candidate.is_suspect, candidate.n_tries = model, False, 0
            self._conclude(candidate, record)
        elif candidate.n_tries < self.retries:
            candidate.n_tries += 1
            self._submit([candidate])
        else:
            self._fail(candidate, record.failure)

    def _begin_anew(self, candidate: Candidate) -> None:
        """Let a candidate be trained from its beginning, with what may have died made again."""
        for kept in (*self.rows.kept, self._shared):
            self.engine.rescatter(kept)
        self._heads.clear()
        candidate.model, candidate.n_calls = None, 0

    def _failure(self, candidate: Candidate, ended: TaskResult) -> Failure:
        """Say what an error outside of the training is about."""
        assert ended.error is not None
        if ended.killed_workers:
            told = (
                f"candidate {candidate.number} must leave its worker alive. Its workers died again "
                f"and again while they trained it alone, with {dict(candidate.params)!r}. "
                f"{ended.error}"
            )
        elif ended.was_lost:
            told = (
                f"candidate {candidate.number} was lost with its workers again and again: "
                f"{ended.error}. Look in their logs."
            )
        else:
            return failure_of(ended.error)
        error = FleetError(told)
        error.__cause__ = ended.error
        return Failure(error, "")

    def _fail(self, candidate: Candidate, failure: Failure) -> None:
        """Note that a candidate cannot be trained; it is out of the race."""
        if self.raises:
            failure.error.add_note(
                f"While candidate {candidate.number} was trained, with "
                f"{dict(candidate.params)!r}:\n{failure.trace}"
            )
            self._error = failure.error
        candidate.failure = failure
        record = Record(candidate.order.n_calls, {}, ended=time.time(), failure=failure)
        self._tell(candidate, record, math.nan)

    def _conclude(self, candidate: Candidate, record: Record) -> None:
        """Note the scores of a candidate."""
        order = candidate.order
        n_new = max(1, record.n_calls - candidate.n_calls)
        candidate.seconds = record.fit_time / n_new
        self._lasted.append(record.fit_time + record.score_time)
        candidate.n_calls = record.n_calls
        score = self.decide(record.scores)
        if not math.isnan(score) and not score < candidate.best_score:
            candidate.best, candidate.best_score = (order, record), score
            candidate.best_model = candidate.model
            self._compare(candidate)
        self._tell(candidate, record, score)

    def _compare(self, candidate: Candidate) -> None:
        """Keep the model of the best: of equals the one with more calls, then the first."""

        def mark(one: Candidate) -> tuple[float, int, int]:
            assert one.best is not None
            return one.best_score, one.best[1].n_calls, -one.number

        before = self.best
        if before is None or mark(candidate) >= mark(before):
            self.best = candidate
            if before is not None and before is not candidate:
                self._release(before)
        else:
            self._release(candidate)

    def _release(self, candidate: Candidate) -> None:
        """Let go of the model that was a candidate's best."""
        if not self.keep_all:
            self._outlived.append(candidate.best_model)
            candidate.best_model = None

    def _tell(self, candidate: Candidate, record: Record, score: float) -> None:
        """Tell everybody of a score, and let go of the models that are not trained any more."""
        order = candidate.order
        self.listener.on_record(candidate, order, record)
        self.source.tell(order, candidate.params, score)
        for gone in self.schedule.on_score(candidate.number, score):
            one = self.candidates[gone]
            self._outlived.append(one.model)
            one.model, one.is_gone = None, True
            if not self.keep_all:
                self.listener.on_gone(one)

    # -- the end --------------------------------------------------------------------------------

    def model_of(self, candidate: Candidate, *, refit_on_test: bool = False) -> Any:
        """Fetch the model of a candidate as it was when its score was best."""
        assert candidate.best is not None
        n_calls = candidate.best[1].n_calls
        models = self.setting.models
        trained = models.exact(candidate.number, n_calls) if models is not None else None
        if trained is None and candidate.best_model is not None:
            trained = self._fetch(candidate.best_model, is_last_try=False)
        if trained is None:  # it is lost, or of an earlier search: it is trained again
            candidate.model = None
            chain = self._train_until(candidate, n_calls)
            trained = self._fetch(self.engine.submit_all(chain)[-1])
        if trained.record.failure is not None:
            raise trained.record.failure.error
        if not refit_on_test:
            return trained.model
        epochs = max(1, round(n_calls / len(self.rows.lessons)))
        state = self.engine.submit(
            learn_more,
            self._shared,
            trained,
            list(self.rows.test),
            epochs,
            name=f"train-{self.name}",
            resources=candidate.resources,
        )
        return self._fetch(state).model

    def close(self) -> None:
        """Let go of everything on the fleet."""
        for candidate in self.candidates.values():
            candidate.model = candidate.best_model = None
        self._heads.clear()
        self._outlived.clear()
        for held in {id(one): one for one in (self._shared, *self.rows.held)}.values():
            self.engine.release(held)
        self.setting.copies.close()

    def _fetch(self, task: Task, *, is_last_try: bool = True) -> Any:
        """Bring a value home; None, or an error, where it died with its workers."""
        watch = self.engine.completion_queue()
        watch.add(task)
        while True:
            for ended in watch.next(LOOK_EVERY):
                died = ended.was_lost or ended.killed_workers
                if ended.error is not None and (is_last_try or not died):
                    raise ended.error
                return ended.value


def _priority(candidate: Candidate) -> int:
    """Return what goes first where several wait: the bracket that has most to do.

    That is the order in which the schedule gives orders to slots that are free.
    """
    return candidate.order.bracket
