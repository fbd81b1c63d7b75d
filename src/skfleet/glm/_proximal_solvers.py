"""Proximal Newton and accelerated proximal gradient solvers, for an L1 penalty."""

from __future__ import annotations

import logging

import numpy as np
from scipy import linalg

from skfleet.glm._coordinate_descent import Quadratic, elastic_net_path
from skfleet.glm._objective import Objective, ObjectiveValue
from skfleet.glm._penalties import Penalty
from skfleet.glm._smooth_solvers import EPS, MAX_HALVINGS, NullModel, Solution

logger = logging.getLogger("skfleet.glm")

# Coefficients in the Hessian of the working set; with more, proximal gradient takes over.
MAX_WORKING_SET = 1500
MIN_ADDED_COLUMNS = 100


def proximal_newton(
    objective: Objective,
    penalty: Penalty,
    start: np.ndarray,
    null: NullModel,
    *,
    tol: float,
    max_iter: int,
) -> Solution:
    """Minimise objective + penalty by proximal Newton steps (Lee, Sun and Saunders, 2014).

    A step minimises the penalty and the quadratic model of the objective by coordinate descent on
    the Hessian, without the rows. One evaluation gives the value, the gradient of all columns and
    the Hessian of those in use: the columns with coefficients other than 0, and those that violate
    the conditions of a minimum most (a working set; Friedman, Hastie and Tibshirani, 2010, section
    2.6). Stops when no condition is violated by more than `tol` times the largest violation of the
    null model. Where more columns are in use than a Hessian has room for, `proximal_gradient` goes
    on from there.
    """
    # Without a Hessian of all columns in use, the proximal gradient method solves it alone.
    coef, gradient_tol = start, None
    columns = _working_set(objective, coef, np.zeros(objective.n_features))
    current = None if columns is None else objective.evaluate(coef, hessian=True, columns=columns)
    # A start that is worse than the null model costs more steps than one further evaluation.
    null_value = null.value + penalty.value(null.coef)
    null_value += 1e-9 * abs(null_value)  # a margin for rounding
    if current is not None and current.value + penalty.value(coef) > null_value:
        coef, columns = null.coef, np.empty(0, dtype=np.intp)
        current = objective.evaluate(coef, hessian=True, columns=columns)
    for n_iter in range(max_iter):
        if current is None or columns is None:
            left = max_iter - n_iter
            return proximal_gradient(objective, penalty, coef, null, tol=tol, max_iter=left)
        violations = penalty.kkt_violation(coef, current.gradient + penalty.gradient(coef))
        if gradient_tol is None:
            gradient_tol = tol * null.kkt_violation(penalty, violations)
        value = current.value + penalty.value(coef)
        logger.debug("proximal_newton %d: value %.15g, %d columns", n_iter, value, len(columns))
        if violations.max(initial=0.0) <= gradient_tol:
            return Solution(coef, n_iter, True, "proximal_newton")
        # The step: the minimum of the quadratic model over the working set, without the rows.
        where = objective.coef_indices(columns)
        target = coef.copy()
        target[where] = _minimize_quadratic_model(current, penalty, coef, where)
        step = target - coef
        # The decrease that the model promises.
        slope = float((current.gradient + penalty.gradient(coef)) @ step)
        slope += float(penalty.l1 @ (np.abs(target) - np.abs(coef)))
        rounding = 8 * EPS * max(abs(value), np.finfo(np.float64).tiny)
        # The next working set, chosen before the line search, whose evaluations return its Hessian.
        outside = _violations_outside(violations, columns, objective, gradient_tol)
        columns = _working_set(objective, target, outside)
        if columns is None:
            current = None
            continue
        # A step that lowers the value enough (Armijo).
        step_size = 1.0
        for _ in range(MAX_HALVINGS):
            trial_coef = coef + step_size * step
            current = objective.evaluate(trial_coef, hessian=True, columns=columns)
            trial_value = current.value + penalty.value(trial_coef)
            if trial_value <= value + 1e-4 * step_size * slope + rounding:
                break
            step_size /= 2
        else:
            return Solution(coef, n_iter + 1, False, "proximal_newton")
        if -slope <= rounding and not outside.any():
            # Converged to rounding: neither the value nor the violations decrease any more.
            gradient = current.gradient + penalty.gradient(trial_coef)
            after = penalty.kkt_violation(trial_coef, gradient)
            if after.max(initial=0.0) > 0.5 * violations.max(initial=0.0):
                return Solution(coef, n_iter + 1, True, "proximal_newton")
        coef = trial_coef
    if current is None:
        return Solution(coef, max_iter, False, "proximal_newton")
    # The last step has not been tested.
    violations = penalty.kkt_violation(coef, current.gradient + penalty.gradient(coef))
    converged = bool(violations.max(initial=0.0) <= (gradient_tol or 0.0))
    return Solution(coef, max_iter, converged, "proximal_newton")


def _violations_outside(
    violations: np.ndarray, columns: np.ndarray, objective: Objective, gradient_tol: float
) -> np.ndarray:
    """Return the violation of each column outside the Hessian, 0 up to the tolerance."""
    size = objective.n_features + objective.fit_intercept
    each = violations.reshape(-1, size)[:, : objective.n_features].max(axis=0)
    each[columns] = 0.0
    return np.where(each > gradient_tol, each, 0.0)


def _working_set(
    objective: Objective, coef: np.ndarray, violations: np.ndarray
) -> np.ndarray | None:
    """Return the columns of the next Hessian: all if they fit; None if active ones do not."""
    size = objective.n_features + objective.fit_intercept
    max_columns = MAX_WORKING_SET // objective.loss.n_outputs
    if objective.n_features <= max_columns:
        return np.arange(objective.n_features)
    used: np.ndarray = np.asarray(coef.reshape(-1, size)[:, : objective.n_features].any(axis=0))
    n_used = int(used.sum())
    n_violating = int(np.count_nonzero(violations))
    if n_used > max_columns or (n_violating and n_used == max_columns):
        return None
    # At most doubled (or by 100), so that the Hessian does not outgrow the columns in use by far.
    n_added = min(max(MIN_ADDED_COLUMNS, n_used), max_columns - n_used, n_violating)
    if n_added:
        used[np.argpartition(-violations, n_added - 1)[:n_added]] = True
    return np.flatnonzero(used)


def _minimize_quadratic_model(
    current: ObjectiveValue, penalty: Penalty, coef: np.ndarray, where: np.ndarray
) -> np.ndarray:
    """Minimise the quadratic model of the objective, and the penalty, over some coefficients.

    Intercepts have no penalty and are eliminated. Coefficients are measured in the strength of
    their penalty, which is then the same for all.
    """
    assert current.hessian is not None
    current_coef, l1, l2 = coef[where], penalty.l1[where], penalty.l2[where]
    curve = current.hessian + np.diag(l2)
    slope = current.gradient[where] + penalty.gradient(coef)[where]
    free = l1 == 0
    bound = ~free
    back = np.zeros((free.sum(), bound.sum()))
    back_slope = np.zeros(free.sum())
    inner, inner_slope = curve[np.ix_(bound, bound)], slope[bound]
    if free.any():
        # Eliminate the free coefficients: their minimisers are linear in the others.
        inverse = linalg.pinvh(curve[np.ix_(free, free)])
        back = inverse @ curve[np.ix_(free, bound)]
        back_slope = inverse @ slope[free]
        inner = inner - curve[np.ix_(bound, free)] @ back
        inner_slope = inner_slope - back.T @ slope[free]
    best = current_coef.copy()
    if bound.any():
        unit = l1[bound]
        # The elimination has broken the symmetry by rounding.
        inner = (inner + inner.T) / 2
        problem = Quadratic(
            inner / np.outer(unit, unit), (inner @ current_coef[bound] - inner_slope) / unit, 0.0
        )
        point = elastic_net_path(
            problem, np.ones(1), 1.0, tol=1e-8, max_iter=1000, start=current_coef[bound] * unit
        )[0]
        best[bound] = point.coef / unit
    best[free] = current_coef[free] - back_slope - back @ (best[bound] - current_coef[bound])
    return best


def proximal_gradient(
    objective: Objective,
    penalty: Penalty,
    start: np.ndarray,
    null: NullModel,
    *,
    tol: float,
    max_iter: int,
) -> Solution:
    """Minimise objective + penalty by accelerated proximal gradient steps, without a Hessian.

    The method of Beck and Teboulle (2009); an iteration is one evaluation. The step starts long and
    is shortened where the gradient shows more curvature; the momentum restarts where it points
    uphill (O'Donoghue and Candès, 2015). Stops when no condition is violated by more than `tol`
    times the largest violation of the null model.
    """
    coef = trial_coef = start
    # The curvature along uncorrelated columns at unit deviation.
    momentum, bound = 1.0, objective.loss.hessian_bound
    previous: tuple[np.ndarray, np.ndarray] | None = None
    gradient_tol = None
    for n_iter in range(max_iter):
        result = objective.evaluate(trial_coef)
        gradient = result.gradient + penalty.gradient(trial_coef)
        violations = penalty.kkt_violation(trial_coef, gradient)
        if gradient_tol is None:
            gradient_tol = tol * null.kkt_violation(penalty, violations)
        logger.debug("proximal_gradient %d: loss %.15g", n_iter, result.value)
        if violations.max(initial=0.0) <= gradient_tol:
            return Solution(trial_coef, n_iter, True, "proximal_gradient")
        if previous is not None:
            moved = trial_coef - previous[0]
            square = float(moved @ moved)
            curve = float((gradient - previous[1]) @ moved) / square if square else 0.0
            if curve > bound * (1 + 1e-9):
                # Curvature above the bound: repeat the last step with a shorter one.
                bound = max(2 * bound, curve)
                momentum = 1.0
                coef = previous[0]
                trial_coef = penalty.prox(previous[0] - previous[1] / bound, 1 / bound)
                continue
        previous = (trial_coef, gradient)
        next_coef = penalty.prox(trial_coef - gradient / bound, 1 / bound)
        # The first factor is along the gradient: a move along it is uphill, so the momentum is
        # dropped.
        if float((trial_coef - next_coef) @ (next_coef - coef)) > 0:
            momentum = 1.0
        next_momentum = 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        trial_coef = next_coef + (momentum - 1) / next_momentum * (next_coef - coef)
        coef, momentum = next_coef, next_momentum
    return Solution(coef, max_iter, False, "proximal_gradient")
