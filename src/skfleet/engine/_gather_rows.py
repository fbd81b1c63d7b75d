"""Rows of Dask collections that come to this process, in the narrowest type of their values."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from skfleet._array import is_not_numpy, to_host
from skfleet._linalg import narrowed, row_bytes
from skfleet._typing import Table
from skfleet.blocks import (
    BlockRef,
    RowBlocks,
    is_frame,
    open_block,
    row_blocks,
    stack_rows,
    take_rows,
)
from skfleet.engine._counters import log_pass
from skfleet.engine._halving import gather_or_halve
from skfleet.engine._select import engine_for

logger = logging.getLogger(__name__)


class NarrowRows:
    """Rows of this process in a narrow type; a part that is taken of them has the original one."""

    def __init__(self, values: Any, dtype: np.dtype | None = None) -> None:
        self._values, self._dtype = values, dtype
        self.shape, self.ndim = values.shape, values.ndim
        self.nbytes = row_bytes(values) * len(self)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __sizeof__(self) -> int:
        return self.nbytes

    def __getitem__(self, key: Any) -> Any:
        numbers = key[0] if isinstance(key, tuple) and len(key) == 2 and key[1] is ... else key
        part = take_rows(self._values, numbers)
        return part if self._dtype is None else part.astype(self._dtype)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype=dtype)


def joined_blocks(*collections: Table) -> RowBlocks:
    """Return the blocks of Dask collections, one below the other, in their own containers."""
    parts = [row_blocks(X, dtype=None) for X in collections]
    blocks = tuple(block for rows in parts for block in rows.blocks)
    sizes = [rows.n_bytes for rows in parts]
    n_bytes = None if None in sizes else sum(n for n in sizes if n is not None)
    return replace(parts[0], blocks=blocks, lengths=None, n_bytes=n_bytes)


def gather_rows(rows: RowBlocks, estimator: str) -> NarrowRows:
    """Return the rows of blocks, in this process; `estimator` is the name of what needs them."""
    engine = engine_for(rows)
    load = partial(engine.map, _load_narrow, name="gather-rows")
    narrow = gather_or_halve(engine, load, rows.blocks)
    log_pass("gather-rows", len(rows.blocks), len(rows.blocks))
    filled = [part for part in narrow if part[0].shape[0]] or narrow[:1]
    gathered = NarrowRows(stack_rows([values for values, _ in filled]), filled[0][1])
    logger.info("%.1f MB of prepared rows for %s", gathered.nbytes / 1e6, estimator)
    return gathered


def _load_narrow(block_ref: BlockRef) -> tuple[Any, np.dtype | None]:
    """Return the rows of a block in a narrow type, and their own type; None for frames."""
    X = open_block(block_ref).X
    if is_frame(X):
        return X, None
    X = to_host(X) if is_not_numpy(X) else X
    return narrowed(X), X.dtype
