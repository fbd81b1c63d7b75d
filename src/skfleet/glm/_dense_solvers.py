"""Least squares on the host, from products or few rows: direct, minimum norm, non-negative."""

from __future__ import annotations

import numpy as np
from scipy import linalg, optimize


def solve_ridge(
    gram: np.ndarray, xy: np.ndarray, alpha: float | np.ndarray, *, tol: float = 0.0
) -> tuple[np.ndarray, str, int]:
    """Solve (gram + alpha I) coef = xy; return coef by target, solver and rank.

    `alpha` is one number, or one per target. Directions shorter than `tol` times the longest, with
    columns of gram at unit length, count for nothing; so do those lost in rounding. The solution is
    the shortest one where some are.
    """
    coef = np.empty((xy.shape[1], len(gram)))
    solver, rank = "cholesky", len(gram)
    alphas = np.broadcast_to(alpha, xy.shape[1])
    # One factorisation serves all targets of the same penalty.
    for a in np.unique(alphas):
        is_target = alphas == a
        system = gram + a * np.eye(len(gram))
        solution = _cholesky(system, xy[:, is_target], tol)
        if solution is None:
            solution, effective_rank = _minimum_norm(system, xy[:, is_target], tol)
            solver, rank = "eigen", min(rank, effective_rank)
        coef[is_target] = solution.T
    return coef, solver, rank


def solve_positive(
    gram: np.ndarray, xy: np.ndarray, alpha: float | np.ndarray, max_iter: int | None = None
) -> tuple[np.ndarray, bool]:
    """Solve as `solve_ridge` does, over coefficients of at least 0.

    Return coef by target, and whether the solver converged.
    """
    # SciPy's solver takes rows; any with the same products have the same minimum.
    alphas = np.broadcast_to(alpha, xy.shape[1])
    systems = (
        rows_with_gram(gram + a * np.eye(len(gram)), xy[:, j], 0.0) for j, a in enumerate(alphas)
    )
    parts = [_nonnegative(design, target, max_iter) for design, target in systems]
    return np.stack([coef for coef, _ in parts]), all(converged for _, converged in parts)


def _nonnegative(
    design: np.ndarray, target: np.ndarray, max_iter: int | None
) -> tuple[np.ndarray, bool]:
    """Minimise over coefficients of at least 0 (Lawson and Hanson, 1974, chapter 23)."""
    scale = _lengths(design)
    try:
        return optimize.nnls(design / scale, target, maxiter=max_iter)[0] / scale, True
    except RuntimeError:
        # nnls has no result short of the minimum; this one has the best of its iterations.
        limits = (0.0, np.inf)
        result = optimize.lsq_linear(design / scale, target, limits, max_iter=max_iter)
        return np.maximum(result.x, 0.0) / scale, bool(result.success)


def solve_ridge_rows(
    design: np.ndarray, target: np.ndarray, alpha: float | np.ndarray, *, tol: float = 0.0
) -> tuple[np.ndarray, str, int]:
    """Solve the same for rows, whose products would have lost digits, by their SVD."""
    n_features, n_targets = design.shape[1], target.shape[1]
    coef, rank = np.empty((n_targets, n_features)), n_features
    alphas = np.broadcast_to(alpha, n_targets)
    for a in np.unique(alphas):
        is_target = alphas == a
        if a == 0:
            solution, rank = _shortest(design, target[:, is_target], tol)
        elif len(design) < n_features:
            # Few rows: no matrix of the size of the products.
            left, values, right = linalg.svd(design, full_matrices=False)
            factors = (values / (values**2 + a))[:, None]
            solution = right.T @ (factors * (left.T @ target[:, is_target]))
        else:
            rows, targets = _with_penalty(design, target[:, is_target], a)
            scale = _lengths(rows)
            solution = linalg.lstsq(rows / scale, targets)[0] / scale[:, None]
        coef[is_target] = solution.T
    return coef, "svd", rank


def solve_positive_rows(
    design: np.ndarray, target: np.ndarray, alpha: float | np.ndarray, max_iter: int | None = None
) -> tuple[np.ndarray, bool]:
    """Minimise the same over coefficients of at least 0; return coef by target, and convergence."""
    alphas = np.broadcast_to(alpha, target.shape[1])
    parts = []
    for j, a in enumerate(alphas):
        rows, targets = _with_penalty(design, target[:, [j]], a)
        parts.append(_nonnegative(rows, targets[:, 0], max_iter))
    return np.stack([coef for coef, _ in parts]), all(converged for _, converged in parts)


def _with_penalty(
    design: np.ndarray, target: np.ndarray, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows whose sum of squares has an L2 penalty too."""
    if alpha == 0:
        return design, target
    n = design.shape[1]
    rows = np.vstack([design, np.sqrt(alpha) * np.eye(n)])
    return rows, np.vstack([target, np.zeros((n, target.shape[1]))])


def _lengths(rows: np.ndarray) -> np.ndarray:
    """Return the lengths of columns as divisors, 1 for columns of zeros."""
    # Squares of the smallest and largest numbers are neither.
    largest = np.max(np.abs(rows), axis=0, initial=0.0)
    largest[largest == 0] = 1.0
    return np.asarray(largest * np.maximum(np.linalg.norm(rows / largest, axis=0), 1.0))


def _shortest(design: np.ndarray, target: np.ndarray, tol: float) -> tuple[np.ndarray, int]:
    """Return the minimum-norm solution of least squares, and the rank of columns at unit length."""
    scale = _lengths(design)
    left, values, right = linalg.svd(design / scale, full_matrices=False)
    smallest = max(tol, max(design.shape) * np.finfo(np.float64).eps)
    rank = int(np.sum(values > smallest * values[0])) if values.size else 0
    left, values, right = left[:, :rank], values[:rank, None], right[:rank]

    def solve(residual: np.ndarray) -> np.ndarray:
        return np.asarray(right.T @ ((left.T @ residual) / values) / scale[:, None])

    solution = solve(target)
    if rank < design.shape[1]:
        # The minimum-norm solution is a combination of the rows.
        basis, _ = linalg.qr(scale[:, None] * right.T, mode="economic")
        solution = basis @ (basis.T @ solution)
        solution = solution + solve(target - design @ solution)
    return solution, rank


def rows_with_gram(gram: np.ndarray, xy: np.ndarray, yy: float) -> tuple[np.ndarray, np.ndarray]:
    """Return n_features + 1 rows, and as many targets, with given products.

    `gram` are the products of columns, `xy` those of columns and targets, and `yy` is the sum of
    squares of the targets. Where no rows have such products, because of rounding, the rows have
    the products without their negative part.
    """
    unit, scale = equilibrate(gram)
    smallest = rank_tolerance(len(gram))
    try:
        root = linalg.cholesky(unit)
        # A pivot of this size is rounding, and the factor arbitrary in its direction.
        if np.diag(root).min() ** 2 < smallest:
            raise linalg.LinAlgError
        target = linalg.solve_triangular(root, xy / scale, trans="T")
    except linalg.LinAlgError:
        values, vectors = linalg.eigh(unit)
        long = np.sqrt(np.maximum(values, 0.0))
        root = long[:, None] * vectors.T
        mask = values > smallest * values[-1]
        target = np.zeros(len(gram))
        target[mask] = (vectors[:, mask].T @ (xy / scale)) / long[mask]
    residual = np.sqrt(max(yy - target @ target, 0.0))
    # One more row takes the part of the targets that no coefficients explain.
    design = np.vstack([root * scale, np.zeros(len(gram))])
    return np.asfortranarray(design), np.append(target, residual)


def equilibrate(system: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a symmetric system scaled to unit diagonal, and the scale of its columns.

    The system is the first result times the outer product of the scale with itself. Columns with
    0 or less on the diagonal have scale 1.
    """
    scale = np.sqrt(np.maximum(np.diag(system), 0.0))
    scale[scale == 0] = 1.0
    return system / np.outer(scale, scale), scale


def rank_tolerance(n: int, tol: float = 0.0) -> float:
    """Return the relative eigenvalue below which a direction has rank 0."""
    return max(10 * n * np.finfo(np.float64).eps, tol**2)


def _cholesky(system: np.ndarray, xy: np.ndarray, tol: float) -> np.ndarray | None:
    """Solve by a Cholesky factorisation; None if the system is singular."""
    unit, scale = equilibrate(system)
    try:
        root = linalg.cho_factor(unit, lower=True)
    except linalg.LinAlgError:
        return None
    if np.diag(root[0]).min() ** 2 < rank_tolerance(len(system), tol):
        return None
    return linalg.cho_solve(root, xy / scale[:, None]) / scale[:, None]


def _minimum_norm(system: np.ndarray, xy: np.ndarray, tol: float) -> tuple[np.ndarray, int]:
    """Return the minimum-norm solution of a singular system, and its rank."""
    unit, scale = equilibrate(system)
    values, vectors = linalg.eigh(unit)
    mask = values > rank_tolerance(len(system), tol) * max(values[-1], 0.0)
    basis = vectors[:, mask]
    solution = basis @ ((basis.T @ (xy / scale[:, None])) / values[mask, None]) / scale[:, None]
    if not mask.all():
        # The minimum-norm solution is orthogonal to the null space.
        free, _ = linalg.qr(vectors[:, ~mask] / scale[:, None], mode="economic")
        solution = solution - free @ (free.T @ solution)
    return solution, int(mask.sum())
