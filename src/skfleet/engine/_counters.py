"""Counters of passes over the data, tasks submitted, and blocks loaded (`counting`)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from skfleet._display import count
from skfleet.engine._fit_progress import current_fit_progress, no_fit_progress

logger = logging.getLogger("skfleet.engine")


@dataclass
class Counts:
    """Passes over the rows, tasks submitted, and blocks loaded or read back so far."""

    passes: int = 0
    tasks: int = 0
    loads: int = 0
    cache_reads: int = 0


_lock = threading.Lock()
_open_counts: ContextVar[tuple[Counts, ...]] = ContextVar("skfleet_counts", default=())


@contextmanager
def counting() -> Iterator[Counts]:
    """Count the passes over the data and the tasks submitted inside a ``with`` block.

    Yields
    ------
    Counts
        With ``passes``, the number of times that all rows were read, ``tasks``, the number of
        tasks given to an engine, ``loads``, how often these were to load a block of rows from where
        it comes from, and ``cache_reads``, how often from the disk of their worker
        (``config_context(disk_cache=...)``). All grow while the block runs. Nested blocks each
        count what runs inside them.

    Examples
    --------
    >>> import numpy as np
    >>> from skfleet.engine import counting
    >>> from skfleet.estimators import Ridge
    >>> X = np.arange(12.0).reshape(6, 2) ** 2
    >>> with counting() as counts:
    ...     model = Ridge().fit(X, X[:, 0])
    >>> counts.passes
    1
    """
    counts = Counts()
    token = _open_counts.set((*_open_counts.get(), counts))
    try:
        yield counts
    finally:
        _open_counts.reset(token)


@contextmanager
def counting_disabled() -> Iterator[None]:
    """Count nothing inside a ``with`` block: work on a sample is no pass over the rows."""
    token = _open_counts.set(())
    try:
        with no_fit_progress():
            yield
    finally:
        _open_counts.reset(token)


def add_counts(*, passes: int = 0, tasks: int = 0, loads: int = 0, cache_reads: int = 0) -> None:
    """Add to the counts of every `counting` block that is open."""
    with _lock:  # fits may be made at once, in threads
        for counts in _open_counts.get():
            counts.passes += passes
            counts.tasks += tasks
            counts.loads += loads
            counts.cache_reads += cache_reads


def log_pass(name: str, n_blocks: int, n_tasks: int) -> None:
    """Count one pass and write it to the log."""
    add_counts(passes=1)
    logger.debug("pass %s: %s in %s", name, count(n_blocks, "block"), count(n_tasks, "task"))


def count_library_passes(name: str, n_passes: int, n_rows: int | None) -> None:
    """Count the passes that another library, or a task, has made over one block in one call.

    The first of them has begun on the bar before the call.
    """
    add_counts(passes=n_passes)
    logger.debug("%d passes %s: 1 block", n_passes, name)
    if (progress := current_fit_progress()) is not None:
        progress.end_passes(n_passes, n_rows)
