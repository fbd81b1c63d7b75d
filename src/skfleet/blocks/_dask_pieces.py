"""Frames of Parquet files in smaller partitions than those that Dask gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, NamedTuple

from dask.base import collections_to_expr
from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr.io import FusedIO, FusedParquetIO
from dask.task_spec import Task, TaskRef
from dask.utils import key_split

from skfleet._dask_private import (
    Blockwise,
    DelayedExpr,
    TextFunctionMap,
    accessors,
    expressions,
    partitions_of,
)
from skfleet.blocks._containers import fixed_nbytes
from skfleet.blocks._dask_parquet import (
    READERS,
    ParquetPieces,
    n_rows_of_reader,
    piece_counts,
)
from skfleet.blocks._dask_take import (
    AlignedPart,
    SplitRoot,
    TakeRows,
    has_all_partitions,
    part_of_pieces,
)
from skfleet.blocks._joined_rows import joined
from skfleet.blocks._row_functions import is_by_rows

# Expressions whose rows are each made of one row of the frames below. What reads the index is not
# among them: a default one begins with 0 in each partition.
BY_ROWS = (
    expressions.Abs,
    expressions.AddPrefix,
    expressions.ArrowStringConversion,
    expressions.AsType,
    expressions.Assign,
    expressions.Between,
    expressions.Binop,
    expressions.Clip,
    expressions.CombineSeries,
    expressions.Drop,
    expressions.DropnaFrame,
    expressions.DropnaSeries,
    expressions.Fillna,
    expressions.Filter,
    expressions.IsNa,
    expressions.Isin,
    expressions.Literal,
    expressions.Map,
    expressions.Mask,
    expressions.NotNull,
    expressions.Projection,
    expressions.RenameFrame,
    expressions.RenameSeries,
    expressions.Replace,
    expressions.Round,
    expressions.ToFrame,
    expressions.ToNumeric,
    expressions.Unaryop,
    expressions.Where,
    DelayedExpr,
    accessors.FunctionMap,
    accessors.PropertyMap,
    TextFunctionMap,
)


# Those of them that drop rows.
DROPPING = (expressions.DropnaFrame, expressions.DropnaSeries, expressions.Filter)


class MapOfPieces(Blockwise):
    """Expression of a function that is mapped to partitions of rows that are read from files.

    Where files are large it is mapped to pieces of them, whose results are joined.
    """

    _parameters = ["mapped", "piece_bytes"]

    @property
    def _meta(self) -> Any:
        return self.mapped._meta

    def _divisions(self) -> Any:
        return self.mapped.divisions

    def _broadcast_dep(self, dep: Any) -> bool:
        return False

    def _lower(self) -> Any:
        cut = cut_in_pieces(self.mapped, self.piece_bytes, keeps_index=True)
        if cut is None:
            return self.mapped
        return JoinedPieces(*cut, self.mapped.divisions)


class ResultsOfPieces(Blockwise):
    """Expression of what a function makes of the results of pieces, so many of each partition.

    One task makes the pieces of a partition one after the other, so that one is in memory, and each
    file is read once.
    """

    _parameters = ["pieces", "sizes"]

    @cached_property
    def _name(self) -> str:
        return f"{self._prefix}-{self.deterministic_token}"

    @property
    def _prefix(self) -> str:
        return key_split(self.pieces._name)

    def dependencies(self) -> list[Any]:
        return list(self._fused.dependencies())  # the models; pieces have no tasks of their own

    @cached_property
    def _bounds_of_pieces(self) -> list[tuple[int, int]]:
        return list(pairwise(accumulate(self.sizes, initial=0)))

    @cached_property
    def _fused(self) -> Any:
        return self.pieces.fuse()

    @property
    def _meta(self) -> Any:
        return self.pieces._meta

    def _divisions(self) -> Any:
        return (None,) * (len(self.sizes) + 1)

    def _task_of_results(self, name: Any, index: int, func: Any) -> Task:
        """Return the task of func(results, their number), which makes them as it iterates."""
        low, high = self._bounds_of_pieces[index]
        tasks = [self._fused._task((f"{name[0]}-piece", i), i) for i in range(low, high)]
        keys = list(dict.fromkeys(key for task in tasks for key in task.dependencies))
        return Task(name, _call_on_results, func, tasks, keys, *map(TaskRef, keys))


def _call_on_results(func: Any, tasks: list[Any], keys: list[Any], *values: Any) -> Any:
    """Return func(results, their number) of tasks that need the values of some keys."""
    by_key = dict(zip(keys, values, strict=True))
    return func((task(by_key) for task in tasks), len(tasks))


class JoinedPieces(ResultsOfPieces):
    """Expression of the results of pieces, one below the other."""

    _parameters = [*ResultsOfPieces._parameters, "bounds"]

    def _divisions(self) -> Any:
        return self.bounds

    def _task(self, name: Any, index: int) -> Task:
        return self._task_of_results(name, index, joined)


def without_joins(frames: Sequence[Any]) -> list[Any]:
    """Return frames whose functions are mapped to whole partitions."""
    return [new_collection(mapped_to_partitions(frame.expr)) for frame in frames]


def mapped_to_partitions(expression: Any) -> Any:
    """Return an expression whose functions are mapped to whole partitions."""
    while nodes := [x for x in expression.walk() if isinstance(x, MapOfPieces)]:
        expression = expression.substitute(nodes[0], nodes[0].mapped)
    return expression


def cut_in_pieces(frame: Any, piece_bytes: int, *, keeps_index: bool) -> Any:
    """Return the expression of a frame in pieces, and their number in each of its partitions.

    None where partitions are small, or are not read from Parquet files row by row.
    """
    frame = mapped_to_partitions(frame).lower_completely()
    if not all(map(has_all_partitions, frame.find_operations(AlignedPart))):
        return None  # tasks of pieces are fused, and read the piece of their own number
    n_read = sum(len(reading.reader.columns) for reading in _readers(frame).values())
    if len(frame.columns) > n_read:  # results count as well
        piece_bytes = piece_bytes * n_read // len(frame.columns)
    expression = collections_to_expr([new_collection(frame)])
    pieces, partitions = in_pieces(expression, piece_bytes, keeps_index=keeps_index)
    if partitions is None:
        return None
    return pieces.operands[0], [len([*group]) for _, group in groupby(partitions)]


def in_pieces(
    expression: Any, piece_bytes: int, *, keeps_index: bool = False
) -> tuple[Any, list[int] | None]:
    """Return an optimized expression of frames with partitions of about so many bytes at most.

    With it, return the numbers of the partitions that the new ones are of. They are None where
    partitions are small, or are not read from Parquet files row by row.

    With `keeps_index`, rows have the index that they have in partitions.
    """
    readers: dict[str, Reading] = {}
    for frame in expression.operands:
        if not _is_read_by_rows(frame):
            return expression, None
        readers |= _readers(frame)
    if not _parts_can_be_cut(expression):
        return expression, None
    counts = [reading.piece_counts(piece_bytes) for reading in readers.values()]
    first = _most_pieces([x for x in counts if x is not None])
    if first is None or None in counts:
        return expression, None
    if keeps_index:
        nodes = [node for frame in expression.operands for node in frame.walk()]
        is_new = any(isinstance(node, expressions.ResetIndex) for node in nodes)
        if is_new or not all(reading.keeps_index(first) for reading in readers.values()):
            return expression, None
    n_pieces = [sum(map(sum, of_partition)) for of_partition in first]
    numbers = [i for i, n in enumerate(n_pieces) for _ in range(n)]
    if parts := list(expression.find_operations(AlignedPart)):
        chosen = parts[0].rows.chosen
        is_one_file = all(len(readers_) == len(readers_[0]) == 1 for readers_ in first)
        if not is_one_file or any(part.rows.chosen != chosen for part in parts):
            return expression, None
        numbers = [i for i, k in enumerate(chosen) for _ in range(n_pieces[k])]
    for reading in readers.values():
        pieces = ParquetPieces(reading.reader, list(chain.from_iterable(first)), keeps_index)
        expression = expression.substitute(reading.node, pieces)
    for part in list(expression.find_operations(AlignedPart)):
        expression = expression.substitute(part, part_of_pieces(part, n_pieces))
    return expression, numbers


def _most_pieces(
    counts: Sequence[list[list[tuple[int, ...]]]],
) -> list[list[tuple[int, ...]]] | None:
    """Return the largest numbers of pieces of each file; None for readers of other files."""
    layouts = [[[len(files) for files in of_partition] for of_partition in x] for x in counts]
    if not layouts or any(layout != layouts[0] for layout in layouts):
        return None
    return [
        [tuple(map(max, zip(*files, strict=True))) for files in zip(*of_partition, strict=True)]
        for of_partition in zip(*counts, strict=True)
    ]


def readers_of_pieces(expression: Any) -> list[Any]:
    """Return the readers of the files that an expression has in pieces."""
    return [node.reader for node in expression.find_operations(ParquetPieces)]


def _is_by_rows(node: Any) -> bool:
    if isinstance(node, expressions.ResetIndex):
        return bool(node.drop)
    if isinstance(node, MapOfPieces | AlignedPart | TakeRows | SplitRoot):
        return True
    if isinstance(node, expressions.MapPartitions):
        return is_by_rows(node.func)
    return isinstance(node, BY_ROWS)


def has_large_files(frames: Sequence[Any], piece_bytes: int) -> bool:
    """Return whether frames are read from Parquet files that may be larger than so many bytes."""
    readers = {name: node for frame in frames for name, node in _readers(frame.expr).items()}
    return any(reading.piece_counts(piece_bytes) for reading in readers.values())


def is_read_by_rows(frame: Any) -> bool:
    """Return whether each row of a frame is made of one row of Parquet files."""
    return _is_read_by_rows(frame.expr)


def nbytes_of_files(frame: Any) -> float | None:
    """Return about how many bytes a frame has that has all rows of some Parquet files; else None.

    Texts are taken for short.
    """
    readers, nodes = {}, [*frame.expr.walk()]
    for node in nodes:
        if isinstance(node, READERS):
            readers[node._name] = node
        elif isinstance(node, DROPPING) or not isinstance(node, BY_ROWS):
            return None
    n_rows = n_rows_of_reader(*readers.values()) if len(readers) == 1 else None
    dtypes = [*frame.dtypes] if frame.ndim == 2 else [frame.dtype]
    return None if n_rows is None else n_rows * sum(getattr(d, "itemsize", 8) for d in dtypes)


def nbytes_of_numbers(frames: Iterable[Any]) -> float | None:
    """Return about the bytes of frames of numbers that are all read from files; else None."""
    sizes = [None if fixed_nbytes(x._meta) is None else nbytes_of_files(x) for x in frames]
    return None if None in sizes else sum(filter(None, sizes))


def _is_read_by_rows(expression: Any) -> bool:
    readers = _readers(expression)
    is_by_rows = all(node._name in readers or _is_by_rows(node) for node in expression.walk())
    return is_by_rows and bool(readers) and _parts_can_be_cut(expression)


def _parts_can_be_cut(expression: Any) -> bool:
    """Return whether all rows are taken, if any are, of frames with the rows of their files."""
    parts = list(expression.find_operations(AlignedPart))
    if not parts:
        return True
    readers, stack = _readers(expression), [expression]
    while stack:
        node = stack.pop()
        if node._name in readers:
            return False  # beside the rows that are taken
        stack += [] if isinstance(node, AlignedPart) else node.dependencies()
    sources = [node for part in parts for node in part.rows.frame.walk()]
    is_changed = any(isinstance(node, (AlignedPart, *DROPPING)) for node in sources)
    return not is_changed and not any(x.reader.filters for x in readers.values())


def is_one_reading(expression: Any) -> bool:
    """Return whether each row is made of one row of Parquet files, which are read once."""
    return _is_read_by_rows(expression) and len(_readers(expression)) == 1


class Reading(NamedTuple):
    """A reader of Parquet files, and the expression that reads several of its partitions as one."""

    reader: Any
    node: Any

    def piece_counts(self, piece_bytes: int) -> list[list[tuple[int, ...]]] | None:
        """Return the numbers of pieces of the files of each partition, of the reader's in it."""
        counts = piece_counts(self.reader, piece_bytes)
        if counts is None:
            return None
        if self.node is self.reader:
            return [[of_partition] for of_partition in counts]
        numbers = {number: i for i, number in enumerate(partitions_of(self.reader))}
        return [[counts[numbers[j]] for j in bucket] for bucket in self.node._fusion_buckets]

    def keeps_index(self, counts: list[list[tuple[int, ...]]]) -> bool:
        """Return whether pieces know the index that their rows have in the partitions."""
        is_one_file = all(len(files) == 1 for of_partition in counts for files in of_partition)
        is_one_table = isinstance(self.node, FusedParquetIO)
        return is_one_file and not is_one_table and not self.reader.filters


def _readers(expression: Any) -> dict[str, Reading]:
    """Return the readers of an expression, by name."""
    readers = {}
    for node in expression.walk():
        reader = node.operand("_expr") if isinstance(node, FusedIO) else node
        if isinstance(reader, READERS):
            readers[node._name] = Reading(reader, node)
    return readers
