"""Dask DataFrames of responses, whose columns scikit-learn takes by position, as of an array."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import dask.dataframe as dd


class ResponseFrame(dd.DataFrame):
    """A column for each class; ``frame[:, 1]`` is the second one, for the scorers of scikit-learn.

    What is made of it is a plain Dask DataFrame.
    """

    def __getitem__(self, key: Any) -> Any:
        is_position = isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], Integral)
        if is_position and isinstance(key[0], slice) and key[0] == slice(None):
            return self.iloc[:, int(key[1])]
        return super().__getitem__(key)
