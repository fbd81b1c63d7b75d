"""Type aliases of public parameters and results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np


class Table(Protocol):
    """An array or a frame of any library, lazy or not."""

    @property
    def shape(self) -> Any:
        """The number of rows, and of columns where there are any."""


class Matrix(Protocol):
    """Rows of numbers for kernels: a dense array of any library, or SciPy's sparse matrix."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows, and of columns where there are any."""

    @property
    def dtype(self) -> Any:
        """The type of the numbers, in the library's own terms."""

    @property
    def T(self) -> Matrix:
        """The transposed matrix."""

    def __getitem__(self, key: Any, /) -> Matrix: ...

    def __matmul__(self, other: Any, /) -> Any: ...


class Array(Protocol):
    """A dense array of any library: what NumPy's, CuPy's and others' arrays have in common."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""

    @property
    def dtype(self) -> Any:
        """The type of the elements, in the library's own terms."""

    @property
    def T(self) -> Array:
        """The transposed array."""

    def __getitem__(self, key: Any, /) -> Array: ...

    def __float__(self) -> float: ...

    def __neg__(self) -> Array: ...

    def __add__(self, other: Any, /) -> Array: ...

    def __radd__(self, other: Any, /) -> Array: ...

    def __sub__(self, other: Any, /) -> Array: ...

    def __rsub__(self, other: Any, /) -> Array: ...

    def __mul__(self, other: Any, /) -> Array: ...

    def __rmul__(self, other: Any, /) -> Array: ...

    def __truediv__(self, other: Any, /) -> Array: ...

    def __rtruediv__(self, other: Any, /) -> Array: ...

    def __pow__(self, other: Any, /) -> Array: ...

    def __matmul__(self, other: Any, /) -> Array: ...

    def __lt__(self, other: Any, /) -> Array: ...

    def __le__(self, other: Any, /) -> Array: ...

    def __gt__(self, other: Any, /) -> Array: ...

    def __ge__(self, other: Any, /) -> Array: ...


class CrossValidator(Protocol):
    """An object that splits rows into those to train on and those to test on."""

    def split(self, *args: Any, **kwargs: Any) -> Any:
        """Return or yield pairs of training and test rows."""

    def get_n_splits(self, *args: Any, **kwargs: Any) -> Any:
        """Return the number of pairs."""


class Estimator(Protocol):
    """An object that scikit-learn's ``clone`` can copy."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""


Rows: TypeAlias = Table | Sequence[Any]
"""Rows in any container: NumPy, CuPy, SciPy sparse, pandas, cuDF, Dask, or lists."""

Values: TypeAlias = Table | Sequence[Any]
"""A value, or several, for each row, in any container."""

Weights: TypeAlias = Table | Sequence[float] | float
"""A weight for each row, or one for all."""

Answer: TypeAlias = Any
"""A value, or several, for each row, in the container of the rows."""

RandomState: TypeAlias = int | np.random.RandomState | None
Scoring: TypeAlias = str | Callable[..., Any] | Iterable[str] | Mapping[str, Any] | None
Splitter: TypeAlias = int | Iterable[Any] | CrossValidator

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)
ArrayT = TypeVar("ArrayT", bound=Array)
RowsT = TypeVar("RowsT", bound=Rows)
