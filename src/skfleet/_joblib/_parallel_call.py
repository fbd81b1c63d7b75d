"""Batches of one ``Parallel`` call: submission to the scheduler, and report of their results."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import queue
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from distributed import Client, Future

from skfleet._captured_output import process_token
from skfleet._cluster import (
    PauseCheck,
    WorkerInfo,
    all_workers_on_this_host,
    death_error,
    scheduler_workers,
)
from skfleet._fall_back import fall_back
from skfleet._joblib._batch_task import BatchResult, CallItem, RetriableError, run_batch, task_name
from skfleet._joblib._callbacks import has_callbacks_in, pack
from skfleet._joblib._shared_arguments import SharedArguments
from skfleet.engine import Pickled, ScatteredObject
from skfleet.exceptions import FleetError, WorkersPausedError

logger = logging.getLogger(__name__)

# A payload of this size is scattered: Dask warns of large graphs.
MIN_PAYLOAD_SCATTER_BYTES = 1_000_000

MAX_RESENDS = 10  # of a batch whose data were lost with a worker
FLEET_CHECK_SECONDS = 5.0  # between two checks of a silent fleet
NO_WORKER_SECONDS = 30.0  # in which a worker that died is started again
LOST_POLL_SECONDS = 0.5  # between two polls for recomputed results

# Reasons that Dask gives where the data of a task were lost: when it notices, and when the task is
# requested later. Another batch may have sent the data again in between.
_LOST_REASONS = ("lost dependencies", "already forgotten")


@dataclass(eq=False)
class CallBatch:
    """A batch of calls, the callback for its result, and its future once it is submitted.

    ``worker`` is the preferred worker, ``device`` the kind of worker that it needs. Errors name it
    by its ``subject``, the scheduler by its ``name``.
    """

    calls: Sequence[CallItem]
    report: Callable[[BatchResult], Any]
    name: str = ""
    worker: str | None = None
    device: str | None = None
    subject: str = ""
    scattered: list[tuple[Any, ScatteredObject]] = field(default_factory=list)
    payload: ScatteredObject | None = None
    future: Future | None = None
    n_sent: int = 0


def explain_unpicklable(error: Exception, name: str) -> None:
    """Add to an error whose arguments it is about, and a remedy."""
    error.add_note(
        f"arguments of {name} must be picklable, to travel to a worker. "
        "Pass arrays or plain objects, or run it with require='sharedmem'."
    )


def explain_missing_module(error: Any) -> None:
    """Add to a worker's failure to import a module that this process has what to do about it."""
    name = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if name is not None and name.partition(".")[0] in sys.modules:
        error.add_note(
            f"Workers cannot import {name!r}, which this process can. Install it where they run, "
            "start them with its folder, as in Fleet(env={'PYTHONPATH': folder}), or send the "
            "file with client.upload_file(path)."
        )


# The way of a batch:
# 1. `submit` takes as many batches as the limit allows; the others wait.
# 2. `_send` pickles it, scatters its large arguments, and submits the task.
# 3. `_enqueue_done` puts it into one queue when its future is done, or an error came before.
# 4. `_deliver`, in a thread, fetches results together. Lost results are polled until Dask has
#    recomputed them, and batches whose arguments were lost are sent again.
# 5. `_report` sends a waiting batch, and reports the result to joblib.
# A silent fleet is checked meanwhile, so that a call without workers ends in an error.
class ParallelCall:
    """The batches of one ``Parallel`` call, at most ``limit`` of them in flight.

    joblib waits until each batch has reported. So whatever happens to a batch, from its pickling in
    the driver to the end of its scheduler, arrives in one queue and ends in one report.

    With ``limit=None`` all queuing is left to the scheduler. ``nested`` are backend and n_jobs of
    Parallel calls within tasks, ``options`` keyword arguments of ``Client.submit``. For a device,
    ``resources_for`` returns the resources that a batch needs, and ``has_workers`` whether any
    of some workers may run it. There may be none for ``no_worker_timeout`` seconds, or for
    `NO_WORKER_SECONDS` where that is longer.
    """

    def __init__(
        self,
        client: Client,
        *,
        limit: int | None,
        nested: tuple[Any, int],
        n_threads: int,
        shared: SharedArguments,
        options: dict[str, Any],
        resources_for: Callable[[str | None], dict[str, float] | None],
        has_workers: Callable[[dict[str, WorkerInfo], str | None], bool],
        no_worker_timeout: float,
    ) -> None:
        self.client = client
        self._limit, self._nested, self._shared = limit, nested, shared
        self._has_workers_option = bool(options.get("workers"))
        self._submit = partial(client.submit, run_batch, pure=False, **options)
        self._resources_for, self._has_workers = resources_for, has_workers
        self._task_options = {
            "caller_token": process_token(),
            "n_threads": n_threads,
            # A result is returned even where a call failed. For Dask to retry it must be raised.
            "retriable": bool(options.get("retries")),
        }
        self._begin = time.time()
        self._no_worker_timeout = max(NO_WORKER_SECONDS, no_worker_timeout)
        self._lock = threading.RLock()
        self._running: set[CallBatch] = set()
        self._waiting: deque[CallBatch] = deque()
        self._completed: queue.SimpleQueue = queue.SimpleQueue()
        self._closed = False
        self._no_worker_since: float | None = None
        # by the device of the calls
        self._pauses = defaultdict(partial(PauseCheck, client, no_worker_timeout))
        self._lost: list[tuple[CallBatch, Future]] = []  # finished once, and being recomputed
        # In the context of the call, with the warnings filters and output of an enclosing task.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._deliver,), name="skfleet-joblib", daemon=True
        )
        self._thread.start()

    def submit(self, batches: Sequence[CallBatch]) -> None:
        """Submit batches together, up to the limit; the others wait."""
        with self._lock:
            if self._closed:
                return
            limit = self._limit
            n_free = len(batches) if limit is None else max(0, limit - len(self._running))
            self._running.update(batches[:n_free])
            self._waiting.extend(batches[n_free:])
        self._send(batches[:n_free])

    def abort(self) -> None:
        """Cancel the batches in flight, and report nothing any more."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            futures = [batch.future for batch in self._running if batch.future is not None]
            self._running.clear()
        if futures:
            # A client that is closed has cancelled them already.
            with contextlib.suppress(Exception):
                self.client.cancel(futures, force=True)

    def close(self) -> None:
        """End the thread that delivers, and release everything."""
        self.abort()  # what was sent twice may still be in flight
        self._shared.release()
        self._completed.put(None)
        # joblib may end the call within a report.
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=FLEET_CHECK_SECONDS)

    # -- from the thread that dispatches -------------------------------------------------------

    def _send(self, batches: Sequence[CallBatch]) -> None:
        """Submit batches to the scheduler; a batch reports an error on the way.

        All are pickled first. Tasks submitted in one go are sent in one message, those of a moment
        later 10 ms later.
        """
        pickled = []
        for batch in batches:
            try:
                batch.name = batch.name or task_name(batch.calls)
                pickled.append((batch, *self._pickle(batch)))
            except BaseException as error:
                self._enqueue_done(batch, error)
        for batch, payload, scattered in pickled:
            try:
                # A new key each time: a cancelled key may still be on its way out.
                placement: dict[str, Any] = {"resources": self._resources_for(batch.device)}
                if batch.worker is not None and not self._has_workers_option:
                    placement |= {"workers": [batch.worker], "allow_other_workers": True}
                with self._lock:
                    if self._closed:  # during the pickling: `abort` has not seen this future
                        return
                    future = batch.future = self._submit(
                        payload,
                        scattered,
                        key=f"{batch.name}-{uuid4().hex}",
                        name=batch.name,
                        **self._task_options,
                        **placement,
                    )
                batch.n_sent += 1
                future.add_done_callback(partial(self._enqueue_done, batch))
            except BaseException as error:
                self._enqueue_done(batch, error)

    def _enqueue_done(self, batch: CallBatch, done: Future | BaseException) -> None:
        """Queue a batch that is done, unless the call is closed and nothing empties the queue."""
        with self._lock:
            if not self._closed:
                self._completed.put((batch, done))

    def _pickle(self, batch: CallBatch) -> tuple[Any, list[Future]]:
        """Pickle a batch, and scatter its large arguments."""
        try:
            calls, batch.scattered = self._shared.extract_large(batch.calls)
            payload: Any = Pickled.dumps((calls, self._nested))
            if has_callbacks_in(payload):
                payload = pack((calls, self._nested))
            if payload.nbytes >= MIN_PAYLOAD_SCATTER_BYTES:
                calls, batch.scattered = self._shared.extract_large(batch.calls, functions=True)
                payload = Pickled.dumps((calls, self._nested))
        except Exception as error:
            explain_unpicklable(error, batch.name)
            raise
        futures = [copy.future for _, copy in batch.scattered]
        batch.payload = None
        if payload.nbytes >= MIN_PAYLOAD_SCATTER_BYTES:
            batch.payload = ScatteredObject(self.client, payload)
            payload = batch.payload.future
        return payload, futures

    # -- in the thread that delivers -----------------------------------------------------------

    def _deliver(self) -> None:
        """Report completed batches, until the call is closed."""
        while True:
            self._requeue_recomputed()
            try:
                short = min(LOST_POLL_SECONDS, FLEET_CHECK_SECONDS)
                timeout = short if self._lost else FLEET_CHECK_SECONDS
                completed = [self._completed.get(timeout=timeout)]
            except queue.Empty:
                self._check_fleet()
                continue
            with contextlib.suppress(queue.Empty):
                while True:
                    completed.append(self._completed.get_nowait())
            if None in completed:
                return
            self._no_worker_since = None
            self._pauses.clear()
            for batch, result in self._results(completed):
                self._report(batch, result)
            # Batches and results must not live on in this frame until the next ones are completed.
            completed = batch = result = None

    def _requeue_recomputed(self) -> None:
        """Queue the batches whose lost results were recomputed, or never will be."""
        lost, self._lost = self._lost, []
        for batch, future in lost:
            if future.status in ("pending", "lost"):
                self._lost.append((batch, future))
            else:
                self._enqueue_done(batch, future)

    def _results(self, completed: list[Any]) -> Iterator[tuple[CallBatch, BatchResult | None]]:
        """Fetch the results of completed batches: together, and singly where that fails.

        From workers of this machine they need not pass through the scheduler.
        """
        finished = [
            (batch, future)
            for batch, future in completed
            if isinstance(future, Future) and future is batch.future and future.status == "finished"
        ]
        fetched: dict[CallBatch, Pickled] = {}
        if finished and not self._closed:
            try:
                batches, futures = zip(*finished, strict=True)
                values = self._fetch(list(futures))
                fetched = {} if values is None else dict(zip(batches, values, strict=True))
            except (Exception, CancelledError) as error:
                # A task that holds the error would keep its frames alive: the batches in them, and
                # their data on the fleet, would stay until garbage is collected.
                error.__traceback__ = None
        for batch, future in completed:
            if self._closed:
                return
            if isinstance(future, BaseException):
                yield batch, BatchResult(False, future)
            elif future is batch.future:
                yield batch, self._result(batch, future, fetched.pop(batch, None))

    def _fetch(self, futures: Sequence[Future]) -> list[Pickled] | None:
        """Fetch results, however long that takes; None where some were lost with their workers.

        distributed recomputes those, and would wait for that here, where it goes unnoticed if no
        workers are left to do so.
        """
        direct = all_workers_on_this_host(self.client) or None
        if not all(future.status == "finished" for future in futures):
            return None
        coroutine = self.client.gather(futures, direct=direct, asynchronous=True)
        task = asyncio.run_coroutine_threadsafe(coroutine, self.client.loop.asyncio_loop)
        while True:
            try:
                return task.result(timeout=FLEET_CHECK_SECONDS)
            except TimeoutError:
                if task.done():
                    raise
                if not all(future.status == "finished" for future in futures):
                    task.cancel()
                    return None

    def _result(
        self, batch: CallBatch, future: Future, pickled: Pickled | None
    ) -> BatchResult | None:
        """Return the result of a batch, or None when it is being recomputed."""
        try:
            if pickled is None and future.status not in ("error", "cancelled"):
                fetched = self._fetch([future]) if future.status == "finished" else None
                if fetched is None:
                    self._lost.append((batch, future))
                    return None
                (pickled,) = fetched
            if pickled is None:
                try:
                    pickled = future.result()  # raises
                except RetriableError as error:
                    pickled = error.pickled_result
            result: BatchResult = pickled.loads(steal=True)
            explain_missing_module(result.value)
            return result
        except CancelledError as error:
            if self._closed or self._resend(batch, error):
                error.__traceback__ = None
                return None
            return BatchResult(False, self._explain(batch, error))
        except BaseException as error:
            return BatchResult(False, self._explain(batch, error))

    def _resend(self, batch: CallBatch, error: CancelledError) -> bool:
        """Send a batch whose data died with a worker; False if that is not what cancelled it."""
        if batch.n_sent > MAX_RESENDS or self.client.status != "running":
            return False
        if batch.n_sent > 1 and death_error(self.client, error, since=self._begin) is not None:
            return False  # workers were ended for their memory, and its data with them
        with fall_back("a batch whose arguments cannot be sent again is not resent"):
            lost = [(obj, copy) for obj, copy in batch.scattered if copy.is_lost()]
            has_lost_payload = batch.payload is not None and batch.payload.is_lost()
            if not (lost or has_lost_payload or getattr(error, "reason", None) in _LOST_REASONS):
                return False
            for obj, copy in lost:
                copy.resend(obj)
            self._send([batch])
            return True
        return False

    def _report(self, batch: CallBatch, result: BatchResult | None) -> None:
        """Send a waiting batch in the place of this one, and report the result to joblib."""
        if result is None:
            return
        with self._lock:
            self._running.discard(batch)
            batch.future = None
            following = [self._waiting.popleft()] if self._waiting and not self._closed else []
            self._running.update(following)
        # Before the report, which runs joblib's code.
        self._send(following)
        try:
            batch.report(result)
        except BaseException:
            logger.exception("joblib could not take the outcome of %s", batch.name)

    def _check_fleet(self) -> None:
        """Report errors for all batches when no worker is left to run them, or all are paused."""
        with self._lock:
            devices = {batch.device for batch in self._running}
            if not devices:
                return
        problem = None
        if self.client.status in ("closing", "closed"):
            problem = "its client was closed"
        else:
            has_workers = None
            with fall_back("a scheduler that does not answer is asked again later"):
                workers = scheduler_workers(self.client)
                has_workers = all(self._has_workers(workers, device) for device in devices)
                if has_workers:
                    self._resubmit_stuck()
            if has_workers is None:
                return  # the client cancels the futures when it gives the scheduler up
            now = time.monotonic()
            if has_workers:
                self._no_worker_since = None
                self._check_pauses(workers, devices)
            elif self._no_worker_since is None:
                self._no_worker_since = now
            elif now - self._no_worker_since > self._no_worker_timeout:
                seconds = now - self._no_worker_since
                problem = f"no worker for it has been there for {seconds:.0f} s"
        if problem is not None:
            for batch in self._pop_batches():
                name = batch.subject or batch.name or task_name(batch.calls)
                error = FleetError(f"{name} must be run by a worker, but {problem}.")
                self._report(batch, BatchResult(False, error))

    def _check_pauses(self, workers: dict[str, WorkerInfo], devices: Iterable[str | None]) -> None:
        """Report the error for all batches where all workers for a device are paused for good."""
        try:
            for device in devices:
                self._pauses[device](workers, partial(self._has_workers, device=device))
        except WorkersPausedError as error:
            for batch in self._pop_batches():
                self._report(batch, BatchResult(False, error))

    def _pop_batches(self) -> list[CallBatch]:
        """Cancel the batches in flight, and return them with those that wait, to be reported."""
        with self._lock:
            batches = [*self._running, *self._waiting]
            self._waiting.clear()
        futures = [batch.future for batch in batches if batch.future is not None]
        with contextlib.suppress(Exception):  # a client that is closed has cancelled them already
            self.client.cancel(futures, force=True)
        return batches

    def _resubmit_stuck(self) -> None:
        """Submit batches again that wait for a worker that is gone, for any worker.

        Other workers may run them. But where there was none at the time, the scheduler reserves the
        task for the worker that it was meant for.
        """
        with self._lock:
            bound = [(b, b.future) for b in self._running if b.worker and b.future is not None]
        if not bound:
            return
        processing = self.client.processing()
        started = {key for keys in processing.values() for key in keys}
        for batch, future in bound:
            is_stuck = batch.worker not in processing and future.key not in started
            if is_stuck and future.status == "pending":
                # The new future first: the end of the cancelled one is then of no batch.
                batch.worker = None
                self._send([batch])
                self.client.cancel([future], force=True)

    def _explain(self, batch: CallBatch, error: BaseException) -> BaseException:
        """Return an error that names the task and a remedy, for one of Dask's."""
        subject = batch.subject or batch.name
        problem = f"could not be run or brought back. Got {type(error).__name__}: {error}"
        if isinstance(error, CancelledError):
            problem = (
                "was cancelled before it ended: by another user of the scheduler, because the "
                "scheduler went away, or because its data were lost with workers that died. "
                f"{error}"
            )
        explained = death_error(self.client, error, since=self._begin, name=subject)
        explained = explained or FleetError(f"{subject} {problem}")
        explained.__cause__ = error
        return explained
