"""Functions for code inside a task of any engine: scattered arguments, picklable results."""

from __future__ import annotations

import sys
from typing import Any


def open_scattered(value: Any) -> Any:
    """Return the object that an engine has scattered, inside a task that it is an argument of."""
    if "distributed" not in sys.modules:
        return value
    from skfleet.engine._dask._scatter import loads_cached

    return loads_cached(value)


def check_picklable(model: Any) -> None:
    """Raise, in a task, unless a fitted model can be sent to other processes.

    Dask (2026.8.0) requests a result that cannot be sent again and again, for ever. Workers that
    are threads of one process send nothing.
    """
    if "distributed" not in sys.modules:
        return
    from skfleet.engine._dask._client import current_worker_address
    from skfleet.engine._dask._serialize import Pickled

    address = current_worker_address()
    if not address or address.startswith("inproc://"):
        return
    try:
        Pickled.dumps(model)
    except Exception as error:
        raise TypeError(
            "a model that has learned must be one that pickle takes, to go from worker to worker. "
            f"Got {type(model).__name__} instead: {error}. Define its classes in a module that "
            "workers can import, not in __main__."
        ) from error
