"""Arrays of the host that stay on this process's device while they are wanted, and as they fit."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import uuid4

from skfleet._array import is_uploadable
from skfleet._device import device_memory_available, to_device

__all__ = ["DeviceArrayCache", "budget", "cached_bytes"]

# The share of what a device has free that copies may take: fits need the rest to work in.
SHARE = 0.5

# One array at a time goes up, and each once.
_lock = threading.Lock()
_known: weakref.WeakValueDictionary[str, DeviceArrayCache] = weakref.WeakValueDictionary()
_clock = count()


@dataclass
class _Copy:
    """An array on the device, its size, and when it was last wanted."""

    array: Any
    n_bytes: int
    wanted: int = 0


class DeviceArrayCache:
    """Copies of arrays, on the device of whichever process has this.

    What travels is a name: all in a process that have the same name have the same copies, and these
    go when the last of them does.

    What does not fit beside the others stays on the host. Passes want arrays in turn: of more than
    fit, each that drove out another would be gone itself when it is wanted again. Where there comes
    to be less room, the copies go that were not wanted for longest.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name or uuid4().hex
        self._copies: dict[Hashable, _Copy] = {}
        self._is_over = False
        _known[self._name] = self

    def give(self, key: Hashable, X: Any) -> Any:
        """Give the copy of X, made once for the key; X itself where it has no place."""
        if not is_uploadable(X):
            return X
        with _lock:
            most = budget()
            while cached_bytes() > most:
                _evict_lru()
            copy = self._copies.get(key)
            if copy is None:
                if self._is_over or cached_bytes() + X.nbytes > most:
                    return X
                copy = self._copies[key] = _Copy(to_device(X), X.nbytes)
            copy.wanted = next(_clock)
            return copy.array

    def tie_to(self, other: Any) -> None:
        """Keep the copies in this process as long as some object is here."""
        weakref.finalize(other, _nothing, self).atexit = False

    def end(self) -> None:
        """Let go of the copies in this process, and make no more, whoever still refers to this."""
        with _lock:
            self._is_over = True
            self._copies.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self._name,)


def _named(name: str) -> DeviceArrayCache:
    """Find the copies of a name in this process, or begin them."""
    with _lock:
        return _known.get(name) or DeviceArrayCache(name)


def _nothing(copies: DeviceArrayCache) -> None:
    """Do nothing: who is to call this one day holds the copies until then."""


def budget() -> int:
    """Return how many bytes all copies of this process may take."""
    return int(SHARE * device_memory_available(cached_bytes()))


def cached_bytes() -> int:
    """Return how many bytes the copies of this process take."""
    return sum(copy.n_bytes for _, _, copy in _held())


def _held() -> list[tuple[DeviceArrayCache, Hashable, _Copy]]:
    """List the copies of this process."""
    return [
        (copies, key, copy)
        for copies in list(_known.values())
        for key, copy in list(copies._copies.items())
    ]


def _evict_lru() -> None:
    """Let go of the copy that was not wanted for longest."""
    copies, key, _ = min(_held(), key=lambda held: held[2].wanted)
    del copies._copies[key]
