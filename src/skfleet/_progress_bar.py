"""Progress of a computation on the screen: a bar in terminals and notebooks, or lines."""

from __future__ import annotations

import html
import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from types import FrameType
from typing import Any

# The interval between two lines doubles up to the maximum.
MIN_LINE_SECONDS, MAX_LINE_SECONDS = 5.0, 60.0
REDRAW_SECONDS = 0.25
# Between two estimates of the time left.
TIME_LEFT_SECONDS = 0.5
HINT_DELAY_SECONDS = 5.0
# An update takes at most one in so many seconds.
MIN_INTERVAL_RATIO = 20
# Widths in columns. A terminal writes ^C behind the bar; a line that it breaks in two would not be
# overwritten.
MIN_BAR_WIDTH, MAX_BAR_WIDTH, MARGIN = 6, 40, 3


class ProgressState:
    """Counts, status and times of a computation."""

    def __init__(self, name: str, unit: str, total: int | None) -> None:
        self.name, self.unit, self.total = name, unit, total
        self.n_done = 0
        self.status = ""
        self.begin = time.monotonic()
        # The caller estimates the seconds left, which it may not know yet.
        self.is_estimated = False
        self.estimated_end: float | None = None
        self.is_over = False

    @property
    def counts(self) -> str:
        """Text on what is done, which is always shown."""
        of = "" if self.total is None else f" of {self.total}"
        return f"{self.n_done}{of} {self.unit}"

    @property
    def details(self) -> str:
        """Text on what else is known, shown where there is room."""
        return self.status

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.begin

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end: as estimated by the caller, or in proportion to what is done."""
        if self.is_over or not self.n_done or not self.total:
            return None
        if self.is_estimated:
            end = self.estimated_end
            return None if end is None else max(0.0, end - time.monotonic())
        return self.seconds * max(0, self.total - self.n_done) / self.n_done


def progress_text(state: ProgressState, width: int | None = None) -> str:
    """Return the progress as text of at most `width` columns.

    What does not fit is dropped in this order: seconds passed, seconds left, status, and the end of
    the name. The counts are always shown.
    """
    counts = f": {state.counts}"
    seconds_left = state.seconds_left
    parts = [
        state.details,
        "" if seconds_left is None else f"about {format_duration(seconds_left)} to go",
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
    """Return seconds as text in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Lines:
    """Lines at intervals, for output that cannot be overwritten."""

    def __init__(self, state: ProgressState) -> None:
        self._state = state
        self._next, self._wait = MIN_LINE_SECONDS, MIN_LINE_SECONDS

    def show(self) -> None:
        if self._state.seconds >= self._next:
            print(progress_text(self._state), flush=True)
            self._wait = min(2 * self._wait, MAX_LINE_SECONDS)
            self._next = self._state.seconds + self._wait

    def pause(self) -> None:
        """Do nothing: what is printed stays."""

    def resume(self) -> None:
        """Do nothing: the next line comes when it is due."""

    def close(self) -> None:
        print(progress_text(self._state), flush=True)


class Terminal:
    """A bar of rich in the last line of a terminal."""

    def __init__(self, state: ProgressState) -> None:
        self._state = state
        self.resume()

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.progress_bar import ProgressBar as Bar
        from rich.table import Table
        from rich.text import Text

        state = self._state
        width = options.max_width - MARGIN
        text = progress_text(state, width)
        bar_width = min(MAX_BAR_WIDTH, width - len(text) - 1)
        if bar_width < MIN_BAR_WIDTH or not state.total:
            yield Text(text, no_wrap=True)
            return
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(Text(text, no_wrap=True), Bar(state.total, state.n_done, width=bar_width))
        yield row

    def show(self) -> None:
        """Do nothing: rich redraws the bar in a thread."""

    def pause(self) -> None:
        """Erase the bar."""
        self._live.transient = True
        self._live.stop()

    def resume(self) -> None:
        """Draw a bar in the line of the cursor."""
        from rich.live import Live

        self._live = Live(self, refresh_per_second=4)
        self._live.start()

    def close(self) -> None:
        self._live.stop()


class Notebook:
    """A bar of HTML under a cell."""

    def __init__(self, state: ProgressState) -> None:
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
        if time.monotonic() - self._drawn >= REDRAW_SECONDS:
            self.close()

    def pause(self) -> None:
        """Do nothing: the bar stays under its cell."""

    def resume(self) -> None:
        """Do nothing: the bar is redrawn where it is."""

    def close(self) -> None:
        self._drawn = time.monotonic()
        if self._handle is not None:
            self._handle.update(self)


def _has_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def is_interactive() -> bool:
    """Return whether the output is a terminal or a notebook."""
    return _has_notebook() or bool(getattr(sys.stdout, "isatty", lambda: False)())


def _display(state: ProgressState) -> Lines | Terminal | Notebook:
    """Return the display of a state for the kind of output."""
    if _has_notebook():
        return Notebook(state)
    if is_interactive() and find_spec("rich") is not None:
        return Terminal(state)
    return Lines(state)


class ProgressBar:
    """Progress of a computation on the screen: of `total` steps, counted in a plural `unit`."""

    def __init__(
        self,
        name: str,
        unit: str,
        total: int | None = None,
        *,
        state: ProgressState | None = None,
    ) -> None:
        self.state = ProgressState(name, unit, total) if state is None else state
        self._display = _display(self.state)

    def set_status(self, status: str) -> None:
        """Set the status text."""
        self.state.status = status

    def set_seconds_left(self, seconds: float | None) -> None:
        """Set a better estimate of the seconds left than the default; None while it is unknown."""
        self.state.estimated_end = None if seconds is None else time.monotonic() + seconds
        self.state.is_estimated = True

    def advance(self, n_steps: int) -> None:
        self.state.n_done += n_steps
        self.show()

    def show(self) -> None:
        """Show the state, if it is time to."""
        self._display.show()

    def pause(self) -> None:
        """Take the bar from the screen, until it is resumed."""
        self._display.pause()
        _open.discard(self)

    def resume(self) -> None:
        """Show a paused bar again, unless another one is open."""
        with _lock:
            if not _open:
                _open.add(self)
                self._display.resume()

    def close(self) -> None:
        """Show the final state."""
        self.state.is_over = True
        self._display.close()
        _open.discard(self)


class UpdateTimer:
    """Times of updates: at intervals, and further apart where one takes long itself."""

    def __init__(self, interval: float) -> None:
        self._interval, self._due = interval, -math.inf

    @contextmanager
    def update_if_due(self) -> Iterator[bool]:
        """Yield whether an update is due; what the ``with`` does then is the update."""
        begin = time.monotonic()
        is_due = begin >= self._due
        yield is_due
        if is_due:
            end = time.monotonic()
            self._due = end + max(self._interval, MIN_INTERVAL_RATIO * (end - begin))


_shows: ContextVar[bool] = ContextVar("skfleet_shows_progress", default=False)


@contextmanager
def show_progress(is_shown: bool) -> Iterator[None]:
    """Switch the progress of joblib calls on or off inside a ``with``."""
    token = _shows.set(is_shown)
    try:
        yield
    finally:
        _shows.reset(token)


def shows_progress() -> bool:
    """Return whether a joblib call in this context is to show its progress."""
    return _shows.get()


# At most one, because a computation inside another one has no bar of its own.
_open: set[ProgressBar] = set()
_lock = threading.Lock()


def open_bar(
    name: str, unit: str, total: int | None = None, *, state: ProgressState | None = None
) -> ProgressBar | None:
    """Return a bar, which must be closed; None while another one is open.

    With a `state` it is the bar of that.
    """
    with _lock:
        if _open:
            return None
        bar = ProgressBar(name, unit, total, state=state)
        _open.add(bar)
        return bar


def calling_estimators() -> Iterator[tuple[str, Any]]:
    """Yield the methods on the stack, from the innermost on, with the estimators they are of."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):
            estimator = frame.f_locals.get("self")
            if is_estimator(estimator):
                yield frame.f_code.co_name, estimator
        frame = frame.f_back


def is_estimator(value: Any) -> bool:
    """Return whether an object is an estimator of any library."""
    return hasattr(type(value), "get_params")


class ProgressHint:
    """Hint at ``verbose=1``, printed once in a process, for a search that takes a few seconds."""

    _is_printed = False
    _text = "verbose=1 shows how far a search is."

    def __init__(self, *, is_enabled: bool) -> None:
        self._timer = threading.Timer(HINT_DELAY_SECONDS, self._print)
        self._timer.daemon = True
        self._is_enabled = is_enabled and not self._is_printed and is_interactive()

    def _print(self) -> None:
        if not self._is_printed:
            type(self)._is_printed = True
            print(self._text, flush=True)

    def __enter__(self) -> None:
        if self._is_enabled:
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
