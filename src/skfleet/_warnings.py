"""Warnings that point at the line of the user, with any number of library frames in between."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

# Frames of these packages are skipped.
_LIBRARIES = (
    "asyncio",
    "concurrent",
    "contextlib",
    "dask",
    "distributed",
    "functools",
    "joblib",
    "skfleet",
    "sklearn",
    "threading",
    "tornado",
)


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn like :func:`warnings.warn`, at the innermost line that is not in a library."""
    frame = _user_frame()
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _user_frame() -> FrameType:
    """Return the innermost frame of the user; in a library's thread the outermost frame."""
    frame = sys._getframe(1)
    while _is_library(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES


def is_library_file(path: str) -> bool:
    """Return whether a file belongs to one of the libraries."""
    return any(path.startswith(root) for root in _roots())


def _roots() -> list[str]:
    """Return the folders, or single files, of the libraries that are imported."""
    roots = []
    for name in _LIBRARIES:
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        folder, base = os.path.split(file)
        roots.append(folder + os.sep if base.startswith("__init__.") else file)
    return [root for root in roots if root]
