"""Objects scattered once for many tasks (`ScatteredObject`), and sent again when they are lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, finalize

from distributed import Client, Future

from skfleet._cluster import (
    PauseCheck,
    WorkerInfo,
    all_workers_on_this_host,
    check_workers,
    scheduler_workers,
    state_of,
    wait_for_workers,
)
from skfleet._dask_settings import dask_setting
from skfleet.blocks import BlockRef
from skfleet.engine._counters import add_counts
from skfleet.engine._dask._serialize import MMAP_THRESHOLD, Pickled
from skfleet.engine._dask._shared_memory import SharedMemoryPickled
from skfleet.engine._protocol import Call
from skfleet.engine._reduce import identity
from skfleet.engine._resources import ANY_WORKER, ResourceRequest, satisfies
from skfleet.exceptions import FleetError

# Bytes from which on an object is scattered: as a task's argument it would stay in the scheduler.
_LARGEST_TASK = 9_000_000

# Seconds between two looks at workers that are all paused, before one is ready to take an object.
LOOK_SECONDS = 1.0
# Seconds for which the scheduler's answer is reused before an object is sent.
WORKER_INFO_SECONDS = 5.0

# Objects that tasks of this process have loaded, as long as it has the pickled ones.
_loaded: WeakKeyDictionary[Pickled, Any] = WeakKeyDictionary()

# What ends with an object, by the object's id and whether tasks get it loaded.
_finalizers: dict[tuple[int, bool], finalize] = {}
_lock = threading.RLock()


class ScatteredObject:
    """An object on the cluster, sent once for all tasks that need equal content."""

    def __init__(
        self,
        client: Client,
        parcel: Pickled,
        *,
        broadcast: bool = False,
        is_function: bool = False,
        is_resendable: bool = False,
        is_loaded: bool = False,
        name: str = "hold",
        resources: ResourceRequest = ANY_WORKER,
    ) -> None:
        self._client, self._name, self._broadcast = client, name, broadcast
        self.is_loaded = is_loaded  # tasks get the object itself, and not the pickled one
        self._resources = resources  # of the workers that need the object
        # Other processes of this machine map its memory, so it must live as long as this object.
        is_mappable = parcel.nbytes >= MMAP_THRESHOLD and not (is_function or is_loaded)
        self._mapped = None
        if is_mappable and all_workers_on_this_host(client):
            self._mapped = SharedMemoryPickled.create(parcel)
        # As the result of a task, Dask recomputes it when its worker dies. Its argument stays in
        # the scheduler's memory, too much of which overloads it, and Dask warns. Of mapped memory
        # the argument is only the address.
        is_small = parcel.nbytes < _LARGEST_TASK or self._mapped is not None
        self._as_task = is_loaded or ((is_function or is_resendable) and is_small)
        # To send it again takes the pickled object: views of the original, not a copy.
        self._source = (self._mapped or parcel) if is_resendable else None
        self.future: Future
        if not (is_resendable and is_small):
            self.future = self._send(self._mapped or parcel)

    @property
    def is_submitted(self) -> bool:
        """True once it is sent; a small resendable object is sent with the first task."""
        return hasattr(self, "future")

    def as_call(self) -> Call:
        """Return the call whose result is the pickled object on a worker."""
        return Call(identity, (self._source,), "hold")

    def _send(self, parcel: Pickled) -> Future:
        """Submit or scatter under a new key; an old one may still be on its way to be released.

        Scattering is retried: the scheduler passes data on to workers, and raises an OSError if one
        of them dies meanwhile, and a TimeoutError where none is ready, as all are paused.
        """
        options = {"resources": self._resources.as_dict()} if self._resources.resources else {}
        if self._as_task:
            func = partial(Pickled.loads, steal=True) if self.is_loaded else identity
            key = f"{self._name}-{uuid4().hex}"
            with no_large_graph_warning():
                return self._client.submit(func, parcel, key=key, **options)
        workers = self._eligible_workers() if self._resources.resources else None
        delays, pauses = iter((0.2, 0.5, 1.0, 2.0, 4.0)), PauseCheck(self._client)
        described = scheduler_workers(self._client, WORKER_INFO_SECONDS)
        while True:
            # The scheduler would log an error for each time that it was asked in vain.
            while pauses(described, self._are_eligible):
                time.sleep(LOOK_SECONDS)
                described = scheduler_workers(self._client)
            try:
                return self._client.scatter(
                    parcel, hash=False, broadcast=self._broadcast, workers=workers
                )
            except TimeoutError as error:
                described = scheduler_workers(self._client)
                if pauses(described, self._are_eligible):
                    continue
                raise FleetError(
                    f"arguments of {parcel.nbytes / 1e6:.0f} MB must be taken by a worker. No "
                    "worker was ready to take them. Start workers, or look in the logs of those "
                    "that died."
                ) from error
            except OSError:
                delay = next(delays, None)
                if delay is None or self._client.status != "running":
                    raise
                time.sleep(delay)

    def _eligible_workers(self) -> list[str] | None:
        """Return the workers that satisfy the object's request; None, for any, if none does."""
        workers = scheduler_workers(self._client)
        return [a for a, worker in workers.items() if self._are_eligible({a: worker})] or None

    def _are_eligible(self, workers: Mapping[str, WorkerInfo]) -> bool:
        offers = (worker.get("resources") or {} for worker in workers.values())
        return any(satisfies(offer, self._resources) for offer in offers)

    @property
    def task(self) -> Future:
        """The future of the object, to be an argument of a task."""
        if not self.is_submitted and self._source is not None:
            self.future = self._send(self._source)
        return self.future

    def rescatter(self) -> None:
        """Send a resendable object again if it was lost."""
        if self._source is not None and self.is_submitted and self.is_lost():
            self.future = self._send(self._source)

    def release(self) -> None:
        """Release it, in this process and on the cluster."""
        if self.is_submitted:
            self.future.release()
        self._mapped = self._source = None

    def is_lost(self) -> bool:
        """Return whether no worker has the data any more."""
        if self.future.status == "finished":
            return not any(self._client.who_has([self.future]).values())
        return bool(self.future.status != "pending")  # a pending one is a task, to be run anew

    def resend(self, obj: object) -> None:
        """Send data that died with their worker, pickled anew unless they are mapped."""
        self.future = self._send(self._mapped or Pickled.dumps(obj))


def scatter_content(
    client: Client,
    pickled: Pickled,
    *,
    is_function: bool = False,
    owner: object = None,
    name: str = "hold",
) -> ScatteredObject:
    """Return the scattered object of equal content on the same cluster, or scatter the content.

    With an owner, tasks get the object itself, as an argument, and it stays while the owner lives.
    """
    # Each owner has its own: workers in this process load an object without copying its arrays,
    # which the owner may change.
    is_loaded, owner_id = owner is not None, 0 if owner is None else id(owner)
    scattered, key = state_of(client).scattered, (pickled.digest(), owner_id)
    with _lock:
        copy = scattered.get(key)
        if copy is None or copy.future.status not in ("pending", "finished"):
            if is_loaded:  # for a lazy result, which has no engine that has checked the workers
                check_workers(client, wait_for_workers(client))
                add_counts(tasks=1)
            copy = scattered[key] = ScatteredObject(
                client, pickled, is_function=is_function, is_loaded=is_loaded, name=name
            )
        if is_loaded:
            keep_while_alive(owner, copy)
    return copy


def keep_while_alive(obj: object, copy: ScatteredObject) -> None:
    """Keep a scattered copy until the object dies, or until its content is another."""
    key = id(obj), copy.is_loaded
    with _lock:
        finalizer = _finalizers.get(key)
        if finalizer is not None:
            alive = finalizer.peek()
            if alive is not None and alive[2][1] is copy:
                return
            finalizer.detach()
        # The arguments are the references that keep the copy.
        finalizer = finalize(obj, _drop_finalizer, key, copy)
        finalizer.atexit = False
        _finalizers[key] = finalizer


def _drop_finalizer(key: tuple[int, bool], copy: ScatteredObject) -> None:
    _finalizers.pop(key, None)


@contextmanager
def no_large_graph_warning() -> Iterator[None]:
    """Silence Dask's warning of large values in a graph: they are sent once, on purpose."""
    with dask_setting("distributed.admin.large-graph-warning-threshold", "1 TiB"):
        yield


def substitute_futures(value: Any) -> Any:
    """Return arguments with futures in place of scattered objects."""
    if isinstance(value, ScatteredObject):
        return value.task
    if isinstance(value, BlockRef) and isinstance(value.X, ScatteredObject):
        return value._replace(X=value.X.task)
    if type(value) in (list, tuple):
        return type(value)(map(substitute_futures, value))
    return value


def loads_cached(value: object) -> Any:
    """Load a pickled object read-only, once for all tasks of a process; return others unchanged."""
    if not isinstance(value, Pickled):
        return value
    obj = _loaded.get(value)
    if obj is None:
        obj = _loaded[value] = value.loads(readonly=True)
    return obj
