"""Elastic net on the normal equations, by coordinate descent with active-set refinement."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import enet_path

from skfleet.glm._dense_solvers import (
    equilibrate,
    rank_tolerance,
    rows_with_gram,
    solve_positive,
    solve_ridge,
)


class Quadratic(NamedTuple):
    """The function c' gram c / 2 - xy' c + yy / 2 of coefficients c."""

    gram: np.ndarray
    xy: np.ndarray
    yy: float


class PathPoint(NamedTuple):
    """A minimiser on a regularisation path, with its convergence."""

    coef: np.ndarray
    dual_gap: float
    n_iter: int
    converged: bool


# Fraction of the tolerance for the active set, which costs little for a single minimum.
EXCESS = 1e-3
# Each refinement divides the tolerance of coordinate descent by 100.
MAX_REFINEMENTS = 4


def elastic_net_path(
    problem: Quadratic,
    alphas: np.ndarray,
    l1_ratio: float,
    *,
    tol: float,
    max_iter: int,
    positive: bool = False,
    start: np.ndarray | None = None,
    excess: float = EXCESS,
) -> list[PathPoint]:
    """Minimise problem + alpha (l1_ratio |c|_1 + (1 - l1_ratio) / 2 |c|_2^2) for every alpha.

    Coordinate descent with screening (Friedman, Hastie and Tibshirani, 2010; scikit-learn's), on
    rows that have these products. Its tolerance bounds the duality gap; where the optimality
    conditions do not hold to `excess` times `tol` of their violation at zero, for columns at unit
    deviation, the coefficients in use are solved for (feature-sign search, Lee et al., 2006).
    """
    # From the largest alpha down: solutions start sparse, and each is a start for the next.
    order = np.argsort(-alphas, kind="stable")
    points: list[PathPoint | None] = [None] * len(alphas)
    smooth = alphas * l1_ratio == 0
    n = len(problem.xy)
    if not smooth.all():
        rows = rows_with_gram(*problem)
        problem = _positive_semidefinite(problem, rows[0])
        order = order[~smooth[order]]
        descend = partial(_descend, problem, rows, l1_ratio=l1_ratio, positive=positive)
        coefs, n_iters = descend(alphas[order], tol=tol, max_iter=max_iter, start=start)
        for i, coef, n_iter in zip(order, coefs, n_iters, strict=True):
            l1, l2 = alphas[i] * l1_ratio, alphas[i] * (1 - l1_ratio)
            penalty = _PenalizedQuadratic(problem, l1, l2, positive)
            at_zero = penalty.kkt_violation(np.zeros(n))
            gradient_tol = excess * tol * at_zero + penalty.rounding
            tighter_tol = tol
            for _ in range(MAX_REFINEMENTS):
                if penalty.kkt_violation(coef) > gradient_tol:
                    coef = penalty.refine_active_set(coef, gradient_tol)
                if n_iter >= max_iter or penalty.kkt_violation(coef) <= tol * at_zero:
                    break
                tighter_tol /= 100
                left = max_iter - n_iter
                again, more = descend(alphas[[i]], tol=tighter_tol, max_iter=left, start=coef)
                coef, n_iter = again[0], n_iter + more[0]
            converged = penalty.kkt_violation(coef) <= tol * at_zero + 10 * penalty.rounding
            points[i] = PathPoint(coef, penalty.dual_gap(coef), n_iter, bool(converged))
    # Without an L1 part the minimum has a closed form.
    for i in np.flatnonzero(smooth):
        penalty = _PenalizedQuadratic(problem, 0.0, alphas[i], positive)
        system = (problem.gram, problem.xy[:, None], alphas[i])
        coef = (solve_positive(*system) if positive else solve_ridge(*system)[0])[0]
        points[i] = PathPoint(coef, penalty.dual_gap(coef), 1, True)
    return [point for point in points if point is not None]


def coordinate_descent(
    problem: Quadratic, candidates: Sequence[Mapping[str, Any]]
) -> list[PathPoint]:
    """Minimise as scikit-learn does from zero, with the alpha, l1_ratio, ... of each candidate.

    The steps are those that it takes on rows with these products, and as many, to rounding; so
    coefficients that it leaves before the optimum are left where it leaves them.
    """
    rows = rows_with_gram(*problem)
    problem = _positive_semidefinite(problem, rows[0])
    points = []
    for one in candidates:
        limits = {name: one[name] for name in ("l1_ratio", "tol", "max_iter", "positive")}
        alphas = np.array([one["alpha"]], dtype=float)
        coefs, n_iters = _descend(problem, rows, alphas, start=None, **limits)
        points.append(PathPoint(coefs[0], np.nan, n_iters[0], n_iters[0] < one["max_iter"]))
    return points


def _positive_semidefinite(problem: Quadratic, design: np.ndarray) -> Quadratic:
    """Return the problem of some rows where it differs by more than rounding."""
    gram = design.T @ design
    scale = np.sqrt(np.diag(gram))
    close = np.all(np.abs(gram - problem.gram) <= 1e-10 * np.outer(scale, scale))
    return problem if close else problem._replace(gram=gram)


def _descend(
    problem: Quadratic,
    rows: tuple[np.ndarray, np.ndarray],
    alphas: np.ndarray,
    l1_ratio: float,
    tol: float,
    max_iter: int,
    positive: bool,
    start: np.ndarray | None,
) -> tuple[list[np.ndarray], list[int]]:
    """Run scikit-learn's coordinate descent on the products, from one alpha to the next."""
    design, target = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # judged by the caller
        _, coefs, _, n_iters = enet_path(
            design,
            target,
            l1_ratio=l1_ratio,
            # enet_path averages the squared error over the rows; here it is their sum.
            alphas=alphas / len(design),
            precompute=np.ascontiguousarray(problem.gram),
            Xy=problem.xy,
            coef_init=start,
            positive=positive,
            return_n_iter=True,
            tol=tol,
            max_iter=max(max_iter, 1),
        )
    return list(coefs.T), list(n_iters)


class _PenalizedQuadratic:
    """A quadratic with L1 and L2 penalties: KKT conditions, active-set solver, dual gap."""

    def __init__(self, problem: Quadratic, l1: float, l2: float, positive: bool) -> None:
        self.problem, self.l1, self.l2, self.positive = problem, l1, l2, positive
        deviation = np.sqrt(np.maximum(np.diag(problem.gram), 0.0))
        self.deviation = np.where(deviation > 0, deviation, 1.0)
        self.scale = float(np.max(np.abs(problem.xy) / self.deviation, initial=0.0))
        self.rounding = 4 * np.finfo(np.float64).eps * self.scale

    def gradient(self, coef: np.ndarray) -> np.ndarray:
        """Return the gradient of the smooth part."""
        return self._product(coef) - self.problem.xy + self.l2 * coef

    def _product(self, coef: np.ndarray) -> np.ndarray:
        """Return gram @ coef, from the rows of nonzero coefficients where these are few."""
        active = np.flatnonzero(coef)
        # A copy of most rows of gram would cost more than the whole product.
        if 4 * active.size > coef.size:
            return np.asarray(self.problem.gram @ coef)
        return np.asarray(coef[active] @ self.problem.gram[active])

    def _violations(self, coef: np.ndarray) -> np.ndarray:
        """Return the violation of each KKT condition, for columns at unit deviation."""
        gradient = self.gradient(coef)
        unused = np.maximum((-gradient if self.positive else np.abs(gradient)) - self.l1, 0.0)
        used = np.abs(gradient + self.l1 * np.sign(coef))
        return np.where(coef != 0, used, unused) / self.deviation

    def kkt_violation(self, coef: np.ndarray) -> float:
        return float(np.max(self._violations(coef), initial=0.0))

    def refine_active_set(self, coef: np.ndarray, gradient_tol: float) -> np.ndarray:
        """Solve for the active set, and add violating coefficients until none is left."""
        best, min_violation = coef, self.kkt_violation(coef)
        coef = coef.copy()
        for _ in range(10 + 2 * len(coef)):
            coef = self._solve_active_set(coef)
            violations = self._violations(coef)
            if violations.max(initial=0.0) < min_violation:
                best, min_violation = coef.copy(), float(violations.max())
            violations[coef != 0] = 0.0
            worst = int(np.argmax(violations))
            if violations[worst] <= gradient_tol:
                break
            # The smallest number of the right sign makes it active.
            coef[worst] = -np.sign(self.gradient(coef)[worst]) * np.finfo(np.float64).tiny
        return best

    def _solve_active_set(self, coef: np.ndarray) -> np.ndarray:
        """Solve for the active set with fixed signs; drop a coefficient where its sign changes."""
        while (active := np.flatnonzero(coef)).size:
            signs = np.sign(coef[active])
            system = self.problem.gram[np.ix_(active, active)] + self.l2 * np.eye(len(active))
            slope = self.gradient(coef)[active] + self.l1 * signs
            step, ends = _direction(system, slope)
            # How far each coefficient may go along the step before it changes its sign.
            shrinking = step * signs < 0
            shares = np.where(shrinking, -coef[active] / np.where(shrinking, step, 1.0), np.inf)
            first = int(np.argmin(shares))
            if shares[first] >= 1 and (ends or shares[first] == np.inf):
                coef[active] += step
                return coef
            coef[active] += shares[first] * step
            coef[active[first]] = 0.0
        return coef

    def dual_gap(self, coef: np.ndarray) -> float:
        """Return the duality gap (Kim et al., 2007, section III)."""
        problem, l1, l2 = self.problem, self.l1, self.l2
        product = self._product(coef)
        residual = max(problem.yy - 2 * problem.xy @ coef + coef @ product, 0.0)
        slope = -self.gradient(coef)
        largest = float(np.max(slope if self.positive else np.abs(slope), initial=0.0))
        if l1 == 0:
            return 0.0
        # Shrinks the residual to a feasible point of the dual problem.
        share = min(1.0, l1 / largest) if largest > 0 else 1.0
        gap = 0.5 * (1 + share**2) * (residual + l2 * coef @ coef)
        gap += l1 * np.abs(coef).sum() - share * (problem.yy - problem.xy @ coef)
        return float(max(gap, 0.0))


def _direction(system: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return a descent step, and whether it ends in the minimum: system @ step = -slope.

    Where the system is singular and the slope has a part along which nothing curves, that part is
    the direction: only the change of a sign ends it.
    """
    unit, scale = equilibrate(system)
    slope, smallest = slope / scale, rank_tolerance(len(unit))
    with suppress(linalg.LinAlgError):
        root = linalg.cho_factor(unit, lower=True)
        if np.diag(root[0]).min() ** 2 > smallest:
            return -linalg.cho_solve(root, slope) / scale, True
    values, vectors = linalg.eigh(unit)
    flat = vectors[:, values <= smallest * values[-1]]
    along = flat @ (flat.T @ slope)
    if np.abs(along).max() > 1e-9 * np.abs(slope).max():
        return -along / scale, False
    bent = values > smallest * values[-1]
    curved = vectors[:, bent]
    return -(curved @ ((curved.T @ slope) / values[bent])) / scale, True
