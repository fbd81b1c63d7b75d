"""Elastic net on the normal equations, by coordinate descent with active-set refinement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import sklearn
from scipy import linalg
from sklearn.linear_model import enet_path

from skfleet._warnings import without_convergence_warnings
from skfleet.glm._dense_solvers import (
    equilibrate,
    rank_tolerance,
    rows_with_gram,
    solve_positive,
    solve_positive_rows,
    solve_ridge,
    solve_ridge_rows,
)


class Quadratic(NamedTuple):
    """The function c' gram c / 2 - xy' c + yy / 2 of coefficients c.

    It is half the squared error of least squares: `gram` has the products of columns, `xy` the
    products of columns and target, and `yy` is the sum of squares of the target.
    """

    gram: np.ndarray
    xy: np.ndarray
    yy: float

    def product(self, coef: np.ndarray) -> np.ndarray:
        """Return gram @ coef, from the rows of nonzero coefficients where these are few."""
        if coef.size <= SMALL_GRAM:
            return np.asarray(self.gram @ coef)
        active = np.flatnonzero(coef)
        # A copy of most rows of gram would cost more than the whole product.
        if 4 * active.size > coef.size:
            return np.asarray(self.gram @ coef)
        return np.asarray(coef[active] @ self.gram[active])

    def squares(self) -> np.ndarray:
        """Return the diagonal of gram."""
        return np.diag(self.gram)

    def submatrix(self, columns: np.ndarray) -> np.ndarray:
        """Return gram of some columns."""
        return self.gram[np.ix_(columns, columns)]

    def solve_smooth(self, l2: float, positive: bool, max_iter: int) -> tuple[np.ndarray, bool]:
        """Return the minimum with an L2 penalty, and whether it was reached."""
        if positive:
            coef, converged = solve_positive(self.gram, self.xy[:, None], l2, max_iter)
            return coef[0], converged
        return solve_ridge(self.gram, self.xy[:, None], l2)[0][0], True

    def descent_rows(self) -> DescentRows:
        """Return rows with these products; those of the rows where they differ by more than this.

        Coordinate descent needs products without negative squares.
        """
        design, target = rows_with_gram(*self)
        gram = design.T @ design
        scale = np.sqrt(np.diag(gram))
        close = np.all(np.abs(gram - self.gram) <= 1e-10 * np.outer(scale, scale))
        problem = self if close else self._replace(gram=gram)
        return DescentRows(problem, design, target, np.ascontiguousarray(problem.gram))


class RowQuadratic(NamedTuple):
    """The function |design @ c - target|^2 / 2 of coefficients c, of few rows.

    A stand-in for `Quadratic` that has no matrix of columns by columns.
    """

    design: np.ndarray
    target: np.ndarray

    @property
    def xy(self) -> np.ndarray:
        """The products of columns and target."""
        return np.asarray(self.target @ self.design)

    @property
    def yy(self) -> float:
        """The sum of squares of the target."""
        return float(self.target @ self.target)

    @property
    def gram(self) -> np.ndarray:
        """The products of columns."""
        return self.design.T @ self.design

    def product(self, coef: np.ndarray) -> np.ndarray:
        """Return gram @ coef."""
        return np.asarray((self.design @ coef) @ self.design)

    def squares(self) -> np.ndarray:
        """Return the diagonal of gram."""
        return np.einsum("ij,ij->j", self.design, self.design)

    def submatrix(self, columns: np.ndarray) -> np.ndarray:
        """Return gram of some columns."""
        chosen = self.design[:, columns]
        return chosen.T @ chosen

    def solve_smooth(self, l2: float, positive: bool, max_iter: int) -> tuple[np.ndarray, bool]:
        """Return the minimum with an L2 penalty, and whether it was reached."""
        if positive:
            rows = self.design, self.target[:, None]
            coef, converged = solve_positive_rows(*rows, l2, max_iter)
            return coef[0], converged
        return solve_ridge_rows(self.design, self.target[:, None], l2)[0][0], True

    def descent_rows(self) -> DescentRows:
        """Return the rows, with their products where these are fewer."""
        has_many = len(self.design) > self.design.shape[1]
        gram = np.ascontiguousarray(self.gram) if has_many else False
        return DescentRows(self, self.design, self.target, gram)


class DescentRows(NamedTuple):
    """A function, and rows that coordinate descent minimises it on, with their products or not."""

    problem: Quadratic | RowQuadratic
    design: np.ndarray
    target: np.ndarray
    gram: np.ndarray | bool


class PathPoint(NamedTuple):
    """A minimiser on a regularisation path, with its convergence.

    `dual_gap` bounds the distance of its value from the minimum, `n_iter` counts the sweeps, and
    `converged` is whether the tolerance was reached.
    """

    coef: np.ndarray
    dual_gap: float
    n_iter: int
    converged: bool


# Columns up to which looking for nonzero coefficients takes longer than the product with all.
SMALL_GRAM = 100
# Fraction of the tolerance for the active set, which costs little for a single minimum.
EXCESS = 1e-3
# Multiplications that a refinement may take, or as many as coordinate descent has taken.
MIN_REFINEMENT_WORK = 2e6


def elastic_net_path(
    problem: Quadratic | RowQuadratic,
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

    Return a point for every alpha, in their order. `start` are coefficients to begin with, and
    `positive` allows none below 0.

    Coordinate descent with screening (Friedman, Hastie and Tibshirani, 2010; scikit-learn's), on
    rows that have these products. It ends after `max_iter` sweeps for each alpha, or where the
    duality gap is at most `tol` times yy. From there the coefficients in use are solved for
    (feature-sign search, Lee et al., 2006), unless the optimality conditions hold to `excess` times
    `tol` of their violation at zero, for columns at unit deviation. That takes no more work than
    descent did, or little.
    """
    # From the largest alpha down: solutions start sparse, and each is a start for the next.
    order = np.argsort(-alphas, kind="stable")
    points: list[PathPoint | None] = [None] * len(alphas)
    smooth = alphas * l1_ratio == 0
    if not smooth.all():
        rows = problem.descent_rows()
        order = order[~smooth[order]]
        descend = partial(_descend, rows, l1_ratio=l1_ratio, positive=positive)
        path = descend(alphas[order], tol=tol, max_iter=max_iter, start=start)
        deviation = _deviation(rows.problem)
        for i, first in zip(order, path, strict=True):
            l1, l2 = alphas[i] * l1_ratio, alphas[i] * (1 - l1_ratio)
            penalty = _PenalizedQuadratic(rows.problem, deviation, l1, l2, positive)
            work = max(MIN_REFINEMENT_WORK, first.n_iter * rows.design.size)
            points[i] = _refine(first, penalty, tol, excess, work)
    # Without an L1 part the minimum has a closed form.
    for i in np.flatnonzero(smooth):
        penalty = _PenalizedQuadratic(problem, _deviation(problem), 0.0, alphas[i], positive)
        coef, converged = problem.solve_smooth(alphas[i], positive, max_iter)
        points[i] = PathPoint(coef, penalty.dual_gap(coef), 1, converged)
    return [point for point in points if point is not None]


def _refine(
    point: PathPoint, penalty: _PenalizedQuadratic, tol: float, excess: float, work: float
) -> PathPoint:
    """Return a point of coordinate descent nearer to the minimum, unless its sweeps are spent."""
    coef = point.coef
    if point.converged:
        gradient_tol = excess * tol * penalty.violation_at_zero() + penalty.rounding
        if penalty.kkt_violation(coef) > gradient_tol:
            coef = penalty.refine_active_set(coef, gradient_tol, work)
    return point._replace(coef=coef, dual_gap=penalty.dual_gap(coef))


def coordinate_descent(
    problem: Quadratic | RowQuadratic, candidates: Sequence[Mapping[str, Any]]
) -> list[PathPoint]:
    """Minimise from zero for each candidate, in the steps that scikit-learn takes.

    A candidate is a mapping with alpha, l1_ratio, tol, max_iter and positive. The steps are those
    that scikit-learn takes on rows with these products, to rounding, and as many; coefficients that
    it leaves before the optimum are left where it leaves them.
    """
    rows = problem.descent_rows()
    points = []
    for one in candidates:
        limits = {name: one[name] for name in ("l1_ratio", "tol", "max_iter", "positive")}
        points += _descend(rows, np.array([one["alpha"]], dtype=float), start=None, **limits)
    return points


def _descend(
    rows: DescentRows,
    alphas: np.ndarray,
    l1_ratio: float,
    tol: float,
    max_iter: int,
    positive: bool,
    start: np.ndarray | None,
) -> list[PathPoint]:
    """Run scikit-learn's coordinate descent on the products, from one alpha to the next."""
    problem, design, target, gram = rows
    # Without its checks, which would look at the products again for each alpha.
    design, target = np.asfortranarray(design), np.ascontiguousarray(target)
    unchecked = sklearn.config_context(skip_parameter_validation=True)
    with unchecked, without_convergence_warnings():  # judged by the caller
        _, coefs, gaps, n_iters = enet_path(
            design,
            target,
            l1_ratio=l1_ratio,
            # enet_path averages the squared error over the rows; here it is their sum.
            alphas=alphas / len(design),
            precompute=gram,
            Xy=np.ascontiguousarray(problem.xy),
            check_input=False,
            coef_init=None if start is None else start.copy(),
            positive=positive,
            return_n_iter=True,
            tol=tol,
            max_iter=max(max_iter, 1),
        )
    gaps, square = gaps * len(design), float(target @ target)
    # Nothing is below the rounding of the gap.
    converged = gaps <= max(tol, 10 * np.finfo(np.float64).eps) * square
    return [
        PathPoint(*point) for point in zip(coefs.T, gaps.tolist(), n_iters, converged, strict=True)
    ]


class _PenalizedQuadratic:
    """A quadratic with L1 and L2 penalties: KKT conditions, active-set solver, dual gap."""

    def __init__(
        self,
        problem: Quadratic | RowQuadratic,
        deviation: np.ndarray,
        l1: float,
        l2: float,
        positive: bool,
    ) -> None:
        self.problem, self.l1, self.l2, self.positive = problem, l1, l2, positive
        self.deviation = deviation
        self.scale = float(np.max(np.abs(problem.xy) / deviation, initial=0.0))
        self.rounding = 4 * np.finfo(np.float64).eps * self.scale

    def gradient(self, coef: np.ndarray) -> np.ndarray:
        """Return the gradient of the smooth part."""
        return self.problem.product(coef) - self.problem.xy + self.l2 * coef

    def _violations(self, coef: np.ndarray) -> np.ndarray:
        """Return the violation of each KKT condition, for columns at unit deviation."""
        gradient = self.gradient(coef)
        unused = np.maximum((-gradient if self.positive else np.abs(gradient)) - self.l1, 0.0)
        used = np.abs(gradient + self.l1 * np.sign(coef))
        return np.where(coef != 0, used, unused) / self.deviation

    def violation_at_zero(self) -> float:
        """Return the largest violation where all coefficients are zero."""
        slope = self.problem.xy if self.positive else np.abs(self.problem.xy)
        return float(np.max((slope - self.l1) / self.deviation, initial=0.0))

    def kkt_violation(self, coef: np.ndarray) -> float:
        return float(np.max(self._violations(coef), initial=0.0))

    def refine_active_set(self, coef: np.ndarray, gradient_tol: float, work: float) -> np.ndarray:
        """Solve for the active set, and add violating coefficients until none is left.

        At most 10 systems and two for each coefficient, and no more than `work` multiplications.
        """
        best, min_violation = coef, self.kkt_violation(coef)
        coef, systems_left = coef.copy(), 10 + 2 * len(coef)
        while systems_left > 0 and work > 0:
            coef, is_solved, n_systems, work = self._solve_active_set(coef, systems_left, work)
            systems_left -= n_systems
            violations = self._violations(coef)
            if violations.max(initial=0.0) < min_violation:
                best, min_violation = coef.copy(), float(violations.max())
            violations[coef != 0] = 0.0
            worst = int(np.argmax(violations))
            if not is_solved or violations[worst] <= gradient_tol:
                break
            # The smallest number of the right sign makes it active.
            coef[worst] = -np.sign(self.gradient(coef)[worst]) * np.finfo(np.float64).tiny
        return best

    def _solve_active_set(
        self, coef: np.ndarray, systems_left: int, work: float
    ) -> tuple[np.ndarray, bool, int, float]:
        """Solve for the active set with fixed signs; drop a coefficient where its sign changes.

        Return the coefficients, whether they are solved for, the systems that took, and the work
        that is left.
        """
        n_systems = 1
        while (active := np.flatnonzero(coef)).size:
            n_systems, work = n_systems + 1, work - len(active) ** 3 / 3
            if n_systems > systems_left or work < 0:
                return coef, False, n_systems, work
            signs = np.sign(coef[active])
            system = self.problem.submatrix(active) + self.l2 * np.eye(len(active))
            slope = self.gradient(coef)[active] + self.l1 * signs
            step, ends = _direction(system, slope)
            # How far each coefficient may go along the step before it changes its sign.
            shrinking = step * signs < 0
            fractions = np.where(shrinking, -coef[active] / np.where(shrinking, step, 1.0), np.inf)
            first = int(np.argmin(fractions))
            if fractions[first] >= 1 and (ends or fractions[first] == np.inf):
                coef[active] += step
                break
            coef[active] += fractions[first] * step
            coef[active[first]] = 0.0
        return coef, True, n_systems, work

    def dual_gap(self, coef: np.ndarray) -> float:
        """Return the duality gap (Kim et al., 2007, section III)."""
        problem, l1, l2 = self.problem, self.l1, self.l2
        product = problem.product(coef)
        residual = max(problem.yy - 2 * problem.xy @ coef + coef @ product, 0.0)
        slope = problem.xy - product - l2 * coef
        largest = float(np.max(slope if self.positive else np.abs(slope), initial=0.0))
        if l1 == 0:
            return 0.0
        # Shrinks the residual to a feasible point of the dual problem.
        scale = min(1.0, l1 / largest) if largest > 0 else 1.0
        gap = 0.5 * (1 + scale**2) * (residual + l2 * coef @ coef)
        gap += l1 * np.abs(coef).sum() - scale * (problem.yy - problem.xy @ coef)
        return float(max(gap, 0.0))


def _deviation(problem: Quadratic | RowQuadratic) -> np.ndarray:
    """Return the norms of columns, 1 for those without any."""
    deviation = np.sqrt(np.maximum(problem.squares(), 0.0))
    return np.where(deviation > 0, deviation, 1.0)


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
