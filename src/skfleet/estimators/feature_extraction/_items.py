"""Rows that are items of any kind: documents, lists of tokens, dicts."""

from __future__ import annotations

from typing import Any

import numpy as np

from skfleet.blocks import is_frame
from skfleet.estimators._blockwise import BlockwiseTransformer


class ItemTransformer(BlockwiseTransformer):
    """Base of transformers whose rows are the items of a Series, a bag or an array of objects."""

    _takes_matrix = _takes_numbers = False

    def _example_item(self) -> Any:
        """Return a valid item without features, None if unknown."""
        raise NotImplementedError

    def _example_rows(self, rows: Any) -> Any:
        item = self._example_item()
        if item is None or len(rows.shape) != 1:
            return None
        items = np.empty(len(rows), dtype=object)
        items.fill(item)
        return type(rows)(items, index=rows.index, name=rows.name) if is_frame(rows) else items

    def _fit_on_blocks(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        return super()._fit_on_blocks(X)  # no y is read, or counted to be cut like X

    def _check_meta(self, meta: Any, *, reset: bool) -> None:
        if is_frame(meta) and meta.ndim == 2:
            names = list(meta.columns)
            raise ValueError(
                f"X must be one column of items: a Series, a bag or an array. Got a DataFrame of "
                f"the columns {names} instead, whose items are its names. Take a column of it, "
                f"X[{names[0] if names else 'name'!r}] say."
            )
