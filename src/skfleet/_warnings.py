"""Warnings that point at the line of the user, with any number of library frames in between."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from contextlib import ContextDecorator
from types import FrameType

from sklearn.exceptions import ConvergenceWarning

# Frames of these packages are skipped.
_LIBRARIES = (
    "asyncio", "concurrent", "contextlib", "dask", "distributed", "functools", "joblib", "skfleet",
    "sklearn", "threading", "tornado",
)  # fmt: skip


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn like :func:`warnings.warn`, at the innermost line that is not in a library.

    In a library's thread, which has no such line, it is that of the outermost frame.
    """
    frame = sys._getframe(1)
    while _is_library(frame) and frame.f_back is not None:
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES


def is_library_file(path: str) -> bool:
    """Return whether a file belongs to one of the libraries."""
    return path.startswith(_roots())


def _roots() -> tuple[str, ...]:
    """Return the folders, or single files, of the libraries that are imported."""
    roots = []
    for name in _LIBRARIES:
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        folder, base = os.path.split(file)
        roots.append(folder + os.sep if base.startswith("__init__.") else file)
    return tuple(filter(None, roots))


class IgnoredWarnings(ContextDecorator):
    """Context without warnings of a category and message, which threads enter and leave freely.

    One filter is added for all threads and removed after the last one; ``catch_warnings`` is not
    thread-safe, as it restores the whole list of filters. One that another thread entered in the
    meantime put a copy in the place of the list, and puts the list back: both lose the filter.
    """

    def __init__(self, category: type[Warning], message: str = "(?:)") -> None:
        self._category, self._message = category, message
        self._lock, self._n_entered = threading.Lock(), 0
        self._filters = warnings.filters

    def __enter__(self) -> None:
        with self._lock:
            self._n_entered += 1
            if self._n_entered == 1:
                self._filters = warnings.filters
                warnings.filterwarnings("ignore", self._message, self._category)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_entered -= 1
            if not self._n_entered:
                self._remove_from(warnings.filters)
                self._remove_from(self._filters)

    def _remove_from(self, filters: list) -> None:
        for entry in list(filters):
            if entry[1] and entry[1].pattern == self._message and entry[2] is self._category:
                filters.remove(entry)


# of any kind
_ALL_WARNINGS = IgnoredWarnings(Warning)
_CONVERGENCE_WARNINGS = IgnoredWarnings(ConvergenceWarning)


def without_warnings() -> IgnoredWarnings:
    """Suppress the warnings of calls on rows that are not the user's, or that tasks raise again."""
    return _ALL_WARNINGS


def without_convergence_warnings() -> IgnoredWarnings:
    """Suppress the warnings of scikit-learn's solvers where ours judges whether it converged."""
    return _CONVERGENCE_WARNINGS
