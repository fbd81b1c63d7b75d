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
from skfleet.blocks._outputs import Output, is_lazy, map_rows, stand_in

__all__ = [
    "Block",
    "Loadable",
    "Output",
    "RowBlocks",
    "as_numbers",
    "is_lazy",
    "map_rows",
    "open_block",
    "pieces",
    "row_blocks",
    "stand_in",
]
