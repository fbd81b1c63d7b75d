"""Functions of rows that are read by pieces, and results that are written to Parquet by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr.io.parquet import (
    ToParquet,
    ToParquetBarrier,
    ToParquetData,
    ToParquetFunctionWrapper,
)
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine
from dask.task_spec import Task

from skfleet._dask_private import arrow_table, can_write_pieces, expressions, index_in_schema
from skfleet.blocks._block import file_block_bytes
from skfleet.blocks._dask_pieces import (
    MapOfPieces,
    ResultsOfPieces,
    cut_in_pieces,
    is_one_reading,
    is_read_by_rows,
    mapped_to_partitions,
)

# The sizes of dictionaries, of which the larger one is Arrow's own limit.
MIN_DICTIONARY_BYTES, MAX_DICTIONARY_BYTES = 2**16, 2**20


def map_by_rows(X: Any, func: Any, *args: Any, **options: Any) -> Any:
    """Return ``X.map_partitions(func, *args)``, in pieces of files where each row is of one row."""
    mapped = X.map_partitions(func, *args, enforce_metadata=False, **options)
    if not is_read_by_rows(mapped):
        return mapped
    return new_collection(WritablePieces(mapped_to_partitions(mapped.expr), file_block_bytes()))


class WritablePieces(MapOfPieces):
    """Expression of rows that are written by pieces, if they go to Parquet files and nowhere else.

    What is between the two is mapped to pieces as well, step by step.
    """

    def _simplify_up(self, parent: Any, dependents: Any) -> Any:
        if len(_users(self, dependents)) != 1:
            return None
        target = parent
        while type(target) is not ToParquet:
            users = _users(target, dependents)
            if len(users) != 1:
                return None
            (target,) = users
        if not _can_write_pieces(target):
            return None
        if parent is target:
            return ToParquetByPieces(self.mapped, *parent.operands[1:], self.piece_bytes)
        return WritablePieces(mapped_to_partitions(parent), self.piece_bytes)


def _users(node: Any, dependents: Any) -> list[Any]:
    """Return the expressions that are made of one, as far as Dask knows them."""
    users = [reference() for reference in dependents.get(node._name, ())]
    return list({user._name: user for user in users if user is not None}.values())


def _can_write_pieces(target: ToParquet) -> bool:
    """Return whether the files of pieces are those of whole partitions, but for row groups."""
    is_plain = not (target.partition_on or target.write_metadata_file)
    has_schema = target.write_kwargs.get("schema") is not None
    if not (is_plain and has_schema and target.engine is ArrowDatasetEngine):
        return False
    if not can_write_pieces(ArrowDatasetEngine):
        return False
    reset, below = _rows_to_write(target.frame)
    has_new_index = any(isinstance(x, expressions.ResetIndex) for x in below.walk())
    return reset is not None and is_one_reading(below) and (reset.drop or not has_new_index)


def _rows_to_write(frame: Any) -> tuple[Any, Any]:
    """Return the reset of the index that Dask writes a frame with, and what is below it."""
    frame = mapped_to_partitions(frame)
    reset = frame.frame if isinstance(frame, expressions.RenameFrame) else frame
    return (reset, reset.frame) if isinstance(reset, expressions.ResetIndex) else (None, frame)


class ToParquetByPieces(ToParquet):
    """Expression that writes a frame to Parquet files, by pieces where its own files are large."""

    _parameters = [*ToParquet._parameters, "piece_bytes"]

    def _lower(self) -> Any:
        *operands, piece_bytes = self.operands
        reset, below = _rows_to_write(self.frame)
        cut = cut_in_pieces(below, piece_bytes, keeps_index=not reset.drop)
        data: Any = ToParquetData(*operands)
        if cut is not None:
            pieces, sizes = cut
            top = mapped_to_partitions(self.frame).substitute(below, pieces)
            write = ToParquetFunctionWrapper(
                EngineOfPieces,
                self.path,
                self.fs,
                self.partition_on,
                self.write_metadata_file,
                self.offset,
                self.name_function,
                self.write_kwargs | {"group_bytes": piece_bytes},
            )
            data = WrittenPieces(top, sizes, write)
        return ToParquetBarrier(data, *operands[1:])


class WrittenPieces(ResultsOfPieces):
    """Expression that writes the results of pieces, those of a partition to one file."""

    _parameters = [*ResultsOfPieces._parameters, "write"]
    _prefix = "to-parquet"

    def _task(self, name: Any, index: int) -> Task:
        return self._task_of_results(name, index, partial(_write, self.write, index))


def _write(write: Any, index: int, results: Iterable[Any], n_results: int) -> Any:
    return write(results, (index,))


class EngineOfPieces(ArrowDatasetEngine):
    """Dask's engine, for a partition whose rows come in pieces."""

    @classmethod
    def write_partition(
        cls,
        df: Any,
        path: Any,
        fs: Any,
        filename: Any,
        partition_on: Any,
        return_metadata: Any,
        fmd: Any = None,
        compression: Any = None,
        index_cols: Any = None,
        schema: Any = None,
        head: bool = False,
        custom_metadata: Any = None,
        group_bytes: int = 0,
        row_group_size: int | None = None,
        **options: Any,
    ) -> list[Any]:
        """Write the frames in `df` to a file, in row groups of about so many bytes in memory."""
        index = index_cols if index_in_schema(index_cols, schema) else []

        def table_of(frame: Any) -> pa.Table:
            frame = frame.set_index(index) if index else frame
            table = arrow_table(cls, frame, preserve_index=bool(index), schema=schema)
            metadata = (table.schema.metadata or {}) | (custom_metadata or {})
            return table.replace_schema_metadata(metadata)

        groups = _row_groups(map(table_of, df), group_bytes, row_group_size)
        group = next(groups)  # what cannot be computed begins no file
        # each row group has dictionaries of its own, which numbers without repeats would fill
        limit = min(MAX_DICTIONARY_BYTES, max(MIN_DICTIONARY_BYTES, 2 * len(group)))
        options = {"dictionary_pagesize_limit": limit} | options
        whole_path = fs.sep.join([path, filename])
        file = fs.open(whole_path, "wb")
        try:
            with (
                file,
                pq.ParquetWriter(file, group.schema, compression=compression, **options) as writer,
            ):
                while group is not None:
                    writer.write_table(group, row_group_size)
                    group = next(groups, None)
        except BaseException:
            fs.rm(whole_path)  # it would be read as one with fewer rows
            raise
        return []


def _row_groups(tables: Iterable[pa.Table], n_bytes: int, n_rows: int | None) -> Iterator[Any]:
    """Yield the rows of tables in tables of about so many bytes, and of multiples of so many rows.

    The last has what is left, and there is one at least.
    """
    pending, is_first = pa.table({}), True
    for table in tables:  # no rows may have no categories
        pending = pa.concat_tables([pending, table]) if len(pending) else table
        n_whole = len(pending) - (len(pending) % n_rows if n_rows else 0)
        if n_whole and pending.nbytes >= n_bytes:
            yield pending.slice(0, n_whole)
            pending, is_first = pending.slice(n_whole), False
    if is_first or len(pending):
        yield pending
