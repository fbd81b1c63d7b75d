"""Frames of Parquet files in smaller partitions than those that Dask gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask.dataframe.dask_expr import _accessor, _expr
from dask.dataframe.dask_expr._str_accessor import FunctionMap

from skfleet.blocks._dask_parquet import READERS, ParquetPieces, piece_counts
from skfleet.blocks._row_functions import is_by_rows

# Expressions whose rows are each made of one row of the frames below. What reads the index is not
# among them: a default one begins with 0 in each partition.
BY_ROWS = (
    _expr.Abs,
    _expr.AddPrefix,
    _expr.ArrowStringConversion,
    _expr.AsType,
    _expr.Assign,
    _expr.Between,
    _expr.Binop,
    _expr.Clip,
    _expr.CombineSeries,
    _expr.Drop,
    _expr.DropnaFrame,
    _expr.DropnaSeries,
    _expr.Fillna,
    _expr.Filter,
    _expr.IsNa,
    _expr.Isin,
    _expr.Literal,
    _expr.Map,
    _expr.Mask,
    _expr.NotNull,
    _expr.Projection,
    _expr.RenameFrame,
    _expr.RenameSeries,
    _expr.Replace,
    _expr.Round,
    _expr.ToFrame,
    _expr.ToNumeric,
    _expr.Unaryop,
    _expr.Where,
    _expr._DelayedExpr,
    _accessor.FunctionMap,
    _accessor.PropertyMap,
    FunctionMap,
)


def in_pieces(expression: Any, piece_bytes: int) -> tuple[Any, list[int] | None]:
    """Return an optimized expression of frames with partitions of about so many bytes at most.

    With it, return the numbers of the partitions that the new ones are of. They are None where
    partitions are small, or are not read from Parquet files row by row.
    """
    readers: dict[str, Any] = {}
    for frame in expression.operands:
        if not _is_read_by_rows(frame):
            return expression, None
        readers |= _readers(frame)
    first, *others = [piece_counts(reader, piece_bytes) for reader in readers.values()]
    if first is None or any(counts != first for counts in others):
        return expression, None
    for reader in readers.values():
        expression = expression.substitute(reader, ParquetPieces(reader, first))
    partitions = [i for i, of_partition in enumerate(first) for _ in range(sum(of_partition))]
    return expression, partitions


def _is_by_rows(node: Any) -> bool:
    if isinstance(node, _expr.ResetIndex):
        return bool(node.drop)
    if isinstance(node, _expr.MapPartitions):
        return is_by_rows(node.func)
    return isinstance(node, BY_ROWS)


def has_large_files(frames: Sequence[Any], piece_bytes: int) -> bool:
    """Return whether frames are read from Parquet files that may be larger than so many bytes."""
    readers = {name: node for frame in frames for name, node in _readers(frame.expr).items()}
    return any(piece_counts(reader, piece_bytes) for reader in readers.values())


def is_read_by_rows(frame: Any) -> bool:
    """Return whether each row of a frame is made of one row of Parquet files."""
    return _is_read_by_rows(frame.expr)


def _is_read_by_rows(expression: Any) -> bool:
    is_by_rows = all(isinstance(node, READERS) or _is_by_rows(node) for node in expression.walk())
    return is_by_rows and bool(_readers(expression))


def _readers(expression: Any) -> dict[str, Any]:
    """Return the readers of an expression, by name."""
    return {node._name: node for node in expression.walk() if isinstance(node, READERS)}
