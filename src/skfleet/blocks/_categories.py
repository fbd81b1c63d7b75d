"""Categories of the categorical columns of several blocks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skfleet.blocks._block import Block
from skfleet.blocks._containers import is_frame


def categories_of(X: Any) -> dict[Any, Any]:
    """Return the categories of each categorical column of a frame."""
    if not is_frame(X) or X.ndim == 1:
        return {}
    return {
        name: X[name].cat.categories for name, dtype in X.dtypes.items() if str(dtype) == "category"
    }


def unite_categories(parts: Sequence[dict[Any, Any]]) -> dict[Any, Any]:
    """Return the categories of all blocks; they are sorted where blocks differ.

    Their order does not depend on the partition then.
    """
    united: dict[Any, Any] = {}
    for categories in parts:
        for name, index in categories.items():
            if name not in united:
                united[name] = index
            elif not united[name].equals(index):
                united[name] = united[name].union(index)
    return united


def with_categories(X: Any, categories: Mapping[Any, Any]) -> Any:
    """Return a frame whose categorical columns have these categories."""
    if not categories:
        return X
    columns = {
        name: X[name].astype("category").cat.set_categories(index)
        for name, index in categories.items()
    }
    return X.assign(**columns)


def with_united_categories(blocks: Sequence[Block]) -> list[Block]:
    """Return blocks of frames whose categorical columns have the categories of all of them."""
    categories = unite_categories([categories_of(block.X) for block in blocks])
    return [block._replace(X=with_categories(block.X, categories)) for block in blocks]
