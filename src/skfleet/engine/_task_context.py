"""How a task opens what an engine keeps for it, whatever the engine."""

from __future__ import annotations

import sys
from typing import Any


def open_scattered(value: Any) -> Any:
    """Open what an engine keeps for tasks, inside one of them."""
    if "distributed" not in sys.modules:
        return value
    from skfleet.engine._dask._scatter import open_scattered

    return open_scattered(value)
