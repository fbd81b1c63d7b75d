"""Pickling of scikit-learn's callbacks and searches, and forwarding of callback messages.

A callback sends its messages through a socket to the process that created it, which must be on the
same machine. Here they are part of the captured output of a task, which is replayed in the caller.
"""

from __future__ import annotations

import copyreg
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from skfleet._captured_output import record_event
from skfleet._sklearn_private import (
    callback_state,
    context_without_children,
    is_context,
    listeners_of,
    message_consumers,
    search_state,
)
from skfleet._warnings import warn
from skfleet.engine import Pickled

# Running searches by token, and their tokens by identity.
_searches: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_tokens: dict[int, str] = {}

# Addresses of other processes with a consumer here: a progress bar has a new one for each fit.
_forwarded_addresses: deque[str] = deque()
_MAX_ADDRESSES = 100

# Attribute of the copy of a search in another process.
_TOKEN_ATTRIBUTE = "_skfleet_token"


@contextmanager
def register_search(search: Any) -> Iterator[None]:
    """Register a search, so that its copies in callback messages unpickle as the search itself."""
    token = uuid4().hex
    _searches[token], _tokens[id(search)] = search, token
    try:
        yield
    finally:
        _tokens.pop(id(search), None)
        _searches.pop(token, None)


def has_callbacks_in(pickled: Pickled) -> bool:
    """Return whether a pickle contains objects of scikit-learn's callbacks."""
    return b"sklearn.callback" in bytes(pickled.header)


def pack(obj: Any) -> Pickled:
    """Pickle an object; callbacks and searches in it without the state that they accumulate."""
    return Pickled.dumps(obj, reduce=_reduce)


def _reduce(obj: Any) -> Any:
    cls = type(obj)
    if is_context(obj):
        return copyreg.__newobj__, (cls,), context_without_children(obj)  # type: ignore[attr-defined]
    token = _token_of(obj)
    if token is not None:
        return _rebuild_search, (cls, token), search_state(obj), None, None, _set_state
    if hasattr(cls, "on_fit_task_end"):
        addresses = [listener.address for listener in listeners_of(obj)]
        state = callback_state(obj)
        if addresses and state is not None:
            return _rebuild_callback, (cls, addresses), state, None, None, _set_state
    return NotImplemented


def _token_of(obj: Any) -> str | None:
    """Return the token of a search or of its copy; None for another object."""
    token = _tokens.get(id(obj))
    if token is not None and _searches.get(token) is obj:
        return token
    return getattr(obj, "__dict__", {}).get(_TOKEN_ATTRIBUTE)


def _rebuild_search(cls: Any, token: str) -> Any:
    """Build the copy of a search; in its own process return the search itself."""
    search = _searches.get(token)
    if search is None:
        search = cls.__new__(cls)
        vars(search)[_TOKEN_ATTRIBUTE] = token
    return search


def _rebuild_callback(cls: Any, addresses: list[str]) -> Any:
    """Build the copy of a callback; messages to addresses of other processes are forwarded."""
    consumers = message_consumers()
    for address in addresses:
        if address not in consumers:
            consumers.setdefault(address, partial(_forward_to_task, address))
            _forwarded_addresses.append(address)
            if len(_forwarded_addresses) > _MAX_ADDRESSES:
                consumers.pop(_forwarded_addresses.popleft(), None)
    return cls.__new__(cls)


def _set_state(obj: Any, state: dict[str, Any]) -> None:
    """Set the state of a copy. (A callback's own ``__setstate__`` would connect to the socket.)"""
    if id(obj) not in _tokens:
        vars(obj).update(state)


def _forward_to_task(address: str, message: Any) -> None:
    """Record a message to another process in the output of the running task."""
    try:
        # Pickled at once: the objects in it change afterwards.
        record_event("callback", (address, pack(message)))
    except Exception as error:
        warn(
            "A message of a callback must be picklable, to come back from its worker. Got "
            f"{type(error).__name__}: {error} instead. It is left out."
        )
