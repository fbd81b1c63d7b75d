"""Small dense systems that least squares end in, on the host, whatever their scale and rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg, optimize


def solve_ridge(
    gram: np.ndarray, xy: np.ndarray, alpha: Any, *, tol: float = 0.0
) -> tuple[np.ndarray, str, int]:
    """Solve (gram + alpha I) coef = xy; return coef by target, how, and the system's rank.

    `alpha` is one number, or one per target. Directions shorter than `tol` times the longest, with
    columns of gram at unit length, count for nothing; so do those lost in rounding. The solution is
    the shortest one where some are.
    """
    coef = np.empty((xy.shape[1], len(gram)))
    how, rank = "cholesky", len(gram)
    alphas = np.broadcast_to(alpha, xy.shape[1])
    for a in np.unique(alphas):
        of_a = alphas == a
        system = gram + a * np.eye(len(gram))
        solution = _cholesky(system, xy[:, of_a], tol)
        if solution is None:
            solution, kept = _shortest(system, xy[:, of_a], tol)
            how, rank = "eigen", min(rank, kept)
        coef[of_a] = solution.T
    return coef, how, rank


def solve_positive(gram: np.ndarray, xy: np.ndarray, alpha: Any) -> np.ndarray:
    """Minimise the same over coefficients of at least 0 (Lawson and Hanson, 1974, chapter 23)."""
    alphas = np.broadcast_to(alpha, xy.shape[1])
    coef = np.empty((xy.shape[1], len(gram)))
    for j, a in enumerate(alphas):
        design, target = equivalent_rows(gram + a * np.eye(len(gram)), xy[:, j], 0.0)
        scale = np.sqrt(np.sum(design**2, axis=0))
        scale[scale == 0] = 1.0
        coef[j] = optimize.nnls(design / scale, target)[0] / scale
    return coef


def equivalent_rows(gram: np.ndarray, xy: np.ndarray, yy: float) -> tuple[np.ndarray, np.ndarray]:
    """Return n_features + 1 rows and targets with these sums of products.

    Of sums that rounding made impossible, these are the products without their negative part.
    """
    unit, scale = to_unit(gram)
    smallest = least_share(len(gram))
    try:
        root = linalg.cholesky(unit)
        if np.diag(root).min() ** 2 < smallest:
            raise linalg.LinAlgError
        target = linalg.solve_triangular(root, xy / scale, trans="T")
    except linalg.LinAlgError:
        values, vectors = linalg.eigh(unit)
        long = np.sqrt(np.maximum(values, 0.0))
        root = long[:, None] * vectors.T
        keep = values > smallest * values[-1]
        target = np.zeros(len(gram))
        target[keep] = (vectors[:, keep].T @ (xy / scale)) / long[keep]
    rest = np.sqrt(max(yy - target @ target, 0.0))
    design = np.vstack([root * scale, np.zeros(len(gram))])
    return np.asfortranarray(design), np.append(target, rest)


def to_unit(system: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a system with columns at unit length, and what they were divided by."""
    scale = np.sqrt(np.maximum(np.diag(system), 0.0))
    scale[scale == 0] = 1.0
    return system / np.outer(scale, scale), scale


def least_share(n: int, tol: float = 0.0) -> float:
    """Return the share of the largest eigenvalue below which one counts for nothing."""
    return max(10 * n * np.finfo(np.float64).eps, tol**2)


def _cholesky(system: np.ndarray, xy: np.ndarray, tol: float) -> np.ndarray | None:
    """Solve by a Cholesky factorisation; None if the system is singular."""
    unit, scale = to_unit(system)
    try:
        root = linalg.cho_factor(unit, lower=True)
    except linalg.LinAlgError:
        return None
    if np.diag(root[0]).min() ** 2 < least_share(len(system), tol):
        return None
    return linalg.cho_solve(root, xy / scale[:, None]) / scale[:, None]


def _shortest(system: np.ndarray, xy: np.ndarray, tol: float) -> tuple[np.ndarray, int]:
    """Return the shortest solution of a singular system, for columns as they are, and the rank."""
    unit, scale = to_unit(system)
    values, vectors = linalg.eigh(unit)
    keep = values > least_share(len(system), tol) * max(values[-1], 0.0)
    along = vectors[:, keep]
    solution = along @ ((along.T @ (xy / scale[:, None])) / values[keep, None]) / scale[:, None]
    if not keep.all():
        # Nothing changes along these directions; the shortest solution has no part in them.
        free, _ = linalg.qr(vectors[:, ~keep] / scale[:, None], mode="economic")
        solution = solution - free @ (free.T @ solution)
    return solution, int(keep.sum())
