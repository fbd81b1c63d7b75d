"""Capture of output, warnings and callback messages of tasks on workers, and replay in the caller.

A caller is the process that submits a task: the driver, or a worker with nested calls.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple
from uuid import uuid4

from skfleet._exception_pickle import PicklableException, text_of, with_text
from skfleet._sklearn_private import message_consumers
from skfleet._warnings import is_library_file, warn

_TOKEN = uuid4().hex


def process_token() -> str:
    """Return a token of this process, by which a task recognises the process of its caller."""
    return f"{_TOKEN}-{os.getpid()}"  # a forked child inherits the first half


class OutputEvent(NamedTuple):
    """Text for "stdout" or "stderr", a "warning" (`CapturedWarning`), or a "callback" message.

    The content of the latter is the address of one of scikit-learn's callbacks, and the message.
    """

    kind: str
    content: Any


class CapturedWarning(NamedTuple):
    """A warning, and its origin: a file of a library, or of the user."""

    message: Warning
    filename: str
    lineno: int
    is_library: bool

    @property
    def key(self) -> tuple[Any, ...]:
        """Key of repetitions; of a library's warning, whatever numbers are in the text."""
        text = text_of(self.message)
        text = re.sub(r"[-+]?\d[-+.e\d]*", "#", text) if self.is_library else text
        return type(self.message), text, self.filename, self.lineno

    def __reduce__(self) -> tuple[Any, ...]:
        return CapturedWarning, (PicklableException(self.message), *self[1:])


# The events of the running task. A context variable and not a thread's: a nested call delivers its
# output from a thread of its own, which runs in the context of the task.
_events: ContextVar[list[OutputEvent] | None] = ContextVar("skfleet_output", default=None)


@contextmanager
def capture_output(caller_token: str) -> Iterator[list[OutputEvent]]:
    """Return a list that the events of the task in this context are appended to.

    In the caller's own process, only warnings and callback messages are captured.
    """
    if caller_token != process_token():
        _install_capture()
    events: list[OutputEvent] = []
    token = _events.set(events)
    try:
        yield events
    finally:
        _events.reset(token)


def drain_output(put_back: Sequence[OutputEvent] = ()) -> list[OutputEvent]:
    """Remove and return the events of the running task; or put earlier ones back in front."""
    events = _events.get()
    if events is None:
        return []
    drained = [] if put_back else list(events)
    events[: len(drained)] = put_back
    return drained


class _CapturingStream:
    """A standard stream of a worker process that captures the output of tasks."""

    def __init__(self, kind: str, stream: Any) -> None:
        self._kind, self._stream = kind, stream

    def write(self, text: str) -> int:
        events = _events.get()
        if events is None:
            return self._stream.write(text)
        events.append(OutputEvent(self._kind, str(text)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for the log line of a task that ran when its worker closed, as after Ctrl-C."""
    return "ended with CancelledError" not in record.getMessage()


def _install_capture() -> None:
    """Capture the output and warnings of tasks in this worker process from now on."""
    logging.getLogger("distributed.worker.state_machine").addFilter(_is_relevant)
    for kind in ("stdout", "stderr"):
        stream = getattr(sys, kind)
        if not isinstance(stream, _CapturingStream):
            setattr(sys, kind, _CapturingStream(kind, stream))
    if _replace_showwarning(is_worker=True) is not None:
        # By default Python shows a warning once in the life of a process, not once in each task.
        warnings.filterwarnings("always", append=True)


def _replace_showwarning(*, is_worker: bool) -> Any:
    """Capture the warnings of tasks; return the replaced function, None if this is done."""
    show: Any = warnings.showwarning
    if hasattr(show, "skfleet_captures"):
        return None
    shown: set[tuple[Any, ...]] = set()

    def capture(message, category, filename, lineno, file=None, line=None):  # type: ignore
        events = _events.get()
        instance = message if isinstance(message, Warning) else category(message)
        warning = CapturedWarning(instance, filename, lineno, is_library_file(filename))
        if events is not None and _is_race_of_filters(warning):
            return
        if events is not None and file is None:
            events.append(OutputEvent("warning", warning))
        elif not (is_worker and warning.key in shown):
            shown.add(warning.key)
            show(message, category, filename, lineno, file, line)

    capture.skfleet_captures = True  # type: ignore[attr-defined]
    # Not by catch_warnings in each task, which would race between a worker's threads.
    warnings.showwarning = capture
    return show


def _is_race_of_filters(warning: CapturedWarning) -> bool:
    """Return whether a warning of scikit-learn's parallel functions tells of nothing.

    They reset the filters of the process for each call, before Python 3.14. Threads that do so at
    once may leave none, of which they then warn as if joblib's Parallel had been used.
    """
    return warning.is_library and str(warning.message).startswith(
        "`sklearn.utils.parallel.delayed` should be used with"
    )


class _CallerCapture:
    """Captures the warnings of tasks that run in the caller's process, while calls last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_calls = 0
        self._showwarning: Any = None

    def begin(self) -> None:
        with self._lock:
            self._n_calls += 1
            if self._n_calls == 1:
                self._showwarning = _replace_showwarning(is_worker=False)

    def end(self) -> None:
        with self._lock:
            self._n_calls -= 1
            if self._n_calls == 0 and self._showwarning is not None:
                # Someone may have replaced it since, which is not to be undone.
                if hasattr(warnings.showwarning, "skfleet_captures"):
                    warnings.showwarning = self._showwarning
                self._showwarning = None


_caller_capture = _CallerCapture()


def record_event(kind: str, content: Any) -> None:
    """Record an event of the task that runs in this context."""
    events = _events.get()
    if events is not None:
        events.append(OutputEvent(kind, content))


def replay(events: Sequence[OutputEvent]) -> None:
    """Print the text and send the callback messages of a task, in the caller's process."""
    for kind, content in events:
        if kind == "callback":
            address, message = content
            consumer = message_consumers().get(address)
            if consumer is not None:  # else the callback is gone
                consumer(message.loads())
        elif kind != "warning":
            _write(getattr(sys, kind), content)


def _write(stream: Any, text: str) -> None:
    """Write text to a stream that may be closed, or lack its characters: the task has succeeded."""
    with suppress(AttributeError, OSError, ValueError):
        try:
            stream.write(text)
        except UnicodeEncodeError as error:
            stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))


class WarningTally:
    """Counts of the warnings of a call's tasks, each of which is shown once."""

    def __init__(self) -> None:
        _caller_capture.begin()
        self._first: dict[tuple[Any, ...], CapturedWarning] = {}
        self._n_times: Counter[tuple[Any, ...]] = Counter()
        self._n_tasks: Counter[tuple[Any, ...]] = Counter()

    def add(self, events: Sequence[OutputEvent]) -> None:
        """Count the warnings among the events of a task."""
        captured = [event.content for event in events if event.kind == "warning"]
        keys = [warning.key for warning in captured]
        for key, warning in zip(keys, captured, strict=True):
            self._first.setdefault(key, warning)
        self._n_times.update(keys)
        self._n_tasks.update(set(keys))

    @contextmanager
    def at_end(self, count_fits: Callable[[], int | None]) -> Iterator[None]:
        """Warn when a ``with`` ends; a warning that raises does not hide an error that ends it."""
        try:
            yield
        except BaseException:
            with suppress(Warning):
                self.warn(count_fits())
            raise
        self.warn(count_fits())

    def warn(self, n_fits: int | None = None) -> None:
        """Warn of each, with the number of fits that it concerns, or of its repetitions."""
        for key, first in self._first.items():
            n, count = self._n_times[key], f"{self._n_times[key]} times"
            if n_fits is not None:
                n, count = n_fits, f"in {self._n_tasks[key]} of {n_fits} fits"
            message = _with_count(first.message, count) if n > 1 else first.message
            if first.is_library:
                warn(message)
            else:
                warnings.warn_explicit(message, type(message), first.filename, first.lineno)

    def close(self) -> None:
        _caller_capture.end()


@contextmanager
def output_replayer(
    count_fits: Callable[[], int | None] = lambda: None,
) -> Iterator[Callable[[Sequence[OutputEvent]], None]]:
    """Return a function that replays events at once, but their warnings when the ``with`` ends."""
    tally = WarningTally()

    def replay_and_count(events: Sequence[OutputEvent]) -> None:
        replay(events)
        tally.add(events)

    try:
        with tally.at_end(count_fits):
            yield replay_and_count
    finally:
        tally.close()


@contextmanager
def deduplicate_warnings() -> Iterator[None]:
    """Show each warning of a library in this process once, at the line of the user."""
    with output_replayer() as replay_events, capture_output(process_token()) as events:
        try:
            yield
        finally:
            replay_events(events)


def _with_count(message: Warning, count: str) -> Warning:
    """Return a warning that ends with a count."""
    text = text_of(message)
    return with_text(message, f"{text}\n({count})" if "\n" in text else f"{text} ({count})")
