"""Rows of Dask collections as scikit-learn's searches need them: counted, and cut by split."""

from __future__ import annotations

from typing import Any

import numpy as np

from skfleet.blocks._outputs import is_lazy

__all__ = ["LazySplitView", "compute_chunk_sizes", "compute_together"]


def compute_chunk_sizes(*collections: Any) -> list[Any]:
    """Return Dask collections as arrays of known lengths; it takes a pass where it must.

    They are made of one graph, so that their rows stay paired.
    """
    from skfleet.blocks._dask_collections import counted

    return counted(*collections)


def compute_together(*values: Any) -> list[Any]:
    """Return the values of Dask collections, made of one graph; anything else as it is."""
    if not any(map(is_lazy, values)):
        return list(values)
    from skfleet.blocks._dask_collections import compute_together

    return compute_together(*values)


class LazySplitView:
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
