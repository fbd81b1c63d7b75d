"""LRU cache of host arrays on this process's device (`DeviceArrayCache`), of each name one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import uuid4

from skfleet._array import is_uploadable
from skfleet._device import device_memory_available, free_page_locked, to_device

if TYPE_CHECKING:
    from skfleet.engine._dask._serialize import Pickled

# Of the device's free memory; fits need the remainder to work in.
MAX_FRACTION = 0.5

# One array at a time is copied to the device, and each once. A worker's event loop, which unpickles
# tasks, looks caches up meanwhile: it waits for the lock of the dictionaries alone.
_upload_lock, _lock, _objects_lock = threading.Lock(), threading.Lock(), threading.Lock()
_objects: weakref.WeakValueDictionary[tuple[type, str], Any] = weakref.WeakValueDictionary()
_use_counter = count()


@dataclass
class _Entry:
    """An array on the device, its size, and the number of its last use."""

    array: Any
    n_bytes: int
    last_used: int


class ProcessShared:
    """Base class of objects that are pickled as their name.

    All in one process with the same name are one object, which ends with its last reference.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name or uuid4().hex
        _objects[type(self), self._name] = self

    def __reduce__(self) -> tuple[object, ...]:
        return _lookup, (type(self), self._name)

    @classmethod
    def of_process(cls) -> list[Self]:
        """Return all objects of this class in this process."""
        return [shared for (kind, _), shared in list(_objects.items()) if kind is cls]


def _lookup(kind: type, name: str) -> Any:
    """Return this process's object of a name, created on first use."""
    with _objects_lock:
        return _objects.get((kind, name)) or kind(name)


class DeviceArrayCache(ProcessShared):
    """Copies of arrays on the device of any process that unpickles this object.

    An array that does not fit stays on the host, and evicts nothing: passes read arrays in turn, so
    that with LRU eviction each would be gone when it is read again. Only when less memory is free
    than before are the least recently used copies evicted.
    """

    def __init__(self, name: str | None = None) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._is_closed = False
        super().__init__(name)

    def get(self, key: Hashable, X: Any) -> Any:
        """Return the copy of X, made once for the key; X itself where it does not fit."""
        if not is_uploadable(X):
            return X
        # A copy that is there already does not wait for the upload of another one.
        if _upload_lock.locked() and (array := self._array_of(key)) is not None:
            return array
        with _upload_lock:
            limit = byte_limit()
            while cached_bytes() > limit:
                _evict_lru()
            if (array := self._array_of(key)) is not None:
                return array
            if self._is_closed or cached_bytes() + X.nbytes > limit:
                return X
            array = to_device(X)
            with _lock:
                if not self._is_closed:
                    self._entries[key] = _Entry(array, X.nbytes, next(_use_counter))
            return array

    def _array_of(self, key: Hashable) -> Any:
        """Return the copy for a key, which counts as a use; None without one."""
        with _lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.last_used = next(_use_counter)
            return entry.array

    def tie_to(self, owner: object) -> None:
        """Keep the copies in this process as long as an object lives."""
        weakref.finalize(owner, _noop, self).atexit = False

    def close(self) -> None:
        """Free the copies in this process, and make no more, though references remain."""
        with _lock:
            self._is_closed = True
            self._entries.clear()
        free_page_locked()


class DeviceCachedArray(NamedTuple):
    """A pickled array, to be read from host memory or through the device cache."""

    parcel: Pickled
    cache: DeviceArrayCache
    key: int

    def on_host(self) -> Any:
        """Return the array; a large one read-only."""
        return self.parcel.loads_shared()

    def on_device(self) -> Any:
        """Return the array on the device; on the host where it does not fit."""
        return self.cache.get(self.key, self.on_host())


def _noop(cache: DeviceArrayCache) -> None:
    """Do nothing: registered as a finalizer, it keeps the cache alive as long as its owner."""


def byte_limit() -> int:
    """Return how many bytes all caches of this process may take."""
    return int(MAX_FRACTION * device_memory_available(cached_bytes()))


def cached_bytes() -> int:
    """Return how many bytes all caches of this process take."""
    return sum(entry.n_bytes for _, _, entry in _all_entries())


def _all_entries() -> list[tuple[DeviceArrayCache, Hashable, _Entry]]:
    # Copies of the dicts: other threads add to them.
    caches = DeviceArrayCache.of_process()
    return [(cache, key, entry) for cache in caches for key, entry in list(cache._entries.items())]


def _evict_lru() -> None:
    with _lock:
        entries = _all_entries()
        if entries:  # others may have been closed just now
            cache, key, _ = min(entries, key=lambda item: item[2].last_used)
            del cache._entries[key]
