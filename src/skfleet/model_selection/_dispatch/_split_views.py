"""Views of rows on Dask that are split when scikit-learn indexes them."""

from __future__ import annotations

from typing import Any

import numpy as np


class LazySplitView:
    """Rows of a Dask array, from which scikit-learn takes the train and the test part of a split.

    It has the shape of an array. Indexing returns Dask arrays, sliced on the workers.
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
