"""Objects that are pickled as their name, of which each process has one (`ProcessShared`)."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Self
from uuid import uuid4

_lock = threading.Lock()
_objects: weakref.WeakValueDictionary[tuple[type, str], Any] = weakref.WeakValueDictionary()


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
    with _lock:
        return _objects.get((kind, name)) or kind(name)
