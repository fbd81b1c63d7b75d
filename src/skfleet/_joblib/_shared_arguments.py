"""Which large arguments of joblib calls are on the fleet, and for how long they stay there."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from dask.sizeof import sizeof
from distributed import Client

from skfleet._joblib._worker import Call, ForDevice, HeldSlot, Slot
from skfleet.engine import Pickled, ScatteredObject

__all__ = ["SharedArguments"]

# Below this an argument costs less within its task than a transfer of its own.
SHARE_FROM = 64 * 1024

# Objects that cannot be referred to weakly (lists, dicts) are recognised while a call lasts, but
# only so many, because they are kept alive for it.
_N_STRONG = 16

_lock = threading.RLock()
_by_content: weakref.WeakValueDictionary[tuple[str, bytes], ScatteredObject] = (
    weakref.WeakValueDictionary()
)
_keepers: dict[int, weakref.finalize] = {}


class SharedArguments:
    """The large arguments of one Parallel call.

    Equal content is sent once per fleet. It stays while any of the driver's objects with that
    content lives; or for the call, where an object cannot be referred to weakly, or where the
    workers are in this process.

    Parameters
    ----------
    client : distributed.Client
    everywhere : mapping of int to (object, Share), default=None
        What :meth:`broadcast` sent to every worker beforehand.

    Notes
    -----
    Within a call an object is recognised by its identity, so it must not be changed meanwhile.
    Between calls its content is hashed again.
    """

    def __init__(
        self, client: Client, everywhere: Mapping[int, tuple[Any, ScatteredObject]] | None = None
    ) -> None:
        self._client = client
        # Workers in this process hold the very memory of an object, and would keep it alive for as
        # long as it keeps its share. To share it again costs no transfer.
        self._in_process = client.scheduler.address.startswith("inproc://")
        self._weak: dict[int, tuple[weakref.ref, ScatteredObject]] = {}
        self._strong: OrderedDict[int, tuple[Any, ScatteredObject]] = OrderedDict()
        self._everywhere = everywhere or {}

    @staticmethod
    def broadcast(client: Client, objects: Sequence[Any]) -> dict[int, tuple[Any, ScatteredObject]]:
        """Send objects to every worker, whatever their size."""
        return {
            id(o): (o, ScatteredObject(client, Pickled.dumps(o), broadcast=True)) for o in objects
        }

    def take_out(
        self, calls: Sequence[Call], *, functions: bool = False
    ) -> tuple[list[Call], list[tuple[Any, ScatteredObject]]]:
        """Replace the large arguments of calls by slots, and give what the slots stand for.

        With ``functions``, the functions too: one that is pickled by value takes along what it
        refers to, which no one can see from outside.
        """
        shared: list[tuple[Any, ScatteredObject]] = []
        slots: dict[int, Slot] = {}

        def slot(value: Any, is_function: bool = False, at_any_size: bool = False) -> Any:
            if id(value) not in slots:
                share = self._share(value, is_function=is_function, at_any_size=at_any_size)
                if share is None:
                    return value
                slots[id(value)] = Slot(len(shared))
                shared.append((value, share))
            return slots[id(value)]

        def slot_of(arg: Any) -> Any:
            if not isinstance(arg, ForDevice):
                return slot(arg)
            places = [slot(part, at_any_size=True) for part in arg]
            return HeldSlot(*places, key=id(arg.value))

        taken = [
            (
                slot(function, True) if functions else function,
                [slot_of(arg) for arg in args],
                {key: slot_of(arg) for key, arg in kwargs.items()},
            )
            for function, args, kwargs in calls
        ]
        return taken, shared

    def _share(
        self, value: Any, *, is_function: bool = False, at_any_size: bool = False
    ) -> ScatteredObject | None:
        """Give the share of a value, sent now if need be; None for what travels in its task."""
        if id(value) in self._everywhere:
            return self._everywhere[id(value)][1]
        if id(value) in self._strong:
            return self._strong[id(value)][1]
        found = self._weak.get(id(value))
        if found is not None and found[0]() is value:
            return found[1]
        is_small = isinstance(value, type) or sizeof(value) < SHARE_FROM
        if not is_function and not at_any_size and is_small:
            return None
        parcel = Pickled.dumps(value)
        if is_function and parcel.nbytes < SHARE_FROM:
            return None
        share = _share_content(self._client, parcel, is_function=is_function)
        try:
            self._weak[id(value)] = self._refer(value), share
        except TypeError:
            self._strong[id(value)] = value, share
            if len(self._strong) > _N_STRONG:
                self._strong.popitem(last=False)
        else:
            if not self._in_process:
                _keep_while_alive(value, share)
        return share

    def _refer(self, value: Any) -> weakref.ref:
        """Refer to an object weakly, and forget its share with it."""
        weak, key = self._weak, id(value)
        return weakref.ref(value, lambda _: weak.pop(key, None))


def _share_content(client: Client, parcel: Pickled, *, is_function: bool) -> ScatteredObject:
    """Find the share of equal content on the same fleet, or send the content."""
    key = (client.id, parcel.digest())
    with _lock:
        share = _by_content.get(key)
        if share is None or share.future.status not in ("pending", "finished"):
            share = _by_content[key] = ScatteredObject(client, parcel, is_function=is_function)
    return share


def _keep_while_alive(obj: Any, share: ScatteredObject) -> None:
    """Keep a share until the object dies, or until its content is another."""
    with _lock:
        keeper = _keepers.get(id(obj))
        if keeper is not None:
            kept = keeper.peek()
            if kept is not None and kept[2][1] is share:
                return
            keeper.detach()
        keeper = _keepers[id(obj)] = weakref.finalize(obj, _forget, id(obj), share)
        keeper.atexit = False


def _forget(obj_id: int, share: ScatteredObject) -> None:
    """Let go of a share whose object is gone: the last reference to it was this call's argument."""
    _keepers.pop(obj_id, None)
