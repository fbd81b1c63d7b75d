"""Settings of Dask for a block of code, in whatever threads it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask

_lock = threading.Lock()
_settings: dict[str, tuple[int, dask.config.set]] = {}


@contextmanager
def dask_setting(name: str, value: Any) -> Iterator[None]:
    """Hold a setting of Dask at a value, always the same one, until the last thread has left.

    Settings belong to the whole process. Of two threads in blocks of ``dask.config.set``, the one
    that began first would put back what the program had, and the other one the value of the first,
    for ever.
    """
    with _lock:
        count, setting = _settings.get(name) or (0, dask.config.set({name: value}))
        _settings[name] = count + 1, setting
    try:
        yield
    finally:
        with _lock:
            count, setting = _settings.pop(name)
            if count > 1:
                _settings[name] = count - 1, setting
            else:
                setting.__exit__(None, None, None)


def text_dtype() -> Any:
    """Return the dtype that Dask gives text in its frames; None where it stays as it is."""
    import pandas as pd

    is_converted = dask.config.get("dataframe.convert-string", None) is not False
    return pd.StringDtype("pyarrow") if is_converted else None
