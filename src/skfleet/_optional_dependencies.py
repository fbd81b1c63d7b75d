"""Checks for the libraries of extras."""

from __future__ import annotations

from importlib.util import find_spec


def missing_extra(subject: str, library: str, extra: str) -> str:
    """Return the message for a missing library, with the extra that installs it."""
    return f"{subject} needs {library}: pip install 'scikit-fleet[{extra}]'."


def check_extra(subject: str, library: str, extra: str) -> None:
    """Raise an ImportError unless a library of an extra is installed."""
    if find_spec(library) is None:
        raise ImportError(missing_extra(subject, library, extra), name=library)
