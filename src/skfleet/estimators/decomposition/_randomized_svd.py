"""Leading singular vectors by passes over the rows: randomized, and block Lanczos from there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from skfleet._array import FLOAT64, astype, dtype_of, namespace, to_device_of
from skfleet._linalg import dot
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import Engine, Reduction, map_reduce
from skfleet.estimators._column_statistics import Moments, merge_moments, moments

# What the basis and its products may take in the driver before the basis is cut back.
MOST_BYTES = 2**30
# Directions shorter than this share of what they were made of are nothing but rounding.
LEAST_SHARE = 1e-10
# Eigenvalues below this share of the largest are nothing but rounding.
LEAST_VALUE = 1e-13


class FirstSketch(NamedTuple):
    """Moments of the columns, and products of the rows about their mean with a basis."""

    columns: Moments
    along: np.ndarray  # the mean times the basis
    product: np.ndarray


def first_sketch(block: Block, basis: np.ndarray) -> FirstSketch:
    """Sketch a block about its own mean, as that of all rows is not known yet."""
    columns = moments(block)
    return FirstSketch(columns, dot(columns.mean, basis), sketch(block, basis, columns.mean))


def merge_first_sketches(a: FirstSketch, b: FirstSketch) -> FirstSketch:
    """Merge the sketches of two blocks (Chan, Golub and LeVeque, 1983)."""
    n_rows = a.columns.n_rows + b.columns.n_rows
    share = b.columns.n_rows / n_rows
    apart, apart_along = b.columns.mean - a.columns.mean, b.along - a.along
    product = a.product + b.product
    product += a.columns.n_rows * share * apart[:, None] * apart_along[None, :]
    columns = merge_moments(a.columns, b.columns)
    return FirstSketch(columns, a.along + share * apart_along, product)


def sketch(block: Block, basis: np.ndarray, mean: Any) -> Any:
    """Return Z.T @ Z @ basis for the rows Z of a block about a mean, which are never made."""
    along, mean = dot(block.X, basis), to_device_of(mean, block.X)
    xp = namespace(along)
    along -= astype(dot(mean, basis), dtype_of(along))
    product = astype(block.X.T @ along, FLOAT64)
    sums = xp.sum(along, axis=0, dtype=xp.float64)
    return product - mean[:, None] * sums[None, :]


class Leading(NamedTuple):
    """Leading singular values and right singular vectors, by rows, with what came along."""

    columns: Moments
    values: np.ndarray
    vectors: np.ndarray
    n_iter: int
    residual: float  # the largest of the vectors' residuals, each as a share of its eigenvalue


def find_leading(
    engine: Engine,
    rows: RowBlocks,
    n: int,
    *,
    centred: bool,
    n_oversamples: int,
    n_iter: int,
    tol: float,
    rng: np.random.RandomState,
) -> Leading:
    """Find the n leading right singular vectors of the rows (about their mean, where `centred`).

    Each pass multiplies a block of vectors by the rows' products X.T @ X. The first block is random
    (Halko, Martinsson and Tropp, 2011, section 4), the next ones are what the last pass added to
    the basis, all of which is used (Musco and Musco, 2015, algorithm 2): one pass, and one more for
    each of `n_iter` power iterations, or fewer, once the residuals are within `tol`. The products
    of a pass are used twice: for the next block, and for vectors half a step ahead of it.
    """
    width = min(n + n_oversamples, rows.n_features)
    block = linalg.qr(rng.normal(size=(rows.n_features, width)), mode="economic")[0]
    first = map_reduce(engine, Reduction(first_sketch, merge_first_sketches), rows, block)
    columns, product = first.columns, first.product
    rows = replace(rows, checked=True)
    basis = products = np.empty((rows.n_features, 0))
    for done in range(n_iter + 1):
        if done:
            product = map_reduce(engine, Reduction(sketch), rows, block, columns.mean)
        if not centred:
            product = product + columns.n_rows * np.outer(columns.mean, columns.mean @ block)
        basis, products = np.hstack([basis, block]), np.hstack([products, product])
        values, inner = linalg.eigh(_symmetric(basis.T @ products))
        values, inner = values[::-1], inner[:, ::-1]
        residual = _residual(basis, products, values[:n], inner[:, :n])
        if residual <= tol or done == n_iter:
            break
        block = _new_directions(basis, product)
        if block.shape[1] == 0:
            break  # the basis holds all that there is
        if 2 * basis.nbytes > MOST_BYTES:
            basis, products = basis @ inner[:, :width], products @ inner[:, :width]
    singular, vectors = _half_a_step(basis, products, values[:width], inner[:, :width])
    return Leading(columns, singular[:n], vectors[:n], done, residual)


def _residual(
    basis: np.ndarray, products: np.ndarray, values: np.ndarray, inner: np.ndarray
) -> float:
    """Return how far off vectors in a basis are, at most, as a share of their eigenvalues."""
    off = products @ inner - (basis @ inner) * values
    least = max(values[0] * np.finfo(np.float64).eps, np.finfo(np.float64).tiny)
    return float(np.max(np.sqrt(np.sum(off**2, axis=0)) / np.maximum(values, least)))


def _half_a_step(
    basis: np.ndarray, products: np.ndarray, values: np.ndarray, inner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return singular values and right singular vectors of what the rows are along a basis.

    With Q an orthonormal basis of X @ basis, Q.T @ X follows from the products: it is what they are
    in terms of the eigenvectors of basis.T @ products, over the roots of the eigenvalues. Its row
    space is half a power iteration ahead of the basis.
    """
    kept = values > LEAST_VALUE * values[0]
    nothing = basis @ inner[:, ~kept]  # directions in which there is nothing but rounding
    if not kept.any():
        return np.zeros(len(values)), nothing.T
    projected = products @ (inner[:, kept] / np.sqrt(values[kept]))
    vectors, singular, _ = linalg.svd(projected, full_matrices=False)
    if not kept.all():
        nothing = _new_directions(vectors, nothing)
        vectors = np.hstack([vectors, nothing])
        singular = np.append(singular, np.zeros(nothing.shape[1]))
    return singular, vectors.T


def _symmetric(product: np.ndarray) -> np.ndarray:
    """Return a product that is symmetric but for rounding without its rounding."""
    return (product + product.T) / 2


def _new_directions(basis: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of what a product adds to a basis."""
    added = _of_unit_length(product, 0.0)
    for _ in range(2):  # once is not enough for orthogonality to the last digit
        added -= basis @ (basis.T @ added)
    added = _of_unit_length(added, LEAST_SHARE)
    for _ in range(2):  # and nor is an eigendecomposition of their products
        values, inner = linalg.eigh(added.T @ added)
        kept = values > LEAST_VALUE * values.max(initial=0.0)
        added = added @ (inner[:, kept] / np.sqrt(values[kept]))
        added -= basis @ (basis.T @ added)
    return added


def _of_unit_length(vectors: np.ndarray, least: float) -> np.ndarray:
    """Return columns scaled to unit length, without those that are no longer than `least`."""
    lengths = np.sqrt(np.einsum("ij,ij->j", vectors, vectors))
    kept = lengths > least
    return vectors[:, kept] / lengths[kept]
