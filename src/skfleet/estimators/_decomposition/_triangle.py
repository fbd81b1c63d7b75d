"""The triangular factor of all rows, by QR factorisations of blocks: what a full SVD needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg

from skfleet._array import like, to_host
from skfleet._linalg import column_sums
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
    rows = to_host(block.X - like(mean, block.X)).astype(np.float64)
    return Triangle(block.n_rows, mean, _reduced(rows))


def merge_triangles(a: Triangle, b: Triangle) -> Triangle:
    """Merge those of two blocks; the difference of their means is a row of its own."""
    n_rows = a.n_rows + b.n_rows
    apart = b.mean - a.mean
    between = np.sqrt(a.n_rows * b.n_rows / n_rows) * apart
    rows = np.vstack([a.rows, b.rows, between])
    return Triangle(n_rows, a.mean + b.n_rows / n_rows * apart, _reduced(rows))


def _reduced(rows: np.ndarray) -> np.ndarray:
    """Return the triangular factor of rows, or, while they are few, the rows."""
    if len(rows) <= 2 * rows.shape[1]:
        return rows
    return linalg.qr(rows, mode="r", check_finite=False, overwrite_a=True)[0][: rows.shape[1]]


def find_triangle(engine: Engine, rows: RowBlocks) -> Triangle:
    """Reduce all rows to at most twice as many as there are columns (Demmel and others, 2012)."""
    return map_reduce(engine, Reduction(triangle, merge_triangles), rows)
