"""How the batches of one Parallel call reach the fleet, and that each of them reports back."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from distributed import Client, Future

from skfleet._captured_output import home
from skfleet._joblib._callbacks import has_callbacks_in, pack
from skfleet._joblib._shared_arguments import SharedArguments
from skfleet._joblib._worker import Call, Outcome, RetriableError, run_batch, task_name
from skfleet.engine import Pickled, ScatteredObject, all_workers_on_this_host, death_error
from skfleet.exceptions import FleetError

__all__ = ["Batch", "ParallelCall", "explain_unpicklable"]

logger = logging.getLogger(__name__)

# A batch that is heavier than this is scattered: Dask warns of large graphs.
PAYLOAD_SCATTER_FROM = 1_000_000

# How often a batch is sent again whose data died with a worker, and how often (in seconds) a silent
# fleet is asked whether it is still there.
N_RESENDS = 10
CHECK_EVERY = 5.0
# How often to see whether results that were lost are there again.
LOOK_EVERY = 0.5

# What Dask says of a task whose data were lost: when it notices, and when it is asked for the task
# later. Another batch may have sent the data again in between.
_LOST = ("lost dependencies", "already forgotten")


@dataclass(eq=False)
class Batch:
    """What a batch calls, whom it reports to, and once it is on its way the future of its outcome.

    ``worker`` is where it should go if it can, ``device`` what kind of worker it needs.
    """

    calls: Sequence[Call]
    report: Callable[[Outcome], Any]
    name: str = ""
    worker: str | None = None
    device: str | None = None
    shared: list[tuple[Any, ScatteredObject]] = field(default_factory=list)
    payload: ScatteredObject | None = None
    future: Future | None = None
    n_sent: int = 0


def explain_unpicklable(error: Exception, name: str) -> None:
    """Say with an error whose arguments it is about, and what to do."""
    error.add_note(
        f"arguments of {name} must be picklable, to travel to a worker. "
        "Pass arrays or plain objects, or run it with require='sharedmem'."
    )


class ParallelCall:
    """The batches of one ``Parallel`` call, at most ``limit`` of them in flight.

    joblib waits until each batch has reported, and hears of nothing else. So whatever happens to a
    batch, from its pickling in the driver to the end of its scheduler, arrives in one queue and
    ends in one report.

    Parameters
    ----------
    client : distributed.Client
    limit : int or None
        Largest number of batches in flight; None leaves all queuing to the scheduler.
    nested : tuple of (ParallelBackendBase, int)
        Backend and n_jobs of Parallel calls within tasks.
    n_threads : int
        Threads of BLAS and OpenMP libraries in a task.
    shared : SharedArguments
    options : dict
        Keyword arguments of ``Client.submit``.
    resources_for : callable
        Gives the resources that a batch needs for its device.
    has_workers : callable
        Tells whether any worker may run batches for a device now.
    patience : float
        Seconds for which there may be no such worker.
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
        has_workers: Callable[[str | None], bool],
        patience: float,
    ) -> None:
        self.client = client
        self._limit = limit
        self._nested = nested
        self._shared = shared
        self._has_workers_option = bool(options.get("workers"))
        self._submit = partial(client.submit, run_batch, pure=False, **options)
        self._resources_for = resources_for
        self._task_options = {
            "origin": home(),
            "n_threads": n_threads,
            # An outcome is returned even where a call failed. For Dask to retry it must be raised.
            "retriable": bool(options.get("retries")),
        }
        self._has_workers = has_workers
        self._begin = time.time()
        self._patience = patience
        self._lock = threading.RLock()
        self._running: set[Batch] = set()
        self._waiting: deque[Batch] = deque()
        self._arrivals: queue.SimpleQueue = queue.SimpleQueue()
        self._closed = False
        self._alone_since: float | None = None
        self._lost: list[tuple[Batch, Future]] = []  # finished once, and being made again
        # In the context of the call: warnings filters and notes of an enclosing task go with it.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._deliver,), name="skfleet-joblib", daemon=True
        )
        self._thread.start()

    def submit(self, batches: Sequence[Batch]) -> None:
        """Send batches, together, and keep those for which there is no room yet."""
        with self._lock:
            if self._closed:
                return
            room = len(batches)
            if self._limit is not None:
                room = max(0, self._limit - len(self._running))
            self._running.update(batches[:room])
            self._waiting.extend(batches[room:])
        self._send(batches[:room])

    def abort(self) -> None:
        """Cancel what is in flight, and report nothing any more."""
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
        """End the delivery, and let go of everything."""
        self.abort()  # what was sent twice may still be in flight
        self._arrivals.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=CHECK_EVERY)

    # -- from the thread that dispatches -------------------------------------------------------

    def _send(self, batches: Sequence[Batch]) -> None:
        """Submit batches to the scheduler; an error on the way is what a batch reports.

        All are packed first. What is submitted in one go travels in one message, and what comes
        a moment later 10 ms later.
        """
        packed = []
        for batch in batches:
            try:
                batch.name = batch.name or task_name(batch.calls)
                packed.append((batch, *self._pack(batch)))
            except BaseException as error:
                self._arrive(batch, error)
        for batch, payload, shared in packed:
            try:
                # A new key each time: a cancelled key may still be on its way out.
                place: dict[str, Any] = {"resources": self._resources_for(batch.device)}
                if batch.worker is not None and not self._has_workers_option:
                    place |= {"workers": [batch.worker], "allow_other_workers": True}
                with self._lock:
                    if self._closed:  # while it was packed: nobody would cancel it
                        return
                    future = batch.future = self._submit(
                        payload,
                        shared,
                        key=f"{batch.name}-{uuid4().hex}",
                        name=batch.name,
                        **self._task_options,
                        **place,
                    )
                batch.n_sent += 1
                future.add_done_callback(partial(self._arrive, batch))
            except BaseException as error:
                self._arrive(batch, error)

    def _arrive(self, batch: Batch, outcome: Future | BaseException) -> None:
        """Queue a batch that is done. Of a call that is closed nobody would take it out again."""
        with self._lock:
            if not self._closed:
                self._arrivals.put((batch, outcome))

    def _pack(self, batch: Batch) -> tuple[Any, list[Future]]:
        """Pickle a batch, its large arguments apart."""
        try:
            calls, batch.shared = self._shared.take_out(batch.calls)
            payload: Any = Pickled.dumps((calls, self._nested))
            if has_callbacks_in(payload):
                payload = pack((calls, self._nested))
            if payload.nbytes >= PAYLOAD_SCATTER_FROM:
                calls, batch.shared = self._shared.take_out(batch.calls, functions=True)
                payload = Pickled.dumps((calls, self._nested))
        except Exception as error:
            explain_unpicklable(error, batch.name)
            raise
        futures = [share.future for _, share in batch.shared]
        batch.payload = None
        if payload.nbytes >= PAYLOAD_SCATTER_FROM:
            batch.payload = ScatteredObject(self.client, payload)
            payload = batch.payload.future
        return payload, futures

    # -- in the thread that delivers -----------------------------------------------------------

    def _deliver(self) -> None:
        """Report what arrives, until the call is closed."""
        while True:
            self._look_for_lost()
            try:
                wait = min(LOOK_EVERY, CHECK_EVERY) if self._lost else CHECK_EVERY
                arrived = [self._arrivals.get(timeout=wait)]
            except queue.Empty:
                self._check_fleet()
                continue
            with contextlib.suppress(queue.Empty):
                while True:
                    arrived.append(self._arrivals.get_nowait())
            if None in arrived:
                return
            self._alone_since = None
            for batch, outcome in self._outcomes(arrived):
                self._finish(batch, outcome)
            # Batches and their results must not live on in this frame until the next arrival.
            arrived = batch = outcome = None

    def _look_for_lost(self) -> None:
        """Take what was lost for arrived once it has been made again, or never will be."""
        lost, self._lost = self._lost, []
        for batch, future in lost:
            if future.status in ("pending", "lost"):
                self._lost.append((batch, future))
            else:
                self._arrive(batch, future)

    def _outcomes(self, arrived: list[Any]) -> Any:
        """Fetch the outcomes of what arrived: together, and one by one where that fails.

        From workers of this machine they need not pass through the scheduler.
        """
        finished = [
            (batch, future)
            for batch, future in arrived
            if isinstance(future, Future) and future is batch.future and future.status == "finished"
        ]
        parcels: dict[Batch, Pickled] = {}
        if finished and not self._closed:
            try:
                got = self._fetch([future for _, future in finished])
                if got is not None:
                    batches = [batch for batch, _ in finished]
                    parcels = dict(zip(batches, got, strict=True))
            except (Exception, CancelledError) as error:
                _forget_frames(error)
        for batch, future in arrived:
            if self._closed:
                return
            if isinstance(future, BaseException):
                yield batch, Outcome(False, future)
            elif future is batch.future:
                yield batch, self._outcome(batch, future, parcels.pop(batch, None))

    def _fetch(self, futures: Sequence[Future]) -> list[Pickled] | None:
        """Fetch results, however long that takes; None where some were lost with their workers.

        distributed makes those again, and would wait for that here, where nobody sees whether there
        are workers left to do so.
        """
        direct = all_workers_on_this_host(self.client) or None
        if not all(future.status == "finished" for future in futures):
            return None
        coroutine = self.client.gather(futures, direct=direct, asynchronous=True)
        task = asyncio.run_coroutine_threadsafe(coroutine, self.client.loop.asyncio_loop)
        while True:
            try:
                return task.result(timeout=CHECK_EVERY)
            except TimeoutError:
                if task.done():
                    raise
                if not all(future.status == "finished" for future in futures):
                    task.cancel()
                    return None

    def _outcome(self, batch: Batch, future: Future, parcel: Pickled | None) -> Outcome | None:
        """Give the outcome of a batch, or None when it is being made again."""
        try:
            if parcel is None and future.status not in ("error", "cancelled"):
                got = self._fetch([future]) if future.status == "finished" else None
                if got is None:
                    self._lost.append((batch, future))
                    return None
                (parcel,) = got
            if parcel is None:
                try:
                    parcel = future.result()  # raises
                except RetriableError as error:
                    parcel = error.parcel
            return parcel.loads(steal=True)
        except CancelledError as error:
            if self._closed or self._send_again(batch, error):
                _forget_frames(error)
                return None
            return Outcome(False, self._explain(batch, error))
        except BaseException as error:
            return Outcome(False, self._explain(batch, error))

    def _send_again(self, batch: Batch, error: CancelledError) -> bool:
        """Send a batch whose data died with a worker; False if that is not what cancelled it."""
        if batch.n_sent > N_RESENDS or self.client.status != "running":
            return False
        try:
            lost = [(obj, share) for obj, share in batch.shared if share.is_lost()]
            others = batch.payload is not None and batch.payload.is_lost()
            if not (lost or others or getattr(error, "reason", None) in _LOST):
                return False
            for obj, share in lost:
                share.resend(obj)
        except Exception:
            logger.debug("arguments of %s could not be sent again", batch.name, exc_info=True)
            return False
        self._send([batch])
        return True

    def _finish(self, batch: Batch, outcome: Outcome | None) -> None:
        """Make room for the next batch, and report the outcome to joblib."""
        if outcome is None:
            return
        following = None
        with self._lock:
            self._running.discard(batch)
            batch.future = None
            if self._waiting and not self._closed:
                following = self._waiting.popleft()
                self._running.add(following)
        if following is not None:
            self._send([following])
        try:
            batch.report(outcome)
        except BaseException:
            logger.exception("joblib could not take the outcome of %s", batch.name)

    def _check_fleet(self) -> None:
        """End the call when there is nobody left to run it."""
        with self._lock:
            devices = {batch.device for batch in self._running}
            if not devices:
                return
        problem = None
        if self.client.status in ("closing", "closed"):
            problem = "its client was closed"
        else:
            try:
                alone = not all(map(self._has_workers, devices))
                if not alone:
                    self._send_elsewhere()
            except Exception:
                logger.debug("the scheduler did not answer", exc_info=True)
                return  # the client cancels the futures when it gives the scheduler up
            now = time.monotonic()
            if not alone:
                self._alone_since = None
            elif self._alone_since is None:
                self._alone_since = now
            elif now - self._alone_since > self._patience:
                problem = f"no worker for it has been there for {now - self._alone_since:.0f} s"
        if problem is not None:
            with self._lock:
                batches = [*self._running, *self._waiting]
                self._waiting.clear()
            for batch in batches:
                name = batch.name or task_name(batch.calls)
                error = FleetError(f"{name} must be run by a worker, but {problem}.")
                self._finish(batch, Outcome(False, error))

    def _send_elsewhere(self) -> None:
        """Send again what waits for a worker that is gone, without saying where to.

        Others may take it; but where none was there when it came, the scheduler keeps it for the
        one that it was meant for.
        """
        with self._lock:
            meant = [(b, b.future) for b in self._running if b.worker and b.future is not None]
        if not meant:
            return
        processing = self.client.processing()
        under_way = {key for keys in processing.values() for key in keys}
        for batch, future in meant:
            is_stuck = batch.worker not in processing and future.key not in under_way
            if is_stuck and future.status == "pending":
                batch.worker = None
                self._send([batch])
                self.client.cancel([future], force=True)

    def _explain(self, batch: Batch, error: BaseException) -> BaseException:
        """Turn an error of Dask's into one that names the task and says what to do."""
        name = batch.name
        told = death_error(self.client, error, since=self._begin, name=name)
        if told is not None:
            pass
        elif isinstance(error, CancelledError):
            told = FleetError(
                f"{name} was cancelled before it ended: by another user of the scheduler, "
                "because the scheduler went away, or because its data were lost with workers that "
                f"died. {error}"
            )
        else:
            told = FleetError(
                f"{name} could not be run or brought back. Got {type(error).__name__}: {error}"
            )
        told.__cause__ = error
        return told


def _forget_frames(error: BaseException) -> None:
    """Part an error from the frames it came through, where a task that holds it may be a local.

    The batches in them, and what they have on the fleet, would stay until garbage is collected.
    """
    error.__traceback__ = None
