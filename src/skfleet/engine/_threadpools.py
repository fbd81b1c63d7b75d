"""How many threads the libraries of this process may use while a task runs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

from skfleet._sklearn_private import count_cores

__all__ = ["CORES_VARIABLE", "limit_threadpools"]

# What joblib.cpu_count obeys, and with it the libraries that ask joblib: LightGBM, for one.
CORES_VARIABLE = "LOKY_MAX_CPU_COUNT"

_lock = threading.Lock()
_depth = 0
_limiter: Any = None
_cores_before: str | None = None
_known: tuple[int, ThreadpoolController, ThreadpoolController] | None = None


def _controllers() -> tuple[ThreadpoolController, ThreadpoolController]:
    """Find the BLAS and the OpenMP libraries; again only where modules were imported since.

    Looking for them costs more than setting them, but a task may import what brings another one.
    """
    global _known
    known, n_modules = _known, len(sys.modules)
    if known is None or known[0] != n_modules:
        found = ThreadpoolController()
        known = n_modules, found.select(user_api="blas"), found.select(user_api="openmp")
        _known = known
    return known[1], known[2]


def _reset_owner(blas: ThreadpoolController) -> None:
    """Let this thread set the limits of an OpenBLAS that another one has set before.

    threadpoolctl (3.8) heeds one thread at a time and ignores the others; here a lock sees to it
    that they do not quarrel, and the last to leave need not be the first that came.
    """
    for library in blas.lib_controllers:
        clear = getattr(library, "clear_controlling_thread", None)
        if clear is not None:
            clear(force=True)


@contextmanager
def _numba_threads(n_threads: int) -> Iterator[None]:
    """Limit the threads that numba uses for the calling thread, where it is loaded."""
    numba: Any = sys.modules.get("numba")
    set_n = getattr(numba, "set_num_threads", None)
    if set_n is None:
        yield
        return
    before = numba.get_num_threads()
    set_n(min(n_threads, before))
    try:
        yield
    finally:
        set_n(before)


@contextmanager
def limit_threadpools(n_threads: int) -> Iterator[None]:
    """Limit the libraries' threads until the last of overlapping users is done.

    The limit of a BLAS, and the cores that joblib counts, belong to the process, so tasks in
    several threads share the first one's: were each to restore what it found, the last to leave
    would restore another task's limit for good. That of OpenMP belongs to the calling thread, so
    each task sets its own.
    """
    global _depth, _limiter, _cores_before
    blas, openmp = _controllers()
    with _lock:
        if _depth == 0:
            _reset_owner(blas)
            _limiter = blas.limit(limits=n_threads)
            _limiter.__enter__()
            count_cores()  # scikit-learn remembers what it is told first
            _cores_before = os.environ.get(CORES_VARIABLE)
            os.environ[CORES_VARIABLE] = str(n_threads)
        _depth += 1
    try:
        with openmp.limit(limits=n_threads), _numba_threads(n_threads):
            yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _reset_owner(blas)
                _limiter.__exit__(None, None, None)
                _limiter = None
                if _cores_before is None:
                    os.environ.pop(CORES_VARIABLE, None)
                else:
                    os.environ[CORES_VARIABLE] = _cores_before
