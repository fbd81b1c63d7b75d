"""Solvers of objectives with an L1 penalty; each evaluation is a pass over the rows."""

from __future__ import annotations

import logging

import numpy as np
from scipy import linalg

from skfleet.glm._coordinate_descent import Quadratic, elastic_net_path
from skfleet.glm._objective import Evaluation, Objective
from skfleet.glm._penalties import Penalty
from skfleet.glm._smooth_solvers import EPS, MAX_HALVINGS, Null, Solution

logger = logging.getLogger("skfleet.glm")

# The most coefficients in a Hessian of the columns in use; with more, steps are of first order.
WIDEST = 1500
# Columns that join those in use in one iteration, at least.
JOINING = 100


def proximal_newton(
    objective: Objective,
    penalty: Penalty,
    start: np.ndarray,
    null: Null,
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
    coef, wanted = start, None
    columns = _in_use(objective, coef, np.zeros(objective.n_features))
    now = None if columns is None else objective.evaluate(coef, hessian=True, columns=columns)
    if now is not None and now.value + penalty.value(coef) > _value_at(null, penalty):
        coef, columns = null.coef, np.empty(0, dtype=np.intp)
        now = objective.evaluate(coef, hessian=True, columns=columns)
    for n_iter in range(max_iter):
        if now is None or columns is None:
            left = max_iter - n_iter
            return proximal_gradient(objective, penalty, coef, null, tol=tol, max_iter=left)
        violations = penalty.violation(coef, now.gradient + penalty.gradient(coef))
        wanted = tol * null.violation(penalty, violations) if wanted is None else wanted
        value = now.value + penalty.value(coef)
        logger.debug("proximal_newton %d: value %.15g, %d columns", n_iter, value, len(columns))
        if violations.max(initial=0.0) <= wanted:
            return Solution(coef, n_iter, True, "proximal_newton")
        where = objective.of_columns(columns)
        target = coef.copy()
        target[where] = _model_minimum(now, penalty, coef, where)
        step = target - coef
        slope = float((now.gradient + penalty.gradient(coef)) @ step)
        slope += float(penalty.l1 @ (np.abs(target) - np.abs(coef)))
        rounding = 8 * EPS * max(abs(value), np.finfo(np.float64).tiny)
        outside = _outside(violations, columns, objective, wanted)
        columns = _in_use(objective, target, outside)
        if columns is None:
            now = None
            continue
        share = 1.0
        for _ in range(MAX_HALVINGS):
            place = coef + share * step
            now = objective.evaluate(place, hessian=True, columns=columns)
            if now.value + penalty.value(place) <= value + 1e-4 * share * slope + rounding:
                break
            share /= 2
        else:
            return Solution(coef, n_iter + 1, False, "proximal_newton")
        if -slope <= rounding and not outside.any():
            # No more can be had where the value cannot show a decrease, nor the violations one.
            after = penalty.violation(place, now.gradient + penalty.gradient(place)).max(
                initial=0.0
            )
            if after > 0.5 * violations.max(initial=0.0):
                return Solution(coef, n_iter + 1, True, "proximal_newton")
        coef = place
    if now is None:
        return Solution(coef, max_iter, False, "proximal_newton")
    violations = penalty.violation(coef, now.gradient + penalty.gradient(coef))
    return Solution(
        coef, max_iter, bool(violations.max(initial=0.0) <= (wanted or 0.0)), "proximal_newton"
    )


def _value_at(null: Null, penalty: Penalty) -> float:
    """Return the value of the null model, with room for rounding."""
    value = null.value + penalty.value(null.coef)
    return value + 1e-9 * abs(value)


def _outside(
    violations: np.ndarray, columns: np.ndarray, objective: Objective, wanted: float
) -> np.ndarray:
    """Return the violation of each column that the Hessian does not have, 0 for small ones."""
    size = objective.n_features + objective.fit_intercept
    each = violations.reshape(-1, size)[:, : objective.n_features].max(axis=0)
    each[columns] = 0.0
    return np.where(each > wanted, each, 0.0)


def _in_use(objective: Objective, coef: np.ndarray, violations: np.ndarray) -> np.ndarray | None:
    """Return the columns for the next Hessian: all if they fit; None if those in use do not."""
    size = objective.n_features + objective.fit_intercept
    room = WIDEST // objective.loss.n_outputs
    if objective.n_features <= room:
        return np.arange(objective.n_features)
    used: np.ndarray = np.asarray(coef.reshape(-1, size)[:, : objective.n_features].any(axis=0))
    n_used = int(used.sum())
    waiting = int(np.count_nonzero(violations))
    if n_used > room or (waiting and n_used == room):
        return None
    joining = min(max(JOINING, n_used), room - n_used, waiting)
    if joining:
        used[np.argpartition(-violations, joining - 1)[:joining]] = True
    return np.flatnonzero(used)


def _model_minimum(
    now: Evaluation,
    penalty: Penalty,
    coef: np.ndarray,
    where: np.ndarray,
) -> np.ndarray:
    """Minimise the quadratic model of the objective, and the penalty, over some coefficients.

    Intercepts have no penalty and are eliminated. Coefficients are measured in the strength of
    their penalty, which is then the same for all.
    """
    assert now.hessian is not None
    here, l1, l2 = coef[where], penalty.l1[where], penalty.l2[where]
    curve = now.hessian + np.diag(l2)
    slope = now.gradient[where] + penalty.gradient(coef)[where]
    free = l1 == 0
    bound = ~free
    back = np.zeros((free.sum(), bound.sum()))
    back_slope = np.zeros(free.sum())
    inner, inner_slope = curve[np.ix_(bound, bound)], slope[bound]
    if free.any():
        # The free coefficients follow the others: their best values are linear in them.
        inverse = linalg.pinvh(curve[np.ix_(free, free)])
        back = inverse @ curve[np.ix_(free, bound)]
        back_slope = inverse @ slope[free]
        inner = inner - curve[np.ix_(bound, free)] @ back
        inner_slope = inner_slope - back.T @ slope[free]
    best = here.copy()
    if bound.any():
        unit = l1[bound]
        inner = (inner + inner.T) / 2
        problem = Quadratic(
            inner / np.outer(unit, unit), (inner @ here[bound] - inner_slope) / unit, 0.0
        )
        point = elastic_net_path(
            problem,
            np.ones(1),
            1.0,
            tol=1e-8,
            max_iter=1000,
            start=here[bound] * unit,
        )[0]
        best[bound] = point.coef / unit
    best[free] = here[free] - back_slope - back @ (best[bound] - here[bound])
    return best


def proximal_gradient(
    objective: Objective,
    penalty: Penalty,
    start: np.ndarray,
    null: Null,
    *,
    tol: float,
    max_iter: int,
) -> Solution:
    """Minimise objective + penalty by accelerated proximal gradient steps.

    The method of Beck and Teboulle (2009); an iteration is one evaluation. The step starts long and
    is shortened where the gradient shows more curvature; the momentum starts anew where it points
    uphill (O'Donoghue and Candès, 2015). Stops when no condition is violated by more than `tol`
    times the largest violation of the null model.
    """
    coef = place = start
    # Columns at unit deviation curve no more than this if none is like another.
    momentum, bound = 1.0, objective.loss.curve_bound
    last: tuple[np.ndarray, np.ndarray] | None = None
    wanted = None
    for n_iter in range(max_iter):
        found = objective.evaluate(place)
        gradient = found.gradient + penalty.gradient(place)
        violations = penalty.violation(place, gradient)
        wanted = tol * null.violation(penalty, violations) if wanted is None else wanted
        logger.debug("proximal_gradient %d: loss %.15g", n_iter, found.value)
        if violations.max(initial=0.0) <= wanted:
            return Solution(place, n_iter, True, "proximal_gradient")
        if last is not None:
            moved = place - last[0]
            square = float(moved @ moved)
            curve = float((gradient - last[1]) @ moved) / square if square else 0.0
            if curve > bound * (1 + 1e-9):
                # More curved than thought: from the last place again, with shorter steps.
                bound = max(2 * bound, curve)
                momentum = 1.0
                coef = last[0]
                place = penalty.prox(last[0] - last[1] / bound, 1 / bound)
                continue
        last = (place, gradient)
        reached = penalty.prox(place - gradient / bound, 1 / bound)
        if float((place - reached) @ (reached - coef)) > 0:
            momentum = 1.0
        following = 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        place = reached + (momentum - 1) / following * (reached - coef)
        coef, momentum = reached, following
    return Solution(coef, max_iter, False, "proximal_gradient")
