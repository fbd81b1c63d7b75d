"""Private names of Dask that have no public equivalent, and what each of them is for.

Dask has public collections, but no public way to see of which files and by which expressions the
rows of a frame are made. Where one of `REQUIRED` goes, the import of this file ends with an
ImportError; without another whole partitions are read, and Dask's own expressions stay. `OVERRIDES`
are the private methods and attributes of its expressions and readers that classes of ours override
or set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skfleet._private_names import OptionalModule, PrivateNames, is_missing

private_names = PrivateNames("dask")

with private_names:
    from dask.dataframe.dask_expr._expr import Blockwise, Expr, PartitionsFiltered
    from dask.dataframe.dask_expr._shuffle import ShuffleBase

__all__ = ["Blockwise", "Expr", "PartitionsFiltered", "ShuffleBase"]

# What is lost without these, on which all else depends.
REQUIRED = {
    "Blockwise": "lazy answers on frames, and their fusion",
    "Expr": "rows of splits, and shuffles of frames",
    "PartitionsFiltered": "rows of splits by partitions",
    "ShuffleBase": "the method of shuffles inside other expressions, and with it their order",
}

_EXPR, _ARROW = "dask.dataframe.dask_expr", "dask.dataframe.io.parquet.arrow"

AnyExpr = private_names.optional(
    "dask._expr", "Expr", "expressions that several threads use at a time, before Python 3.12"
)
Categorize = private_names.optional(
    f"{_EXPR}._categorical", "Categorize", "frames that are read twice, with different columns"
)
DelayedExpr = private_names.optional(
    f"{_EXPR}._expr", "_DelayedExpr", "pieces of files below what was delayed"
)
Len = private_names.optional(f"{_EXPR}._reductions", "Len", "known lengths of parts of frames")
Literal = private_names.optional(f"{_EXPR}._expr", "Literal", "known lengths of parts of frames")
Projection = private_names.optional(f"{_EXPR}._expr", "Projection", "columns that are read alone")
TextFunctionMap = private_names.optional(
    f"{_EXPR}._str_accessor", "FunctionMap", "pieces of files below methods of text"
)
convert_legacy_graph = private_names.optional(
    "dask._task_spec", "convert_legacy_graph", "answers on arrays with graphs of tuples"
)
dataset_options = private_names.optional(_ARROW, "_process_kwargs", "pieces of files")
filters_to_expression = private_names.optional(_ARROW, "_filters_to_expression", "pieces of files")
index_in_schema = private_names.optional(_ARROW, "_index_in_schema", "results written by pieces")
need_filtering = private_names.optional(_ARROW, "_need_filtering", "pieces of files")

# Of these modules each name may be gone: with it files are read whole below such an expression.
accessors = OptionalModule(private_names, f"{_EXPR}._accessor", "pieces of files below it")
expressions = OptionalModule(private_names, f"{_EXPR}._expr", "pieces of files below it")

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


def graph_of_tasks(graph: Any, all_keys: Any) -> Any:
    """Return a graph without tasks that are tuples, of which a later Dask may have none."""
    return graph if is_missing(convert_legacy_graph) else convert_legacy_graph(graph, all_keys)


def can_read_pieces(reader: type, engine: type) -> bool:
    """Return whether readers of files, and their engine, have what is used to read pieces of files.

    An override of a method that is gone would never be called, and each piece would be all rows.
    """
    functions = dataset_options, filters_to_expression, need_filtering
    is_reader = all(hasattr(reader, name) for name in ("_dataset_info", "_filtered_task"))
    return is_reader and hasattr(engine, "_read_table") and not is_missing(*functions)


def can_write_pieces(engine: type) -> bool:
    """Return whether an engine has what is used to write results by pieces."""
    return hasattr(engine, "_pandas_to_arrow_table") and not is_missing(index_in_schema)


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


private_names.decorate_functions(globals())
