"""The event loop of an adaptive search: submit a schedule's instructions, handle finished tasks."""

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
from skfleet.engine import ANY_WORKER, ResourceRequest, Task, TaskPool, TaskResult
from skfleet.exceptions import FleetError
from skfleet.model_selection._adaptive._data import PlacedData
from skfleet.model_selection._adaptive._replay import Replay
from skfleet.model_selection._adaptive._schedules import Schedule, TrainInstruction
from skfleet.model_selection._adaptive._training import training_for
from skfleet.model_selection._adaptive._training_tasks import (
    Failure,
    Record,
    TrainingContext,
    failure_of,
    model_in,
    summary_of,
)
from skfleet.model_selection._adaptive._training_times import PendingInstruction
from skfleet.model_selection._adaptive._trial import Candidate, Listener, candidate_key
from skfleet.model_selection._samplers._candidate_source import CandidateSource, FixedCandidates

logger = logging.getLogger("skfleet.model_selection")

# A slot whose tasks are shorter than this has further tasks queued behind the running one.
QUEUE_BELOW_SECONDS = 1.0
ROUND_TRIP_SECONDS, MAX_QUEUED = 0.03, 6
POLL_SECONDS, NO_WORKER_TIMEOUT = 1.0, 60.0
# Releasing a future sends a message that delays the next submission. So stale futures are released
# when no result has arrived for a moment, or when there are many.
IDLE_SECONDS, MAX_STALE = 0.02, 200
MAX_RESTARTS = 10


@dataclass
class AdaptiveLoop:
    """State of a running adaptive search; calling it runs the search."""

    # Until the schedule has no more instructions, or time is up:
    # 1. Ask it for instructions while a slot is free. A score that the checkpoint has is replayed;
    #    for any other instruction a chain of training tasks is submitted.
    # 2. Count the slots of the fleet, and fail if a required kind of worker stays away.
    # 3. Wait for finished tasks. A score goes to the schedule, the sampler and the listener. After
    #    a lost task its candidate is trained again from the start, and if its worker was killed,
    #    with nothing else running: the cause may have been another candidate on that worker.
    # 4. Release the futures of models that are not needed any more.

    engine: TaskPool
    schedule: Schedule
    source: CandidateSource
    context: TrainingContext
    data: PlacedData
    decide: Callable[[Mapping[str, float]], float]
    name: str
    resources_of: Callable[[Mapping[str, Any]], ResourceRequest]
    preprocessing_key: Callable[[Mapping[str, Any]], Any] | None = None
    keeps_all_models: bool = False
    n_jobs: int | None = None
    retries: int = 0
    time_budget: float | None = None
    raises_errors: bool = False
    listener: Listener = field(default_factory=Listener)

    def __post_init__(self) -> None:
        self.candidates: dict[int, Candidate] = {}
        self._start_time = time.monotonic()
        self.n_instructions = 0
        self._replay = Replay(self.listener.past_scores())
        self._shared = self.engine.scatter(self.context)
        args = (self.context, self._shared, self.data, self.preprocessing_key, self.name)
        self._training = training_for(self.engine, *args)
        self._unscored: dict[int, Candidate] = {}  # in the order of their instructions
        self._running: dict[int, Candidate] = {}  # by the id of the last task of its chain
        self._chains: dict[int, list[Task]] = {}
        self._waiting: dict[ResourceRequest, deque[Candidate]] = {}
        self._stale_futures: list[Task] = []
        self._stopped: list[Candidate] = []  # whose stored models outlive their stale futures
        self._suspected_killers: deque[Candidate] = deque()
        self._slots: dict[ResourceRequest, int] = {}
        self._last_poll = -math.inf
        self._no_worker_since: float | None = None
        self.best: Candidate | None = None
        self._first_error: BaseException | None = None
        self._recent_seconds: deque[float] = deque(maxlen=32)

    @property
    def _asks_late(self) -> bool:
        """Return whether candidates are chosen by the scores so far."""
        return not isinstance(self.source, FixedCandidates)

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._start_time

    @property
    def n_slots(self) -> int:
        """Number of candidates that are trained at the same time."""
        slots = self._slots.get(ANY_WORKER, 1)
        return slots if self.n_jobs is None else min(slots, self.n_jobs)

    @property
    def pending(self) -> list[PendingInstruction]:
        """Instructions whose scores have not come, those that run first."""
        queues = [self._running.values(), self._suspected_killers, *self._waiting.values()]
        return [PendingInstruction(c.instruction, c.n_calls) for c in chain_of(*queues)]

    def __call__(self) -> None:
        """Run the search until the schedule has no more instructions, or time is up."""
        self._completions = self.engine.completion_queue()
        with output_replayer() as self._replay_output:
            try:
                self._run()
                self._release_stale()
            finally:
                pending = [task for chain in self._chains.values() for task in chain]
                if pending:
                    self.engine.cancel(pending)
                self._running.clear()
                self._chains.clear()

    def _run(self) -> None:
        while True:
            self._submit_instructions()
            if not self._running:
                break
            self._poll_workers()
            remaining = math.inf if self.time_budget is None else self.time_budget - self.seconds
            if remaining <= 0:
                break
            timeout = IDLE_SECONDS if self._stale_futures else POLL_SECONDS
            self._handle_all(self._completions.next(min(remaining, timeout)))
            if self._first_error is not None:
                # raised from this frame, as the traceback of a deeper one would keep tasks alive
                raise self._first_error

    # -- instructions ---------------------------------------------------------------------------

    def _poll_workers(self) -> None:
        """Count the slots of the fleet at intervals; raise if it has had no worker for long."""
        now = time.monotonic()
        if now - self._last_poll < POLL_SECONDS:
            return
        self._last_poll = now
        requests = {ANY_WORKER, *(c.resources for c in self.candidates.values())}
        self._slots = {resources: self.engine.count_slots(resources) for resources in requests}
        required = {c.resources for c in self._running.values()} or {ANY_WORKER}
        missing = [resources for resources in required if not self._slots[resources]]
        if not missing:
            self._no_worker_since = None
        elif self._no_worker_since is None:
            self._no_worker_since = now
        elif now - self._no_worker_since > NO_WORKER_TIMEOUT:
            names = " or ".join(sorted(str(kind) for kind in missing if kind != ANY_WORKER))
            offering = f" that offer {names}" if names else ""
            raise FleetError(
                f"a search must have workers. Got none{offering} for {NO_WORKER_TIMEOUT:.0f} s. "
                "Start workers, and look in the logs of those that died; with checkpoint= the "
                "search goes on where it stood."
            )

    def _n_free_slots(self, resources: ResourceRequest) -> int:
        """Return how many more instructions of a resource request may be submitted.

        Where tasks take less time than to submit the next one, several are queued at each slot.
        The same holds at the start, when no duration is known.
        """
        if resources not in self._slots:
            self._slots[resources] = self.engine.count_slots(resources)
        n_running = sum(c.resources == resources for c in self._running.values())
        if self.n_jobs is not None:
            return self.n_jobs - len(self._running)
        recent = self._recent_seconds
        mean = sum(recent) / len(recent) if recent else 0.0
        n_queued = 0
        # the only slot waits for the score from which the next candidate is chosen
        may_queue = self._slots[resources] > 1 or not self._asks_late
        if mean <= QUEUE_BELOW_SECONDS and may_queue:
            n_queued = min(MAX_QUEUED, 1 + math.ceil(ROUND_TRIP_SECONDS / max(mean, 1e-3)))
        # Without a worker one task is submitted nevertheless: `_poll_workers` ends that wait.
        return max(1, self._slots[resources]) * (1 + n_queued) - n_running

    def _submit_instructions(self) -> None:
        """Submit instructions while slots are free; queue those whose kind of slot is not."""
        if self._suspected_killers or any(c.may_kill_workers for c in self._running.values()):
            if not self._running:
                self._submit([self._suspected_killers.popleft()])
            return
        self._submit_waiting()
        while self._replay.has_instructions(self.n_instructions) or self._has_free_slots():
            if (replayed_score := self._replay.next(self.n_instructions)) is not None:
                self._record_score(*replayed_score)
                continue
            instruction = self.schedule.next()
            if instruction is None:
                replayed_score = self._replay.next(self.n_instructions, is_last=True)
                if replayed_score is None:
                    break
                self._record_score(*replayed_score)
                continue
            self.n_instructions += 1
            candidate = self._candidate(instruction)
            candidate.instruction = instruction
            self._unscored[candidate.number] = candidate
            record = self.listener.recorded(candidate, instruction)
            if record is not None:
                self._replay.add(candidate, record)
                continue
            self._waiting.setdefault(candidate.resources, deque()).append(candidate)
            if self._asks_late:  # which takes milliseconds, in which the slot would be idle
                self._submit_waiting()
        self._submit_waiting()

    def _submit_waiting(self) -> None:
        """Submit as many queued instructions as slots are free, with one call per priority."""
        for resources, queue in self._waiting.items():
            batch: list[Candidate] = []
            while queue and self._n_free_slots(resources) > len(batch):
                batch.append(queue.popleft())
            for _, candidates in groupby(batch, key=_priority):
                self._submit(list(candidates))

    def _has_free_slots(self) -> bool:
        """Return whether a kind of slot is idle and has no instruction queued for it."""
        queues = self._waiting.items()
        excess = sum(max(0, len(queue) - self._n_free_slots(key)) for key, queue in queues)
        if excess > sum(self._slots.values()):  # enough are queued for other kinds of slots
            return False
        requests = {c.resources for c in self.candidates.values()} or {ANY_WORKER}
        return any(self._n_free_slots(key) > len(self._waiting.get(key, ())) for key in requests)

    def _candidate(self, instruction: TrainInstruction) -> Candidate:
        """Return the candidate of an instruction, sampling its parameters when it is new."""
        number = instruction.candidate
        if number not in self.candidates:
            pending = {c.number: c.params for c in self._unscored.values()}
            params = dict(self.source.ask(instruction, pending))
            resources = self.resources_of(params)
            self.engine.check(resources)
            # models in the checkpoint are named by their parameters too
            key = str(number) if self.context.models is None else candidate_key(number, params)
            self.candidates[number] = Candidate(number, params, resources, key)
        return self.candidates[number]

    def _submit(self, candidates: Sequence[Candidate]) -> None:
        """Submit a chain of tasks per candidate of one priority; the last publishes the record."""
        chains = []
        for candidate in candidates:
            chain = self._training.chain(candidate, candidate.instruction.n_calls, is_scored=True)
            chains.append([*chain[:-1], chain[-1]._replace(summarize=summary_of)])
        calls = list(chain_of.from_iterable(chains))
        priority, resources = _priority(candidates[0]), candidates[0].resources
        tasks = iter(self.engine.submit_all(calls, priority=priority, resources=resources))
        for candidate, chain in zip(candidates, chains, strict=True):
            submitted = [next(tasks) for _ in chain]
            self._chains[candidate.number] = submitted
            self._running[id(submitted[-1])] = candidate
            self._completions.add(submitted[-1], summary_of)

    # -- results --------------------------------------------------------------------------------

    def _handle_all(self, results: Sequence[TaskResult]) -> None:
        """Handle finished tasks, and release stale futures while no others finish."""
        for result in results:
            self._handle_done(result)
        if not results or len(self._stale_futures) > MAX_STALE:
            self._release_stale()

    def _release_stale(self) -> None:
        """Release stale futures, and then the stored models of stopped candidates.

        Until then Dask makes the futures again that a worker takes with it, of the stored models.
        """
        self._stale_futures.clear()
        while self._stopped:
            self.listener.on_stopped(self._stopped.pop())

    def _handle_done(self, result: TaskResult) -> None:
        """Record the score of a finished chain, or resubmit a lost one, or fail its candidate."""
        self._no_worker_since = None
        candidate = self._running.pop(id(result.task), None)
        if candidate is None:
            return
        chain = self._chains.pop(candidate.number)
        self._stale_futures += [*chain, candidate.model]
        if result.was_lost and candidate.n_lost < MAX_RESTARTS:
            candidate.n_lost += 1
            self._restart(candidate)
            self._submit([candidate])
        elif result.killed_workers and not candidate.may_kill_workers:
            candidate.may_kill_workers = True
            self._restart(candidate)
            self._suspected_killers.append(candidate)
        elif result.error is not None:
            self._fail(candidate, self._failure(candidate, result))
        else:
            record, output = result.value
            self._replay_output(output)
            self._handle_record(candidate, record, chain[-1])

    def _handle_record(self, candidate: Candidate, record: Record, model: Task) -> None:
        """Record the score of an instruction, or retry one that failed."""
        if record.failure is None:
            candidate.model, candidate.may_kill_workers, candidate.n_tries = model, False, 0
            self._record_score(candidate, record)
        elif candidate.n_tries < self.retries:
            candidate.n_tries += 1
            self._submit([candidate])
        else:
            self._fail(candidate, record.failure)

    def _restart(self, candidate: Candidate) -> None:
        """Reset a candidate to its first call, and restore scattered data that may be lost."""
        for scattered in (*self.data.scattered, self._shared):
            self.engine.rescatter(scattered)
        self._training.clear()
        candidate.model, candidate.n_calls = None, 0

    def _failure(self, candidate: Candidate, result: TaskResult) -> Failure:
        """Return the failure for an error outside of the training itself."""
        assert result.error is not None
        if result.killed_workers:
            message = (
                f"candidate {candidate.number} must leave its worker alive. Its workers died again "
                f"and again while they trained it alone, with {dict(candidate.params)!r}. "
                f"{result.error}"
            )
        elif result.was_lost:
            message = (
                f"candidate {candidate.number} was lost with its workers again and again: "
                f"{result.error}. Look in their logs."
            )
        else:
            return failure_of(result.error)
        error = FleetError(message)
        error.__cause__ = result.error
        return Failure(error, "")

    def _fail(self, candidate: Candidate, failure: Failure) -> None:
        """Record that a candidate cannot be trained; the schedule then stops it."""
        if self.raises_errors:
            failure.error.add_note(
                f"While candidate {candidate.number} was trained, with "
                f"{dict(candidate.params)!r}:\n{failure.trace}"
            )
            self._first_error = failure.error
        candidate.failure = failure
        record = Record(candidate.instruction.n_calls, {}, failure=failure)
        self._notify(candidate, record, math.nan)

    def _record_score(self, candidate: Candidate, record: Record) -> None:
        """Record the scores of a candidate, and keep its model if it is the best so far."""
        instruction = candidate.instruction
        n_new = max(1, record.n_calls - candidate.n_calls)
        self._training.seconds[candidate.number] = record.fit_time / n_new
        self._recent_seconds.append(record.fit_time + record.score_time)
        candidate.n_calls = record.n_calls
        candidate.levels.append(record.n_calls)
        score = self.decide(record.scores)
        if not math.isnan(score) and not score < candidate.best_score:
            candidate.best, candidate.best_score = (instruction, record), score
            candidate.best_model = candidate.model
            self._update_best(candidate)
        self._notify(candidate, record, score)

    def _update_best(self, candidate: Candidate) -> None:
        """Keep the model of the best: of equals the one with more calls, then the first."""

        def rank(candidate: Candidate) -> tuple[float, int, int]:
            assert candidate.best is not None
            return candidate.best_score, candidate.best[1].n_calls, -candidate.number

        previous = self.best
        if previous is None or rank(candidate) >= rank(previous):
            self.best = candidate
            if previous is not None and previous is not candidate:
                self._release_best_model(previous)
        else:
            self._release_best_model(candidate)

    def _release_best_model(self, candidate: Candidate) -> None:
        if not self.keeps_all_models:
            self._stale_futures.append(candidate.best_model)
            candidate.best_model = None

    def _notify(self, candidate: Candidate, record: Record, score: float) -> None:
        """Pass a score to listener, sampler and schedule; release the models that are stopped."""
        instruction = candidate.instruction
        del self._unscored[candidate.number]
        self.listener.on_record(candidate, instruction, record)
        self.source.tell(instruction, candidate.params, score)
        for number in self.schedule.on_score(candidate.number, score):
            stopped = self.candidates[number]
            self._stale_futures.append(stopped.model)
            stopped.model, stopped.is_stopped = None, True
            if not self.keeps_all_models:
                self._stopped.append(stopped)

    # -- the end --------------------------------------------------------------------------------

    def model_of(self, candidate: Candidate, *, refit_on_test: bool = False) -> Any:
        """Fetch the model that a candidate had when its score was best."""
        assert candidate.best is not None
        n_calls = candidate.best[1].n_calls
        models = self.context.models
        trained = None
        if self._training.has_single_model:
            trained = models.exact(candidate.key, n_calls) if models is not None else None
            if trained is None and candidate.best_model is not None:
                trained = self._fetch(candidate.best_model, is_last_try=False)
            # lost with its worker, trained on since, or of an earlier search: train it again
            if trained is None or trained.n_calls != n_calls:
                if models is not None:
                    models.prune(set(), candidate.key)
                candidate.model = None
                chain = self._training.chain(candidate, n_calls)
                trained = self._fetch(self.engine.submit_all(chain)[-1])
            model = model_in(trained)
        refit = self._training.refit(candidate, n_calls, trained, on_test=refit_on_test)
        if refit is not None:
            (task,) = self.engine.submit_all([refit], resources=candidate.resources)
            model = model_in(self._fetch(task))
        return model

    def close(self) -> None:
        """Release everything that the search has on the fleet."""
        for candidate in self.candidates.values():
            candidate.model = candidate.best_model = None
        self._training.clear()
        self._stale_futures.clear()
        owned = (self._shared, *self.data.owned)
        for value in {id(value): value for value in owned}.values():
            self.engine.release(value)
        self.context.device_cache.close()

    def _fetch(self, task: Task, *, is_last_try: bool = True) -> Any:
        """Fetch the value of a task; if it is lost with its worker, return None or raise."""
        completions = self.engine.completion_queue()
        completions.add(task)
        while True:
            for result in completions.next(POLL_SECONDS):
                is_lost = result.was_lost or result.killed_workers
                if result.error is not None and (is_last_try or not is_lost):
                    raise result.error
                return result.value


def _priority(candidate: Candidate) -> int:
    """Return the priority of a candidate's tasks: the larger its bracket, the earlier."""
    return candidate.instruction.bracket
