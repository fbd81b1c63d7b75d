"""Objects that are sent to a cluster once, for many tasks, and sent again when they are lost."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from distributed import Client, Future

from skfleet.engine._dask._client import all_workers_on_this_host, scheduler_workers
from skfleet.engine._dask._serialize import MMAP_THRESHOLD, Pickled
from skfleet.engine._dask._shared_memory import SharedMemoryPickled
from skfleet.engine._protocol import Call
from skfleet.engine._resources import ANY_WORKER, ResourceRequest
from skfleet.exceptions import FleetError

__all__ = ["ScatteredObject", "open_scattered"]

# A function of this size and more is scattered instead of being sent as a task.
_LARGEST_TASK = 9_000_000

# What tasks of this process have opened, as long as they have the parcel.
_opened: WeakKeyDictionary[Pickled, Any] = WeakKeyDictionary()


class ScatteredObject:
    """An object on the fleet, sent once for all who hold equal content."""

    def __init__(
        self,
        client: Client,
        parcel: Pickled,
        *,
        broadcast: bool = False,
        is_function: bool = False,
        is_kept: bool = False,
        resources: ResourceRequest = ANY_WORKER,
    ) -> None:
        self._client = client
        self._resources = resources.as_dict()  # of the workers that are to have it
        self._broadcast = broadcast
        # Kept: other processes of this machine read its memory.
        self._mapped = (
            SharedMemoryPickled.create(parcel)
            if parcel.nbytes >= MMAP_THRESHOLD
            and not is_function
            and all_workers_on_this_host(client)
            else None
        )
        # The scheduler keeps a task, and has it made again when its worker dies; with larger ones
        # it would be overloaded, and Dask warns. Of memory that is mapped only the place is sent.
        small = parcel.nbytes < _LARGEST_TASK or self._mapped is not None
        self._as_task = (is_function or is_kept) and small
        # Who may have to mend it keeps what is to be sent: views of the object, no copies.
        self._kept = (self._mapped or parcel) if is_kept else None
        self.future: Future
        if not (is_kept and small):
            self.future = self._send(self._mapped or parcel)

    @property
    def is_submitted(self) -> bool:
        """Whether it is on its way: what is kept and small goes with the first that needs it."""
        return hasattr(self, "future")

    def as_call(self) -> Call:
        """Return the call that keeps it on a worker."""
        return Call(_hold, (self._kept,), "hold")

    def _send(self, parcel: Pickled) -> Future:
        """Scatter under a new key: under an old one it dies with what was just released.

        The scheduler hands the data to workers, and fails if one of them dies meanwhile.
        """
        near = {"resources": self._resources} if self._resources else {}
        if self._as_task:
            return self._client.submit(_hold, parcel, key=f"hold-{uuid4().hex}", **near)
        workers = self._eligible_workers() if self._resources else None
        waits = iter((0.2, 0.5, 1.0, 2.0, 4.0))
        while True:
            try:
                how: dict[str, Any] = {"broadcast": self._broadcast, "workers": workers}
                return self._client.scatter(parcel, hash=False, **how)
            except TimeoutError as error:
                raise FleetError(
                    f"arguments of {parcel.nbytes / 1e6:.0f} MB must be taken by a worker. No "
                    "worker was ready to take them. They may have paused for lack of memory: look "
                    "at memory_limit, or make fewer copies of the data."
                ) from error
            except OSError:
                wait = next(waits, None)
                if wait is None or self._client.status != "running":
                    raise
                time.sleep(wait)

    def _eligible_workers(self) -> list[str] | None:
        """Return the workers that may run what needs it; None, for any, where there are none."""
        offers = {a: w.get("resources") or {} for a, w in scheduler_workers(self._client).items()}
        return [
            address
            for address, offer in offers.items()
            if all(offer.get(name, 0) >= n for name, n in self._resources.items())
        ] or None

    @property
    def task(self) -> Future:
        """What stands for the object in the arguments of a task."""
        if not self.is_submitted and self._kept is not None:
            self.future = self._send(self._kept)
        return self.future

    def rescatter(self) -> None:
        """Send what was lost again, where it is still here."""
        if self._kept is not None and self.is_submitted and self.is_lost():
            self.future = self._send(self._kept)

    def release(self) -> None:
        """Let go of it, here and on the fleet."""
        if self.is_submitted:
            self.future.release()
        self._mapped = self._kept = None

    def is_lost(self) -> bool:
        """Tell whether no worker holds the data any more."""
        if self.future.status == "pending":
            return False  # a task, to be run anew
        if self.future.status != "finished":
            return True
        return not any(self._client.who_has([self.future]).values())

    def resend(self, obj: Any) -> None:
        """Replace data that died with their worker."""
        self.future = self._send(self._mapped or Pickled.dumps(obj))


def _hold(parcel: Pickled) -> Pickled:
    """Keep a parcel on a worker."""
    return parcel


def open_scattered(value: Any) -> Any:
    """Open a parcel for reading, once for all tasks of a process; anything else as it is."""
    if not isinstance(value, Pickled):
        return value
    found = _opened.get(value)
    if found is None:
        found = _opened[value] = value.loads(view=True)
    return found
