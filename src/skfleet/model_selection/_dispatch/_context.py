"""What a search tells the calls of joblib that it makes, and hears of them."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from weakref import WeakSet

from skfleet._progress_bar import ProgressHint, show_progress
from skfleet.engine._gpu._device_cache import DeviceArrayCache
from skfleet.model_selection._checkpoint import Checkpoint, checkpoint_line
from skfleet.model_selection._evaluations import CandidateResults
from skfleet.model_selection._plot import FitTime
from skfleet.model_selection._shared_fits._registry import SharedFitLog

__all__ = ["SearchRun", "current_run", "is_running"]

logger = logging.getLogger("skfleet.model_selection")


class SearchRun:
    """A search under way.

    Parameters
    ----------
    share_fits : bool or "approximate", default=False
        Whether fits that contain others stand for them, and also where scores agree within the
        tolerance of a solver.
    records : Records, default=None
        Where finished fits are recorded.
    time_budget : float, default=None
        Seconds after which no fit is begun.
    fits_here : bool, default=False
        Whether fits are made in this process, each on the fleet.
    verbose : int, default=0
        1 to show how far the fits are, and how many the checkpoint had; from 2 on scikit-learn
        prints each of them.
    """

    def __init__(
        self,
        *,
        share_fits: bool | str = False,
        records: Checkpoint | None = None,
        time_budget: float | None = None,
        fits_here: bool = False,
        verbose: int = 0,
    ) -> None:
        is_approximate = share_fits == "approximate"
        self.sharing = SharedFitLog(is_enabled=bool(share_fits), is_approximate=is_approximate)
        self.records = records
        self.fits_here = fits_here
        self.n_checkpoint_fits = 0
        self._verbose = verbose
        self.is_interrupted = False
        self.is_here = False  # whether this process is at work itself, and Ctrl-C ends that
        self._budget = time_budget
        self._begin, self._begin_of_day = time.monotonic(), time.time()
        self.timeline: list[FitTime] = []
        self.calls: WeakSet = WeakSet()  # those that can be given up
        self.evaluations: list[CandidateResults] = []  # one after the other
        self._is_begun = True  # whether the last of them has its calls
        self.copies = DeviceArrayCache()  # of the rows, on the GPUs of workers

    @property
    def seconds_left(self) -> float | None:
        """Seconds in which fits may be begun; None without an end."""
        if self._budget is None:
            return None
        return self._begin + self._budget - time.monotonic()

    @property
    def over(self) -> str | None:
        """Why no fit is begun any more; None as long as they are."""
        left = self.seconds_left
        return None if left is None or left > 0 else f"time_budget={self._budget} s was over"

    def expect(self, evaluation: CandidateResults) -> None:
        """Say which candidates the next call is to evaluate."""
        self.evaluations.append(evaluation)
        self._is_begun = False

    def begin_evaluation(self) -> CandidateResults | None:
        """Give what a call evaluates; None for one within a fit, of somebody else."""
        if self._is_begun:
            return None
        self._is_begun = True
        return self.evaluations[-1]

    def note(self, worker: str, begin: float, end: float) -> None:
        """Note when a worker was at a fit, in seconds of the day's clock."""
        self.timeline.append(FitTime(worker, begin - self._begin_of_day, end - self._begin_of_day))

    def note_checkpoint(self, n_fits: int, n_read: int) -> None:
        """Note how many of the fits that a call was asked for the checkpoint had."""
        self.n_checkpoint_fits += n_fits
        text = checkpoint_line(n_fits, n_read, "fits")
        logger.info("%s", text)
        if self._verbose:
            print(text)

    def interrupt(self) -> None:
        """Give up what is under way."""
        self.is_interrupted = True
        for call in list(self.calls):
            call.give_up()

    @contextmanager
    def here(self) -> Iterator[None]:
        """Work in this process; Ctrl-C ends that, and what would follow."""
        self.is_here = True
        try:
            yield
        except KeyboardInterrupt:
            self.is_interrupted = True
        finally:
            self.is_here = False

    @contextmanager
    def __call__(self) -> Iterator[SearchRun]:
        """Be the run of the calls in a ``with``, which Ctrl-C ends early."""
        token = _run.set(self)
        restore = self._listen()
        try:
            with show_progress(self._verbose == 1), ProgressHint(is_wanted=not self._verbose):
                yield self
        finally:
            restore()
            _run.reset(token)
            self.copies.end()
            self.copies = DeviceArrayCache()  # the loop's callbacks hold the run, and it held these

    def _listen(self) -> Callable[[], None]:
        """Take Ctrl-C for the end of the call under way, once; give what undoes that."""
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
            if self.is_here or not self.calls:
                default(number, frame)
            # not here, where locks may be held
            threading.Thread(target=self.interrupt, daemon=True).start()

        signal.signal(signal.SIGINT, handle)
        return restore


_run: ContextVar[SearchRun | None] = ContextVar("skfleet_search_run", default=None)


def is_running() -> bool:
    """Tell whether a search of ours is under way in this context."""
    return _run.get() is not None


def current_run() -> SearchRun:
    """Give the run of the search in this context: one that wants nothing, if it is none of ours."""
    return _run.get() or SearchRun()
