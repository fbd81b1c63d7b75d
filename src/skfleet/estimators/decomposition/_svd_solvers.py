"""SVD solvers: covariance eigendecomposition, TSQR, randomized."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from skfleet._array import FLOAT64
from skfleet._validation import check_in_interval, check_option, check_positive_int
from skfleet._warnings import warn
from skfleet.blocks import RowBlocks
from skfleet.engine import Engine, limit_threadpools, map_reduce
from skfleet.estimators.decomposition._randomized_svd import leading_singular_vectors
from skfleet.glm import (
    MAX_CONDITIONS,
    MAX_FACTOR_COLUMNS,
    MAX_KNOWN_CONDITION,
    block_cross_products,
    combine_products,
    compute_row_factor,
    max_gram_columns,
    product_reduction,
    products_take_whole,
)

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
    """Return n (or all) eigenvectors of the covariance, or of X.T @ X.

    Small ones next to the largest are rounding of the products. Where n of them are asked for, or
    rows are in single precision, these come from products in double precision, or from a triangular
    factor, in one more pass. All of few rows do at once.
    """
    has_few = rows.n_rows is not None and rows.n_rows <= rows.n_features
    if has_few and (n is None or n > rows.n_features / 4):
        return svd_from_factor(engine, rows, centred=centred)
    with np.errstate(over="ignore", invalid="ignore"):
        svd = _svd_of_products(engine, rows, n, centred=centred)
    assert rows.dtype is not None
    values = svd.values if n is None else svd.values[:n]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.square(values[0] / values[-1]) if values.size else 1.0
    if ratio <= MAX_CONDITIONS[rows.dtype.name] or (n is None and rows.dtype == FLOAT64):
        return svd
    rows = replace(rows, checked=True)
    if ratio <= MAX_KNOWN_CONDITION or rows.n_features > MAX_FACTOR_COLUMNS:
        rows = replace(rows, dtype=FLOAT64)
        return _svd_of_products(engine, rows, n, centred=centred)
    return svd_from_factor(engine, rows, centred=centred)


def _svd_of_products(engine: Engine, rows: RowBlocks, n: int | None, *, centred: bool) -> SVDResult:
    whole = products_take_whole(rows)
    reduction = product_reduction(block_cross_products, rows, combine_products, whole)
    sums = map_reduce(engine, reduction, rows)
    n_rows, n_columns = int(sums.weight), rows.n_features
    squares = float(np.trace(sums.gram))
    gram = sums.gram if centred else sums.uncentered().gram
    least = min(n_rows, n_columns)
    if not np.isfinite(gram).all():  # squares beyond single precision
        return SVDResult(n_rows, sums.x_mean, squares, np.full(least, np.nan), gram)
    # LAPACK computes more than a quarter of the eigenvectors as slowly as all.
    subset = [n_columns - n, n_columns - 1] if n and n < n_columns / 4 else None
    values, vectors = linalg.eigh(gram, subset_by_index=subset)
    values, vectors = values[::-1][:least], vectors[:, ::-1][:, :least]
    return SVDResult(n_rows, sums.x_mean, squares, np.sqrt(np.maximum(values, 0.0)), vectors.T)


def svd_from_factor(engine: Engine, rows: RowBlocks, *, centred: bool) -> SVDResult:
    """Return the SVD of the triangular factor of all rows (TSQR)."""
    factor = compute_row_factor(engine, replace(rows, dtype=FLOAT64))
    n_rows = int(factor.weight)
    reduced = factor.rows if centred else factor.uncentered().rows
    _, values, vectors = linalg.svd(reduced, full_matrices=False)
    max_rank = min(n_rows, rows.n_features)
    squares = float(np.sum(factor.rows**2))
    return SVDResult(n_rows, factor.x_mean, squares, values[:max_rank], vectors[:max_rank])


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
