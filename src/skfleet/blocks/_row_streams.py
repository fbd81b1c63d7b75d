"""Rows of Parquet files, read on from one piece to the next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

# Rows that are decoded at a time, and the bytes of a column that are read at a time.
BATCH_ROWS, LOCAL_BUFFER_BYTES, REMOTE_BUFFER_BYTES = 2**13, 2**17, 2**23


class Piece(NamedTuple):
    """Consecutive rows of a file's row groups: the i-th of n pieces, for a reader of Dask."""

    i: int
    n: int
    # by its name, which is another one where the files have been written again
    reader: str = ""

    def part(self, i: int, n: int) -> Piece:
        """Return the i-th of n parts of this piece."""
        return Piece(self.i * n + i, self.n * n, self.reader)

    def bounds(self, n_rows: int) -> tuple[int, int]:
        """Return the numbers of the first row, and of the one after the last."""
        return n_rows * self.i // self.n, n_rows * (self.i + 1) // self.n


class FileRows(NamedTuple):
    """Row groups of a file on a filesystem; None are all."""

    path: str
    filesystem: Any
    row_groups: tuple[int, ...] | None

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, LocalFileSystem | pa_fs.LocalFileSystem)

    def open(self) -> pq.ParquetFile:
        filesystem = self.filesystem
        if not isinstance(filesystem, pa_fs.FileSystem):
            filesystem = pa_fs.PyFileSystem(pa_fs.FSSpecHandler(filesystem))
        buffer_bytes = LOCAL_BUFFER_BYTES if self.is_local else REMOTE_BUFFER_BYTES
        if self.is_local:  # which fsspec would read through Python
            filesystem = pa_fs.LocalFileSystem()
        file = filesystem.open_input_file(self.path)
        return pq.ParquetFile(file, buffer_size=buffer_bytes, pre_buffer=False)


class RowStream:
    """The rows of a file's row groups, in their order, of which pieces are read one by one."""

    def __init__(self, source: FileRows, columns: Sequence[str]) -> None:
        self._file = source.open()
        groups, metadata = source.row_groups, self._file.metadata
        self._groups = list(range(metadata.num_row_groups) if groups is None else groups)
        lengths = [metadata.row_group(i).num_rows for i in self._groups]
        self._starts = np.cumsum([0, *lengths])
        self.n_rows = int(self._starts[-1])
        self._columns, self._position = list(columns), -1
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._pending: pa.RecordBatch | None = None

    def read(self, low: int, high: int) -> pa.Table:
        """Return consecutive rows. Those after the ones of the last call are read on from there."""
        if low != self._position:
            self._begin_at(low)
        batches = list(self._take(high - low))
        self._position = high
        schema = self._schema if not batches else batches[0].schema
        return pa.Table.from_batches(batches, schema=schema)

    def close(self) -> None:
        self._batches, self._pending = iter(()), None
        self._file.close(force=True)

    def _begin_at(self, low: int) -> None:
        """Begin to read with the row group of a row, whose rows before it are skipped."""
        first = max(0, int(np.searchsorted(self._starts, low, side="right")) - 1)
        self._batches, self._pending = self._read_groups(self._groups[first:]), None
        for _ in self._take(low - int(self._starts[first])):
            pass

    def _take(self, n_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the next rows; what is left of a batch is kept."""
        while n_rows > 0:
            batch = next(self._batches) if self._pending is None else self._pending
            part = batch.slice(0, n_rows)
            self._pending = batch.slice(n_rows) if batch.num_rows > n_rows else None
            n_rows -= part.num_rows
            yield part

    def _read_groups(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        return self._file.iter_batches(
            BATCH_ROWS, list(groups), self._columns, use_threads=False, use_pandas_metadata=True
        )

    @property
    def _schema(self) -> pa.Schema:
        no_rows: pa.Table = self._file.read_row_groups([], self._columns, use_pandas_metadata=True)
        return no_rows.schema


class OpenStreams:
    """The streams that threads have left open after a piece, to be read on by any of them.

    There are never more streams, in use and left open, than threads that have read and live.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: OrderedDict[Any, RowStream] = OrderedDict()
        self._threads: WeakSet[threading.Thread] = WeakSet()
        self._n_used = 0

    @contextmanager
    def reading(
        self, source: FileRows, columns: Sequence[str], piece: Piece
    ) -> Iterator[RowStream]:
        """Yield the stream to read a piece from, which is left open for the next piece."""
        of_file = (source.path, source.row_groups, tuple(columns))
        closed = []
        with self._lock:
            # the first piece may be of a file that has been written again
            stream = self._left.pop((of_file, piece), None) if piece.i else None
            self._n_used += 1
            self._threads.add(threading.current_thread())
            n_threads = sum(thread.is_alive() for thread in self._threads)
            while self._left and self._n_used + len(self._left) > n_threads:
                closed.append(self._left.popitem(last=False)[1])
        for other in closed:
            other.close()
        is_read = False
        try:
            stream = RowStream(source, columns) if stream is None else stream
            yield stream
            is_read = True
        finally:
            following = piece._replace(i=piece.i + 1)
            is_left_open = is_read and following.i < piece.n
            with self._lock:
                self._n_used -= 1
                if stream is not None and is_left_open:
                    # that of a piece which was read twice at a time is closed
                    left = self._left.pop((of_file, following), None)
                    self._left[of_file, following], stream = stream, left
            if stream is not None:
                stream.close()


_streams = OpenStreams()
# The part of each piece that is read, and their number.
_part: ContextVar[tuple[int, int]] = ContextVar("skfleet_part", default=(0, 1))


@contextmanager
def reading_part(i: int, n: int) -> Iterator[None]:
    """Read the i-th of n parts of each piece inside a ``with``."""
    token = _part.set((i, n))
    try:
        yield
    finally:
        _part.reset(token)


def read_rows(source: FileRows, columns: Sequence[str], piece: Piece) -> tuple[pa.Table, int]:
    """Return the rows of a piece, and the number of the first.

    After its predecessor, in this process, nothing is read twice.
    """
    piece = piece.part(*_part.get())
    with _streams.reading(source, columns, piece) as stream:
        low, high = piece.bounds(stream.n_rows)
        return stream.read(low, high), low
