"""How scikit-learn's callbacks, and what goes with them, cross to workers and back.

A callback sends what it hears to the process where it was made, through a socket of that machine.
Here its messages come home among the notes of the task instead, from any machine.
"""

from __future__ import annotations

import copyreg
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from skfleet._captured_output import take_note
from skfleet._sklearn_private import (
    callback_state,
    consumer_of,
    context_without_children,
    install_consumer,
    is_context,
    listeners_of,
    remove_consumer,
    search_state,
)
from skfleet.engine import Pickled

__all__ = ["at_home", "has_callbacks_in", "pack"]

# Searches whose fits are on their way, by the names under which copies of them travel.
_at_home: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_names: dict[int, str] = {}

# Addresses elsewhere that this process knows of: a progress bar has another one for each fit.
_installed: deque[str] = deque()
_MOST_ADDRESSES = 100

# What a copy that is not at home is known by.
_NAME = "_skfleet_name"


@contextmanager
def at_home(search: Any) -> Iterator[None]:
    """Know a search again when one of its copies comes home, in a callback's message."""
    name = uuid4().hex
    _at_home[name], _names[id(search)] = search, name
    try:
        yield
    finally:
        _names.pop(id(search), None)
        _at_home.pop(name, None)


def has_callbacks_in(parcel: Pickled) -> bool:
    """Tell whether a parcel has something of scikit-learn's callbacks in it."""
    return b"sklearn.callback" in bytes(parcel.header)


def pack(obj: Any) -> Pickled:
    """Pack what may have callbacks in it: they, and searches, travel without what they gathered."""
    return Pickled.dumps(obj, reduce=_reduce)


def _reduce(obj: Any) -> Any:
    kind = type(obj)
    if is_context(obj):
        return copyreg.__newobj__, (kind,), context_without_children(obj)  # type: ignore[attr-defined]
    name = _name_of(obj)
    if name is not None:
        return _visit, (kind, name), search_state(obj), None, None, _set_state
    if hasattr(kind, "on_fit_task_end"):
        addresses = [listener.address for listener in listeners_of(obj)]
        state = callback_state(obj)
        if addresses and state is not None:
            return _arrive, (kind, addresses), state, None, None, _set_state
    return NotImplemented


def _name_of(obj: Any) -> str | None:
    """Give the name of a search, at home or away."""
    name = _names.get(id(obj))
    if name is not None and _at_home.get(name) is obj:
        return name
    return getattr(obj, "__dict__", {}).get(_NAME)


def _visit(kind: Any, name: str) -> Any:
    """Make the copy of a search; at home this is the search itself."""
    search = _at_home.get(name)
    if search is None:
        search = kind.__new__(kind)
        vars(search)[_NAME] = name
    return search


def _arrive(kind: Any, addresses: list[str]) -> Any:
    """Make the copy of a callback, whose messages are forwarded unless this is their address."""
    for address in addresses:
        if consumer_of(address) is None:
            install_consumer(address, _Forward(address))
            _installed.append(address)
            if len(_installed) > _MOST_ADDRESSES:
                remove_consumer(_installed.popleft())
    return kind.__new__(kind)


def _set_state(obj: Any, state: dict[str, Any]) -> None:
    """Set the state of a copy. (A callback's own way to do this would look for the socket.)"""
    if id(obj) not in _names:
        vars(obj).update(state)


class _Forward:
    """Takes the messages to an address elsewhere to the task in which they are sent."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, message: Any) -> None:
        # Packed at once: what it is about goes on to change.
        take_note("callback", (self._address, pack(message)))
