"""Collections of the same rows, counted in one pass, of which sets of rows are taken."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from skfleet._typing import Rows, Values
from skfleet.blocks import (
    BlockRef,
    LabelCodes,
    RowBlocks,
    RowSet,
    as_collection,
    as_sized,
    by_partition,
    fix_partitions,
    is_lazy,
    n_rows_if_known,
    n_rows_of,
    partition_lengths,
    parts_of,
    source_of_rows,
    take_row_set,
    take_rows,
)
from skfleet.engine._counters import log_pass
from skfleet.engine._halving import gather_or_halve
from skfleet.engine._select import engine_for


class CountedRows:
    """Dask collections and other containers of the same rows, with the lengths of their partitions.

    Sets of rows are taken of all of them alike.
    """

    def __init__(
        self,
        arrays: Sequence[Rows | None],
        values: Sequence[Values | None],
        *,
        is_tuned: bool = True,
    ) -> None:
        """Count the rows of arrays, and compute values per row, in at most one pass.

        Tuned, several partitions of few columns are read as one.
        """
        self.arrays, values = [_as_rows(a) for a in arrays], [_as_rows(v) for v in values]
        known = [n_rows_if_known(a) for a in (*self.arrays, *values) if a is not None]
        _check_equal([n for n in known if n is not None])
        lazy: list[Any] = [a for a in self.arrays if is_lazy(a)]
        lazy_values: list[Any] = [v for v in values if is_lazy(v)]
        lazy, lengths, blocks = fix_partitions(lazy, lazy_values, is_tuned=is_tuned)
        results = iter(_count(blocks) if blocks else ())
        known_lengths = [tuple(next(results)) if n is None else n for n in lengths]
        self.n_partitions = sum(map(len, known_lengths))
        collections, partitions = iter(lazy), iter(known_lengths)
        self.lengths = [next(partitions) if is_lazy(a) else None for a in self.arrays]
        self.arrays = [next(collections) if is_lazy(a) else a for a in self.arrays]
        self.values = [LabelCodes.concatenate(next(results)) if is_lazy(v) else v for v in values]
        counts = [
            sum(lengths) if lengths is not None else n_rows_of(a)
            for a, lengths in zip(self.arrays, self.lengths, strict=True)
            if a is not None
        ]
        counts += [n_rows_of(v) for v in self.values if v is not None]
        _check_equal(counts)
        self.n_rows, self.token = counts[0], uuid.uuid4().hex

    def take(self, rows: RowSet) -> list[Any]:
        """Return the rows of a set of each array, in their order."""
        numbers = np.asarray(rows if None in self.lengths else ())
        return [
            take_rows(a, numbers) if lengths is None else take_row_set(a, rows, lengths, self.token)
            for a, lengths in zip(self.arrays, self.lengths, strict=True)
        ]


def with_known_lengths(*collections: Any) -> list[Any]:
    """Return Dask collections of the same rows, counted in one pass where a length is unknown.

    Of frames, the lengths of selected columns are known too.
    """
    rows = CountedRows(collections, ())
    counted = rows.take(RowSet(rows.n_rows, [(0, rows.n_rows)]))
    return [
        y if partition_lengths(x) is None or hasattr(x, "columns") else x
        for x, y in zip(collections, counted, strict=True)
    ]


def in_own_partitions(X: Any, counted: Any = None) -> tuple[Any, tuple[int, ...]]:
    """Return Dask rows in the partitions that X has, and the lengths of these.

    `counted` are the same rows as `with_known_lengths` returns them. They are counted again where
    several partitions of a frame are read as one for that.
    """
    if counted is not None:
        source, lengths = source_of_rows(counted)
        if lengths is not None and (not hasattr(X, "columns") or len(lengths) == X.npartitions):
            return source, lengths
    rows = CountedRows([X], (), is_tuned=False)
    (source,), (lengths,) = rows.arrays, rows.lengths
    assert lengths is not None
    return source, lengths


def _as_rows(values: Rows | None) -> Any:
    """Return an array, a collection or None as what has rows, or raise."""
    if values is None or is_lazy(values):
        return values if values is None else as_collection(values)
    return as_sized("Every array", values)


def _check_equal(counts: Sequence[int]) -> None:
    """Raise where arrays or values differ in their number of rows."""
    if len(set(counts)) > 1:
        raise ValueError(f"Found input variables with inconsistent numbers of samples: {counts}")


def _count(blocks: Sequence[BlockRef]) -> list[list[Any]]:
    """Return the results of the tasks that count rows and read values, by collection."""
    engine = engine_for(RowBlocks(tuple(blocks), None, 1, None, on_dask=True))
    groups = by_partition(blocks)
    results = gather_or_halve(engine, partial(engine.map, _load, name="count-rows"), groups)
    log_pass("count-rows", len(blocks), len(groups))
    return [list(chain.from_iterable(parts)) for parts in zip(*results, strict=True)]


def _load(block_refs: Sequence[BlockRef]) -> list[list[Any]]:
    """Return the results of the pieces of a partition, joined: the sum of counts, all values."""
    pieces = chain.from_iterable(map(parts_of, block_refs))
    columns = zip(*(piece.load() for piece in pieces), strict=True)
    joined = (list(chain.from_iterable(parts)) for parts in columns)
    return [[sum(x)] if x and not isinstance(x[0], LabelCodes) else x for x in joined]
