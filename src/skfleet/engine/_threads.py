"""How many threads the BLAS and OpenMP libraries of this process may use while a task runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_depth = 0
_limiter: Any = None


@cache
def _controller() -> ThreadpoolController:
    """Find the libraries once: looking for them costs more than setting them."""
    return ThreadpoolController()


@contextmanager
def library_threads(n_threads: int) -> Iterator[None]:
    """Limit the libraries' threads, process-wide, until the last of overlapping users is done.

    The limit belongs to the process, so tasks in several threads share the first one's: were each
    to restore what it found, the last to leave would restore another task's limit for good.
    """
    global _depth, _limiter
    with _lock:
        if _depth == 0:
            _limiter = _controller().limit(limits=n_threads)
            _limiter.__enter__()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _limiter.__exit__(None, None, None)
                _limiter = None
