"""Splitters around another one: with a record of their splits, or with the rows in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.utils.metadata_routing import get_routing_for_object

from skfleet.blocks import n_rows_of
from skfleet.model_selection._dispatch._split_views import in_order


class _SplitterWrapper:
    """Splitter with the number of splits, and the requests of metadata, of another one."""

    def __init__(self, splitter: Any) -> None:
        self.splitter = splitter

    def get_n_splits(self, *args: Any, **kwargs: Any) -> int:
        """Return the number of splits."""
        return int(self.splitter.get_n_splits(*args, **kwargs))

    def get_metadata_routing(self) -> Any:
        """Return what the splitter requests."""
        return get_routing_for_object(self.splitter)


class SplitsInOrder(_SplitterWrapper):
    """Splits whose parts have the rows in their order, as parts of Dask rows have them."""

    def split(self, X: Any, y: Any = None, **params: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the numbers of the training and the test rows of each split."""
        n_rows = n_rows_of(X)
        for train, test in self.splitter.split(X, y, **params):
            yield in_order(train, n_rows), in_order(test, n_rows)


class RecordedSplits(_SplitterWrapper):
    """Splits that have each row as a test row once, and a record of which has it."""

    def split(self, X: Any, y: Any = None, **params: Any) -> list[tuple[Any, Any]]:
        """Return the numbers of the training and the test rows of each split."""
        splits = list(self.splitter.split(X, y, **params))
        n_rows = n_rows_of(X)
        tests = [in_order(test, n_rows) for _, test in splits]
        self._numbers = np.full(n_rows, -1)
        for number, test in enumerate(tests):
            self._numbers[test] = number
        if sum(map(len, tests)) != len(self._numbers) or (self._numbers < 0).any():
            raise ValueError("cross_val_predict only works for partitions")
        return splits

    def test_split_of_rows(self) -> np.ndarray:
        """Return for each row the number of the split that has it as a test row."""
        return self._numbers
