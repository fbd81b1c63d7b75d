"""Answers row by row, in the caller's own container: arrays for arrays, lazy for lazy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skfleet.blocks._blocks import Block, as_numbers
from skfleet.blocks._local import float_dtype, n_rows_of


@dataclass(frozen=True)
class Output:
    """What a method answers for n rows: n values of dtype, or n rows of `width` values."""

    dtype: np.dtype
    width: int | None = None
    columns: Sequence[Any] | None = None

    def empty(self) -> np.ndarray:
        """Return the answer for no rows."""
        return np.empty((0,) if self.width is None else (0, self.width), dtype=self.dtype)


def is_lazy(X: Any) -> bool:
    """Say whether X is a Dask collection, without importing Dask for it."""
    return "dask" in sys.modules and sys.modules["dask"].is_dask_collection(X)


def stand_in(X: Any) -> Any:
    """Return rows of a Dask collection's kind, width, names and types, without any row."""
    from skfleet.blocks._dask import stand_in

    return stand_in(X)


def map_rows(
    func: Callable[[Any, Any], Any],
    model: Any,
    X: Any,
    output: Output,
    *,
    check: Callable[[Block], None] | None = None,
    raw: bool = False,
) -> Any:
    """Return func(model, rows) for all rows of X, in the container X came in.

    Parameters
    ----------
    func : callable
        Gets the model and a run of rows: a matrix, or the rows as they are when `raw`.
    model : object
        What func needs. On a cluster it crosses to each worker once.
    X : any rows
        Dask collections give a lazy answer, of which shape, chunks and dtype are known now.
    output : Output
        What comes out.
    check : callable, default=None
        Raises if rows that the driver has not seen are not fit for use.
    raw : bool, default=False
        Hand on the rows untouched.
    """
    if is_lazy(X):
        from skfleet.blocks._dask import map_dask_rows

        return map_dask_rows(func, model, X, output, check=check, raw=raw)
    return run_rows(func, model, X, output, raw=raw)


def run_rows(
    func: Callable[[Any, Any], Any],
    model: Any,
    X: Any,
    output: Output,
    check: Callable[[Block], None] | None = None,
    raw: bool = False,
) -> Any:
    """Return func(model, rows) for rows in this process; no rows have an answer too."""
    if n_rows_of(X) == 0:
        return output.empty()
    block = Block(X)
    if not raw:
        block = as_numbers(block, float_dtype(X))
    if check is not None:
        check(block)
    return func(model, block.X)
