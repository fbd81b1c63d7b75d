"""What tasks print, warn of and tell on a worker, and how it is said again at home."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from skfleet._sklearn_private import consumer_of

__all__ = ["Note", "echo", "listen", "noted", "notes_taken", "take_note"]


class Note(NamedTuple):
    """What a task printed ("stdout", "stderr": text), warned of ("warning": its record) or told.

    ("callback": the address of one of scikit-learn's callbacks, and the message to it.)
    """

    kind: str
    content: Any


# Where the running task's notes go. A context variable and not a thread's: a nested call delivers
# its notes from a thread of its own, which runs in the context of the task.
_notes: ContextVar[list[Note] | None] = ContextVar("skfleet_notes", default=None)


@contextmanager
def noted() -> Iterator[list[Note]]:
    """Give a list that takes the notes of the task that runs in this context."""
    notes: list[Note] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def notes_taken(put_back: Sequence[Note] = ()) -> list[Note]:
    """Take the notes of the running task out of its list, and put others in front."""
    notes = _notes.get()
    if notes is None:
        return []
    taken = [] if put_back else list(notes)
    notes[: len(taken)] = put_back
    return taken


class _Listening:
    """A standard stream of a worker process, that takes down what a task writes."""

    def __init__(self, kind: str, stream: Any) -> None:
        self._kind = kind
        self._stream = stream

    def write(self, text: str) -> int:
        notes = _notes.get()
        if notes is None:
            return self._stream.write(text)
        notes.append(Note(self._kind, text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def listen() -> None:
    """Take down what tasks write and warn of in this worker process, from now on."""
    for kind in ("stdout", "stderr"):
        stream = getattr(sys, kind)
        if not isinstance(stream, _Listening):
            setattr(sys, kind, _Listening(kind, stream))
    show = warnings.showwarning
    if hasattr(show, "skfleet_listens"):
        return

    def listening(message, category, filename, lineno, file=None, line=None):  # type: ignore
        notes = _notes.get()
        if notes is None or file is not None:
            show(message, category, filename, lineno, file, line)
        else:
            notes.append(Note("warning", (message, category, filename, lineno)))

    listening.skfleet_listens = True  # type: ignore[attr-defined]
    # Replaced for good: catch_warnings in each task would race between a worker's threads.
    warnings.showwarning = listening


def take_note(kind: str, content: Any) -> None:
    """Take a note for the task that runs in this context."""
    notes = _notes.get()
    if notes is not None:
        notes.append(Note(kind, content))


def echo(notes: Sequence[Note]) -> None:
    """Print, warn and tell, in the process of the caller, what a task did elsewhere."""
    for kind, content in notes:
        if kind == "callback":
            address, message = content
            consumer = consumer_of(address)
            if consumer is not None:  # else the callback is gone
                consumer(message.open())
        elif kind == "warning":
            message, category, filename, lineno = content
            warnings.warn_explicit(message, category, filename, lineno)
        else:
            getattr(sys, kind).write(content)
