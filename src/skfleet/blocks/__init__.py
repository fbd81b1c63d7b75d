"""What the rows are: containers of any kind, cut into blocks, and answers in kind."""

from skfleet.blocks._blocks import (
    Block,
    Loadable,
    RowBlocks,
    as_numbers,
    open_block,
    pieces,
    row_blocks,
)

__all__ = ["Block", "Loadable", "RowBlocks", "as_numbers", "open_block", "pieces", "row_blocks"]
