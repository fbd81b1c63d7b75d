"""Answers row by row, in the caller's own container: arrays for arrays, lazy for lazy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skfleet._array import to_device_of
from skfleet.blocks._block import Block, as_numeric
from skfleet.blocks._containers import float_dtype, is_frame, n_rows_of, slice_rows


@dataclass(frozen=True)
class OutputSpec:
    """What a method answers for n rows: n values of dtype, or n rows of `width` values.

    `columns` are names for the values where the answer is a frame. `blank` is the answer for no
    rows where that is not a plain array. Labels keep their dtype; other floats are computed in the
    rows' precision where that is the higher one.
    """

    dtype: Any
    width: int | None = None
    columns: Sequence[Any] | None = None
    blank: Any = None
    is_label: bool = False

    @classmethod
    def of(cls, answer: Any, names: Sequence[Any] | None = None) -> OutputSpec:
        """Describe the answers of which one for a few rows is given.

        `names` are for the columns of an answer that has none, where they are as many.
        """
        answer = _as_values(answer)
        width = answer.shape[1] if len(answer.shape) == 2 else None
        if is_frame(answer):
            names = list(answer.columns) if width is not None else None
            return cls(answer.to_numpy().dtype, width, names, slice_rows(answer, 0, 0))
        blank = None if type(answer) is np.ndarray else slice_rows(answer, 0, 0)
        names = names if names is not None and len(names) == width else None
        return cls(answer.dtype, width, names, blank)

    def promote(self, dtype: np.dtype) -> OutputSpec:
        """Describe the answers that are computed for rows of a dtype."""
        is_float = isinstance(self.dtype, np.dtype) and self.dtype.kind == "f"
        if self.is_label or not is_float:
            return self
        return replace(self, dtype=np.result_type(self.dtype, dtype))

    def fit(self, answer: Any) -> Any:
        """Return an answer in the type announced, where that loses nothing."""
        answer = _as_values(answer)
        if is_frame(answer) or not isinstance(answer.dtype, np.dtype):
            return answer
        safe = answer.dtype != self.dtype and np.can_cast(answer.dtype, self.dtype)
        return answer.astype(self.dtype) if safe else answer

    def empty(self) -> Any:
        """Return the answer for no rows."""
        if self.blank is not None:
            return self.blank
        return np.empty((0,) if self.width is None else (0, self.width), dtype=self.dtype)


def class_names(classes: Any, X: Any) -> tuple[str, ...] | None:
    """Return the names of columns of values per class, such as Parquet takes; None without names.

    Parameters
    ----------
    classes : iterable
        Labels.
    X : any rows
        A frame gives a frame; the answer to others has no names.
    """
    if not hasattr(X, "columns"):
        return None
    names = tuple(str(label) for label in classes)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            "classes_ must differ as text, to name the columns of a frame. Got "
            f"{twice!r} more than once instead. Give an array, with X.to_dask_array() say."
        )
    return names


def _as_values(answer: Any) -> Any:
    """Return what has no shape as an array: of objects, where it holds an array per row."""
    if hasattr(answer, "shape"):
        return answer
    if not len(answer) or not hasattr(answer[0], "shape"):
        return np.asarray(answer)
    values = np.empty(len(answer), dtype=object)
    for i, value in enumerate(answer):
        values[i] = value
    return values


def is_lazy(X: Any) -> bool:
    """Say whether X is a Dask collection, without importing Dask for it."""
    return "dask" in sys.modules and sys.modules["dask"].is_dask_collection(X)


def n_rows_if_known(X: Any) -> int | None:
    """Return the number of rows of any container; None where that takes a pass to know."""
    if not is_lazy(X):
        return n_rows_of(X)
    from skfleet.blocks._dask_collections import known_lengths

    lengths = known_lengths(X)
    return None if lengths is None else sum(lengths)


def meta_of(X: Any) -> Any:
    """Return rows of a Dask collection's kind, width, names and types, without any row."""
    from skfleet.blocks._dask_collections import meta_of

    return meta_of(X)


def name_columns(X: Any, names: Sequence[Any]) -> Any:
    """Return a Dask array of two dimensions as a Dask DataFrame whose columns have names."""
    from skfleet.blocks._dask_outputs import name_columns

    return name_columns(X, names)


def first_rows(X: Any, *, real: bool) -> Any:
    """Return two rows like those of a Dask collection: made up, or its first real ones."""
    from skfleet.blocks._dask_outputs import first_real_rows, meta_nonempty

    return first_real_rows(X) if real else meta_nonempty(X)


def map_rows(
    func: Callable[[Any, Any], Any],
    model: Any,
    X: Any,
    output: OutputSpec | Sequence[OutputSpec],
    *,
    check: Callable[[Block], None] | None = None,
    raw: bool = False,
    name: str = "rows",
) -> Any:
    """Return func(model, rows) for all rows of X, in the container X came in.

    Parameters
    ----------
    func : callable
        Gets the model and a run of rows: a matrix, or the rows as they are when `raw`.
    model : object
        What func needs, or a Delayed value that stands for it. On a cluster it crosses to each
        worker once.
    X : any rows
        Dask collections give a lazy answer, of which shape, chunks and dtype are known now.
    output : Output or list of Output
        What comes out; a list where func returns a list.
    check : callable, default=None
        Raises if rows that the driver has not seen are not fit for use.
    raw : bool, default=False
        Hand on the rows untouched.
    name : str, default="rows"
        What the tasks are called on a cluster.
    """
    if not raw:
        dtype = float_dtype(meta_of(X) if is_lazy(X) else X)
        if isinstance(output, OutputSpec):
            output = output.promote(dtype)
        else:
            output = [one.promote(dtype) for one in output]
    if is_lazy(X):
        from skfleet.blocks._dask_outputs import map_dask_rows

        return map_dask_rows(func, model, X, output, check=check, raw=raw, name=name)
    return run_rows(func, model, X, output, check=check, raw=raw)


def run_rows(
    func: Callable[[Any, Any], Any],
    model: Any,
    X: Any,
    output: OutputSpec | Sequence[OutputSpec],
    check: Callable[[Block], None] | None = None,
    raw: bool = False,
) -> Any:
    """Return func(model, rows) for rows in this process; no rows have an answer too."""
    if n_rows_of(X) == 0:
        if isinstance(output, OutputSpec):
            return to_device_of(output.empty(), X)
        return [to_device_of(one.empty(), X) for one in output]
    block = Block(X)
    if not raw:
        block = as_numeric(block, float_dtype(X))
    if check is not None:
        check(block)
    answer = func(model, block.X)
    if isinstance(output, OutputSpec):
        return output.fit(answer)
    return [one.fit(part) for one, part in zip(output, answer, strict=True)]
