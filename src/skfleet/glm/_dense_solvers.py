"""Solvers of the normal equations on the host: Cholesky, minimum norm, non-negative."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg, optimize


def solve_ridge(
    gram: np.ndarray, xy: np.ndarray, alpha: Any, *, tol: float = 0.0
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


def solve_positive(gram: np.ndarray, xy: np.ndarray, alpha: Any) -> np.ndarray:
    """Minimise the same over coefficients of at least 0 (Lawson and Hanson, 1974, chapter 23)."""
    coef = np.empty((xy.shape[1], len(gram)))
    for j, a in enumerate(np.broadcast_to(alpha, xy.shape[1])):
        # SciPy's solver takes rows; any with the same products have the same minimum.
        design, target = rows_with_gram(gram + a * np.eye(len(gram)), xy[:, j], 0.0)
        scale = np.sqrt(np.sum(design**2, axis=0))
        scale[scale == 0] = 1.0
        coef[j] = optimize.nnls(design / scale, target)[0] / scale
    return coef


def rows_with_gram(gram: np.ndarray, xy: np.ndarray, yy: float) -> tuple[np.ndarray, np.ndarray]:
    """Return n_features + 1 rows and targets with a given Gram matrix.

    Of sums that rounding made impossible, these are the products without their negative part.
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
    """Return a system scaled to unit diagonal, and the scale of its columns."""
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
