"""Leading singular vectors by randomized SVD and block Krylov iterations over the rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from skfleet._array import FLOAT64, astype, dtype_of, to_device_of
from skfleet._linalg import dot, sums_down
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import Engine, Reduction, map_reduce
from skfleet.estimators._column_statistics import Moments, combine_moments, moments

# Memory of basis and products in the driver above which the basis is truncated.
MAX_BASIS_BYTES = 2**30
# Shorter vectors are rounding errors.
MIN_RELATIVE_LENGTH = 1e-10
# Smaller eigenvalues are rounding errors.
MIN_RELATIVE_EIGENVALUE = 1e-13


class FirstSketch(NamedTuple):
    """Moments of the columns, and products of the rows about their mean with a basis."""

    columns: Moments
    mean_product: np.ndarray  # the mean times the basis
    product: np.ndarray


def first_sketch(block: Block, basis: np.ndarray) -> FirstSketch:
    """Sketch a block about its own mean, as the mean of all rows is not known yet."""
    columns = moments(block)
    return FirstSketch(columns, dot(columns.mean, basis), sketch(block, basis, columns.mean))


def combine_first_sketches(a: FirstSketch, b: FirstSketch) -> FirstSketch:
    """Combine the sketches of two blocks (Chan, Golub and LeVeque, 1983)."""
    n_rows = a.columns.n_rows + b.columns.n_rows
    fraction = b.columns.n_rows / n_rows
    delta, delta_product = b.columns.mean - a.columns.mean, b.mean_product - a.mean_product
    product = a.product + b.product
    product += a.columns.n_rows * fraction * delta[:, None] * delta_product[None, :]
    columns = combine_moments(a.columns, b.columns)
    return FirstSketch(columns, a.mean_product + fraction * delta_product, product)


def sketch(block: Block, basis: np.ndarray, mean: Any) -> Any:
    """Return Z.T @ Z @ basis for the centred rows Z of a block, without materialising Z."""
    mean_product, mean = dot(block.X, basis), to_device_of(mean, block.X)
    mean_product -= astype(dot(mean, basis), dtype_of(mean_product))
    product = astype(block.X.T @ mean_product, FLOAT64)
    sums = sums_down(mean_product)
    return product - mean[:, None] * sums[None, :]


class LeadingVectors(NamedTuple):
    """Leading singular values and right singular vectors, by rows, and column moments."""

    columns: Moments
    values: np.ndarray
    vectors: np.ndarray
    n_iter: int
    residual: float  # the largest of the vectors' residuals, each as a fraction of its eigenvalue


def leading_singular_vectors(
    engine: Engine,
    rows: RowBlocks,
    n: int,
    *,
    centred: bool,
    n_oversamples: int,
    n_iter: int,
    tol: float,
    rng: np.random.RandomState,
) -> LeadingVectors:
    """Return the n leading right singular vectors of the rows (about their mean, where `centred`).

    Each pass multiplies a block of vectors by the rows' products X.T @ X. The first block is random
    (Halko, Martinsson and Tropp, 2011, section 4), the next ones are what the last pass added to
    the basis, all of which is used (Musco and Musco, 2015, algorithm 2): one pass, and one more for
    each of `n_iter` power iterations, or fewer, once the residuals are within `tol`. The products
    of a pass are used twice: for the next block, and for vectors half a step ahead of it.
    """
    width = min(n + n_oversamples, rows.n_features)
    block = linalg.qr(rng.normal(size=(rows.n_features, width)), mode="economic")[0]
    first = map_reduce(engine, Reduction(first_sketch, combine_first_sketches), rows, block)
    columns, product = first.columns, first.product
    rows = replace(rows, checked=True)
    basis = products = np.empty((rows.n_features, 0))
    for done in range(n_iter + 1):
        if done:
            product = map_reduce(engine, Reduction(sketch), rows, block, columns.mean)
        # Sketches about the mean lose no digits; the part of the mean is added to them.
        if not centred:
            product = product + columns.n_rows * np.outer(columns.mean, columns.mean @ block)
        basis, products = np.hstack([basis, block]), np.hstack([products, product])
        projected = basis.T @ products
        values, inner = linalg.eigh((projected + projected.T) / 2)
        values, inner = values[::-1], inner[:, ::-1]
        residual = _residual(basis, products, values[:n], inner[:, :n])
        if residual <= tol or done == n_iter:
            break
        block = _new_directions(basis, product)
        if block.shape[1] == 0:
            break  # the basis holds all that there is
        if 2 * basis.nbytes > MAX_BASIS_BYTES:
            # A restart from the leading Ritz vectors, which bounds the memory.
            basis, products = basis @ inner[:, :width], products @ inner[:, :width]
    singular, vectors = _rayleigh_ritz_half_step(basis, products, values[:width], inner[:, :width])
    return LeadingVectors(columns, singular[:n], vectors[:n], done, residual)


def _residual(
    basis: np.ndarray, products: np.ndarray, values: np.ndarray, inner: np.ndarray
) -> float:
    """Return the largest residual of Ritz vectors, relative to their eigenvalues."""
    residuals = products @ inner - (basis @ inner) * values
    least = max(values[0] * np.finfo(np.float64).eps, np.finfo(np.float64).tiny)
    return float(np.max(np.sqrt(np.sum(residuals**2, axis=0)) / np.maximum(values, least)))


def _rayleigh_ritz_half_step(
    basis: np.ndarray, products: np.ndarray, values: np.ndarray, inner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return singular values and right singular vectors of the rows projected on a basis.

    With Q an orthonormal basis of X @ basis, Q.T @ X follows from the products: it is what they are
    in terms of the eigenvectors of basis.T @ products, over the roots of the eigenvalues. Its row
    space is half a power iteration ahead of the basis.
    """
    is_positive = values > MIN_RELATIVE_EIGENVALUE * values[0]
    null_space = basis @ inner[:, ~is_positive]
    if not is_positive.any():
        return np.zeros(len(values)), null_space.T
    projected = products @ (inner[:, is_positive] / np.sqrt(values[is_positive]))
    vectors, singular, _ = linalg.svd(projected, full_matrices=False)
    if not is_positive.all():
        null_space = _new_directions(vectors, null_space)
        vectors = np.hstack([vectors, null_space])
        singular = np.append(singular, np.zeros(null_space.shape[1]))
    return singular, vectors.T


def _new_directions(basis: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the part of a product outside a basis."""
    added = _normalize_columns(product, 0.0)
    for _ in range(2):  # once is not enough for orthogonality to the last digit
        added -= basis @ (basis.T @ added)
    added = _normalize_columns(added, MIN_RELATIVE_LENGTH)
    for _ in range(2):  # and nor is an eigendecomposition of their products
        values, inner = linalg.eigh(added.T @ added)
        is_positive = values > MIN_RELATIVE_EIGENVALUE * values.max(initial=0.0)
        added = added @ (inner[:, is_positive] / np.sqrt(values[is_positive]))
        added -= basis @ (basis.T @ added)
    return added


def _normalize_columns(vectors: np.ndarray, least: float) -> np.ndarray:
    """Return columns scaled to unit length, without those of length up to `least`."""
    lengths = np.sqrt(np.einsum("ij,ij->j", vectors, vectors))
    is_positive = lengths > least
    return vectors[:, is_positive] / lengths[is_positive]
