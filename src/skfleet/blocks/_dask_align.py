"""Partitions of Dask collections of the same rows, cut alike, and the orders of their rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

from skfleet.blocks._dask_graph import (
    Graph,
    count_rows,
    is_frame_collection,
    is_part,
    recut,
    shuffles,
    shuffles_on_disk,
)

if TYPE_CHECKING:
    from skfleet.blocks._dask_types import DaskRows, PartitionKey


def known_lengths(x: DaskRows) -> tuple[int, ...] | None:
    """Return the numbers of rows of the partitions, or None where one is unknown."""
    if is_part(x):
        from skfleet.blocks._dask_take import lengths_of_part

        return lengths_of_part(x)
    name, lengths = getattr(x, "_known_lengths", (None, None))
    if name is not None and name == x._name:
        return lengths
    if not isinstance(x, da.Array) or any(math.isnan(n) for n in x.chunks[0]):
        return None
    return tuple(int(n) for n in x.chunks[0])


def copy_lengths(x: DaskRows, mapped: Any) -> None:
    """Record the known lengths of a frame's partitions on a frame that is mapped from it."""
    if (lengths := known_lengths(x)) is not None:
        mapped._known_lengths = mapped._name, lengths


def align(
    graph: Graph,
    keys: list[list[PartitionKey]],
    X: DaskRows,
    collections: Mapping[str, DaskRows],
    host: Mapping[str, np.ndarray],
    lengths_of_pieces: Sequence[tuple[int, ...] | None] = (),
) -> tuple[int, ...] | None:
    """Repartition `keys` like X, in place; return the block lengths of X where they are known.

    Collections that are read in pieces have `lengths_of_pieces`, where these are known.

    Rows are counted only if there is no other way: collections of unknown lengths and as many
    partitions are assumed to be aligned, which opening a block checks.
    """
    names = ["X", *collections]
    sizes: list[Any] = list(lengths_of_pieces)
    sizes = sizes or [known_lengths(x) for x in (X, *collections.values())]
    layouts = [(size, len(partitions)) for size, partitions in zip(sizes, keys, strict=True)]
    unlike = [i for i, layout in enumerate(layouts) if layout != layouts[0]]
    if unlike or host:
        unknown = [i for i in (0, *unlike) if sizes[i] is None]
        counts = count_rows(graph, [keys[i] for i in unknown]) if unknown else []
        for i, lengths in zip(unknown, counts, strict=True):
            sizes[i] = lengths
    lengths = sizes[0]
    if lengths is None:
        check_shuffles(graph, keys, names, [X, *collections.values()])
        return None
    n_rows_by_name = {names[i]: sum(sizes[i]) for i in unlike}
    n_rows_by_name |= {name: len(values) for name, values in host.items()}
    for name, n_rows in n_rows_by_name.items():
        if n_rows != sum(lengths):
            raise ValueError(
                f"{name} must have as many rows as X. Got {n_rows} instead of {sum(lengths)}."
            )
    for i in unlike:
        if sizes[i] != lengths:
            keys[i] = recut(graph, keys[i], sizes[i], lengths)
    check_shuffles(graph, keys, names, [X, *collections.values()])
    return lengths


def check_shuffles(
    graph: Graph,
    keys: Sequence[Sequence[PartitionKey]],
    names: Sequence[str],
    collections: Sequence[DaskRows],
) -> None:
    """Raise for columns that come from another unordered shuffle than X.

    Frames of known divisions are told apart by their index, when a block is opened.
    """
    has_index = all(is_frame_collection(x) and x.known_divisions for x in collections)
    shuffles_of = shuffles_on_disk if has_index else shuffles
    orders = [shuffles_of(graph, partition_keys) for partition_keys in keys]
    for name, order in zip(names, orders, strict=True):
        if order != orders[0] and order | orders[0]:
            raise ValueError(
                f"{name} must come from the shuffle that X comes from. Got rows of two shuffles "
                "instead, which are in no common order. Pass columns of one Dask DataFrame, not "
                "arrays made of them, or persist the frame first."
            )


def check_order(graph: Graph, keys: Sequence[Sequence[PartitionKey]]) -> None:
    """Raise for rows whose order differs from one pass to the next."""
    if any(shuffles_on_disk(graph, partition_keys) for partition_keys in keys):
        raise ValueError(
            "X must keep the order of its rows from one pass to the next. Got rows of a shuffle on "
            "disk instead, which puts them in another order each time. Persist the frame first, or "
            "shuffle with shuffle_method='tasks'."
        )
