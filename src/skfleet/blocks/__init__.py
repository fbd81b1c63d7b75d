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
from skfleet.blocks._local import n_rows_of, slice_rows
from skfleet.blocks._outputs import Output, first_rows, is_lazy, map_rows, stand_in

__all__ = [
    "Block",
    "Loadable",
    "Output",
    "RowBlocks",
    "as_numbers",
    "first_rows",
    "is_lazy",
    "map_rows",
    "n_rows_of",
    "open_block",
    "pieces",
    "row_blocks",
    "slice_rows",
    "stand_in",
]
