"""Rows in containers of any library, partitioned into blocks."""

from skfleet.blocks._block import (
    Block,
    BlockCache,
    BlockRef,
    LazyBlock,
    RowBlocks,
    as_numeric,
    block_bytes,
    open_block,
    row_slices,
    sample_blocks,
)
from skfleet.blocks._block_file import BlockFile, compact, size_of, write_block
from skfleet.blocks._containers import (
    as_sized,
    float_dtype,
    is_frame,
    n_rows_of,
    slice_rows,
    take_rows,
    with_pandas_text,
)
from skfleet.blocks._dask_futures import check_rows, fetch
from skfleet.blocks._dask_scheduler import scheduler, set_scheduler
from skfleet.blocks._folds import Folds, class_in_scikit_learn, make_folds
from skfleet.blocks._label_codes import LabelCodes
from skfleet.blocks._lazy import (
    artificial_rows,
    as_collection,
    compute_together,
    fix_partitions,
    is_lazy,
    is_on_device,
    map_to_array,
    meta_of,
    n_rows_if_known,
    partition_lengths,
    shuffle_partitions,
    take_row_set,
)
from skfleet.blocks._normalize_token import normalize_token
from skfleet.blocks._partition import row_blocks
from skfleet.blocks._per_sample_params import split_per_sample, warn_of_trip
from skfleet.blocks._row_set import RowSet
from skfleet.blocks._sampling import (
    SampledRows,
    combine_k_smallest,
    concat_rows,
    k_smallest,
    row_uniform,
    shuffle_rows,
    take_block_rows,
    take_to_host,
)

__all__ = [
    "Block",
    "BlockCache",
    "BlockFile",
    "BlockRef",
    "Folds",
    "LabelCodes",
    "LazyBlock",
    "RowBlocks",
    "RowSet",
    "SampledRows",
    "artificial_rows",
    "as_collection",
    "as_numeric",
    "as_sized",
    "block_bytes",
    "check_rows",
    "class_in_scikit_learn",
    "combine_k_smallest",
    "compact",
    "compute_together",
    "concat_rows",
    "fetch",
    "fix_partitions",
    "float_dtype",
    "is_frame",
    "is_lazy",
    "is_on_device",
    "k_smallest",
    "make_folds",
    "map_to_array",
    "meta_of",
    "n_rows_if_known",
    "n_rows_of",
    "normalize_token",
    "open_block",
    "partition_lengths",
    "row_blocks",
    "row_slices",
    "row_uniform",
    "sample_blocks",
    "scheduler",
    "set_scheduler",
    "shuffle_partitions",
    "shuffle_rows",
    "size_of",
    "slice_rows",
    "split_per_sample",
    "take_block_rows",
    "take_row_set",
    "take_rows",
    "take_to_host",
    "warn_of_trip",
    "with_pandas_text",
    "write_block",
]
