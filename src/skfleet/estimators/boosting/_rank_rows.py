"""The rows of a rank: parts of blocks, read one after the other in every pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import is_not_numpy
from skfleet.blocks import (
    Block,
    BlockFile,
    n_rows_of,
    open_block,
    slice_rows,
    with_categories,
)
from skfleet.glm import encode_labels


class RowsPart(NamedTuple):
    """Consecutive rows of a block, which is in memory or in a file."""

    block: Block | BlockFile
    low: int
    high: int


@dataclass
class RankRows:
    """The rows of a rank, with labels as numbers and categories that all ranks share.

    `classes` are the sorted labels, None where y is not encoded; `categories` are those of a
    frame's categorical columns, by name. `row_offset` is the number of the first row in all rows.
    """

    parts: Sequence[Any]
    classes: np.ndarray | None = None
    categories: Mapping[Any, Any] = field(default_factory=dict)
    row_offset: int = 0
    query_weights: np.ndarray | None = None  # of its queries, of a ranker

    @classmethod
    def of(cls, argument: tuple[Sequence[Any], dict[str, Any]]) -> RankRows:
        """Return the rows of parts and other arguments, as a call has them."""
        parts, options = argument
        return cls(parts, **options)

    @property
    def n_rows(self) -> int:
        return sum(high - low for _, low, high in self.parts)

    def blocks(self) -> Iterator[Block]:
        """Yield the parts that have rows, converted; no rows of a block where none has any."""
        for number in self.filled:
            yield self.block(number)

    @property
    def filled(self) -> list[int]:
        """The positions of the parts that have rows; the first one where none has any."""
        filled = [i for i, (_, low, high) in enumerate(self.parts) if low < high]
        return filled or list(range(len(self.parts)))[:1]

    def block(self, number: int) -> Block:
        """Return a part, converted."""
        return self._convert(*self.parts[number])

    def _convert(self, block: Any, low: int, high: int) -> Block:
        block = block.load() if isinstance(block, BlockFile) else open_block(block)
        block = take_slice(block, low, high)
        X, y = block.X, block.y
        X = with_categories(X, self.categories)
        if self.classes is not None and y is not None:
            y = encode_labels(y if is_not_numpy(y) else np.asarray(y), self.classes)
        return block._replace(X=X, y=y)


def take_slice(block: Block, low: int, high: int) -> Block:
    """Return consecutive rows of a block, with all their values per row."""
    if low == 0 and high == n_rows_of(block.X):
        return block
    per_sample = block.per_sample and {
        name: slice_rows(values, low, high) for name, values in block.per_sample.items()
    }
    return block._replace(
        X=slice_rows(block.X, low, high),
        y=slice_rows(block.y, low, high),
        sample_weight=slice_rows(block.sample_weight, low, high),
        per_sample=per_sample,
    )
