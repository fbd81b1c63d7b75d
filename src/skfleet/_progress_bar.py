"""What the screen shows of how far something is: a bar, or lines at intervals."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any, Protocol

__all__ = [
    "ProgressBar",
    "ProgressHint",
    "format_duration",
    "is_interactive",
    "open_bar",
    "progress_text",
    "show_progress",
    "shows_progress",
]

# Seconds before the first line and between the first two; then twice as many each time.
LINE_EVERY, LINE_EVERY_MOST = 5.0, 60.0
# Seconds between two pictures of a bar in a notebook.
DRAW_EVERY = 0.25
# Seconds after which a search says that it could show more.
HINT_AFTER = 5.0
# Columns of the bar itself, and those that stay free for the ^C that a terminal writes there: a
# line that it broke in two would not be drawn over.
LEAST_BAR, MOST_BAR, FREE = 6, 40, 3


class State:
    """How far something is."""

    def __init__(self, name: str, unit: str, total: int | None) -> None:
        self.name, self.unit, self.total = name, unit, total
        self.n_done = 0
        self.note = ""
        self.begin = time.monotonic()
        self.left: float | None = None
        self.is_over = False

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.begin

    @property
    def seconds_left(self) -> float | None:
        """Seconds that it may still take: as told, or in proportion to what is done."""
        if self.is_over or not self.n_done or not self.total:
            return None
        if self.left is not None:
            return self.left
        return self.seconds * max(0, self.total - self.n_done) / self.n_done


def progress_text(state: State, width: int | None = None) -> str:
    """Write how far something is, in so many columns.

    What does not fit goes in this order: the time it took, the time it takes, the note, the end of
    the name. The counts stay.
    """
    of = "" if state.total is None else f" of {state.total}"
    counts = f": {state.n_done}{of} {state.unit}"
    left = state.seconds_left
    parts = [
        state.note,
        "" if left is None else f"about {format_duration(left)} to go",
        format_duration(state.seconds),
    ]
    while True:
        text = ", ".join([state.name + counts, *filter(None, parts)])
        if width is None or len(text) <= width:
            return text
        if not parts:
            return state.name[: max(0, width - len(counts) - 1)] + "…" + counts
        parts.pop()


def format_duration(seconds: float) -> str:
    """Write seconds as people do."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Display(Protocol):
    """Shows a state, whenever it has changed and once when it is over."""

    def show(self) -> None:
        """Show the state as it is now."""

    def close(self) -> None:
        """Show it for the last time."""


class Lines:
    """Lines at intervals, where nothing can be drawn over."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._next, self._wait = LINE_EVERY, LINE_EVERY

    def show(self) -> None:
        if self._state.seconds >= self._next:
            print(progress_text(self._state), flush=True)
            self._wait = min(2 * self._wait, LINE_EVERY_MOST)
            self._next = self._state.seconds + self._wait

    def close(self) -> None:
        print(progress_text(self._state), flush=True)


class Terminal:
    """A bar that rich draws over the last line of a terminal."""

    def __init__(self, state: State) -> None:
        from rich.live import Live

        self._state = state
        self._live = Live(self, refresh_per_second=4)
        self._live.start()

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.progress_bar import ProgressBar as Bar
        from rich.table import Table
        from rich.text import Text

        state = self._state
        width = options.max_width - FREE
        text = progress_text(state, width)
        room = min(MOST_BAR, width - len(text) - 1)
        if room < LEAST_BAR or not state.total:
            yield Text(text, no_wrap=True)
            return
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(Text(text, no_wrap=True), Bar(state.total, state.n_done, width=room))
        yield row

    def show(self) -> None:
        """Leave it to rich, which draws the bar now and then."""

    def close(self) -> None:
        self._live.stop()


class Notebook:
    """A bar of HTML under a cell."""

    def __init__(self, state: State) -> None:
        from IPython.display import display

        self._state = state
        self._handle = display(self, display_id=True)
        self._drawn = time.monotonic()

    def __repr__(self) -> str:
        return progress_text(self._state)

    def _repr_html_(self) -> str:
        total = f' max="{self._state.total}"' if self._state.total else ""
        text = html.escape(progress_text(self._state))
        return f'<progress value="{self._state.n_done}"{total}></progress> {text}'

    def show(self) -> None:
        if time.monotonic() - self._drawn >= DRAW_EVERY:
            self.close()

    def close(self) -> None:
        self._drawn = time.monotonic()
        if self._handle is not None:
            self._handle.update(self)


def _has_notebook() -> bool:
    """Tell whether this process runs the cells of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def is_interactive() -> bool:
    """Tell whether somebody looks on: in a terminal or a notebook."""
    return _has_notebook() or bool(getattr(sys.stdout, "isatty", lambda: False)())


def _display(state: State) -> Display:
    """Return what shows a state here."""
    if _has_notebook():
        return Notebook(state)
    if is_interactive() and find_spec("rich") is not None:
        return Terminal(state)
    return Lines(state)


class ProgressBar:
    """How far something is, on the screen.

    Parameters
    ----------
    name : str
        What runs, in the user's words.
    unit : str
        What is counted.
    total : int or None, default=None
        How many there are, where that is known.
    """

    def __init__(self, name: str, unit: str, total: int | None = None) -> None:
        self.state = State(name, unit, total)
        self._display = _display(self.state)

    def note(self, note: str, seconds_left: float | None = None) -> None:
        """Say how it is going, and how long it may take if that is known better than here."""
        self.state.note, self.state.left = note, seconds_left

    def expect(self, total: int | None) -> None:
        """Set the number of steps, which may grow."""
        self.state.total = total

    def advance(self, n_steps: int) -> None:
        """Count steps that are done."""
        self.state.n_done += n_steps
        self._display.show()

    def close(self) -> None:
        """Show for the last time how far it came."""
        self.state.is_over = True
        self._display.close()
        _open.discard(self)


_shows: ContextVar[bool] = ContextVar("skfleet_shows_progress", default=False)


@contextmanager
def show_progress(is_shown: bool) -> Iterator[None]:
    """Let calls of joblib in a ``with`` show how far they are, or not."""
    token = _shows.set(is_shown)
    try:
        yield
    finally:
        _shows.reset(token)


def shows_progress() -> bool:
    """Tell whether a call in this context is to show how far it is."""
    return _shows.get()


# At most one: what runs within something that has a bar is no news.
_open: set[ProgressBar] = set()
_lock = threading.Lock()


def open_bar(name: str, unit: str, total: int | None = None) -> ProgressBar | None:
    """Return a bar, which must be closed; None where another one is shown."""
    with _lock:
        if _open:
            return None
        bar = ProgressBar(name, unit, total)
        _open.add(bar)
        return bar


class ProgressHint:
    """Says once, of a search of more than a few seconds, that it can show how far it is."""

    _is_said = False

    def __init__(self, *, is_wanted: bool) -> None:
        self._timer = threading.Timer(HINT_AFTER, self._say)
        self._timer.daemon = True
        self._is_wanted = is_wanted and not ProgressHint._is_said and is_interactive()

    def _say(self) -> None:
        if not ProgressHint._is_said:
            ProgressHint._is_said = True
            print("verbose=1 shows how far a search is.", flush=True)

    def __enter__(self) -> None:
        if self._is_wanted:
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
