"""Dask collections of rows, handled without importing Dask for rows in this process."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from skfleet._typing import RowsT, Table
from skfleet.blocks._block import BlockRef
from skfleet.blocks._containers import fixed_nbytes, is_frame, n_rows_of
from skfleet.blocks._dask_futures import is_future
from skfleet.blocks._row_set import RowSet

if TYPE_CHECKING:
    from skfleet.blocks._dask_types import DaskArray, DaskFrame, DaskRows


def is_lazy(X: object) -> bool:
    """Return whether X is a Dask collection, without importing Dask for it."""
    return "dask" in sys.modules and sys.modules["dask"].is_dask_collection(X)


def as_collection(X: object) -> DaskRows:
    """Return a Dask collection as an array or a frame: a bag as a Series of its items."""
    from skfleet.blocks._dask_collections import as_collection

    return as_collection(X)


def meta_of(X: object) -> Any:
    """Return no rows of the container, width, names and types of a Dask collection."""
    from skfleet.blocks._dask_collections import meta_of

    return meta_of(X)


def with_whole_rows(X: RowsT) -> RowsT:
    """Return a Dask array with one chunk along all axes but the first; frames are not changed."""
    from skfleet.blocks._dask_collections import with_whole_rows

    return with_whole_rows(X)


def artificial_rows(meta: Table) -> Any:
    """Return two rows of the container and types of empty ones, with arbitrary values."""
    from skfleet.blocks._dask_collections import artificial_rows

    return artificial_rows(meta)


def partition_lengths(X: DaskRows) -> tuple[int, ...] | None:
    """Return the numbers of rows of a Dask collection's partitions; None where one is unknown."""
    from skfleet.blocks._dask_align import known_lengths

    return known_lengths(X)


def copy_lengths(X: DaskRows, mapped: DaskFrame) -> None:
    """Record the known lengths of a Dask frame's partitions on a frame that is mapped from it."""
    from skfleet.blocks._dask_align import copy_lengths

    copy_lengths(X, mapped)


def n_rows_if_known(X: Any) -> int | None:
    """Return the number of rows of any container; None for unknown chunk sizes."""
    if not is_lazy(X):
        return n_rows_of(X)
    lengths = partition_lengths(X)
    return None if lengths is None else sum(lengths)


def nbytes_if_known(X: DaskRows) -> int | None:
    """Return the bytes of dense rows of a Dask collection; None where these take a look at rows."""
    lengths, meta = partition_lengths(X), meta_of(X)
    n_bytes = fixed_nbytes(meta)
    if lengths is None or n_bytes is None:
        return None
    return sum(lengths) * n_bytes * (1 if is_frame(meta) else math.prod(X.shape[1:]))


def estimated_nbytes(X: DaskRows) -> float | None:
    """Return about how many bytes the rows of a frame of Parquet files have; None for others.

    Texts are taken for short.
    """
    if not is_frame(meta_of(X)):
        return None
    from skfleet.blocks._dask_pieces import nbytes_of_files

    return nbytes_of_files(X)


def compute_chunk_sizes(*collections: DaskRows) -> list[DaskRows]:
    """Return Dask collections as arrays of known chunk sizes, which may take a pass over the rows.

    They are computed in one graph, so that their rows stay paired.
    """
    from skfleet.blocks._dask_collections import compute_chunk_sizes

    return compute_chunk_sizes(*collections)


def fix_partitions(
    collections: Sequence[DaskRows], values: Sequence[DaskRows], *, is_tuned: bool = True
) -> tuple[list[DaskRows], list[tuple[int, ...] | None], list[BlockRef]]:
    """Return Dask collections with final partitions, their known lengths, and tasks for the others.

    Tuned, several partitions of few columns are read as one.

    A task returns a list for each collection of unknown length, with the number of rows in a
    partition. After these it returns a list for each of `values`, with their rows as a
    `LabelCodes`. A list is empty after the last partition of its collection.
    """
    from skfleet.blocks._dask_collections import fix_partitions

    return fix_partitions(collections, values, is_tuned=is_tuned)


def take_row_set(X: DaskRows, rows: RowSet, lengths: Sequence[int], token: str) -> DaskRows:
    """Return the rows of a set of a Dask collection, lazily, in their order.

    Parts of frames with the same token and lengths are aligned.
    """
    from skfleet.blocks._dask_take import take_row_set

    return take_row_set(X, rows, lengths, token)


def source_of_rows(X: DaskRows) -> tuple[DaskRows, tuple[int, ...] | None]:
    """Return a Dask collection and the lengths of its partitions, None where they are unknown.

    Of a part of a frame that has all of its rows, it is that frame.
    """
    from skfleet.blocks._dask_graph import is_part
    from skfleet.blocks._dask_take import source_of_part

    return source_of_part(X) if is_part(X) else (X, partition_lengths(X))


def paired_with(answer: DaskFrame, X: DaskFrame) -> DaskFrame:
    """Return an answer for every row of a Dask DataFrame as one that Dask pairs with its rows."""
    from skfleet.blocks._dask_pair import paired_with

    return paired_with(answer, X)


def frame_of_files(x: DaskArray) -> DaskFrame | None:
    """Return the frame whose partitions are the chunks of an array, if files are read by rows.

    What is mapped to the frame is then read in pieces, as that which is mapped to the array is not.
    """
    from skfleet.blocks._dask_graph import FrameLayer, layers_of

    layer = layers_of(x).get(x.name)
    if not isinstance(layer, FrameLayer):
        return None
    from skfleet.blocks._dask_pieces import is_read_by_rows

    return layer.frame if is_read_by_rows(layer.frame) else None


def map_by_rows(
    X: DaskFrame, func: Callable[..., object], *args: object, **options: object
) -> DaskFrame:
    """Return ``X.map_partitions(func, *args)``, in pieces of files where each row is of one row."""
    from skfleet.blocks._dask_to_parquet import map_by_rows

    return map_by_rows(X, func, *args, **options)


def map_to_array(
    X: DaskFrame, func: Callable[..., object], *args: object, meta: Table, token: str
) -> DaskArray:
    """Return the arrays that ``func(partition, *args)`` gives as one Dask array like `meta`."""
    from skfleet.blocks._dask_optimize import map_to_array

    return map_to_array(X, func, *args, meta=meta, token=token)


def shuffle_partitions(collections: Sequence[object], seed: int) -> list[DaskRows]:
    """Return the rows of Dask collections, lazily, in the order of one random draw for each row."""
    from skfleet.blocks._dask_shuffle import shuffle_partitions

    return shuffle_partitions([as_collection(x) for x in collections], seed)


def compute_together(*values: object) -> list[Any]:
    """Return the values of Dask collections, computed in one graph; others are not changed."""
    if not any(map(is_lazy, values)):
        return list(values)
    from skfleet.blocks._dask_collections import compute_together

    return compute_together(*values)


def fetch(value: Any) -> Any:
    """Return the value of a Dask collection, a Delayed value or a Future; others unchanged."""
    return value.result() if is_future(value) else compute_together(value)[0]


def persist_together(collections: Sequence[RowsT], client: Any) -> tuple[list[RowsT], list[object]]:
    """Return Dask collections in the memory of a client's workers, and the futures in them."""
    from skfleet.blocks._dask_collections import persist_together

    return persist_together(collections, client)
