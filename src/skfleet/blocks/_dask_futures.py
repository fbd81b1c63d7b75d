"""Delayed values and Futures, which are refused as rows, and rows that nobody has any more."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any


def check_rows(**rows: object) -> None:
    """Raise for a Delayed value or a Future, and for a bag other than of X, which may be text."""
    for name, values in rows.items():
        expected = "a Dask array or Series, or in this process"
        if name == "X":
            expected = "a Dask array, a Dask DataFrame or a bag of text, or in this process"
        if is_future(values) or _is_a(values, "dask.delayed", "Delayed"):
            kind, method = ("Future", "result") if is_future(values) else ("Delayed", "compute")
            raise TypeError(
                f"{name} must be {expected}. Got {kind} instead, of which neither shape nor type "
                f"is known. Bring it here with its {method}(), or make a collection of it with "
                "dask.array.from_delayed or dask.dataframe.from_delayed."
            )
        if name != "X" and _is_a(values, "dask.bag", "Bag"):
            raise TypeError(
                f"{name} must be {expected}. Got a bag instead. Make a column of it, with "
                "bag.to_dataframe(columns=['value'])['value'] of text, or compute it."
            )


def check_futures(futures: Iterable[Any]) -> None:
    """Raise for persisted rows whose cluster is gone, or which were cancelled."""
    if any(future.status == "cancelled" for future in futures):
        raise ValueError(
            "Persisted rows must be in the memory of an open cluster. Got rows of a client that is "
            "closed, or rows that were cancelled, instead. Make them again, or persist them on "
            "the cluster that is open."
        )


def is_future(value: object) -> bool:
    return _is_a(value, "distributed", "Future")


def _is_a(value: object, module: str, kind: str) -> bool:
    """Return whether a value is of a class of a module, which is not imported for it."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], kind))
