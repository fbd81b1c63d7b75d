"""What the rows are: containers of any kind, cut into blocks, and answers in kind."""

from skfleet.blocks._block import (
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
from skfleet.blocks._block_file import BlockFile, compact, size_of, write_block
from skfleet.blocks._containers import as_sized, n_rows_of, slice_rows, take_rows
from skfleet.blocks._dask_futures import check_rows, fetch
from skfleet.blocks._dask_scheduler import set_scheduler
from skfleet.blocks._folds import Folds, make_folds
from skfleet.blocks._lazy import SplitRows, compute_together, counted_rows
from skfleet.blocks._normalize_token import content_of
from skfleet.blocks._outputs import (
    Output,
    class_names,
    first_rows,
    is_lazy,
    known_n_rows,
    map_rows,
    name_columns,
    stand_in,
)
from skfleet.blocks._partition import row_blocks
from skfleet.blocks._per_sample_params import constant_per_row, split_per_row, warn_of_trip
from skfleet.blocks._sampling import (
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
    "BlockFile",
    "DrawnRows",
    "Folds",
    "Loadable",
    "Notes",
    "Output",
    "RowBlocks",
    "SplitRows",
    "as_numbers",
    "as_sized",
    "block_bytes",
    "check_rows",
    "choose_rows",
    "class_names",
    "compact",
    "compute_together",
    "constant_per_row",
    "content_of",
    "counted_rows",
    "fetch",
    "first_rows",
    "is_lazy",
    "join_rows",
    "known_n_rows",
    "make_folds",
    "map_rows",
    "merge_smallest",
    "mix_rows",
    "n_rows_of",
    "name_columns",
    "open_block",
    "pieces",
    "probes",
    "row_blocks",
    "row_uniforms",
    "set_scheduler",
    "size_of",
    "slice_rows",
    "smallest",
    "split_per_row",
    "stand_in",
    "take",
    "take_rows",
    "warn_of_trip",
    "write_block",
]
