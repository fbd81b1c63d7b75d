"""A function of a model and rows, mapped over rows of any container: local or lazy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from skfleet.blocks import Block, float_dtype, is_lazy, meta_of, n_rows_of
from skfleet.inference._output import OutputSpec, apply_to_rows


def map_rows(
    func: Callable[[Any, Any], Any],
    model: Any,
    X: Any,
    output: OutputSpec | Sequence[OutputSpec],
    *,
    check: Callable[[Block], None] | None = None,
    convert: bool = True,
    takes_parts: bool = False,
    name: str = "rows",
) -> Any:
    """Return func(model, rows) for all rows of X, in the container of X.

    The rows that func is called with are a slice: a matrix of floats, or in their own container
    without `convert`. The model, which may be a Delayed value, is sent to each worker once. For a
    Dask collection the result is lazy, with known chunks, dtype and columns. `output` is a list
    where func returns one. `check` is called with each block that the driver has not seen, and
    raises for rows that are not valid. With `takes_parts` func gets columns that a transformer left
    in parts as they are. `name` is the prefix of the task keys.
    """
    if convert:
        dtype = float_dtype(meta_of(X) if is_lazy(X) else X)
        if isinstance(output, OutputSpec):
            output = output.promote(dtype)
        else:
            output = [spec.promote(dtype) for spec in output]
    if is_lazy(X):
        from skfleet.inference._map_dask import map_dask_rows

        settings: dict[str, Any] = {"check": check, "convert": convert, "takes_parts": takes_parts}
        return map_dask_rows(func, model, X, output, **settings, name=name)
    return apply_to_rows(func, model, X, output, check=check, convert=convert)


def constant_per_row(value: float, X: Any) -> Any:
    """Return a value for each row of X, in the container of X."""
    output = OutputSpec(np.dtype(np.float64), is_rows=True)
    return map_rows(_repeat, value, X, output, convert=False, name="constant")


def _repeat(value: float, rows: Any) -> np.ndarray:
    return np.full(n_rows_of(rows), value)


def name_columns(X: Any, names: Sequence[Any]) -> Any:
    """Return a two-dimensional Dask array as a Dask DataFrame with named columns."""
    return X.to_dask_dataframe(columns=list(names))
