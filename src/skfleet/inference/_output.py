"""Type, width and column names of a prediction, and its computation for rows in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skfleet._array import to_device_of
from skfleet._linalg import is_sparse
from skfleet.blocks import (
    Block,
    as_numeric,
    float_dtype,
    is_frame,
    n_rows_of,
    slice_rows,
    with_pandas_text,
)
from skfleet.inference._frame_rows import frame_rows


@dataclass(frozen=True)
class OutputSpec:
    """Description of a method's predictions for n rows: n values of dtype, or an (n, width) matrix.

    `columns` are the names of the columns where the predictions are a frame. `empty_value` is the
    prediction for no rows where that is no plain array of one or two axes. Labels (`is_label`) keep
    their dtype; other floats are computed in the precision of the rows where that is the higher
    one. Predictions without names take the index of a frame of rows, unless `is_array` is true.
    `is_rows` says that they are the rows of a further step: those of an array stay an array, also
    where that array was made of a frame. `text_dtype` is the dtype of text in a Series or a frame.
    """

    dtype: Any
    width: int | None = None
    columns: Sequence[Any] | None = None
    empty_value: Any = None
    is_label: bool = False
    is_array: bool = False
    is_rows: bool = False
    text_dtype: Any = None

    @classmethod
    def of_labels(cls, classes: np.ndarray) -> OutputSpec:
        """Return the description of predictions of classes."""
        return cls(classes.dtype, is_label=True, text_dtype=_text_dtype(classes))

    @classmethod
    def infer(cls, predictions: Any, names: Sequence[Any] | None = None) -> OutputSpec:
        """Return the description that fits the predictions for a few rows.

        `names` are for the columns of predictions without names, if their number is the same.
        """
        predictions = _as_array(predictions)
        width = predictions.shape[1] if len(predictions.shape) == 2 else None
        if is_frame(predictions):
            names = list(predictions.columns) if width is not None else None
            return cls(predictions.to_numpy().dtype, width, names, slice_rows(predictions, 0, 0))
        is_plain = type(predictions) is np.ndarray and len(predictions.shape) < 3
        empty_value = None if is_plain else slice_rows(predictions, 0, 0)
        names = names if names is not None and len(names) == width else None
        text_dtype = _text_dtype(predictions) if is_plain else None
        return cls(predictions.dtype, width, names, empty_value, text_dtype=text_dtype)

    def promote(self, dtype: np.dtype) -> OutputSpec:
        """Return the description of what is computed for rows of a dtype."""
        if self.is_label or not isinstance(self.dtype, np.dtype) or self.dtype.kind != "f":
            return self
        return replace(self, dtype=np.result_type(self.dtype, dtype))

    def cast(self, predictions: Any) -> Any:
        """Return predictions in the announced dtype, where that loses nothing."""
        predictions = _as_array(predictions)
        if is_frame(predictions) or not isinstance(predictions.dtype, np.dtype):
            return predictions
        dtype = predictions.dtype
        is_safe = dtype != self.dtype and np.can_cast(dtype, self.dtype)
        return predictions.astype(self.dtype) if is_safe else predictions

    def empty(self) -> Any:
        """Return the prediction for no rows."""
        if self.empty_value is not None:
            return self.empty_value
        return np.empty((0,) if self.width is None else (0, self.width), dtype=self.dtype)


def _text_dtype(values: np.ndarray) -> Any:
    """Return Dask's dtype for text, which is that of text in its frames; None for other values.

    Of text in objects Dask writes no Parquet files. None where frames keep objects.
    """
    is_text = values.dtype.kind in "OU" and all(isinstance(value, str) for value in values.flat)
    if not is_text:
        return None
    if "dask.dataframe" not in sys.modules or not values.size:
        return None
    from skfleet._dask_settings import text_dtype  # not at import

    return text_dtype()


def class_names(classes: Any, X: Any) -> tuple[str, ...] | None:
    """Return the names of the columns of values per class, as text, which Parquet requires.

    Only for frames, lazy or not, and for arrays that a transformer makes of a Dask DataFrame,
    predictions have names; for any other X the result is None.
    """
    if not hasattr(X, "columns") and frame_rows(X) is None:
        return None
    names = tuple(str(label) for label in classes)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            "classes_ must differ as text, to name the columns of a frame. Got "
            f"{twice!r} more than once instead. Give an array, with X.to_dask_array() say."
        )
    return names


def _as_array(predictions: Any) -> Any:
    """Return a list as an array: an object array where the elements are arrays."""
    if hasattr(predictions, "shape"):
        return predictions
    if not len(predictions) or not hasattr(predictions[0], "shape"):
        return np.asarray(predictions)
    values = np.empty(len(predictions), dtype=object)
    for i, value in enumerate(predictions):
        values[i] = value  # np.asarray would stack arrays of one length
    return values


def apply_to_rows(
    func: Callable[[Any, Any], Any],
    model: Any,
    X: Any,
    output: OutputSpec | Sequence[OutputSpec],
    check: Callable[[Block], None] | None = None,
    convert: bool = True,
) -> Any:
    """Return func(model, X) for rows in this process; func is not called for no rows."""
    if n_rows_of(X) == 0:
        if isinstance(output, OutputSpec):
            return to_device_of(output.empty(), X)
        return [to_device_of(spec.empty(), X) for spec in output]
    block = as_numeric(Block(X), float_dtype(X)) if convert else Block(with_pandas_text(X))
    if check is not None:
        check(block)
    result = func(model, block.X)
    if isinstance(output, OutputSpec):
        return output.cast(result)
    return [spec.cast(part) for spec, part in zip(output, result, strict=True)]


def with_index(values: Any, index: Any, output: OutputSpec) -> Any:
    """Return values as a Series or frame with an index and column names."""
    if is_frame(values) or is_sparse(values):
        return values
    library = sys.modules[type(index).__module__.partition(".")[0]]  # pandas, or cuDF
    # pandas would look into objects, and make text of them where there are any.
    dtype = output.text_dtype or (object if output.dtype == object else None)
    dtype = dtype if library.__name__ == "pandas" else None
    if output.width is None:
        return library.Series(values, index=index, dtype=dtype)
    columns = None if output.columns is None else list(output.columns)
    return library.DataFrame(values, index=index, columns=columns, dtype=dtype)
