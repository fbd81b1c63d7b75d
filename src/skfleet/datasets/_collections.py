"""Dask arrays and frames of drawn rows, with a task for each block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import getitem, index
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import tokenize

from skfleet.datasets._cells import CellRows, RowDraws


def row_lengths(chunks: Any, n_samples: int, n_features: int) -> tuple[int, ...]:
    """Return the numbers of rows of blocks, or raise for chunks that cut the columns."""
    of_rows_only = not isinstance(chunks, tuple | list | dict)
    try:
        rows, columns = da.core.normalize_chunks(
            (chunks, -1) if of_rows_only else chunks, (n_samples, n_features), dtype=np.float64
        )
        rows = tuple(map(index, rows))  # no unknown ones
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(
            "chunks must be 'auto', a number of rows or bytes, or a Dask array's chunks of shape "
            f"{(n_samples, n_features)}. Got {chunks!r} instead: {error}"
        ) from error
    if len(columns) > 1:
        raise ValueError(
            "chunks must be partitioned along the first axis. Got chunks of "
            f"{columns[0]} of {n_features} columns instead. Pass a number of rows."
        )
    return rows


def drawn_collections(
    name: str, sources: Sequence[CellRows], lengths: Sequence[int], *, as_frame: bool
) -> list[Any]:
    """Return X, and y if it is drawn, as arrays or frames whose names follow from the values."""
    bounds = (0, *accumulate(lengths))
    if as_frame and len(sources) == 1:
        return _drawn_frames(name, sources[0], bounds)
    arrays: list[Any] = []
    for source in sources:
        names = [name, f"{name}-y"][len(arrays) :]
        arrays += _drawn_arrays(names, source, bounds)
    if not as_frame:
        return arrays
    return [_as_frame(x, _columns(x, i)) for i, x in enumerate(arrays)]


def _drawn_arrays(names: Sequence[str], source: CellRows, bounds: tuple[int, ...]) -> list[Any]:
    """Return the arrays that one task draws for each block."""
    token = tokenize(source, bounds)
    # What is drawn has a task of its own: workers pass on one value, not a copy with each task.
    key = f"{names[0]}-cells-{token}"
    shared = dask.delayed((source, bounds), name=key, traverse=False)
    metas, lengths = source.draws.metas, tuple(np.diff(bounds).tolist())
    if len(metas) == 1:
        options = _array_options(f"{names[0]}-{token}", metas[0], lengths)
        return [da.map_blocks(_draw_array, shared, **options)]
    drawn = da.map_blocks(
        _draw_arrays,
        shared,
        name=f"{names[0]}-rows-{token}",
        chunks=((1,) * len(lengths),),
        dtype=object,
        meta=np.empty(0, dtype=object),
    )
    return [
        drawn.map_blocks(
            getitem,
            i,
            new_axis=list(range(1, meta.ndim)),
            **_array_options(f"{name}-{token}", meta, lengths),
        )
        for i, (name, meta) in enumerate(zip(names, metas, strict=False))
    ]


def _array_options(name: str, meta: np.ndarray, lengths: tuple[int, ...]) -> dict[str, Any]:
    chunks = (lengths, *((n,) for n in meta.shape[1:]))
    return {"name": name, "chunks": chunks, "dtype": meta.dtype, "meta": meta}


@dataclass(frozen=True)
class JoinedColumns:
    """Arrays of rows side by side."""

    draws: RowDraws

    @property
    def n_draws(self) -> int:
        return self.draws.n_draws

    @property
    def metas(self) -> tuple[np.ndarray, ...]:
        return (np.column_stack(self.draws.metas),)

    def __call__(self, rng: np.random.Generator, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.column_stack(self.draws(rng, numbers)),)


# Dask passes `block_id` to tasks of chunks.


def _draw_arrays(shared: tuple[CellRows, tuple[int, ...]], block_id: Any = None) -> list[Any]:
    source, bounds = shared
    return source.between(bounds[block_id[0]], bounds[block_id[0] + 1])


def _draw_array(shared: tuple[CellRows, tuple[int, ...]], block_id: Any = None) -> Any:
    return _draw_arrays(shared, block_id)[0]


def _drawn_frames(name: str, source: CellRows, bounds: tuple[int, ...]) -> list[Any]:
    """Return the frames that one task draws for each partition: columns of a joined one.

    Frames of two arrays would have a graph each, and what the arrays share would be drawn twice.
    """
    metas = source.draws.metas
    joined = replace(source, draws=JoinedColumns(source.draws))
    (array,) = _drawn_arrays([name], joined, bounds)
    columns = [_columns(meta, i) for i, meta in enumerate(metas)]
    frame = _as_frame(array, np.hstack(columns).tolist())
    parts = zip(columns, metas, strict=True)
    return [frame[of_part].astype(meta.dtype) for of_part, meta in parts]


def _columns(x: Any, i: int) -> Any:
    """Return the names of the columns of X or y, which are first and second."""
    prefix = "target" if i else "x"
    return prefix if x.ndim == 1 else [f"{prefix}{k}" for k in range(x.shape[1])]


def _as_frame(x: Any, columns: Any) -> Any:
    """Return an array as a frame, or a Series if it has one dimension, numbered by row."""
    import dask.dataframe as dd

    return dd.from_dask_array(x, columns=columns)
