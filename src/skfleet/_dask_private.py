"""Private names of Dask that have no public equivalent, and what each of them is for.

Dask has public collections, but no public way to see of which files and by which expressions the
rows of a frame are made. Where a name goes, the import of this file fails with it, and `USES` says
what is lost. `OVERRIDES` are the private methods and attributes of its expressions and readers that
classes of ours override or set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask._expr import Expr as AnyExpr
from dask._expr import _ExprSequence as ExprSequence
from dask._task_spec import convert_legacy_graph
from dask.dataframe.dask_expr import _accessor as accessors
from dask.dataframe.dask_expr import _expr as expressions
from dask.dataframe.dask_expr._categorical import Categorize
from dask.dataframe.dask_expr._expr import Blockwise, Expr, Literal, PartitionsFiltered, Projection
from dask.dataframe.dask_expr._expr import _DelayedExpr as DelayedExpr
from dask.dataframe.dask_expr._reductions import Len
from dask.dataframe.dask_expr._shuffle import ShuffleBase
from dask.dataframe.dask_expr._str_accessor import FunctionMap as TextFunctionMap
from dask.dataframe.io.parquet.arrow import _filters_to_expression as filters_to_expression
from dask.dataframe.io.parquet.arrow import _index_in_schema as index_in_schema
from dask.dataframe.io.parquet.arrow import _need_filtering as need_filtering
from dask.dataframe.io.parquet.arrow import _process_kwargs as dataset_options

__all__ = [
    "AnyExpr",
    "Blockwise",
    "Categorize",
    "DelayedExpr",
    "Expr",
    "ExprSequence",
    "Len",
    "Literal",
    "PartitionsFiltered",
    "Projection",
    "ShuffleBase",
    "TextFunctionMap",
    "accessors",
    "convert_legacy_graph",
    "dataset_options",
    "expressions",
    "filters_to_expression",
    "index_in_schema",
    "need_filtering",
]

# What is imported, and what is lost without it.
USES = {
    "AnyExpr": "expressions that several threads use at a time, before Python 3.12",
    "Blockwise": "lazy answers on frames, and their fusion",
    "Categorize": "categories of frames that are read twice, with different columns",
    "DelayedExpr": "pieces of files below what was delayed",
    "Expr": "rows of splits, and shuffles of frames",
    "ExprSequence": "pieces of several collections in one computation",
    "Len": "lengths that are known of parts of frames",
    "Literal": "parts of frames whose lengths are known",
    "PartitionsFiltered": "rows of splits by partitions",
    "Projection": "columns that are read alone",
    "ShuffleBase": "the method of shuffles inside other expressions",
    "TextFunctionMap": "pieces of files below methods of text",
    "accessors": "pieces of files below methods of dates and categories",
    "convert_legacy_graph": "answers on arrays with graphs of tuples",
    "dataset_options": "pieces of datasets in Hive's partitions",
    "expressions": "pieces of files below anything that is done to rows",
    "filters_to_expression": "pieces of files with filters",
    "index_in_schema": "results written by pieces",
    "need_filtering": "pieces of files with filters",
}

# What is overridden or set, and what is lost without it.
OVERRIDES = {
    "_broadcast_dep": "expressions of ours that take values for all partitions",
    "_defaults": "expressions of ours",
    "_divisions": "expressions of ours",
    "_fusion_buckets": "partitions that stay as they were counted",
    "_is_length_preserving": "lengths of frames in pieces",
    "_layer": "expressions of ours of several tasks a partition",
    "_lower": "frames in pieces, which are known when all columns are",
    "_meta": "expressions of ours",
    "_name": "expressions of ours",
    "_parameters": "expressions of ours",
    "_read_table": "pieces of Parquet files",
    "_simplify_up": "pieces written to Parquet files, and projections pushed below",
    "_task": "expressions of ours",
}


def partitions_of(reader: Any) -> Sequence[int]:
    """Return the numbers of the partitions that a reader of files reads."""
    numbers: Sequence[int] = reader._partitions
    return numbers


def filesystem_of(reader: Any) -> Any:
    """Return the filesystem of fsspec that a reader of Parquet files uses."""
    return reader._dataset_info["fs"]


def read_task(reader: Any, name: Any, partition: int) -> Any:
    """Return the task by which a reader reads a partition."""
    return reader._filtered_task(name, partition)


def arrow_table(engine: Any, frame: Any, *, preserve_index: bool, schema: Any) -> Any:
    """Return a frame as the table that an engine for Parquet files writes."""
    return engine._pandas_to_arrow_table(frame, preserve_index=preserve_index, schema=schema)
