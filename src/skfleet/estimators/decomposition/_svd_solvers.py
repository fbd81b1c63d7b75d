"""SVD solvers: covariance eigendecomposition, TSQR, randomized."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import linalg
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from skfleet._validation import check_in_interval, check_option, check_positive_int
from skfleet._warnings import warn
from skfleet.blocks import RowBlocks
from skfleet.engine import Engine, Reduction, limit_threadpools, map_reduce
from skfleet.estimators.decomposition._randomized_svd import leading_singular_vectors
from skfleet.estimators.decomposition._tsqr import tsqr
from skfleet.glm import block_cross_products, combine_products, max_gram_columns

NORMALIZERS = ("auto", "QR", "LU", "none")
# Up to these widths, a covariance matrix costs less than a few passes.
MAX_COVARIANCE_COLUMNS, MAX_SPARSE_COVARIANCE_COLUMNS = 2000, 1000
# Stopping rule of solvers without a number of iterations: a relative residual, or passes.
EXACT_TOL, MAX_PASSES = 1e-10, 100


class SVDResult(NamedTuple):
    """Leading singular values and right singular vectors, by rows; moments of all columns."""

    n_rows: int
    mean: np.ndarray
    squares: float  # sum of squares about the mean
    values: np.ndarray
    vectors: np.ndarray
    n_iter: int = 0


def check_randomized_parameters(estimator: Any) -> None:
    """Raise for invalid parameters of the randomized solver."""
    check_positive_int("n_oversamples", estimator.n_oversamples)
    check_in_interval("tol", estimator.tol, 0)
    normalizer = estimator.power_iteration_normalizer
    check_option("power_iteration_normalizer", normalizer, NORMALIZERS)


def max_covariance_columns(rows: RowBlocks) -> int:
    """Return the number of columns up to which a covariance costs less than a few passes."""
    return MAX_SPARSE_COVARIANCE_COLUMNS if rows.is_sparse else MAX_COVARIANCE_COLUMNS


def check_covariance_size(rows: RowBlocks, name: str, value: str, *, dense: bool) -> None:
    """Raise where a matrix of columns by columns is too large, or rows must not be sparse."""
    if dense and rows.is_sparse:
        raise TypeError(
            f"{name} must be another than {value!r} for sparse rows. Take 'arpack' or 'randomized'."
        )
    if rows.n_features > max_gram_columns(rows):
        raise ValueError(
            f"X must have at most {max_gram_columns(rows)} columns for {name}={value!r}, and for "
            f"all components. Got {rows.n_features} instead. Give n_components a number, and take "
            f"{name}='randomized'."
        )


def svd_from_covariance(
    engine: Engine, rows: RowBlocks, n: int | None, *, centred: bool
) -> SVDResult:
    """Return n (or all) eigenvectors of the covariance, or of X.T @ X."""
    sums = map_reduce(engine, Reduction(block_cross_products, combine_products), rows)
    n_rows, n_columns = int(sums.weight), rows.n_features
    squares = float(np.trace(sums.gram))
    gram = sums.gram if centred else sums.uncentered().gram
    # LAPACK computes more than a quarter of the eigenvectors as slowly as all.
    subset = [n_columns - n, n_columns - 1] if n and n < n_columns / 4 else None
    values, vectors = linalg.eigh(gram, subset_by_index=subset)
    least = min(n_rows, n_columns)
    values, vectors = values[::-1][:least], vectors[:, ::-1][:, :least]
    return SVDResult(n_rows, sums.x_mean, squares, np.sqrt(np.maximum(values, 0.0)), vectors.T)


def svd_from_tsqr(engine: Engine, rows: RowBlocks, *, centred: bool) -> SVDResult:
    """Return the SVD of the triangular factor of all rows."""
    factor = tsqr(engine, rows)
    reduced = factor.rows
    if not centred:
        # One row for the mean turns products about the mean into those about zero.
        reduced = np.vstack([reduced, np.sqrt(factor.n_rows) * factor.mean])
    _, values, vectors = linalg.svd(reduced, full_matrices=False)
    max_rank = min(factor.n_rows, rows.n_features)
    squares = float(np.sum(factor.rows**2))
    return SVDResult(factor.n_rows, factor.mean, squares, values[:max_rank], vectors[:max_rank])


def svd_randomized(
    engine: Engine, rows: RowBlocks, n: int, estimator: Any, *, centred: bool, n_iter: int | None
) -> SVDResult:
    """Return n leading singular vectors by power iterations, with an estimator's parameters.

    For `n_iter` of None, iterate until convergence.
    """
    tol = estimator.tol or EXACT_TOL
    with limit_threadpools(1):  # the threads of a small product would keep spinning
        leading = leading_singular_vectors(
            engine,
            rows,
            n,
            centred=centred,
            n_oversamples=estimator.n_oversamples,
            n_iter=MAX_PASSES if n_iter is None else n_iter,
            tol=tol,
            rng=check_random_state(estimator.random_state),
        )
    if n_iter is None and leading.n_iter == MAX_PASSES and leading.residual > tol:
        warn(
            f"{type(estimator).__name__} did not converge in {MAX_PASSES} passes: a residual is "
            f"{leading.residual:.1e} of its eigenvalue. Ask for fewer components, or raise tol.",
            ConvergenceWarning,
        )
    columns = leading.columns
    squares = float(columns.squares.sum())
    return SVDResult(
        int(columns.n_rows), columns.mean, squares, leading.values, leading.vectors, leading.n_iter
    )
