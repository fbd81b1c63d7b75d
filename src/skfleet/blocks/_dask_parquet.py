"""Partitions of Parquet files, read in pieces of consecutive rows."""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from operator import getitem
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from dask.dataframe.dask_expr.io import BlockwiseIO
from dask.dataframe.dask_expr.io.parquet import ReadParquetFSSpec, ReadParquetPyarrowFS
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine
from dask.task_spec import Task

from skfleet._dask_private import (
    can_read_pieces,
    dataset_options,
    filesystem_of,
    filters_to_expression,
    need_filtering,
    partitions_of,
    read_task,
)
from skfleet.blocks._row_streams import FileRows, Piece, read_rows

# Files whose metadata the driver reads, to estimate the rows of all.
N_SAMPLED_FILES = 3
# Bytes of a text in memory beside its characters.
TEXT_BYTES = 16

# Bytes in memory of a byte of a file, at most: files that are smaller by it are not looked into.
MAX_EXPANSION = 50
# The column of an index without a name.
INDEX_COLUMN = "__index_level_0__"

# What was counted last of the files of so many readers.
MAX_COUNTED = 64
_counts: OrderedDict[tuple[str, Any], Any] = OrderedDict()
_counts_lock = threading.Lock()

logger = logging.getLogger(__name__)

READERS = (ReadParquetFSSpec, ReadParquetPyarrowFS)


# -- Dask's readers --------------------------------------------------------------------------------


class ParquetPieces(BlockwiseIO):
    """Expression of the rows that a reader of Dask reads, in pieces of its partitions' files.

    `counts` are the numbers of pieces of the files of each partition. A default index begins with 0
    in each piece, or goes on with `keeps_index`.
    """

    _parameters = ["reader", "counts", "keeps_index"]
    _defaults = {"keeps_index": False}

    def dependencies(self) -> list[Any]:
        return []  # the reader's tasks are not run

    @property
    def _meta(self) -> Any:
        return self.reader._meta

    @property
    def columns(self) -> list[Any]:
        return list(self.reader.columns)

    @property
    def _name(self) -> str:
        return f"read-pieces-{self.deterministic_token}"

    @cached_property
    def _places(self) -> list[tuple[int, int, Piece]]:
        """The partition, the file in it and the piece of each new partition."""
        return [
            (partition, file, Piece(i, n, self.reader._name))
            for partition, of_partition in zip(partitions_of(self.reader), self.counts, strict=True)
            for file, n in enumerate(of_partition)
            for i in range(n)
        ]

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (len(self._places) + 1)

    def _task(self, name: Any, index: int) -> Task:
        partition, file, piece = self._places[index]
        task = read_task(self.reader, name, partition)
        if isinstance(self.reader, ReadParquetPyarrowFS):
            (to_table,) = task.args
            to_pandas = partial(task.func, **task.kwargs)
            options = to_table.kwargs | {"keeps_index": self.keeps_index}
            return Task(name, read_fragment_piece, to_pandas, piece, **options, _data_producer=True)
        is_series = task.func is getitem
        read_part, part = (task.args[0] if is_series else task).func, self._parts[partition][file]
        column = task.args[1] if is_series else None
        args = (read_part, part, piece, column, self.keeps_index)
        return Task(name, read_part_piece, *args, _data_producer=True)

    @cached_property
    def _parts(self) -> list[list[Any]]:
        return parts_of(self.reader)


def parts_of(reader: Any) -> list[list[Any]]:
    """Return the files of each partition of a reader by fsspec, as Dask describes them."""
    return [part if isinstance(part, list) else [part] for part in reader._plan["parts"]]


def read_fragment_piece(
    to_pandas: Any,
    piece: Piece,
    *,
    fragment_wrapper: Any,
    filters: Any,
    columns: Any,
    schema: Any,
    keeps_index: bool,
) -> Any:
    """Return a piece of a fragment as the frame that Dask's reader makes of rows."""
    fragment = fragment_wrapper.fragment
    keep = pq.filters_to_expression(filters) if filters else None
    table, low = _filtered_rows(*_source_of(fragment), columns, schema, filters, keep, piece)
    return _with_index_from(to_pandas(table), low if keeps_index else 0)


def _with_index_from(frame: Any, low: int) -> Any:
    """Return a frame whose default index begins with a number."""
    if low and type(frame.index) is pd.RangeIndex:
        frame.index = pd.RangeIndex(low, low + len(frame), name=frame.index.name)
    return frame


def read_part_piece(read_part: Any, part: Any, piece: Piece, column: Any, keeps_index: bool) -> Any:
    """Return a piece of a file as the frame, or the Series, that Dask's reader makes of rows."""
    # Dask's reader is kept, with another function in the place of the one that reads a table: so
    # the frame is Dask's in types, index and names, whatever options the reader has.
    first_row = 0

    def read_table(
        cls: Any,
        /,
        path: Any,
        filesystem: Any,
        row_groups: Any,
        columns: Any,
        schema: Any,
        filters: Any,
        partitions: Any,
        partition_keys: Any,
        **kwargs: Any,
    ) -> pa.Table:
        nonlocal first_row
        # As Dask does: files in directories named by values get these as columns, and an index
        # without a name is a column of the file.
        names = [name for name in columns if name is not None]
        keys, fragment = dict(partition_keys or ()), path
        is_fragment = isinstance(path, pa_dataset.ParquetFileFragment)
        if not is_fragment and partitions and partition_keys is None:
            options = dataset_options(**kwargs.get("dataset", {}))
            (fragment,) = pa_dataset.dataset(path, filesystem=filesystem, **options).get_fragments()
            keys = pa_dataset.get_partition_keys(fragment.partition_expression)
        elif is_fragment and None in columns and INDEX_COLUMN in schema.names:
            names.append(INDEX_COLUMN)
        # Row groups of this file that the partition has; pieces are cut from their rows.
        groups = None if row_groups == [None] else tuple(row_groups)
        source = _source_of(path)[0] if is_fragment else FileRows(path, filesystem, groups)
        # Filters apply to rows of a piece after it is read, so that pieces do not depend on them.
        if fragment is not path or is_fragment or need_filtering(filters, partition_keys):
            keep = filters_to_expression(filters) if filters else None
            table, first_row = _filtered_rows(source, keys, names, schema, filters, keep, piece)
        else:
            table, first_row = read_rows(source, names, piece)
        # Columns of directories are the same for all rows of a file, which does not have them.
        for level in partitions if isinstance(partitions, list) else ():
            if level.name not in table.column_names:
                table = table.append_column(level.name, _repeated(level, keys, len(table)))
        return table

    # A copy of the function that Dask would call, with that engine.
    engine = type("PieceEngine", (read_part.engine,), {"_read_table": classmethod(read_table)})
    options = (read_part.fs, read_part.meta, list(read_part.columns), read_part.index)
    backend, kwargs = read_part.dtype_backend, read_part.common_kwargs
    frame = type(read_part)(engine, *options, backend, {}, kwargs)(part)
    frame = _with_index_from(frame, first_row if keeps_index else 0)
    return frame if column is None else frame[column]


def _source_of(fragment: Any) -> tuple[FileRows, dict[str, Any]]:
    """Return the rows of a fragment, and the values that it has in columns of its directories."""
    groups = tuple(group.id for group in fragment.row_groups)
    keys = pa_dataset.get_partition_keys(fragment.partition_expression)
    return FileRows(fragment.path, fragment.filesystem, groups), keys


def _filtered_rows(
    source: FileRows,
    keys: Mapping[str, Any],
    columns: Sequence[str],
    schema: pa.Schema,
    filters: Any,
    keep: Any,
    piece: Piece,
) -> tuple[pa.Table, int]:
    """Return the rows of a piece that filters keep, with the types of the schema of all files.

    With them, return the number of the first row of the piece.
    """
    names = list(dict.fromkeys([*columns, *names_in(filters)]))
    table, low = read_rows(source, [name for name in names if name not in keys], piece)
    fields, arrays = [schema.field(name) for name in names], []
    for field in fields:
        if field.name in table.column_names:
            arrays.append(table[field.name].cast(field.type))
        else:
            value = pa.scalar(keys.get(field.name), type=field.type)
            arrays.append(pa.repeat(value, len(table)))
    whole = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=schema.metadata))
    return (whole if keep is None else whole.filter(keep).select(columns)), low


def _repeated(level: Any, keys: Mapping[str, Any], n_rows: int) -> pa.Array:
    """Return the column of a level of directories, categories where Dask knows them."""
    value = keys.get(level.name)
    if not len(level.keys):
        return pa.array(np.full(n_rows, value))
    code = np.full(n_rows, level.keys.get_loc(value), dtype=np.int32)
    return pa.DictionaryArray.from_arrays(code, pa.array(level.keys))


def names_in(filters: Any) -> list[str]:
    """Return the names of columns in filters, which are lists of conditions, or lists of these."""
    if not filters:
        return []
    conditions = [filters] if isinstance(filters[0][0], str) else filters
    return [name for name, *_ in chain.from_iterable(conditions)]


# -- numbers of pieces -----------------------------------------------------------------------------


def piece_counts(reader: Any, piece_bytes: int) -> tuple[tuple[int, ...], ...] | None:
    """Return the numbers of pieces of the files of a reader's partitions; None where all are one.

    So it is where the reader has options of its own, the files have no metadata to be read, or Dask
    lacks a private name: then Dask reads them, or raises.
    """
    return _counted(reader, piece_bytes, partial(_count_pieces, piece_bytes=piece_bytes))


def n_rows_of_reader(reader: Any) -> float | None:
    """Return an estimate of the rows of a reader's files; None where it cannot be told.

    So it is too where a partition is not one or more whole files, or has filters.
    """
    return _counted(reader, "rows", _estimate_rows)


def _counted(reader: Any, what: Any, count: Callable[[Any], Any]) -> Any:
    """Return count(reader), or what it was, if the files have metadata to be read; else None."""
    if not can_read_pieces(type(reader), ArrowDatasetEngine):
        return None
    key = reader._name, what
    with _counts_lock:
        if key in _counts:
            return _counts[key]
    try:
        counts = count(reader)
    except (OSError, pa.ArrowException) as error:
        logger.debug("Files are read whole, as their metadata cannot be read: %r", error)
        return None
    with _counts_lock:
        _counts[key] = counts
        while len(_counts) > MAX_COUNTED:
            _counts.popitem(last=False)
    return counts


def _estimate_rows(reader: Any) -> float | None:
    """Estimate rows from the metadata of the largest files, and the sizes of all."""
    if reader.filters or not _has_default_options(reader):
        return None
    sources = [source for partition in _sources_of(reader) for source in partition]
    sizes = _sizes_of(sources)
    if not sizes or any(source.row_groups for source in sources):
        return None
    rows_per_byte = []
    for source in sorted(sources, key=lambda source: -sizes[source.path])[:N_SAMPLED_FILES]:
        with source.open() as file:
            rows_per_byte.append(file.metadata.num_rows / sizes[source.path])
    return min(rows_per_byte) * sum(sizes.values())


def _count_pieces(reader: Any, piece_bytes: int) -> tuple[tuple[int, ...], ...] | None:
    """Estimate rows from the metadata of the largest files, and those of others by their sizes."""
    if not _has_default_options(reader):
        return None
    partitions = _sources_of(reader)
    by_path = {source.path: source for sources in partitions for source in sources}
    sizes = _sizes_of(list(by_path.values()))
    if not sizes or max(sizes.values()) * MAX_EXPANSION < piece_bytes:
        return None
    largest = sorted(sizes, key=lambda path: -sizes[path])[:N_SAMPLED_FILES]
    names = [*reader.columns, *names_in(reader.filters)]
    sampled = [_expansion(by_path[path], sizes[path], names) for path in largest]
    expansion, n_groups = (max(values) for values in zip(*sampled, strict=True))

    def count(source: FileRows) -> int:
        groups = source.row_groups
        part = 1.0 if groups is None else min(1.0, len(groups) / n_groups)
        return max(1, math.ceil(part * expansion * sizes[source.path] / piece_bytes))

    counts = tuple(tuple(map(count, sources)) for sources in partitions)
    return counts if any(max(of_partition) > 1 for of_partition in counts) else None


def _has_default_options(reader: Any) -> bool:
    """Return whether a reader reads files as Arrow does without options."""
    if isinstance(reader, ReadParquetFSSpec):
        options = reader._plan["common_kwargs"].get("read") or {}
        return not reader._plan["empty"] and not any(options.values())
    defaults = pa_dataset.ParquetFileFormat().read_options
    formats = (fragment.format for fragment in reader.fragments[:1])
    return not isinstance(reader.filters, pa_dataset.Expression) and all(
        file_format.read_options.equals(defaults) for file_format in formats
    )


def _sizes_of(sources: Sequence[FileRows]) -> dict[str, int]:
    """Return the sizes of files on one filesystem, by path; none where one is not known."""
    if not sources:
        return {}
    filesystem, paths = sources[0].filesystem, [source.path for source in sources]
    if isinstance(filesystem, pa_fs.FileSystem):
        sizes = [info.size for info in filesystem.get_file_info(paths)]
    else:
        sizes = filesystem.sizes(paths)
    if not all(sizes):
        return {}
    return dict(zip(paths, map(int, sizes), strict=True))


def _sources_of(reader: Any) -> list[list[FileRows]]:
    """Return the rows of files that each partition of a reader consists of."""
    if isinstance(reader, ReadParquetPyarrowFS):
        fragments = [reader.fragments[i] for i in partitions_of(reader)]
        return [[FileRows(x.path, x.filesystem, None)] for x in fragments]
    parts, filesystem = parts_of(reader), filesystem_of(reader)
    of_parts = [[part["piece"] for part in parts[i]] for i in partitions_of(reader)]
    return [
        [FileRows(path, filesystem, groups and tuple(groups)) for path, groups, _ in pieces]
        for pieces in of_parts
    ]


def _expansion(source: FileRows, size: int, names: Sequence[str]) -> tuple[float, int]:
    """Return by how much columns of a file are larger in memory, and its number of row groups."""
    with source.open() as file:
        metadata = file.metadata
    n_groups, n_bytes = metadata.num_row_groups, 0.0
    for i in range(metadata.num_columns if n_groups else 0):
        column = metadata.row_group(0).column(i)
        if column.path_in_schema.split(".")[0] in names:
            n_bytes += _value_bytes(column)
    return metadata.num_rows * n_bytes / max(size, 1), max(1, n_groups)


def _value_bytes(column: Any) -> float:
    """Return an estimate of the bytes of a value of a column in memory."""
    if column.physical_type != "BYTE_ARRAY":
        return 8.0
    statistics = column.statistics
    lengths = [column.total_uncompressed_size / max(1, column.num_values)]
    if statistics is not None and statistics.has_min_max:
        lengths += [len(statistics.min), len(statistics.max)]
    return TEXT_BYTES + max(lengths)
