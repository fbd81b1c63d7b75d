"""Rows of Dask collections as scikit-learn's searches need them: counted, and cut by split."""

from __future__ import annotations

from typing import Any

import numpy as np

from skfleet.blocks._outputs import is_lazy

__all__ = ["SplitRows", "bring_home", "counted_rows", "lazy_name"]


def counted_rows(X: Any) -> Any:
    """Return a Dask collection as an array of known length; it takes a pass where it must."""
    from skfleet.blocks._dask import counted

    return counted(X)


def bring_home(x: Any) -> Any:
    """Return the values of a Dask collection; anything else as it is."""
    if not is_lazy(x):
        return x
    from skfleet.blocks._dask import bring_home

    return bring_home(x)


def lazy_name(x: Any) -> Any:
    """Return the name of a Dask collection, which tells its content; anything else as it is."""
    if not is_lazy(x):
        return x
    return "Dask collection", str(getattr(x, "_name", None) or x.name)


class SplitRows:
    """Stands for rows on Dask of which scikit-learn is going to cut the two parts of a split.

    It is taken for an array, and gives Dask arrays, cut where the blocks are.
    """

    def __init__(self, X: Any) -> None:
        self._X = X
        self.shape, self.ndim = X.shape, X.ndim

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Any:
        rows = key[0] if isinstance(key, tuple) and len(key) == 2 and key[1] is ... else key
        rows = np.asarray(rows)
        return self._X[np.flatnonzero(rows) if rows.dtype == bool else rows]
