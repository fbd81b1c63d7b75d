"""Lazy parts of Dask collections: the rows of a `RowSet`, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import dask.array as da
import dask.dataframe as dd
from dask.base import tokenize
from dask.core import flatten
from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr.io import BlockwiseIO, FusedIO
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef

from skfleet._dask_private import (
    Expr,
    Len,
    Literal,
    PartitionsFiltered,
    Projection,
    partitions_of,
)
from skfleet._private_names import is_missing
from skfleet.blocks._dask_graph import is_frame_collection, is_part
from skfleet.blocks._dask_partitions import PartitionsOf
from skfleet.blocks._row_set import BlockRows, RowSet
from skfleet.blocks._row_streams import Piece


def take_row_set(X: Any, rows: RowSet, lengths: Sequence[int], token: str) -> Any:
    """Return the rows of a set of an array, a Series or a DataFrame, lazily, in their order.

    One task takes the rows of a partition. Partitions without any are dropped. A frame keeps its
    index, divisions, names and types; an array its chunks along columns. Parts of frames with the
    same `token` and lengths are aligned.
    """
    cuts = [rows.cut(*bounds) for bounds in pairwise(accumulate(lengths, initial=0))]
    # of no rows at all one partition remains, for the types
    chosen = [i for i, cut in enumerate(cuts) if cut.n_taken] or [0]
    if is_frame_collection(X):
        if is_part(X) and has_all_rows(X.expr):  # its files can be read in pieces then
            X, _ = source_of_part(X)
        return _take_of_frame(X, chosen, [cuts[i] for i in chosen], token)
    return _take_of_array(X, chosen, [cuts[i] for i in chosen])


def with_fixed_partitions(expressions: Sequence[Any]) -> list[Any]:
    """Return frames of optimized expressions whose partitions further optimization leaves alone."""
    frames = []
    for expression in expressions:
        sources = [node for node in expression.walk() if isinstance(node, BlockwiseIO)]
        for source in sources:
            if not isinstance(source, FusedIO) and not source.dependencies():
                expression = expression.substitute(source, UnfusedIO(source))
        frames.append(new_collection(expression))
    return frames


class UnfusedIO(FusedIO):
    """Expression of partitions as they are read.

    Where Dask needs few columns of a source, it would read several partitions as one. Of a source
    in an expression of this kind it takes that as done (dask 2026.8.0).
    """

    def operand(self, key: str) -> Any:
        """Return the source, also where Dask has put one that reads several partitions there.

        It does so to every equal source of an expression of which one is to be fused.
        """
        value = super().operand(key)
        return value.operand(key) if isinstance(value, FusedIO) else value

    @property
    def _fusion_buckets(self) -> list[list[int]]:
        return [[i] for i in partitions_of(self.operand("_expr"))]


def with_fewer_columns(frame: Any) -> Any:
    """Return a frame of fixed partitions that reads the columns which it has alone.

    With others it has a reader for the columns of all of them.
    """
    expression = frame.expr
    for node in list(expression.walk()):
        if not (isinstance(node, Projection) and isinstance(node.frame, UnfusedIO)):
            continue
        reader: Any = node.frame.operand("_expr")
        if "columns" in reader._parameters:
            fewer = UnfusedIO(reader.substitute_parameters({"columns": list(node.columns)}))
            expression = expression.substitute(node, Projection(fewer, *node.operands[1:]))
    return new_collection(expression)


def _take(rows: Any, cut: BlockRows) -> Any:
    return cut.take(rows)


def _take_of_array(X: Any, chosen: Sequence[int], cuts: Sequence[BlockRows]) -> Any:
    name = f"take-rows-{tokenize(X, chosen, cuts)}"
    layer: dict[Any, Any] = {}
    keys = X.__dask_keys__()
    for i, (number, cut) in enumerate(zip(chosen, cuts, strict=True)):
        for key in flatten([keys[number]]):
            out = (name, i, *key[2:])
            layer[out] = Task(out, _take, TaskRef(key), cut)
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[X])
    chunks = (tuple(cut.n_taken for cut in cuts), *X.chunks[1:])
    return da.Array(graph, name, chunks=chunks, meta=X._meta, dtype=X.dtype)


def _take_of_frame(X: Any, chosen: Sequence[int], cuts: Sequence[BlockRows], token: str) -> Any:
    rows = TakeRows(X.expr, list(chosen), list(cuts))
    part = new_collection(AlignedPart(rows, SplitRoot(tokenize(token, cuts), len(chosen))))
    counted = {dd.DataFrame: DataFrame, dd.Series: Series}.get(type(part))
    return part if counted is None else counted(part.expr)


# scikit-learn asks each part of a split for its length; Dask sends the scheduler a task for that.
class DataFrame(dd.DataFrame):
    """Rows of a DataFrame whose number is known."""

    def __len__(self) -> int:
        return sum(lengths_of_part(self))


class Series(dd.Series):
    """Values of a Series whose number is known."""

    def __len__(self) -> int:
        return sum(lengths_of_part(self))


def lengths_of_part(part: Any) -> tuple[int, ...]:
    """Return the numbers of rows of the partitions of a part of a frame."""
    return tuple(cut.n_taken for cut in part.expr.rows.cuts)


def source_of_part(part: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the frame of a part that has all of its rows, and the lengths of its partitions."""
    rows = part.expr.rows
    lengths = dict(zip(rows.chosen, lengths_of_part(part), strict=True))
    n_partitions = rows.frame.npartitions
    return new_collection(rows.frame), tuple(lengths.get(i, 0) for i in range(n_partitions))


class TakeRows(Expr):
    """Expression of some rows of some partitions of a frame.

    Dask moves no selection of partitions or columns below it, and must not: several files of few
    columns are read as one partition, and partitions selected of a shuffle or a sample are others
    (dask 2026.8.0). Without a dimension it is no root of its rows (see `SplitRoot`).
    """

    _parameters = ["frame", "chosen", "cuts"]
    ndim = 0

    @property
    def _meta(self) -> Any:
        return self.frame._meta

    @property
    def _name(self) -> str:
        return f"take-rows-{self.deterministic_token}"

    def _simplify_up(self, parent: Any, dependents: Any) -> Any:
        """Return the number of rows, which is known, where Dask would count them."""
        is_count = isinstance(parent, Len) and not is_missing(Literal)
        return Literal(sum(cut.n_taken for cut in self.cuts)) if is_count else None

    def _divisions(self) -> tuple[Any, ...]:
        bounds = self.frame.divisions
        return (*(bounds[i] for i in self.chosen), bounds[self.chosen[-1] + 1])

    def _task(self, name: Any, index: int) -> Any:
        return Task(name, _take, TaskRef((self.frame._name, self.chosen[index])), self.cuts[index])


class SplitRoot(PartitionsFiltered):
    """Root of the parts of frames that were split together, by which Dask knows them as aligned.

    It has no tasks. `token` is that of the split and of the rows that are taken.
    """

    _parameters = ["token", "n", "_partitions"]
    _defaults = {"_partitions": None}
    ndim = 1
    _meta = None

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.n + 1)

    def _layer(self) -> dict[Any, Any]:
        return {}


class AlignedPart(PartitionsOf):
    """Expression of the rows of a part, with the root of its split."""

    _parameters = ["rows", "root"]
    _is_length_preserving = True
    is_part_of_split = True

    @property
    def _name(self) -> str:
        return f"part-{self.deterministic_token}"

    def _divisions(self) -> Any:
        return self.rows.divisions


class TakePieces(PartitionsOf):
    """Expression of some rows of each partition of a frame, of which no others are asked for."""

    _parameters = ["frame", "cuts"]

    @property
    def _name(self) -> str:
        return f"take-pieces-{self.deterministic_token}"

    def _divisions(self) -> Any:
        return self.frame.divisions

    def _task(self, name: Any, index: int) -> Any:
        return Task(name, _take, TaskRef((self.frame._name, index)), self.cuts[index])


def has_all_partitions(part: AlignedPart) -> bool:
    """Return whether a part has rows of all partitions of its frame."""
    return bool(part.rows.chosen == list(range(part.rows.frame.npartitions)))


def has_all_rows(part: AlignedPart) -> bool:
    """Return whether a part has all rows of its frame."""
    return has_all_partitions(part) and all(cut.is_whole for cut in part.rows.cuts)


def part_of_pieces(part: AlignedPart, n_pieces: Sequence[int]) -> Any:
    """Return the part of a frame whose partitions have been cut into so many pieces each."""
    rows, starts = part.rows, list(accumulate(n_pieces, initial=0))
    chosen, cuts = [], []
    for i, cut in zip(rows.chosen, rows.cuts, strict=True):
        pieces = [Piece(j, n_pieces[i]) for j in range(n_pieces[i])]
        chosen += [starts[i] + j for j in range(n_pieces[i])]
        cuts += [cut.part(*piece.bounds(cut.n_rows)) for piece in pieces]
    if chosen == list(range(starts[-1])):
        return TakePieces(rows.frame, cuts)
    root = SplitRoot(tokenize(part.root, n_pieces), len(chosen))
    return AlignedPart(TakeRows(rows.frame, chosen, cuts), root)


def lengths_of_pieces(expression: Any) -> tuple[int, ...] | None:
    """Return the numbers of rows that are taken of pieces of partitions; None if none are."""
    node = next(iter(expression.find_operations((TakePieces, TakeRows))), None)
    return None if node is None else tuple(cut.n_taken for cut in node.cuts)
