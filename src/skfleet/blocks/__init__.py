"""What the rows are: containers of any kind, cut into blocks, and answers in kind."""

from skfleet.blocks._blocks import (
    Block,
    Loadable,
    Notes,
    RowBlocks,
    as_numbers,
    block_bytes,
    open_block,
    pieces,
    probes,
)
from skfleet.blocks._cut import row_blocks
from skfleet.blocks._folds import Folds, make_folds
from skfleet.blocks._lazy_rows import SplitRows, bring_home, counted_rows, lazy_name
from skfleet.blocks._local import n_rows_of, slice_rows, take_rows
from skfleet.blocks._outputs import Output, first_rows, is_lazy, known_n_rows, map_rows, stand_in
from skfleet.blocks._per_row import split_per_row
from skfleet.blocks._split import (
    DrawnRows,
    choose_rows,
    join_rows,
    merge_smallest,
    mix_rows,
    row_uniforms,
    smallest,
    take,
)

__all__ = [
    "Block",
    "DrawnRows",
    "Folds",
    "Loadable",
    "Notes",
    "Output",
    "RowBlocks",
    "SplitRows",
    "as_numbers",
    "block_bytes",
    "bring_home",
    "choose_rows",
    "counted_rows",
    "first_rows",
    "is_lazy",
    "join_rows",
    "known_n_rows",
    "lazy_name",
    "make_folds",
    "map_rows",
    "merge_smallest",
    "mix_rows",
    "n_rows_of",
    "open_block",
    "pieces",
    "probes",
    "row_blocks",
    "row_uniforms",
    "slice_rows",
    "smallest",
    "split_per_row",
    "stand_in",
    "take",
    "take_rows",
]
