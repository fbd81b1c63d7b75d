"""Fits on prepared rows that come to this process, one split after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from skfleet.model_selection._dispatch._local_fits import LocalFits
from skfleet.model_selection._dispatch._requests import FitRequest, RequestReader


class GatheredFits:
    """Sends the fits on prepared rows to the workers, and releases these rows when they are done.

    `send` sends fits, and with none makes those that wait on Dask rows; `report` reports the error
    that ends some fits. `lock` is that of the requests.
    """

    def __init__(
        self,
        lock: AbstractContextManager[Any],
        send: Callable[[Sequence[FitRequest]], object],
        report: Callable[[Iterable[FitRequest], Exception], object],
    ) -> None:
        self._lock, self._send, self._report = lock, send, report
        self._was_notified, self._has_failed = threading.Condition(), False
        self._under_way: list[list[FitRequest]] = []

    # For each split and kind of first steps:
    # 1. Prepare its rows and bring them here, while workers are at the fits on those before.
    # 2. Send the fits. Those of two kinds are under way at a time, one where two do not fit.
    # 3. Release the rows of which all fits are done.
    def run(self, local_fits: LocalFits, requests: RequestReader) -> None:
        """Send all fits on prepared rows, and wait until they are done."""
        while not self._has_failed and (gathered := local_fits.next_gathered()) is not None:
            fits, rows = gathered
            if isinstance(rows, Exception):
                self._report(fits, rows)
                continue
            if rows is None:
                self._send([])
                continue
            with self._lock:
                fits = local_fits.replace(fits, rows)
            self._under_way.append(fits)
            n_at_once = 2 if rows.fits_twice else 1
            del rows
            self._send(fits)
            self._release_done(requests, n_at_once)
        self._release_done(requests, 1)

    def notify(self, *, has_failed: bool = False) -> None:
        """Look at the fits again, or stop waiting for them after a failure."""
        with self._was_notified:
            self._has_failed |= has_failed
            self._was_notified.notify_all()

    def _release_done(self, requests: RequestReader, n_at_once: int) -> None:
        """Wait until fewer kinds of fits than these are under way; release rows of the others."""
        with self._was_notified:
            self._was_notified.wait_for(
                lambda: (
                    self._has_failed
                    or sum(not _are_done(fits) for fits in self._under_way) < n_at_once
                )
            )
        for fits in filter(_are_done, list(self._under_way)):
            self._under_way.remove(fits)
            with self._lock:
                for number in {fit.job for fit in fits}:
                    requests.release_rows(number)


def _are_done(fits: Iterable[FitRequest]) -> bool:
    return all(fit.is_done for fit in fits)
