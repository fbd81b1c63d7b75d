"""Limits on the threads of native libraries while a task runs (`limit_threadpools`)."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import joblib
from threadpoolctl import ThreadpoolController

from skfleet._sklearn_private import count_cores

# joblib.cpu_count obeys it, and with it the libraries that call that: LightGBM, for one.
CORES_VARIABLE = "LOKY_MAX_CPU_COUNT"

_lock = threading.Lock()
_depth = 0
_limiter: Any = None
_cores_before: str | None = None
_cached_controllers: tuple[int, ThreadpoolController, ThreadpoolController] | None = None


def _controllers() -> tuple[ThreadpoolController, ThreadpoolController]:
    """Return controllers of the BLAS and the OpenMP libraries.

    They are looked up again only after an import, which may have loaded another library: a lookup
    costs more than setting the limits.
    """
    global _cached_controllers
    cached, n_modules = _cached_controllers, len(sys.modules)
    if cached is None or cached[0] != n_modules:
        libraries = ThreadpoolController()
        cached = n_modules, libraries.select(user_api="blas"), libraries.select(user_api="openmp")
        _cached_controllers = cached
    return cached[1], cached[2]


def _reset_owner(blas: ThreadpoolController) -> None:
    """Let this thread set the limits of an OpenBLAS that another thread has set before.

    threadpoolctl (3.8) obeys the thread that set a limit first, and ignores others. Here a lock
    orders them, and the thread that restores the limit need not be the one that set it.
    """
    for library in blas.lib_controllers:
        clear = getattr(library, "clear_controlling_thread", None)
        if clear is not None:
            clear(force=True)


def count_local_threads() -> int:
    """Return the cores that this process may use, as joblib counts them.

    The count reads files of the system's, so it is repeated only where one of its limits that can
    change in a process has changed.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return _count_cores(os.environ.get(CORES_VARIABLE), affinity)


@lru_cache(maxsize=8)
def _count_cores(limit: str | None, affinity: int | None) -> int:
    return int(joblib.cpu_count())


@contextmanager
def _numba_threads(n_threads: int) -> Iterator[None]:
    """Limit the threads that numba uses for the calling thread, where it is loaded."""
    numba: Any = sys.modules.get("numba")
    if not hasattr(numba, "set_num_threads"):
        yield
        return
    before = numba.get_num_threads()
    numba.set_num_threads(min(n_threads, before))
    try:
        yield
    finally:
        numba.set_num_threads(before)


@contextmanager
def limit_threadpools(n_threads: int) -> Iterator[None]:
    """Limit the libraries' threads inside a ``with``; those of several threads may overlap.

    The limit of a BLAS, and the cores that joblib counts, belong to the process. So tasks in
    several threads share the first one's, and the last to end restores the state before: were each
    to restore the state at its start, another task's limit could stay for good. The limit of OpenMP
    belongs to the calling thread, so each task sets its own.
    """
    global _depth, _limiter, _cores_before
    blas, openmp = _controllers()
    with _lock:
        if _depth == 0:
            _reset_owner(blas)
            _limiter = blas.limit(limits=n_threads)
            _limiter.__enter__()
            count_cores()  # scikit-learn caches the first count: let it be that without a limit
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
