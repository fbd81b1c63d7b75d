"""Libraries that only some of the package needs."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["check_extra", "missing_extra"]


def missing_extra(subject: str, library: str, extra: str) -> str:
    """Say in one sentence that a library is missing, and which extra installs it."""
    return f"{subject} needs {library}: pip install 'scikit-fleet[{extra}]'."


def check_extra(subject: str, library: str, extra: str) -> None:
    """Raise unless a library that an extra installs is there."""
    if find_spec(library) is None:
        raise ImportError(missing_extra(subject, library, extra), name=library)
