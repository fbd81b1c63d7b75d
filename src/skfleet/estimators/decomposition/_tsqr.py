"""The triangular factor of all rows, by QR factorisations of blocks: what a full SVD needs."""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import FLOAT64, astype, dtype_of
from skfleet._linalg import column_sums, qr_r, vstack
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import Engine, Reduction, map_reduce


class Triangle(NamedTuple):
    """Rows about their mean, or fewer rows with the same products."""

    n_rows: int
    mean: np.ndarray
    rows: np.ndarray


def triangle(block: Block) -> Triangle:
    """Return the triangular factor of a block's rows about their mean."""
    mean = column_sums(block.X) / block.n_rows
    rows = block.X - astype(mean, dtype_of(block.X))
    return Triangle(block.n_rows, mean, astype(_reduced(rows), FLOAT64))


def merge_triangles(a: Triangle, b: Triangle) -> Triangle:
    """Merge those of two blocks; the difference of their means is a row of its own."""
    n_rows = a.n_rows + b.n_rows
    apart = b.mean - a.mean
    between = sqrt(a.n_rows * b.n_rows / n_rows) * apart
    rows = vstack([a.rows, b.rows, between[None, :]])
    return Triangle(n_rows, a.mean + b.n_rows / n_rows * apart, _reduced(rows))


def _reduced(rows: Any) -> Any:
    """Return the triangular factor of rows, or, while they are few, the rows."""
    if rows.shape[0] <= 2 * rows.shape[1]:
        return rows
    return qr_r(rows)


def find_triangle(engine: Engine, rows: RowBlocks) -> Triangle:
    """Reduce all rows to at most twice as many as there are columns (Demmel and others, 2012)."""
    return map_reduce(engine, Reduction(triangle, merge_triangles), rows)
