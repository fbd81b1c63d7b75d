"""Singular values and vectors of all rows, in each of three ways."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import linalg
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from skfleet._linalg import is_sparse_kind
from skfleet._validation import check_in_interval, check_option, check_positive_int
from skfleet._warnings import warn
from skfleet.blocks import RowBlocks
from skfleet.engine import Engine, Reduction, limit_threadpools, map_reduce
from skfleet.estimators.decomposition._randomized_svd import find_leading
from skfleet.estimators.decomposition._tsqr import find_triangle
from skfleet.glm._normal_equations import combine_products, max_gram_columns, products

NORMALIZERS = ("auto", "QR", "LU", "none")
# Where there is a choice, products of all columns with all are taken for up to so many of them.
FEW_COLUMNS, FEW_SPARSE_COLUMNS = 2000, 1000
# Passes that are to be exact end when residuals are within this share, or after so many.
EXACT, MOST_PASSES = 1e-10, 100


class Spectrum(NamedTuple):
    """Leading singular values and right singular vectors, by rows; moments of all columns."""

    n_rows: int
    mean: np.ndarray
    squares: float  # sum of squares about the mean
    values: np.ndarray
    vectors: np.ndarray
    n_iter: int = 0


def check_passes(estimator: Any) -> None:
    """Raise for parameters of passes that cannot be."""
    check_positive_int("n_oversamples", estimator.n_oversamples)
    check_in_interval("tol", estimator.tol, 0)
    normalizer = estimator.power_iteration_normalizer
    check_option("power_iteration_normalizer", normalizer, NORMALIZERS)


def few_columns(X: Any) -> int:
    """Return up to how many columns products of all with all cost less than a few passes."""
    return FEW_SPARSE_COLUMNS if is_sparse_kind(X) else FEW_COLUMNS


def check_all_columns(rows: RowBlocks, X: Any, name: str, value: str, *, dense: bool) -> None:
    """Raise where a matrix of all columns by all would be too large, or rows may not be sparse."""
    if dense and is_sparse_kind(X):
        raise TypeError(
            f"{name} must be another than {value!r} for sparse rows. Take 'arpack' or 'randomized'."
        )
    if rows.n_features > max_gram_columns(X):
        raise ValueError(
            f"X must have at most {max_gram_columns(X)} columns for {name}={value!r}, and for all "
            f"components. Got {rows.n_features} instead. Give n_components a number, and take "
            f"{name}='randomized'."
        )


def from_products(engine: Engine, rows: RowBlocks, n: int | None, *, centred: bool) -> Spectrum:
    """Return eigenvectors of the products of all columns with all, n of them or all."""
    sums = map_reduce(engine, Reduction(products, combine_products), rows)
    n_rows, n_columns = int(sums.weight), rows.n_features
    squares = float(np.trace(sums.gram))
    gram = sums.gram if centred else sums.about_zero().gram
    # A quarter of them takes as long as all.
    subset = [n_columns - n, n_columns - 1] if n and n < n_columns / 4 else None
    values, vectors = linalg.eigh(gram, subset_by_index=subset)
    least = min(n_rows, n_columns)
    values, vectors = values[::-1][:least], vectors[:, ::-1][:, :least]
    return Spectrum(n_rows, sums.x_mean, squares, np.sqrt(np.maximum(values, 0.0)), vectors.T)


def from_triangle(engine: Engine, rows: RowBlocks, *, centred: bool) -> Spectrum:
    """Return the singular vectors of the triangular factor of all rows."""
    found = find_triangle(engine, rows)
    reduced = found.rows
    if not centred:
        reduced = np.vstack([reduced, np.sqrt(found.n_rows) * found.mean])
    _, values, vectors = linalg.svd(reduced, full_matrices=False)
    least = min(found.n_rows, rows.n_features)
    squares = float(np.sum(found.rows**2))
    return Spectrum(found.n_rows, found.mean, squares, values[:least], vectors[:least])


def from_passes(
    engine: Engine, rows: RowBlocks, n: int, estimator: Any, *, centred: bool, n_iter: int | None
) -> Spectrum:
    """Return n leading vectors, found by passes as an estimator's parameters say.

    Without a number of power iterations there are as many as it takes.
    """
    tol = estimator.tol or EXACT
    with limit_threadpools(1):  # those of a small product would go on to wait for another one
        found = find_leading(
            engine,
            rows,
            n,
            centred=centred,
            n_oversamples=estimator.n_oversamples,
            n_iter=MOST_PASSES if n_iter is None else n_iter,
            tol=tol,
            rng=check_random_state(estimator.random_state),
        )
    if n_iter is None and found.n_iter == MOST_PASSES and found.residual > tol:
        warn(
            f"{type(estimator).__name__} did not converge in {MOST_PASSES} passes: a residual is "
            f"{found.residual:.1e} of its eigenvalue. Ask for fewer components, or raise tol.",
            ConvergenceWarning,
        )
    columns = found.columns
    squares = float(columns.squares.sum())
    return Spectrum(
        int(columns.n_rows), columns.mean, squares, found.values, found.vectors, found.n_iter
    )
