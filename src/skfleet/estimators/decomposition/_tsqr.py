"""TSQR: the triangular factor of all rows, by QR factorisations of blocks."""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import FLOAT64, astype, dtype_of
from skfleet._linalg import column_sums, qr_r, vstack
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import Engine, Reduction, map_reduce


class TriangularFactor(NamedTuple):
    """Mean of rows, and rows with the products of the centred rows."""

    n_rows: int
    mean: np.ndarray
    rows: np.ndarray


def local_r(block: Block) -> TriangularFactor:
    """Return the triangular factor of the centred rows of a block."""
    mean = column_sums(block.X) / block.n_rows
    rows = block.X - astype(mean, dtype_of(block.X))
    return TriangularFactor(block.n_rows, mean, astype(_reduce_rows(rows), FLOAT64))


def combine_r(a: TriangularFactor, b: TriangularFactor) -> TriangularFactor:
    """Combine the factors of two blocks; the difference of their means adds one row."""
    n_rows = a.n_rows + b.n_rows
    delta = b.mean - a.mean
    between = sqrt(a.n_rows * b.n_rows / n_rows) * delta
    rows = vstack([a.rows, b.rows, between[None, :]])
    return TriangularFactor(n_rows, a.mean + b.n_rows / n_rows * delta, _reduce_rows(rows))


def _reduce_rows(rows: Any) -> Any:
    """Return the triangular factor of rows, or the rows while they are few."""
    return rows if rows.shape[0] <= 2 * rows.shape[1] else qr_r(rows)


def tsqr(engine: Engine, rows: RowBlocks) -> TriangularFactor:
    """Reduce all rows to at most twice as many as there are columns (Demmel et al., 2012)."""
    return map_reduce(engine, Reduction(local_r, combine_r), rows)
