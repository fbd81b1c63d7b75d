"""Rows in this process: slices, stacks, conversions of NumPy, CuPy, SciPy, pandas, polars, cuDF."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np

from skfleet import _linalg
from skfleet._array import (
    asarray_like,
    astype,
    is_array,
    is_floating,
    is_not_numpy,
    namespace,
)
from skfleet._typing import Matrix, Rows, RowsT, Values
from skfleet._validation import is_numeric
from skfleet.blocks._row_functions import by_rows

if TYPE_CHECKING:
    import pandas as pd
    from pandas.api.extensions import ExtensionDtype


class HStackedColumns:
    """Dense columns in several parts, joined only for the rows that are indexed."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = tuple(parts)
        self.shape = (len(parts[0]), sum(part.shape[1] for part in parts))
        self.dtype = np.result_type(*parts)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        return np.hstack([part[rows] for part in self.parts])

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)

    def __sizeof__(self) -> int:
        return sum(part.nbytes for part in self.parts)


def hstack_lazily(parts: Sequence[Any]) -> HStackedColumns | Matrix:
    """Return columns side by side: sparse ones joined at once, dense host ones when indexed."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return HStackedColumns(parts)
    return _linalg.hstack(parts)


def is_frame(X: object) -> TypeGuard[Any]:
    """Return whether X is a frame or a series of pandas or cuDF: whether it has ``iloc``."""
    return hasattr(X, "iloc")


def filled_down(rows: Any) -> Any:
    """Return a frame or a Series with each gap filled by the value before it."""
    if not rows.isna().to_numpy().any():
        return rows
    if rows.ndim == 1:
        return rows.ffill()
    # not by the frame's method, which fails for complex numbers
    return rows.apply(lambda column: column.ffill() if column.hasnans else column)


def n_rows_of(X: Rows) -> int:
    """Return the number of rows of an array, a sparse matrix, a frame or a list."""
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def slice_rows(X: RowsT | None, low: int, high: int) -> RowsT | None:
    """Return the rows low to high of X, as a view where the container allows."""
    if X is None or (low == 0 and high == n_rows_of(X)):
        return X
    return X.iloc[low:high] if is_frame(X) else _linalg.rows_between(X, low, high)


def stack_rows(parts: Sequence[Any]) -> Any:
    """Return rows of one container one below the other."""
    first = parts[0]
    if first is None or len(parts) == 1:
        return first
    # The library that made the parts is loaded; importing pandas or cuDF here would cost others.
    if is_frame(first) or _library_of(first) == "polars":
        return sys.modules[_library_of(first)].concat(list(parts))
    return list(chain(*parts)) if isinstance(first, list) else _linalg.vstack(parts)


def take_rows(X: Any, indices: np.ndarray) -> Any:
    """Return the rows of X at given positions, in the container and on the device of X."""
    if X is None:
        return None
    if is_frame(X):
        return X.iloc[indices]
    if isinstance(X, list):
        return [X[i] for i in indices]
    # The array API has no indexing by arrays but `take`; sparse matrices have no namespace.
    if isinstance(X, np.ndarray) or not is_array(X):
        return X[indices]
    return namespace(X).take(X, asarray_like(indices, X), axis=0)


def float_dtype(X: Any) -> np.dtype:
    """Return the dtype of computations: float32 for float32 rows, float64 for all others."""
    if is_frame(X):
        single = (set(X.dtypes) if X.ndim == 2 else {X.dtype}) == {np.dtype(np.float32)}
    else:
        single = is_floating(X) and str(X.dtype).endswith("float32")
    return np.dtype(np.float32 if single else np.float64)


def fixed_nbytes(meta: Any) -> int | None:
    """Return the bytes of a row of a frame, or of a number; None for objects and other types."""
    dtypes = [*meta.dtypes] if is_frame(meta) and meta.ndim == 2 else [meta.dtype]
    is_fixed = all(isinstance(dtype, np.dtype) and dtype.kind != "O" for dtype in dtypes)
    if _linalg.is_sparse(meta) or not is_fixed:
        return None
    return sum(dtype.itemsize for dtype in dtypes)


def as_matrix(X: Rows, dtype: np.dtype) -> Matrix:
    """Return X as a numeric matrix of dtype in its own library."""
    if is_frame(X):
        return X.to_numpy(dtype=dtype, na_value=np.nan) if _is_pandas(X) else X.to_cupy(dtype)
    if _linalg.is_sparse(X):
        return X.tocsr().astype(dtype, copy=False)
    if isinstance(X, _linalg.HStackedParts):
        return X.astype(dtype, copy=False)
    return astype(X if is_array(X) else np.asarray(X), dtype)


def with_pandas_text(X: Rows) -> Any:
    """Return rows with NaN for missing values that scikit-learn would read as ``pandas.NA``.

    It refuses NA in text, dates and objects, and takes it for no gap of an array of objects. Text,
    of Arrow too, gets the dtype that pandas has for it, with gaps or without, so that a type does
    not depend on a block; other values become objects. Numbers and booleans with gaps, which
    scikit-learn takes, do not change. Rows without such columns are returned as they are.
    """
    if isinstance(X, np.ndarray):
        return _objects_of_nan(X)
    if not is_frame(X) or not _is_pandas(X):
        return X
    if X.ndim == 1:
        return _column_of_nan(X)
    changed = X
    for i, dtype in enumerate(X.dtypes):
        if isinstance(dtype, np.dtype) and dtype.kind != "O":
            continue
        column = X.iloc[:, i]
        column_of_nan = _column_of_nan(column)
        if column_of_nan is not column:
            changed = X.copy(deep=False) if changed is X else changed
            changed.isetitem(i, column_of_nan)
    return changed


def with_objects(X: Rows) -> Any:
    """Return a frame of nullable numbers beside other columns as objects, with NaN for gaps.

    scikit-learn reads columns of several kinds as one array of objects, in which gaps of nullable
    numbers would be NA. Other rows are those of `with_pandas_text`.
    """
    if not is_frame(X) or X.ndim != 2 or not _is_pandas(X):
        return with_pandas_text(X)
    dtypes = [getattr(getattr(t, "categories", None), "dtype", t) for t in X.dtypes]
    are_numbers = [dtype.kind in "biuf" for dtype in dtypes]
    is_nullable = any(
        not isinstance(dtype, np.dtype) for dtype, n in zip(dtypes, are_numbers, strict=True) if n
    )
    if all(are_numbers) or not is_nullable:
        return with_pandas_text(X)
    pandas, values = sys.modules["pandas"], X.to_numpy(dtype=object)
    is_gap = pandas.isna(values)
    is_gap[is_gap] = [value is not None for value in values[is_gap]]
    values[is_gap] = np.nan
    return pandas.DataFrame(values, X.index, X.columns, object)


def _column_of_nan(column: pd.Series) -> pd.Series:
    """Return a series with NaN in place of NA, the same where scikit-learn would read no NA."""
    dtype, pandas = column.dtype, sys.modules["pandas"]
    if isinstance(dtype, np.dtype):
        values = column.to_numpy()
        values_of_nan = _objects_of_nan(values)
        if values_of_nan is values:
            return column
        return pandas.Series(values_of_nan, column.index, object, column.name)
    if isinstance(dtype, pandas.CategoricalDtype):
        categories = dtype.categories
        if not _has_na(categories.dtype):
            return column
        return column.cat.rename_categories(_column_of_nan(categories.to_series()).array)
    if not _has_na(dtype):
        return column
    if dtype.type is str:
        return column.astype(_text_of_nan(dtype))
    values = _objects_of_nan(np.asarray(column))
    return pandas.Series(values, column.index, object, column.name)


def _objects_of_nan(values: np.ndarray) -> np.ndarray:
    """Return an array with NaN in place of NA, the same where there is none."""
    if values.dtype != object or "pandas" not in sys.modules:
        return values
    # An array of objects has their addresses, which `id` is; `isna` would look at each value.
    addresses = np.frombuffer(values.tobytes(), dtype=np.uintp).reshape(values.shape)
    is_na = addresses == id(sys.modules["pandas"].NA)
    if not is_na.any():
        return values
    values_of_nan = values.copy()
    values_of_nan[is_na] = np.nan
    return values_of_nan


@cache
def _has_na(dtype: np.dtype | ExtensionDtype) -> bool:
    """Return whether a gap of a dtype is NA for scikit-learn, and the dtype not one of numbers."""
    if isinstance(dtype, np.dtype) or dtype.kind in "biuf":
        return False
    pandas = sys.modules["pandas"]
    (gap,) = np.asarray(pandas.array([None], dtype=dtype))
    return gap is pandas.NA


def _text_of_nan(dtype: ExtensionDtype) -> pd.StringDtype:
    """Return the dtype of text with NaN, in the storage of one with NA."""
    StringDtype = sys.modules["pandas"].StringDtype
    try:
        return StringDtype(getattr(dtype, "storage", "pyarrow"), na_value=np.nan)
    except TypeError:  # pandas 2.2
        return StringDtype("pyarrow_numpy")


def has_categories(X: Any) -> bool:
    """Return whether a frame has a column of categories, or a series is of categories."""
    return any(map(_is_categorical, X.dtypes if X.ndim == 2 else [X.dtype]))


@by_rows
def without_categories(X: Any) -> Any:
    """Return a frame or series with categories as the values that they stand for.

    Numbers and booleans with gaps are float64, as no other dtype has NaN.
    """
    if X.ndim == 1:
        return X.astype(_dtype_of_values(X)) if _is_categorical(X.dtype) else X
    names = [name for name, dtype in X.dtypes.items() if _is_categorical(dtype)]
    return X.astype({name: _dtype_of_values(X[name]) for name in names})


def _is_categorical(dtype: object) -> bool:
    return getattr(dtype, "categories", None) is not None


def _dtype_of_values(column: Any) -> np.dtype:
    dtype = column.dtype.categories.dtype
    if not isinstance(dtype, np.dtype):
        dtype = dtype.numpy_dtype if is_numeric(dtype) else np.dtype(object)
    if dtype.kind in "biu" and column.hasnans:
        dtype = np.dtype(np.float64)
    return dtype


def _is_pandas(X: object) -> bool:
    return _library_of(X) == "pandas"


def _library_of(X: object) -> str:
    return type(X).__module__.split(".")[0]


def as_vector(v: Values | None) -> Any:
    """Return values per row as an array, of a frame or a list too."""
    if v is None or is_array(v):
        return v
    if is_frame(v):
        return v.to_numpy() if _is_pandas(v) else v.to_cupy()
    return np.asarray(v)


def as_sized(name: str, values: object) -> Any:
    """Return values with an element per row, as an array if they have no length; else raise."""
    has_length = hasattr(values, "__len__") and not isinstance(values, str | bytes | dict | set)
    if not has_length and not hasattr(values, "shape") and hasattr(values, "__array__"):
        values = np.asarray(values)  # an array of a library that has no more in common
    if getattr(values, "shape", None) == () or not (has_length or hasattr(values, "shape")):
        raise TypeError(
            f"{name} must be an array, a frame or a list with an element per row. Got "
            f"{type(values).__name__} instead. Make an array of the rows first."
        )
    return values


def local_blocks(
    X: Any,
    y: Values | None,
    sample_weight: Values | None,
    per_sample: Mapping[str, Values],
    *,
    dtype: Literal["float"] | None,
    block_sizes: Iterable[int] | None,
) -> tuple[
    list[tuple[tuple[Rows, Values | None, Values | None], dict[str, Any]]],
    list[int],
    int,
    np.dtype | None,
]:
    """Return the parts of rows in this process by block, their lengths, width and dtype."""
    if dtype is not None:
        X = X if hasattr(X, "shape") else np.asarray(X)
        y, sample_weight = as_vector(y), as_vector(sample_weight)
    X, n_rows = with_pandas_text(X), n_rows_of(X)
    for name, part in {"y": y, "sample_weight": sample_weight, **per_sample}.items():
        if part is not None and n_rows_of(part) != n_rows:
            raise ValueError(
                f"{name} must have as many rows as X. Got {n_rows_of(part)} instead of {n_rows}."
            )
    lengths = [n_rows] if block_sizes is None else [int(n) for n in block_sizes]
    if sum(lengths) != n_rows:
        raise ValueError(f"block_sizes must add up to {n_rows} rows. Got {sum(lengths)} instead.")
    n_features = int(X.shape[1]) if len(getattr(X, "shape", ())) == 2 else 1
    parts = []
    for low, high in pairwise(accumulate(lengths, initial=0)):
        part = tuple(slice_rows(v, low, high) for v in (X, y, sample_weight))
        parts.append((part, {name: slice_rows(v, low, high) for name, v in per_sample.items()}))
    return parts, lengths, n_features, None if dtype is None else float_dtype(X)


def is_on_device(X: object) -> bool:
    """Return whether the partitions of a Dask collection are arrays or frames on a device."""
    meta = getattr(X, "_meta", None)
    return is_not_numpy(meta) or hasattr(meta, "to_cupy")
