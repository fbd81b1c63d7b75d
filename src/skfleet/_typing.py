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
Splitter: TypeAlias = int | Iterable[Any] | Any  # or an object with `split` and `get_n_splits`

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)
