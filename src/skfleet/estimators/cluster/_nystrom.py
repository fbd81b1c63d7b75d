"""Eigenvectors of the normalised affinity of all rows, by the Nystroem method."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from skfleet._array import FLOAT64, asarray_like, astype, namespace
from skfleet._linalg import column_sums, dot, gram, row_norms, vstack
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import Engine, Reduction, add, map_reduce
from skfleet.estimators.cluster._affinity import Affinity, row_pieces

# Directions of the landmarks' affinity, or of the features' Gram matrix, with a smaller share of
# the largest eigenvalue are rounding.
MIN_EIGENVALUE = 1e-10
# Degrees below this fraction of their terms are rounding.
MIN_DEGREE = 1e-14


class Landmarks(NamedTuple):
    r"""Landmarks, and features :math:`f(x) = T^T k(x)` of the affinities of rows to them.

    With :math:`W = U \Lambda U^T` between landmarks and :math:`T = U |\Lambda|^{-1/2}` the
    approximate affinity of two rows is :math:`f(x)^T S f(z)`, where :math:`S` has the signs of the
    eigenvalues. `degrees` are the weights of the affinities in a row's approximate degree.
    """

    affinity: Affinity
    rows: Any
    whitening: np.ndarray
    signs: np.ndarray
    degrees: np.ndarray

    @classmethod
    def from_sums(cls, affinity: Affinity, rows: Any, sums: np.ndarray) -> Landmarks:
        """Return the landmarks with the sums of all rows' affinities to them."""
        between = affinity(rows, rows)
        # The affinities of a callable may be symmetric to rounding only.
        values, vectors = linalg.eigh((between + between.T) / 2)
        chosen = np.abs(values) > MIN_EIGENVALUE * np.max(np.abs(values))
        values, vectors = values[chosen], vectors[:, chosen]
        whitening, signs = vectors / np.sqrt(np.abs(values)), np.sign(values)
        degrees = (whitening * signs) @ (whitening.T @ sums)
        return cls(affinity, rows, whitening, signs, degrees)

    def inverse_degrees(self, affinities: Any) -> Any:
        """Return the inverse degrees of rows from their affinities to the landmarks.

        They are 0 for rows without a degree.
        """
        xp = namespace(affinities)
        degrees = affinities @ asarray_like(self.degrees, affinities)
        least = MIN_DEGREE * float(np.linalg.norm(self.degrees)) * xp.sqrt(row_norms(affinities))
        one = xp.ones_like(degrees)
        return xp.where(degrees > least, one / xp.where(degrees > least, degrees, one), 0 * one)


class NormalizedProducts(NamedTuple):
    """Sums over rows for the eigenvectors and their residuals.

    `gram` has the products of the features over the degree, `cross` those of the affinities to the
    validation rows with them; `n_isolated` is the number of rows without a degree.
    """

    gram: Any
    cross: Any
    n_isolated: Any


class Embedding(NamedTuple):
    """Eigenvectors of all rows, as a map of a row's affinities to the landmarks."""

    landmarks: Landmarks
    weights: np.ndarray  # of the affinities, by coordinate

    def __call__(self, X: Any) -> Any:
        """Return the coordinates of rows, on their device: zeros for rows without a degree."""
        parts = []
        for piece in row_pieces(X, self.landmarks.rows.shape[0]):
            affinities = self.landmarks.affinity(piece, self.landmarks.rows)
            inverse = self.landmarks.inverse_degrees(affinities)
            parts.append(dot(affinities, self.weights) * inverse[:, None])
        return vstack(parts)


class Spectrum(NamedTuple):
    """Eigenvalues in decreasing order, the embedding, residuals, rows without a degree."""

    values: np.ndarray
    embedding: Embedding
    residuals: np.ndarray
    n_isolated: int


def sum_affinities(block: Block, affinity: Affinity, points: Any) -> Any:
    """Return the sums of the affinities of a block's rows to each point."""
    pieces = row_pieces(block.X, points.shape[0])
    return reduce(add, (column_sums(affinity(piece, points)) for piece in pieces))


def normalized_products(block: Block, landmarks: Landmarks, points: Any) -> NormalizedProducts:
    """Return the sums of a block; points are the landmarks and then the validation rows."""
    n_landmarks = landmarks.rows.shape[0]

    def products(piece: Any) -> NormalizedProducts:
        affinities = landmarks.affinity(piece, points)
        to_landmarks = affinities[:, :n_landmarks]
        features = dot(to_landmarks, landmarks.whitening)
        inverse = landmarks.inverse_degrees(to_landmarks)
        n_isolated = namespace(features).sum(astype(inverse == 0, FLOAT64))
        cross = affinities[:, n_landmarks:].T @ (features * inverse[:, None])
        return NormalizedProducts(gram(features, inverse), cross, n_isolated)

    return reduce(add, map(products, row_pieces(block.X, points.shape[0])))


def nystrom_spectrum(
    engine: Engine,
    rows: RowBlocks,
    affinity: Affinity,
    points: Any,
    n_landmarks: int,
    n_components: int,
) -> Spectrum:
    r"""Return the leading eigenvectors of the normalised approximate affinity, in two passes.

    The matrix is :math:`F S F^T` for the rows :math:`f(x) / \sqrt{d(x)}` of F. With its Gram matrix
    :math:`G = R R^T` the eigenvectors Z of :math:`R^T S R` give those of all rows,
    :math:`F R^{-T} Z` (Fowlkes et al., 2004, in two steps, for affinities of any sign).
    """
    sums = map_reduce(engine, Reduction(sum_affinities), rows, affinity, points)
    landmarks = Landmarks.from_sums(affinity, points[:n_landmarks], sums[:n_landmarks])
    reduction = Reduction(normalized_products)
    products = map_reduce(engine, reduction, rows, landmarks, points)
    values, vectors = linalg.eigh(products.gram)
    chosen = values > max(MIN_EIGENVALUE**2 * values[-1], 0.0)
    if not chosen.any():
        raise ValueError(
            "affinity must give the rows positive sums. Got none above 0 instead. Scale the "
            "columns, lower gamma, or take 'rbf'."
        )
    root, inverse_root = (vectors[:, chosen] * values[chosen] ** p for p in (0.5, -0.5))
    n = root.shape[1]
    leading = [max(0, n - n_components), n - 1]
    values, vectors = linalg.eigh((root.T * landmarks.signs) @ root, subset_by_index=leading)
    values, vectors = values[::-1], vectors[:, ::-1]
    projection = inverse_root @ vectors
    embedding = Embedding(landmarks, landmarks.whitening @ projection)
    validation = (points[n_landmarks:], sums[n_landmarks:], products.cross @ projection)
    residuals = eigenpair_residuals(embedding, values, *validation)
    return Spectrum(values, embedding, residuals, int(products.n_isolated))


def eigenpair_residuals(
    embedding: Embedding, values: np.ndarray, rows: Any, degrees: np.ndarray, products: np.ndarray
) -> np.ndarray:
    r"""Return the residuals of eigenpairs of the exact matrix, estimated on validation rows.

    For coordinates u and :math:`v = D^{1/2} u` that is
    :math:`\|D^{-1/2} K D^{-1/2} v - \lambda v\| / \|v\|`, with both norms over the validation rows:
    their exact `degrees` and `products` K u were summed over all rows. It is infinite where the
    vector is zero on all of them.
    """
    coordinates, is_positive = embedding(rows), degrees > 0
    weights, safe = np.where(is_positive, degrees, 0.0), np.where(is_positive, degrees, 1.0)
    errors = products / safe[:, None] - values * coordinates
    with np.errstate(divide="ignore", invalid="ignore"):
        residuals = np.sqrt((weights @ errors**2) / (weights @ coordinates**2))
    return np.where(np.isnan(residuals), np.inf, residuals)
