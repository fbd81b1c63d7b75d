"""State that a running search shares with the joblib backend: checkpoint, time budget, Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from skfleet._config import asks_for_progress, get_config
from skfleet._progress_bar import ProgressHint, show_progress
from skfleet.engine import DeviceArrayCache, no_fit_progress
from skfleet.model_selection._dispatch._time_left import DurationModel
from skfleet.model_selection._early_stopping._validation_rows import ValidationRows
from skfleet.model_selection._paths._registry import SharedFitLog
from skfleet.model_selection._plot import FitTime
from skfleet.model_selection._racing._race import Race
from skfleet.model_selection._records._checkpoint import Checkpoint, report_recorded
from skfleet.model_selection._records._evaluations import CandidateResults, FitPlace

if TYPE_CHECKING:
    from skfleet.estimators.pipeline import RefitFirstSteps
    from skfleet.model_selection._dispatch._step_cache import StepCache


class SearchContext:
    """A running search: its parameters that fits depend on, and what they report."""

    def __init__(
        self,
        *,
        share_fits: bool | str = False,
        records: Checkpoint | None = None,
        time_budget: float | None = None,
        validation_rows: ValidationRows | None = None,
        fit_in_driver: bool = False,
        verbose: int = 0,
        name: str = "",
        refits: bool = False,
        gathered_bytes: int = 0,
        may_gather: bool = False,
    ) -> None:
        is_approximate = share_fits == "approximate"
        self.sharing = SharedFitLog(is_enabled=bool(share_fits), is_approximate=is_approximate)
        self.records, self.n_checkpoint_fits = records, 0
        self.validation_rows = validation_rows
        self.fit_in_driver = fit_in_driver  # each fit on the whole fleet
        self._verbose = verbose
        self.name, self.refits = name, refits  # of the search; whether this process fits the best
        self.gathered_bytes = gathered_bytes  # of rows that were on Dask
        self.may_gather = may_gather  # few rows on Dask
        self._has_reported_memory = False
        self.is_interrupted = False
        self._is_local = False  # this process itself fits or scores: Ctrl-C raises in it
        self._time_budget = time_budget
        self._start, self._start_time_of_day = time.monotonic(), time.time()
        self.timeline: list[FitTime] = []
        self.active_calls: WeakSet = WeakSet()  # their dispatchers
        self.evaluations: list[CandidateResults] = []
        self.race: Race | None = None
        self.durations = DurationModel()
        self.progress: Any = None  # text beside the bar, of all batches of candidates
        self._has_begun_evaluation = True
        self.device_cache = DeviceArrayCache()  # of the rows, on the GPUs of workers
        self.has_batches = False  # of candidates, several
        self.step_cache: StepCache | None = None  # of these
        self.refit_steps: RefitFirstSteps | None = None

    @property
    def seconds_left(self) -> float | None:
        """Seconds in which fits may begin; None without a time budget."""
        if self._time_budget is None:
            return None
        return self._start + self._time_budget - time.monotonic()

    @property
    def stop_reason(self) -> str | None:
        """Reason why no further fit begins; None as long as fits do."""
        seconds = self.seconds_left
        if seconds is None or seconds > 0:
            return None
        return f"time_budget={self._time_budget} s was over"

    def expect(self, evaluation: CandidateResults) -> None:
        """Announce the candidates that the next call evaluates."""
        self.evaluations.append(evaluation)
        self._has_begun_evaluation = False

    def begin_evaluation(self) -> CandidateResults | None:
        """Return what a call evaluates; None for a call within a fit, such as a nested search."""
        if self._has_begun_evaluation:
            return None
        self._has_begun_evaluation = True
        return self.evaluations[-1]

    def begin_memory_report(self) -> bool:
        """Return whether the memory of this search has not been reported yet."""
        is_first, self._has_reported_memory = not self._has_reported_memory, True
        return is_first

    def record_fit_time(
        self, worker: str, begin: float, end: float, place: FitPlace | None
    ) -> None:
        """Record the begin and end, as times of day, of a candidate's fit on a worker."""
        if place is not None:
            begin, end = begin - self._start_time_of_day, end - self._start_time_of_day
            self.timeline.append(FitTime(worker, begin, end, *place))

    def report_checkpoint(self, n_fits: int, n_read: int) -> None:
        """Report how many of the fits of a call the checkpoint had."""
        self.n_checkpoint_fits += n_fits
        report_recorded(n_fits, n_read, "fits", is_printed=bool(self._verbose))

    def interrupt(self) -> None:
        """Cancel all active calls."""
        self.is_interrupted = True
        for call in list(self.active_calls):
            call.cancel()

    @contextmanager
    def running_locally(self) -> Iterator[None]:
        """Run work in this process; Ctrl-C ends it, and marks the search as interrupted."""
        self._is_local = True
        try:
            yield
        except KeyboardInterrupt:
            self.is_interrupted = True
        finally:
            self._is_local = False

    @contextmanager
    def __call__(self) -> Iterator[SearchContext]:
        """Make this the current context; Ctrl-C ends its active calls early."""
        token = _context.set(self)
        restore_handler = self._handle_sigint()
        try:
            hint = ProgressHint(is_enabled=not self._verbose and get_config().progress == "auto")
            with show_progress(asks_for_progress(self._verbose)), hint, no_fit_progress():
                yield self
        finally:
            restore_handler()
            _context.reset(token)
            self.device_cache.close()
            # callbacks of the event loop refer to the context, and must not keep the rows alive
            self.device_cache = DeviceArrayCache()
            self.refit_steps = None
            if self.step_cache is not None:
                self.step_cache.close()
                self.step_cache = None

    def _handle_sigint(self) -> Callable[[], None]:
        """Handle the first Ctrl-C as the end of the active calls; return what undoes that."""
        default = signal.default_int_handler
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is not default
        ):
            return lambda: None

        def restore() -> None:
            signal.signal(signal.SIGINT, default)

        def handle(number: int, frame: FrameType | None) -> None:
            restore()
            if self._is_local or not self.active_calls:
                default(number, frame)
            # in a thread: this one may hold the locks that it needs
            threading.Thread(target=self.interrupt, daemon=True).start()

        signal.signal(signal.SIGINT, handle)
        return restore


_context: ContextVar[SearchContext | None] = ContextVar("skfleet_search_context", default=None)


def is_running() -> bool:
    """Return whether a search of this package runs in this context."""
    return _context.get() is not None


def current_context() -> SearchContext:
    """Return the running search; outside of one, a context without options."""
    return _context.get() or SearchContext()
