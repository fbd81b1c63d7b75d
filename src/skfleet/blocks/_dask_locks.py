"""Workaround for the locks of `cached_property` in Python 3.11, which can deadlock Dask.

Up to Python 3.11 a `cached_property` is locked for all objects of its class while it is computed.
Dask expressions (2026.8.0) run tasks in some of theirs (the divisions of `set_index`); a local
cluster builds the graph in another thread of the same process, which waits for the same lock.
Python 3.12 has no such lock. This file can be removed with support for Python 3.11.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cached_property


def release_cached_properties() -> None:
    """Remove the locks from the properties of Dask expressions, as in Python 3.12."""
    if sys.version_info >= (3, 12):
        return
    from skfleet._dask_private import AnyExpr

    for cls in _with_subclasses(AnyExpr):
        for value in vars(cls).values():
            if isinstance(value, cached_property):
                vars(value)["lock"] = nullcontext()


def _with_subclasses(cls: type[object]) -> Iterator[type[object]]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _with_subclasses(subclass)
