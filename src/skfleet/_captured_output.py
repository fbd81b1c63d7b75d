"""What tasks print, warn of and tell on a worker, and how it is said again at home."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple
from uuid import uuid4

from skfleet._sklearn_private import consumer_of
from skfleet._warnings import is_library_file, warn

__all__ = [
    "Note",
    "WarningTally",
    "echo",
    "home",
    "noted",
    "notes_taken",
    "replayed",
    "take_note",
    "warned_once",
]

_PROCESS = uuid4().hex


def home() -> str:
    """Name this process, so that a task can tell whether it runs in the one that asked for it."""
    return f"{_PROCESS}-{os.getpid()}"  # a forked child inherits the first half


class Note(NamedTuple):
    """What a task printed ("stdout", "stderr": text), warned of ("warning": `Warned`) or told.

    ("callback": the address of one of scikit-learn's callbacks, and the message to it.)
    """

    kind: str
    content: Any


class Warned(NamedTuple):
    """A warning, and where it arose: in a file of a library, or of the user."""

    message: Warning
    category: type[Warning]
    filename: str
    lineno: int
    is_library: bool

    @property
    def key(self) -> tuple[Any, ...]:
        """What repetitions have in common; of a library's, whatever numbers they tell."""
        text = str(self.message)
        text = re.sub(r"[-+]?\d[-+.e\d]*", "#", text) if self.is_library else text
        return self.category, text, self.filename, self.lineno


# Where the running task's notes go. A context variable and not a thread's: a nested call delivers
# its notes from a thread of its own, which runs in the context of the task.
_notes: ContextVar[list[Note] | None] = ContextVar("skfleet_notes", default=None)


@contextmanager
def noted(origin: str) -> Iterator[list[Note]]:
    """Give a list that takes the notes of the task that runs in this context.

    In the process that asked for the task, `origin`, what it prints is home already.
    """
    if origin != home():
        _listen()
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


def _is_news(record: logging.LogRecord) -> bool:
    """Tell that a line is not of a task that still ran when its worker closed, as after Ctrl-C."""
    return "ended with CancelledError" not in record.getMessage()


def _listen() -> None:
    """Take down what tasks write and warn of in this worker process, from now on."""
    logging.getLogger("distributed.worker.state_machine").addFilter(_is_news)
    for kind in ("stdout", "stderr"):
        stream = getattr(sys, kind)
        if not isinstance(stream, _Listening):
            setattr(sys, kind, _Listening(kind, stream))
    if _replace_showwarning(is_worker=True) is not None:
        # What no filter says anything of would be said once in the life of this process.
        warnings.filterwarnings("always", append=True)


def _replace_showwarning(*, is_worker: bool) -> Any:
    """Take down the warnings of tasks; return what showed them before, None if this is done."""
    show: Any = warnings.showwarning
    if hasattr(show, "skfleet_listens"):
        return None
    shown: set[tuple[Any, ...]] = set()

    def listening(message, category, filename, lineno, file=None, line=None):  # type: ignore
        notes = _notes.get()
        warned = Warned(message, category, filename, lineno, is_library_file(filename))
        if notes is not None and file is None:
            notes.append(Note("warning", warned))
        elif not (is_worker and warned.key in shown):
            shown.add(warned.key)
            show(message, category, filename, lineno, file, line)

    listening.skfleet_listens = True  # type: ignore[attr-defined]
    # Not by catch_warnings in each task, which would race between a worker's threads.
    warnings.showwarning = listening
    return show


class _Home:
    """Takes down the warnings of tasks that run in the caller's process, while calls last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_calls = 0
        self._before: Any = None

    def begin(self) -> None:
        with self._lock:
            self._n_calls += 1
            if self._n_calls == 1:
                self._before = _replace_showwarning(is_worker=False)

    def end(self) -> None:
        with self._lock:
            self._n_calls -= 1
            if self._n_calls == 0 and self._before is not None:
                if hasattr(warnings.showwarning, "skfleet_listens"):
                    warnings.showwarning = self._before
                self._before = None


_home = _Home()


def take_note(kind: str, content: Any) -> None:
    """Take a note for the task that runs in this context."""
    notes = _notes.get()
    if notes is not None:
        notes.append(Note(kind, content))


def echo(notes: Sequence[Note]) -> None:
    """Print and tell, in the process of the caller, what a task did elsewhere."""
    for kind, content in notes:
        if kind == "callback":
            address, message = content
            consumer = consumer_of(address)
            if consumer is not None:  # else the callback is gone
                consumer(message.loads())
        elif kind != "warning":
            getattr(sys, kind).write(content)


class WarningTally:
    """The warnings of the tasks of a call, each of which is said once; they are taken down here."""

    def __init__(self) -> None:
        _home.begin()
        self._first: dict[tuple[Any, ...], Warned] = {}
        self._n_times: dict[tuple[Any, ...], int] = {}
        self._n_tasks: dict[tuple[Any, ...], int] = {}

    def add(self, notes: Sequence[Note]) -> None:
        """Count the warnings among the notes of a task."""
        warned = [note.content for note in notes if note.kind == "warning"]
        for one in warned:
            self._first.setdefault(one.key, one)
            self._n_times[one.key] = self._n_times.get(one.key, 0) + 1
        for key in {one.key for one in warned}:
            self._n_tasks[key] = self._n_tasks.get(key, 0) + 1

    @contextmanager
    def at_end(self, count_fits: Callable[[], int | None]) -> Iterator[None]:
        """Warn when a ``with`` ends; an error that ends it is not hidden by that."""
        try:
            yield
        except BaseException:
            with suppress(Warning):
                self.warn(count_fits())
            raise
        self.warn(count_fits())

    def warn(self, n_fits: int | None = None) -> None:
        """Warn of each, with how many of so many fits it concerns, or how often it was said."""
        for key, one in self._first.items():
            if n_fits is None:
                n_times = self._n_times[key]
                count = f"{n_times} times" if n_times > 1 else ""
            else:
                count = f"in {self._n_tasks[key]} of {n_fits} fits" if n_fits > 1 else ""
            message = _counted(one.message, count)
            if one.is_library:
                warn(message, one.category)
            else:
                warnings.warn_explicit(message, one.category, one.filename, one.lineno)

    def close(self) -> None:
        """Take down no more."""
        _home.end()


@contextmanager
def replayed(
    count_fits: Callable[[], int | None] = lambda: None,
) -> Iterator[Callable[[Sequence[Note]], None]]:
    """Give a function that says again here what tasks did: warnings when the ``with`` ends."""
    tally = WarningTally()

    def replay(notes: Sequence[Note]) -> None:
        echo(notes)
        tally.add(notes)

    try:
        with tally.at_end(count_fits):
            yield replay
    finally:
        tally.close()


@contextmanager
def warned_once() -> Iterator[None]:
    """Say each warning of a library's in this process once, at the line of the user."""
    with replayed() as replay, noted(home()) as notes:
        try:
            yield
        finally:
            replay(notes)


def _counted(message: Warning, count: str) -> Warning:
    """Return a warning that ends with a count."""
    if not count:
        return message
    text = str(message)
    try:
        return type(message)(f"{text}\n({count})" if "\n" in text else f"{text} ({count})")
    except Exception:  # it is not made of its text
        return message
